"""Whether this machine has the memory for a run, checked before anything is made."""

import os
import sys
from contextlib import suppress
from pathlib import Path

from regard.errors import InputError
from regard.train.config import Config

__all__ = ["check_size", "least_parameters", "memory"]

_GIB = 2**30
_WEIGHT, _TRAINED = 4, 16  # bytes of a parameter in float32: without and with its gradient and AdamW's two moments


def check_size(config: Config, *, on_cpu: bool) -> None:
    """Refuse a model or made-up data that this machine cannot hold.

    What is counted is the least that is needed, so that nothing is refused that could run: matrices and known
    vocabularies, no biases, norms and activations.

    Raises:
        InputError: It needs more memory than there is.
    """
    if (there := memory()) is None:
        return
    parameters = least_parameters(config)
    if (needed := parameters * (_TRAINED if on_cpu else _WEIGHT)) > there:
        what = "weights, gradients and AdamW's moments" if on_cpu else "weights"
        raise InputError(
            f"the model has at least {parameters:,} parameters, whose {what} take {_gib(needed)}, and this machine has "
            f"{_gib(there)}: lower {config.model.smaller} under [model]"
            + (", or `num_symbols` under [task]" if config.task.least_symbols() else "")
        )
    config.task.check_memory(there)


def least_parameters(config: Config) -> int:
    """Return the least number of parameters of the model; 0 for a checkpoint, whose files give it."""
    return config.model.least_parameters(len(config.task.sides), config.task.least_symbols())


def memory() -> int | None:
    """Return the bytes of memory that a process can have: the machine's, a container's limit, or that of `ulimit`."""
    found = []
    with suppress(OSError, ValueError, AttributeError):  # Windows has no sysconf
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # "max" is no limit
            found.append(int(Path(name).read_text("utf-8")))
    if sys.platform != "win32":
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        found += [] if limit == resource.RLIM_INFINITY else [limit]
    return min(found, default=None)


def _gib(count: int) -> str:
    return f"{count / _GIB:,.1f} GiB"
