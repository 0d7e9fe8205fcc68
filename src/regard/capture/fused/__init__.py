"""The second pass as two fused kernels, on CUDA and only on request.

`refuses` returns why they do not support a call with the requested statistics; `portions` processes a call with them;
`observe` is the pass over q and k. Tested under Triton's interpreter on a CPU and compiled for sm_90; not run on a
GPU.
"""

from regard.capture.fused.dispatch import portions, refuses
from regard.capture.fused.sweep import Band, Found, observe

__all__ = ["Band", "Found", "observe", "portions", "refuses"]
