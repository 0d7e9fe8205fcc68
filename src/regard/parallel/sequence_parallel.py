"""A whole model over the shards of a sequence: inputs are sharded, attention exchanges keys, gradients are summed."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.nn.functional import dropout, pad, scaled_dot_product_attention
from torch.overrides import TorchFunctionMode, handle_torch_function, has_torch_function

from regard.errors import InputError
from regard.functional import attention
from regard.hooks import HEARING, are_sharded, report
from regard.masks import BoundMask, Causal, Dense, Document, Mask, Padding
from regard.masks.document import places_in_documents
from regard.parallel.attend import attend
from regard.parallel.dtensors import Local, check_backend, hollow_like
from regard.parallel.exchange import Exchange
from regard.parallel.sequence_layout import SequenceLayout, contiguous
from regard.parallel.sequence_part import SEQUENCE_PART, SequencePart
from regard.parallel.sharded_call import ShardedCall
from regard.problem import Options, Problem, complete
from regard.problem_checks import four_dimensional
from regard.tensors import autocast_dtype

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["SequenceShards", "attend_local", "call_over_shards", "sequence_parallel", "shard_calls"]

_BY_TOKENS = ("input_ids", "inputs_embeds", "position_ids", "token_type_ids")
_IGNORED = -100  # a label without a loss


@dataclass(eq=False)
class SequenceShards:
    """How the sequences of a model lie over the ranks: contiguous, as torch.chunk cuts them.

    Args:
        exchange: The ranks.
        length: Tokens of the sequence that the model runs on; None before its first call.
        padding: Which tokens are no padding, or of one document, where not all are.
    """

    exchange: Exchange
    length: int | None = None
    padding: Mask | None = field(default=None, repr=False)

    @property
    def layout(self) -> SequenceLayout:
        """Which tokens each rank has."""
        if self.length is None:
            raise InputError("no sequence has been sharded yet: call the model, or shard(x)")
        return contiguous(self.length, self.exchange.ranks)

    def shard(self, x: Shaped[Tensor, "batch tokens *rest"]) -> Shaped[Tensor, "batch part *rest"]:
        """Cut this rank's tokens out of a whole tensor."""
        self.length = x.shape[1]
        mine = self.layout.positions(self.exchange.rank)
        return x[:, mine.to(x.device)]

    def gather(self, x: Shaped[Tensor, "batch part *rest"]) -> Shaped[Tensor, "batch tokens *rest"]:
        """Give the whole tensor, such as the logits, of which each rank has its tokens; without gradients."""
        sizes = self.layout.sizes
        if x.shape[1] != sizes[self.exchange.rank]:
            raise InputError(f"`x` must have this rank's {sizes[self.exchange.rank]} tokens, got {x.shape[1]}")
        padded = pad(x.detach().movedim(1, 0), (0, 0) * (x.ndim - 1) + (0, sizes[0] - x.shape[1])).contiguous()
        parts = self.exchange.gather(padded)
        whole = torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])
        return whole.movedim(0, 1)

    def sum(self, loss: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """Add up the parts of a loss; each rank's backward goes to its own part."""
        total = self.exchange.sum_over(loss.detach().clone())
        return loss + (total - loss.detach())


@contextmanager
def sequence_parallel(model: nn.Module, mesh: "DeviceMesh") -> Iterator[SequenceShards]:
    """Run a model on sequences that are sharded over the ranks of a mesh, forward and backward, inside `with`.

    Every rank calls the model with the same whole inputs. Each runs on its own tokens: `input_ids`, `position_ids`,
    `token_type_ids` and `labels` are sharded, and the output has the logits of this rank's tokens
    (`SequenceShards.gather` gives all). Calls of `regard.attention` (with `attn_implementation="regard"` those of
    transformers' models) and of `F.scaled_dot_product_attention` exchange keys and values. The loss is that of all
    tokens, and gradients of parameters are summed over the ranks in the backward, which must be inside `with` too.

    What a model computes along the sequence must be attention: convolutions, recurrences see this rank's tokens only.
    Positions must come from `position_ids`, or the model be a `regard.models.Transformer`. Dropout draws for the whole
    sequence: where the ranks have one seed, it drops what one process drops.

    Args:
        model: The model; its hooks are removed at the end.
        mesh: A mesh of one axis, such as mesh["sequence"].

    Raises:
        InputError: The mesh has several axes, or the model needs what cannot be sharded.
    """
    if mesh.ndim != 1:
        raise InputError(f'`mesh` must have one axis, got {mesh.ndim}: take the one of the sequence, mesh["sequence"]')
    exchange = Exchange.of(mesh.get_group())
    with shard_calls(model, exchange) as shards, ExitStack() as stack:
        for one in model.parameters():
            if one.requires_grad:
                stack.callback(one.register_hook(exchange.summed).remove)
        yield shards


@contextmanager
def shard_calls(model: nn.Module, exchange: Exchange) -> Iterator[SequenceShards]:
    """Do what `sequence_parallel` does, but leave each rank its own gradients of parameters.

    Raises:
        InputError: The model needs what cannot be sharded.
    """
    _check_model(model)
    shards = SequenceShards(exchange)
    with ExitStack() as stack:
        stack.callback(model.register_forward_pre_hook(_shard_inputs(model, shards), with_kwargs=True).remove)
        stack.callback(model.register_forward_hook(_sum_loss(shards)).remove)
        stack.callback(SEQUENCE_PART.reset, SEQUENCE_PART.set(None))
        stack.enter_context(_Attention(shards))
        yield shards


def _check_model(model: nn.Module) -> None:
    """Refuse a model of ours that is compiled, or computes along the sequence what is no attention of it to itself."""
    is_compiled = any(one._compiled_call_impl is not None or hasattr(one, "_orig_mod") for one in model.modules())
    if is_compiled and any(type(one).__module__.startswith("regard.") for one in model.modules()):
        raise InputError(
            "`model` must not be compiled: compiled modules of regard do not know which tokens this rank has; pass the "
            "model as it was before torch.compile"
        )
    if not type(model).__module__.startswith("regard.models"):
        return
    config: Any = getattr(model, "config", None)
    head = getattr(config, "output_head", None)
    if getattr(config, "kind", None) not in ("encoder", "decoder"):
        raise InputError(
            f"`model` must be an encoder or a decoder, whose one sequence is sharded, and {type(model).__name__} is "
            f"{getattr(config, 'kind', 'recurrent')}: shard q, k and v yourself"
        )
    if head is not None and not head.each:
        raise InputError(
            f"`model` must have an output head of each token, and {head} reads the states of other ranks: leave "
            "output_head out, and pool what shards.gather(last_hidden_state) gives"
        )


class _Attention(TorchFunctionMode):
    """Calls of attention inside exchange keys and values."""

    is_above_watches = True  # a watch sees the call over all ranks (`attend_local`), whichever was entered first

    def __init__(self, shards: SequenceShards) -> None:
        super().__init__()
        self.shards = shards

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if func is attention and not are_sharded(*args[:3]):
            return attend_local(*args, shards=self.shards, **given)
        if func is scaled_dot_product_attention:
            return _attend_as_sdpa(self.shards, *args, **given)
        if func is dropout and (part := SEQUENCE_PART.get()) is not None:
            return _drop_part(part, *args, **given)
        return func(*args, **given)


def attend_local(
    q: Tensor, k: Tensor, v: Tensor, *, shards: SequenceShards, backend: str = "auto", **options: Any
) -> Tensor | tuple[Tensor, ...]:
    """Compute attention() of this rank's queries and of the keys of all ranks."""
    given = {"shards": shards, "backend": backend, **options}
    if HEARING.listeners and not HEARING.inside:
        return cast(Tensor, report(attend_local, q, k, v, **given))
    if has_torch_function((q, k, v)):
        return cast(Tensor, handle_torch_function(attend_local, (q, k, v), q, k, v, **given))
    check_backend(backend, "inside sequence_parallel")
    local = call_over_shards(shards, q, k, v, complete(cast(Options, options)))
    if local.call.whole.dropout is not None:
        shards.exchange.share(local.call.whole.dropout.seed)
    answer = attend(local.call, local.q, local.k, local.v, local.rotary)
    output = answer.output.to(autocast_dtype(q)).reshape(*q.shape[:-1], v.shape[-1])
    return output if answer.lse is None else (output, answer.lse.reshape(q.shape[:-1]))


def call_over_shards(shards: SequenceShards, q: Tensor, k: Tensor, v: Tensor, options: Options) -> Local:
    """Give the call over the whole sequence, and what this rank has of it.

    Raises:
        InputError: q and k do not have this rank's tokens.
    """
    layout, rank = shards.layout, shards.exchange.rank
    misfits = not q.shape[-2] == k.shape[-2] == layout.sizes[rank] or q.ndim < 3
    if len(set(layout.sizes)) > 1:  # what fits one rank may not fit another, which would refuse alone
        misfits = bool(shards.exchange.max_over(torch.tensor(float(misfits), device=q.device)))
    if misfits:
        raise InputError(
            f"inside sequence_parallel, q and k must have this rank's {layout.sizes[rank]} tokens of {layout.length}, "
            f"got q {tuple(q.shape)} and k {tuple(k.shape)} on rank {rank}: use_cache=False, and no attention to other "
            "tokens than those of the input"
        )
    hollow = (hollow_like(x, (*x.shape[:-2], layout.length, x.shape[-1])) for x in (q, k, v))
    whole = Problem.of(*hollow, turn=False, **{**options, "mask": _mask(shards, options["mask"])})
    # Gradients of parameters are summed by the model, all of them.
    call = ShardedCall(whole, whole.everything, layout, layout, shards.exchange)
    q, k, v = (four_dimensional(name, x) for name, x in (("q", q), ("k", k), ("v", v)))
    return Local(call, q, k, v, options["rotary"])


def _mask(shards: SequenceShards, mask: Any) -> Any:
    """The mask over the whole sequence."""
    if isinstance(mask, BoundMask):
        if mask.q_offset != mask.kv_len - mask.q_len:
            raise InputError(
                f"inside sequence_parallel the queries are the whole sequence, got a mask that is bound to the place "
                f"{mask.q_offset}: give it unbound"
            )
        mask = mask.given
    if shards.padding is None:
        return mask
    mask = Dense(mask) if isinstance(mask, Tensor) else mask
    return shards.padding if mask is None else mask & shards.padding


def _attend_as_sdpa(
    shards: SequenceShards,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    **_: bool,  # enable_gqa: heads are grouped as their numbers are
) -> Tensor | tuple[Tensor, ...]:
    if attn_mask is not None:
        raise InputError(
            "inside sequence_parallel, `attn_mask` of F.scaled_dot_product_attention knows this rank's tokens alone: "
            'load the model with attn_implementation="regard", or call regard.attention with a mask of regard.masks'
        )
    if not is_causal and 1 in shards.layout.sizes and shards.layout.length > 1:  # all ranks refuse, or none
        raise InputError(
            "a rank has one token only, for which models call F.scaled_dot_product_attention without `is_causal`: take "
            'fewer ranks, or attn_implementation="regard"'
        )
    mask = Causal(align="start") if is_causal else None
    return attend_local(query, key, value, shards=shards, mask=mask, dropout=dropout_p, scale=scale)


def _drop_part(
    part: SequencePart,
    input: Tensor,  # noqa: A002 - the name that F.dropout has
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
) -> Tensor:
    """Drop of this rank's tokens what F.dropout drops on one process: each rank draws for the whole sequence."""
    if not training or p == 0:
        return input
    factor = dropout(input.new_ones(part.whole_shape(input)), p)[:, part.places.to(input.device)]
    return input.mul_(factor) if inplace else input * factor


def _shard_inputs(model: nn.Module, shards: SequenceShards) -> Callable[..., tuple[tuple[()], dict[str, Any]]]:
    """What shards the inputs of each call of a model."""
    signature = inspect.signature(model.forward)
    takes = signature.parameters.keys()

    def shard(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[()], dict[str, Any]]:
        bound = signature.bind_partial(*args, **kwargs)
        given = {**bound.arguments, **bound.arguments.get("kwargs", {})}
        given.pop("kwargs", None)
        tokens = next((given[name] for name in _BY_TOKENS if isinstance(given.get(name), Tensor)), None)
        if tokens is None:
            raise InputError(f"the model must be called with `input_ids` or `inputs_embeds`, got {', '.join(given)}")
        batch, shards.length = tokens.shape[0], tokens.shape[1]
        attention_mask, documents = given.pop("attention_mask", None), given.pop("documents", None)
        if attention_mask is not None and bool(attention_mask.all()):
            attention_mask = None
        shards.padding = None if attention_mask is None else Padding(attention_mask)
        shards.padding = shards.padding if documents is None else Document(documents)
        if "position_ids" in takes and given.get("position_ids") is None:
            given["position_ids"] = torch.arange(shards.length, device=tokens.device).expand(batch, -1)
        SEQUENCE_PART.set(_part(shards, attention_mask, documents, tokens.device))
        if "use_cache" in takes:
            given["use_cache"] = False
        if given.get("labels") is not None:
            given |= _labels(model, given["labels"])
        by_tokens = [name for name in (*_BY_TOKENS, "labels", "shift_labels") if isinstance(given.get(name), Tensor)]
        return (), given | {name: shards.shard(given[name]) for name in by_tokens}

    return shard


def _part(
    shards: SequenceShards, attention_mask: Tensor | None, documents: Tensor | None, device: torch.device
) -> SequencePart:
    """What this rank has of the sequence, with positions that count the tokens of each text."""
    assert shards.length is not None
    places = torch.arange(shards.length, device=device)[None]
    whole, longest = places, torch.tensor(shards.length)
    if documents is not None:
        whole = places = places_in_documents(documents)
        longest = places.max() + 1
    elif attention_mask is not None:
        places = (places - attention_mask.int().argmax(1, keepdim=True)).clamp_min(0)
        whole, longest = places.masked_fill(attention_mask == 0, 0), attention_mask.sum(1).max()
    mine = shards.layout.positions(shards.exchange.rank).to(device)
    return SequencePart(shards.length, mine, places[:, mine], int(longest), whole)


def _labels(model: nn.Module, labels: Tensor) -> dict[str, Any]:
    """The labels of a causal language model of transformers, shifted before they are cut, and how many count."""
    if getattr(model, "loss_type", None) != "ForCausalLM":
        raise InputError(
            f"`labels` are sharded for transformers' causal language models, not for {type(model).__name__}: compute "
            "the loss of shards.shard(labels) from the logits, divided by the count of all labels, and shards.sum(loss)"
        )
    shifted = pad(labels, (0, 1), value=_IGNORED)[..., 1:].contiguous()
    return {"labels": labels, "shift_labels": shifted, "num_items_in_batch": (shifted != _IGNORED).sum()}


def _sum_loss(shards: SequenceShards) -> Callable[..., Any]:
    """What makes the loss of an output that of all ranks."""

    def total(_: nn.Module, __: Any, output: Any) -> Any:
        if isinstance(getattr(output, "loss", None), Tensor):
            output.loss = shards.sum(output.loss)
        return output

    return total
