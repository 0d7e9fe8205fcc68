"""PyTorch's fused kernel, wherever it computes exactly the problem at hand."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from regard.autocast import autocast_dtype, without_autocast
from regard.backends.base import Answer
from regard.backends.derivatives import refuse_second_derivative
from regard.backends.log_sums import LARGE
from regard.backends.tensor_memory import are_in_memory
from regard.diagonals import distances
from regard.frozen import tensors
from regard.masks import Causal
from regard.normalizers import Softmax
from regard.positions import DenseBias, Relative
from regard.problem import Problem
from regard.shapes import human_bytes
from regard.torch_private import peek_interpreter_stack

__all__ = ["Sdpa"]


class Sdpa:
    """`F.scaled_dot_product_attention`: dense, causal, padding, any mask or bias that fits into `max_bytes`, GQA."""

    name = "sdpa"

    def refuses(self, problem: Problem) -> str | None:
        """What the kernel does not return, cannot score, or would need an n × n tensor beyond `max_bytes` for."""
        if problem.wants_weights:
            return "fused kernels do not return weights"
        if problem.wants_lse:
            return "it does not return the log-sum-exp"
        if not problem.score.product:
            return f"it knows the dot product alone, not {type(problem.score).__name__}"
        if problem.score.softcap is not None:
            return "it has no softcap"
        if not isinstance(problem.normalizer, Softmax):
            return f"it has no {type(problem.normalizer).__name__}, only the softmax"
        if problem.sink is not None:
            return "it has no sink logit"
        if problem.weight_factor is not None:
            return "it has no factor on the weights"
        if problem.dropout is not None:
            return "its dropout cannot be repeated from a seed, and leaves the fused kernel on CPU"
        if self.bytes(problem) > problem.max_bytes:
            what = (
                "a learned bias keeps all weights,"
                if _learns_bias(problem)
                else "the mask or bias would be a tensor of"
            )
            return f"{what} {human_bytes(self.bytes(problem))}, more than the limit of {human_bytes(problem.max_bytes)}"
        return _refuses_low_rows(problem)

    def bytes(self, problem: Problem) -> int:
        """The mask or bias as a tensor, where the kernel needs one; all weights where PyTorch leaves the kernel."""
        if problem.bias is None and (problem.mask is None or _is_plain_causal(problem)):
            return 0
        if _learns_bias(problem):
            return problem.weights_bytes
        batch = heads = 1
        if problem.bias is not None:
            batch, heads = problem.bias.leading
        if problem.mask is not None:
            sizes = problem.mask.mask.leading
            batch, heads = max(batch, sizes[0]), max(heads, sizes[1])
        return batch * heads * problem.queries * problem.keys * _bytes_each(problem)

    def work(self, problem: Problem) -> float:
        """All pairs, whatever the mask leaves, and the mask to be built; far more where PyTorch keeps the weights."""
        if self.bytes(problem) == 0:
            return 0.0
        pairs = problem.batch * problem.heads * problem.queries * problem.keys
        return (8.0 if _learns_bias(problem) else 1.3) * pairs

    def plain(self, problem: Problem) -> Callable[[Tensor, Tensor, Tensor], Tensor] | None:
        """The kernel with its flags, where it needs no mask tensor."""
        if self.bytes(problem) > 0 or problem.q.shape[-1] != problem.v.shape[-1]:
            return None
        flags: dict[str, Any] = {"is_causal": problem.mask is not None, "scale": problem.scale}
        if problem.heads != problem.kv_heads:
            flags["enable_gqa"] = True
        return partial(_fused, **flags)

    def __call__(self, problem: Problem) -> Answer:
        """Hand the problem to the kernel."""
        if _learns_bias(problem):  # its gradient is summed in float32; the kernel is left anyway
            problem = replace(problem, bias=problem.widened().bias)
        problem = problem.prepared()
        # PyTorch leaves the fused kernel, silently, where the last dimension is strided.
        q, k, v = _packed(problem.q), _packed(problem.k), _packed(problem.v)
        width, value_width = q.shape[-1], v.shape[-1]
        if width != value_width:
            # The fused CPU kernel wants equal widths; zeros change no product and their columns are dropped again.
            widest = max(width, value_width)
            q, k, v = (functional.pad(x, (0, widest - x.shape[-1])) if x.shape[-1] < widest else x for x in (q, k, v))
        causal = problem.bias is None and _is_plain_causal(problem)
        visible = None if causal else problem.visible()
        blind: Tensor | None = None
        if visible is not None:
            # A row that sees nothing would be NaN in some kernels: let it see all and take it out afterwards, so
            # that its gradient is an exact zero instead of zero times NaN.
            blind = ~visible.any(-1, keepdim=True)
            visible = visible | blind
        attend, narrow = visible, q.dtype
        if (bias := problem.bias_tile()) is not None:
            narrow, bias, (q, k, v) = _in_types_for(bias, q, k, v)
            attend = bias if visible is None else bias.masked_fill(~visible, -torch.inf)
        with nullcontext() if bias is None else without_autocast(q.device):
            output = _fused(
                q,
                k,
                v,
                attn_mask=attend,
                # `causal` itself is a symbol where a compiler traces the lengths, and the kernel takes none.
                is_causal=problem.mask is not None and visible is None,
                scale=problem.scale,
                enable_gqa=problem.heads != problem.kv_heads,
            )
        output = output[..., :value_width].to(output.dtype if bias is None else narrow)
        return Answer(output if blind is None else output.masked_fill(blind, 0.0))


def _fused(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return refuse_second_derivative(functional.scaled_dot_product_attention(q, k, v, **options))


def _packed(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _bytes_each(problem: Problem) -> int:
    """Bytes of a number of the mask, or of the bias: in the queries' type if it has that, else in that of the sums."""
    if problem.bias is None:
        return 1
    if isinstance(problem.bias, DenseBias):
        return problem.bias.values.element_size()
    return max(4, problem.q.element_size())


