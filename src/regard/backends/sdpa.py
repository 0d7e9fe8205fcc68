"""PyTorch's fused kernel, wherever it computes exactly the problem at hand."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from regard.backends.attend import as_first_derivatives
from regard.backends.base import DERIVATIVES, LARGE, TRACED, Answer, Backend
from regard.diagonals import distances
from regard.masks import Causal, Dense
from regard.part import Part
from regard.positions import DenseBias, Relative
from regard.problem import Problem
from regard.tensors import are_in_memory, autocast_dtype, human_bytes, without_autocast
from regard.torch_private import get_interpreter_stack, holds, is_exporting, learns_outside, peek_interpreter_stack
from regard.values import tensors

__all__ = ["Sdpa"]

_SMALL = 2**16  # bytes of a mask that are kept with a call


class Sdpa(Backend):
    """`F.scaled_dot_product_attention`: dense, causal, padding, any mask or bias that fits into `max_bytes`, GQA."""

    name = "sdpa"

    lacks = DERIVATIVES | {
        "weights": "fused kernels do not return weights",
        "log-sum-exp": "it does not return the log-sum-exp",
        "score": "it knows the dot product alone, not {}",
        "softcap": "it has no softcap",
        "normalizer": "it has no {}, only the softmax",
        "sink": "it has no sink logit",
        "weight_factor": "it has no factor on the weights",
        "dropout": "its dropout cannot be repeated from a seed, and leaves the fused kernel on CPU",
    }
    lacks_in_graphs = TRACED

    def limits(self, problem: Problem) -> str | None:
        """What would need an n × n tensor beyond `max_bytes`, and gradients that it lacks or has wrong."""
        if any(map(learns_outside, tensors(problem.bias))):
            return "its kernel has no gradient of a bias that torch.func.vmap maps over"
        if problem.scale < 0 and is_exporting():
            return f"its translation to ONNX takes the square root of the scale, which is {problem.scale}"
        if holds(self.bytes(problem) > problem.max_bytes):
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
        return batch * heads * problem.queries * _columns(problem) * _bytes_each(problem)

    def cost(self, problem: Problem) -> float:
        """All pairs, whatever the mask leaves, and the mask to be built; far more where PyTorch keeps the weights."""
        if self.bytes(problem) == 0:
            return 0.0
        pairs = problem.batch * problem.heads * problem.queries * _columns(problem)
        return (8.0 if _learns_bias(problem) else 1.3) * pairs

    def least_cost(self, problem: Problem) -> float:
        """The same, but where keys may be left out."""
        return 0.0 if problem.leaves_keys_out else self.cost(problem)

    def plain(self, problem: Problem) -> Callable[[Tensor, Tensor, Tensor], Tensor] | None:
        """The kernel with its flags, and with the mask, or a bias without tensors, as a tensor where that is small."""
        if self.bytes(problem) > _SMALL or problem.q.shape[-1] != problem.v.shape[-1]:
            return None
        if (part := _seen_by(problem)) is None:
            return _plain(problem)
        compute = _plain(_over_seen_keys(problem, part))
        return None if compute is None else partial(_of_part, part, compute)

    def plain_of(self, problem: Problem) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] | None:
        """The kernel with its flags, and with the mask that it is given."""
        if problem.bias is not None or problem.q.shape[-1] != problem.v.shape[-1] or _is_plain_causal(problem):
            return None
        return partial(_of_visible, *_kernel_of(problem))

    def __call__(self, problem: Problem) -> Answer:
        """Hand the problem to the kernel."""
        if (part := _seen_by(problem)) is not None:
            problem = _over_seen_keys(problem, part)
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
        grouped = False
        if problem.heads != problem.kv_heads:  # a symbol for compilers, and the kernel takes none
            grouped = True
        causal = problem.bias is None and _is_plain_causal(problem)
        visible, blind = (None, None) if causal or problem.mask is None else _with_blind_rows(_broadcast(problem))
        attend, narrow = visible, q.dtype
        if (bias := _numbers(problem)) is not None:
            narrow, bias, (q, k, v) = _in_types_for(bias, q, k, v)
            attend = bias if visible is None else bias.masked_fill(~visible, -torch.inf)
        if attend is not None and not torch.is_grad_enabled():
            attend = attend.detach()  # PyTorch leaves the kernel for a bias that might learn
        with nullcontext() if bias is None else without_autocast(q.device):
            kernel = partial(
                _fused,
                attn_mask=attend,
                # `causal` itself is a symbol where a compiler traces the lengths, and the kernel takes none.
                is_causal=problem.mask is not None and visible is None,
                scale=problem.scale,
                enable_gqa=grouped,
            )
            output = _without_blind(kernel, blind, q, k, v)
        if is_exporting() and any(tensor.requires_grad for tensor in tensors(problem.bias)):
            # Whether it learns decides how PyTorch lays the output out, and a program is traced again where it may not.
            output = output.clone(memory_format=torch.contiguous_format)
        return Answer(output[..., :value_width].to(output.dtype if bias is None else narrow))


def _seen_by(problem: Problem) -> Part | None:
    """The keys that few queries see, where these are fewer, or all of them are seen by all; several spans, which are
    copied, where they are at most half of what lies between the first and the last.
    """
    if not problem.leaves_keys_out or not (part := problem.seen).spans:
        return None
    hull = slice(part.spans[0].start, part.spans[-1].stop)
    if len(part.spans) > 1 and 2 * part.columns > hull.stop - hull.start:
        part = replace(part, spans=(hull,))
    return part if part.columns < problem.keys or not part.is_masked else None


def _columns(problem: Problem) -> int:
    part = _seen_by(problem)
    return problem.keys if part is None else part.columns


def _over_seen_keys(problem: Problem, part: Part) -> Problem:
    """The same call as one over some of its keys, the others having weight 0."""
    device, bias = problem.q.device, problem.bias
    visible = part.visible(problem.mask, device)
    mask = None if visible is None else Dense(visible).bind(problem.queries, part.columns)
    fewer = replace(problem, k=part.cut(problem.k), v=part.cut(problem.v), mask=mask)
    if bias is not None:
        bias = DenseBias(part.numbers(bias, device)).resolve(fewer.queries, fewer.keys, fewer.q_offset)
    return replace(fewer, bias=bias)


def _numbers(problem: Problem) -> Tensor | None:
    return None if problem.bias is None else problem.everything.numbers(problem.bias, problem.q.device)


def _plain(problem: Problem) -> Callable[[Tensor, Tensor, Tensor], Tensor] | None:
    kernel, flags = _kernel_of(problem)
    if problem.bias is not None and kernel is _fused:
        return None  # whether its rows are low is looked at in each call
    if problem.bias is None and (problem.mask is None or _is_plain_causal(problem)):
        if problem.mask is not None:
            flags["is_causal"] = True
        return partial(kernel, **flags)
    return _with_tensor(kernel, flags, problem)


def _of_part(part: Part, compute: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return compute(q, part.cut(k), part.cut(v))


def _fused(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return _refuse_second_derivative(functional.scaled_dot_product_attention(q, k, v, **options))


def _without_gradients(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """The kernel of this moment, which somebody may have replaced; there is no gradient to be differentiated again."""
    return functional.scaled_dot_product_attention(q, k, v, **options)


def _without_blind(kernel: Callable[..., Tensor], blind: Tensor | None, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The kernel's output, with zeros in rows that see nothing (`_with_blind_rows`).

    Such rows attend with zeros: whatever the keys that they should not see hold, their scores and gradients are finite.
    The sign of the zeros shows them to who reads the kernel's call alone, as a watch of compiled code does.
    """
    if blind is None:
        return kernel(q, k, v)
    return kernel(q.masked_fill(blind, -0.0), k, v).masked_fill(blind, 0.0)


