"""The backend: hands a problem to FlexAttention with the block mask that its mask gives ready-made."""

from collections.abc import Callable
from functools import partial
from importlib import util

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.backends.attend import Results, with_sink
from regard.backends.base import DERIVATIVES, OPERATORS, SOFTMAX_OF_PRODUCTS, Answer, Backend
from regard.backends.call_form import unwritable
from regard.backends.flex.block_masks import Blocks, blocks_for, score_mod_of
from regard.backends.flex.compiled import SHORT, compiled, uncompiled
from regard.backends.operators import Operator
from regard.normalizers.softmax import Sums
from regard.problem import Problem, parts_of
from regard.problem_checks import learns
from regard.tensors import human_bytes, is_traced, without_autocast

__all__ = ["Flex"]

_LEAST = 16  # the width of the smallest product on tensor cores
_ROWS = 128  # rows of queries and heads that the decoding kernel finds place for in a block
_KEPT = 2**18  # bytes of a block mask that is kept with a known call, up to 16,384 tokens

Attend = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor | None]]


class Flex(Backend):
    """FlexAttention (Dong et al. 2024, arXiv:2412.05496), compiled by TorchInductor: for CUDA, and forward on CPU.

    Softmax of products with any mask, softcap, bias and sink, grouped queries, log-sum-exp, in O(n) memory. The first
    call of a kind compiles, which takes seconds on CPU and up to a minute on CUDA.

    Args:
        compiles: False runs FlexAttention's own formula with all scores at once instead: to check what it is told.
    """

    name = "flex"

    def __init__(self, *, compiles: bool = True) -> None:
        self.compiles = compiles

    experimental = "on CUDA: it was right on an H100, but its calls have not been timed there since they are cached"
    lacks = DERIVATIVES | OPERATORS | SOFTMAX_OF_PRODUCTS | {"torch.func": "it does not run under torch.func"}

    def limits(self, problem: Problem) -> str | None:
        """What the kernel does not compute on this device."""
        kind = _device_type(problem)
        if kind not in ("cuda", "cpu"):
            return f"it runs on CUDA and, forward only, on CPU, and the queries are on {problem.q.device}"
        if kind == "cpu" and learns(problem.q, problem.k, problem.v, parts_of(problem)):
            return "FlexAttention has no backward on CPU"
        if not self.compiles:
            needed, limit = self.bytes(problem), problem.max_bytes
            sizes = f"{human_bytes(needed)}, more than the limit of {human_bytes(limit)}"
            return f"uncompiled it holds all scores, {sizes}" if needed > limit else None
        if kind == "cuda" and util.find_spec("triton") is None:
            return "the package `triton` is not installed"
        if problem.q.dtype == torch.float64:
            return "its kernels take float32, float16 and bfloat16, and the queries are torch.float64"
        if kind == "cpu" and _needs_lse(problem):
            return f"on CPU it does not return the log-sum-exp{'' if problem.sink is None else ', which a sink needs'}"
        return None

    def bytes(self, problem: Problem) -> int:
        """The log-sum-exp of each row, or all scores where it is not compiled; all calls share a mask's tables."""
        return problem.batch * problem.heads * problem.queries * 4 if self.compiles else problem.weights_bytes

    def cost(self, problem: Problem) -> float:
        """The pairs of the blocks that the mask leaves; it is chosen by name, so nothing is compared with this yet."""
        return problem.plan().share * problem.batch * problem.heads * problem.queries * problem.keys

    def leaves_graph(self, problem: Problem) -> bool:
        """Whether a value of the call is written in Python."""
        return unwritable(problem) is not None

    def plain(self, problem: Problem) -> Callable[[Tensor, Tensor, Tensor], Tensor] | None:
        """The compiled function with its block mask, unless that is large, and with a bias without tensors."""
        blocks = blocks_for(problem)
        if not self.compiles or blocks.nbytes > _KEPT:
            return None
        return partial(_output, self._function(problem, blocks))

    def __call__(self, problem: Problem) -> Answer:
        """Compute in the inputs' type, sums and softmax in float32, whatever autocast would have."""
        if self.compiles and is_traced(problem.q):
            return OPERATOR(problem)
        output, sums = self.attend(problem)
        return Answer(output, None, None if sums is None else sums.logarithm)

    def attend(self, problem: Problem) -> tuple[Tensor, Sums | None]:
        """Compute the output, and the sums of the rows if the log-sum-exp is wanted."""
        with without_autocast(problem.q.device):
            ready = problem.prepared()
            output, lse = self._function(ready, blocks_for(ready))(ready.q, ready.k, ready.v)
            sums = None if lse is None else Sums.of(lse)
            if problem.sink is not None:
                assert sums is not None
                output, sums = with_sink(output, sums, problem.sink)
        return output.to(problem.q.dtype), sums if problem.wants_lse else None

    def _function(self, problem: Problem, blocks: Blocks) -> Attend:
        """A function of q, k and v of a prepared problem that returns its output, and the log-sum-exp if needed."""
        attend = compiled(problem) if self.compiles else uncompiled()
        # The kernel for decoding lays the rows of all heads of a group side by side in one block, if they fit.
        rows = problem.queries * (problem.heads // problem.kv_heads)
        options = {"FORCE_USE_FLEX_ATTENTION": True} if problem.queries < SHORT and rows > _ROWS else None
        rest = score_mod_of(problem), blocks.block_mask, problem.scale, options, _needs_lse(problem)
        least = _LEAST if self.compiles else 1

        def function(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor | None]:
            output, lse = attend(*(_laid_out(x, least) for x in (q, k, v)), *rest)
            return output[..., : v.shape[-1]], lse

        return function


def _needs_lse(problem: Problem) -> bool:
    return problem.wants_lse or problem.sink is not None


def _laid_out(x: Tensor, least: int) -> Tensor:
    """Wide enough for a kernel, in rows of one piece, none of which is another's memory too."""
    if x.shape[-1] < least:
        x = pad(x, (0, least - x.shape[-1]))  # zeros change no product, and their columns are cut off
    elif x.stride(-1) != 1 or 0 in x.stride():
        x = x.contiguous()
    # On CPU FlexAttention refuses what could get a gradient, even where none is asked for.
    return x if torch.is_grad_enabled() else x.detach()


def _output(attend: Attend, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with without_autocast(q.device):
        return attend(q, k, v)[0].to(q.dtype)


def _results(problem: Problem, _: Results | None, __: bool) -> Results:
    """Compute again for the backward, whose kernel takes the graph of the forward."""
    output, sums = Flex().attend(problem)
    return (output, None, None) if sums is None else (output, *sums)


OPERATOR = Operator("flex", _results, output_dtype=lambda dtype, _: dtype)


def _device_type(problem: Problem) -> str:
    """Where the call would run; without any memory it is asked about this machine, as `regard doctor` does."""
    kind = problem.q.device.type
    if kind == "meta":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return kind
