"""Whether modules drawn at random compute the same in ONNX Runtime as here: no timing, only differences.

    python benchmarks/random_exports.py [--first 0] [--count 300] [--seconds 1800]

Modules are those of tests/random_modules.py, in evaluation mode. Each is exported with every batch and length free, and
run at sizes that its example did not have, one text alone among them. Expected is the same module in float64 with
backend="reference". The last line counts those that were right, that regard refused by name, and that ONNX Runtime has
no kernel for (bfloat16 outside of attention); what is wrong, and what fails otherwise, is printed with its number. The
exit status is 1 if there is any of these. 300 modules take a quarter of an hour on one core.
"""

import argparse
import logging
import sys
import time
from collections import Counter
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import regard
from onnx_programs import exported, refusal
from random_modules import Drawn, drawn

SIZES = (12, 3), (5, 1), (33, 2)  # length and batch
ALLOWED = {torch.float64: 1e-5, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


class _WithWideEnds(nn.Module):
    """A module whose inputs and outputs are float32 at least: arrays of NumPy have no bfloat16."""

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.module, self.dtype = module, dtype

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        found = self.module(*(one.to(self.dtype) if one.is_floating_point() else one for one in given))
        return tuple(map(_widened, found if isinstance(found, tuple) else (found,)))


def _widened(one: Tensor) -> Tensor:
    return one.float() if one.is_floating_point() and one.itemsize < 4 else one


def outcome(one: Drawn) -> tuple[str, str]:
    """Export a module and run it: a word for what came of it, and what is to be said of it."""
    module = _WithWideEnds(one.module, one.dtype).eval()
    given, other = (tuple(map(_widened, one.inputs(length, batch))) for length, batch in ((9, 2), (13, 4)))
    try:
        program = exported(module, given, other)
    except Exception as error:
        if (sentence := refusal(error)) is not None:
            return "refused", str(sentence)
        if type(error).__name__ == "NotImplemented":
            return "without a kernel", str(error)
        return "failed", f"{type(error).__name__}: {error}"
    for length, batch in SIZES:
        inputs = one.inputs(length, batch)
        with torch.no_grad(), regard.use_backend("reference"):
            right = one.exact.eval()(*(x.double() if x.is_floating_point() else x for x in inputs))
        right = right if isinstance(right, tuple) else (right,)
        for place, (found, expected) in enumerate(zip(program(*map(_widened, inputs)), right, strict=True)):
            allowed = ALLOWED[one.dtype]
            if found.shape != expected.shape or not torch.allclose(
                found.double(), expected, rtol=allowed, atol=allowed
            ):
                return "wrong", f"result {place} at length {length} and batch {batch}"
    return "right", ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    started, counts, last = time.monotonic(), Counter[str](), arguments.first
    for last in range(arguments.first, arguments.first + arguments.count):
        if time.monotonic() - started > arguments.seconds:
            break
        one = drawn(last)
        word, text = outcome(one)
        counts[word] += 1
        if word in ("wrong", "failed"):
            print(f"{word}: {one.description}: {text}", flush=True)
    print(f"up to {last}: " + ", ".join(f"{count} {word}" for word, count in sorted(counts.items())))
    return 1 if counts["wrong"] + counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