def _kernel_of(problem: Problem) -> tuple[Callable[..., Tensor], dict[str, Any]]:
    learns = torch.is_grad_enabled() and any(one.requires_grad for one in (problem.q, problem.k, problem.v))
    flags: dict[str, Any] = {}
    if problem.scale != 1.0 / math.sqrt(problem.q.shape[-1]):  # the kernel's own: each argument takes time
        flags["scale"] = problem.scale
    if problem.heads != problem.kv_heads:
        flags["enable_gqa"] = True
    return _fused if learns else _without_gradients, flags


def _of_visible(
    kernel: Callable[..., Tensor], flags: dict[str, Any], visible: Tensor, q: Tensor, k: Tensor, v: Tensor
) -> Tensor:
    attend, blind = _with_blind_rows(_over_all_keys(visible, k.shape[2]))
    return _without_blind(partial(kernel, attn_mask=attend, **flags), blind, q, k, v)


def _with_tensor(
    kernel: Callable[..., Tensor], flags: dict[str, Any], problem: Problem
) -> Callable[[Tensor, Tensor, Tensor], Tensor] | None:
    """The kernel with mask and bias as a tensor; None where types are to be changed in each call."""
    attend = blind = None
    if problem.mask is not None:
        attend, blind = _with_blind_rows(_broadcast(problem))
    if (bias := _numbers(problem)) is not None:
        narrow, bias, (q, _, _) = _in_types_for(bias, problem.q, problem.k, problem.v)
        if not q.dtype == narrow == problem.q.dtype:
            return None
        attend = bias if attend is None else bias.masked_fill(~attend, -torch.inf)
    attend = None if attend is None else attend.detach()
    if blind is None:
        return partial(kernel, attn_mask=attend, **flags)
    return partial(_without_blind, partial(kernel, attn_mask=attend, **flags), blind)