def _in_types_for(
    bias: Tensor, q: Tensor, k: Tensor, v: Tensor
) -> tuple[torch.dtype, Tensor, tuple[Tensor, Tensor, Tensor]]:
    """The type of the output, and the tensors in types in which the bias is not rounded, by autocast neither.

    The CPU's kernel adds a float32 bias to the scores of narrower queries; others take one type for all.
    """
    narrow = autocast_dtype(q)
    bias = bias if bias.dtype == narrow else bias.to(torch.promote_types(narrow, torch.float32))
    of_queries = narrow if q.device.type == "cpu" else bias.dtype
    return narrow, bias, (q.to(of_queries), k.to(of_queries), v.to(of_queries))


def _learns_bias(problem: Problem) -> bool:
    """PyTorch's fused CPU kernel has no gradient of the bias: it computes and keeps the weights instead."""
    learned = any(one.requires_grad for one in tensors(problem.bias))
    return learned and torch.is_grad_enabled() and not problem.q.is_cuda


def _refuses_low_rows(problem: Problem) -> str | None:
    """Whether a bias is so low in all that some query sees that the kernel's backward would be wrong.

    It computes weights again as exp(score − lse), from which rounding the log-sum-exp takes too much (`log_sums`).
    Looked for on CPU, where looking does not stall a device, and once a call.
    """
    learns = torch.is_grad_enabled() and any(one.requires_grad for one in (problem.q, problem.k, problem.v))
    if problem.bias is None or not learns or _learns_bias(problem) or problem.q.device.type != "cpu":
        return None
    if torch.compiler.is_compiling() or peek_interpreter_stack() is not None:
        return None  # no number can be looked at
    if not are_in_memory(problem.q, problem.k, problem.v):
        return None
    found: bool | None = vars(problem).get("_has_low_rows")
    if found is None:
        found = _is_low_somewhere(problem)
        vars(problem)["_has_low_rows"] = found
    if not found:
        return None
    return (
        f"its gradients are wrong in rows whose whole bias is below {-LARGE:.0f}: hide keys with `mask=` rather than "
        "with a low bias"
    )


def _is_low_somewhere(problem: Problem) -> bool:
    with torch.no_grad():
        if isinstance(problem.bias, Relative):  # seldom low anywhere, and asked once a distance
            values = problem.bias.diagonals(distances(problem.i(), problem.j()))
            if bool(values.amin() >= -LARGE):
                return False
        bias = problem.bias_tile()
        assert bias is not None
        if bool(bias.amin() >= -LARGE):
            return False
        visible = problem.visible()
        seen = bias if visible is None else bias.masked_fill(~visible, -torch.inf)
        highest = seen.amax(-1)
        return bool(((highest < -LARGE) & (highest > -torch.inf)).any())


def _is_plain_causal(problem: Problem) -> bool:
    """The kernel's flag aligns the first query with the first key: the same as ours where the diagonal begins there."""
    bound = problem.mask
    if problem.scale <= 0:
        return False  # the kernel hides by a score that such a scale turns into the largest, or NaN
    return bound is not None and isinstance(bound.mask, Causal) and bound.q_offset == bound.mask.shift
