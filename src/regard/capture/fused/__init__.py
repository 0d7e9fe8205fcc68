"""The second pass as two fused kernels, on CUDA and only where it is asked for.

`refuses` says whether they can serve a call and the statistics asked for; `portions` folds a call with them; `observe`
is the pass itself over q and k. Tested under Triton's interpreter on a CPU and compiled for sm_90 there; it has not
been run on a GPU.
"""

from regard.capture.fused.dispatch import portions, refuses
from regard.capture.fused.sweep import Band, Found, observe

__all__ = ["Band", "Found", "observe", "portions", "refuses"]