def _broadcast(problem: Problem) -> Tensor:
    assert problem.mask is not None
    return _over_all_keys(problem.mask.broadcast(problem.batch, problem.heads, problem.q.device), problem.keys)


def _over_all_keys(visible: Tensor, keys: int) -> Tensor:
    """The kernel broadcasts all but the keys."""
    return visible if visible.shape[-1] == keys else visible.expand(*visible.shape[:-1], keys)


def _with_blind_rows(visible: Tensor) -> tuple[Tensor, Tensor | None]:
    """The mask where rows that see nothing see all, and these rows, to be taken out afterwards; None where there are
    none, which is looked for on CPU, where looking does not stall a device.

    Such a row would be NaN in some kernels; so its gradient is an exact zero instead of zero times NaN.
    """
    sees = visible.any(-1, keepdim=True)
    looks = not torch.compiler.is_compiling() and visible.is_cpu and peek_interpreter_stack() is None
    if looks and are_in_memory(visible) and bool(sees.all()):
        return visible, None
    return visible | ~sees, ~sees


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

    The CPU's kernel adds a float32 bias to the scores of narrower queries; others take one type for all, and
    where a program will run is not known.
    """
    narrow = autocast_dtype(q)
    bias = bias if bias.dtype == narrow else bias.to(torch.promote_types(narrow, torch.float32))
    of_queries = narrow if q.device.type == "cpu" and not is_exporting() else bias.dtype
    return narrow, bias, (q.to(of_queries), k.to(of_queries), v.to(of_queries))


def _learns_bias(problem: Problem) -> bool:
    """PyTorch's fused CPU kernel has no gradient of the bias: it computes and keeps the weights instead."""
    return any(one.requires_grad for one in tensors(problem.bias)) and torch.is_grad_enabled() and not problem.q.is_cuda


def _refuses_low_rows(problem: Problem) -> str | None:
    """Whether a bias is so low in all that some query sees that the kernel's backward would be wrong.

    It computes weights again as exp(score − lse), from which rounding the log-sum-exp takes too much.
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
    assert problem.bias is not None
    with torch.no_grad():
        if isinstance(problem.bias, Relative):  # seldom low anywhere, and asked once a distance
            values = problem.bias.diagonals(distances(problem.i(), problem.j()))
            if bool(values.amin() >= -LARGE):
                return False
        bias = problem.everything.numbers(problem.bias, problem.q.device)
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
    return bound is not None and type(bound.mask) is Causal and holds(bound.q_offset == bound.mask.shift)


def _mark(gradients: tuple[Tensor | None, ...], _: Any) -> tuple[Tensor | None, ...] | None:
    return tuple(as_first_derivatives(gradients, "sdpa")) if torch.is_grad_enabled() else None


def _refuse_second_derivative(output: Tensor) -> Tensor:
    """Return the fused kernel's output, whose gradients answer in a sentence where they are differentiated again.

    They are wanted with `create_graph=True`, which nobody knows before the backward: so its node is given a hook, which
    holds no tensor, and does nothing otherwise.
    """
    if torch.compiler.is_compiling() or get_interpreter_stack():  # torch.func always asks for a graph
        return output
    node = output.grad_fn
    if node is not None and node.name().startswith("ScaledDotProduct"):
        node.register_hook(_mark)
    return output
