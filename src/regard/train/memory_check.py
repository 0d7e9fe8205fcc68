"""Check from its configuration whether a run fits into the memory of this machine, before it starts.

What is counted is the least that is needed, so that nothing is refused that could run: matrices and known vocabularies,
no biases, norms and activations.
"""

import os
import sys
from contextlib import suppress
from pathlib import Path

from regard.errors import InputError
from regard.train.config import Checkpoint, Config, Model, Recurrent, Synthetic, Translation

__all__ = ["check_size", "least_parameters", "memory"]

_GIB = 2**30
_WEIGHT, _TRAINED = 4, 16  # bytes of a parameter in float32: without and with its gradient and AdamW's two moments
_SYMBOL, _EXAMPLE = 24, 200  # bytes of a symbol, drawn as int64 and in two lists, and of the lists of an example


def check_size(config: Config, *, on_cpu: bool) -> None:
    """Refuse a model or made-up data that this machine cannot hold.

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
            f"{_gib(there)}: lower {_names(config.model)} under [model]"
            + (", or `num_symbols` under [task]" if isinstance(config.task, Synthetic) else "")
        )
    task = config.task
    if isinstance(task, Synthetic):
        each = (
            _EXAMPLE + task.max_length * _SYMBOL + (task.num_symbols * 6 if task.task_name == "recall" else 0)
        )  # an order of all keys
        if (needed := (task.num_examples + task.validation_size) * each) > there:
            raise InputError(
                f"{task.num_examples:,} examples and {task.validation_size:,} held out of up to {task.max_length:,} "
                f"symbols take about {_gib(needed)}, and this machine has {_gib(there)}: lower "
                "`num_examples`, `validation_size` or `max_length` under [task]"
            )


def least_parameters(config: Config) -> int:
    """Return the least number of parameters of the model; 0 for a checkpoint, whose files give it.

    For width w, hidden width h and s symbols: s·w on each side; in each block of a Transformer 2w² (queries and
    output), as much for keys and values, or less with fewer heads, and 2wh; in each layer of a recurrent side 3h².
    """
    model, task = config.model, config.task
    if isinstance(model, Checkpoint):
        return 0
    known = task.num_symbols if isinstance(task, Synthetic) else 0
    sides = 2 if isinstance(task, Translation | Synthetic) else 1
    if isinstance(model, Recurrent):
        return sides * (known * model.embedding_dim + model.num_layers * 3 * model.hidden_size**2)
    width, layers = model.hidden_size, model.num_hidden_layers
    square = width**2
    attention = (
        2 * square + 2 * square * (model.num_key_value_heads or model.num_attention_heads) // model.num_attention_heads
    )
    crossing = layers * attention if sides == 2 else 0
    return sides * (known * width + layers * (attention + 2 * width * model.intermediate_size)) + crossing


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


def _names(model: Model) -> str:
    if isinstance(model, Checkpoint):
        return "the checkpoint"
    recurrent = isinstance(model, Recurrent)
    return "`hidden_size` or `num_layers`" if recurrent else "`hidden_size`, `intermediate_size` or `num_hidden_layers`"


def _gib(count: int) -> str:
    return f"{count / _GIB:,.1f} GiB"
