"""ablate_heads(): run a model with some heads removed, and restore the model afterwards."""

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, cast

from torch import Tensor, nn

from regard.errors import InputError, ObservationError
from regard.observe.intercept.compiled_code import refuse_compiled
from regard.observe.selection import Heads, HeadsChosen
from regard.observe.streams import Place, Places, name_streams
from regard.record.layers import Layer, Stream, find_layer, several_streams

__all__ = ["HeadsOut", "Replacement", "ablate_heads", "by_layer", "head_outputs"]

Replacement = Literal["zero", "mean"]

# Names of output projections, and of query projections. A module needs one of each to count as attention: an MLP
# may have a c_proj or a dense too, but has no query projection.
_OUTPUTS = ("o_proj", "out_proj", "c_proj", "out_lin", "dense", "Wo", "o")
_QUERIES = ("q_proj", "c_attn", "q_lin", "query_key_value", "Wqkv", "qkv_proj", "qkv", "query", "q")
_DIFFERENTIAL = "lambda_q1"  # a parameter of differential attention (Ye et al. 2024, arXiv:2410.05258)
_CROSS = ("cross", "encoder_attn", "encdec")  # parts of the names of cross-attention in lower case
_HEADS = ("heads", "num_heads", "num_attention_heads", "n_heads", "n_head")


@dataclass(frozen=True, eq=False)
class HeadsOut:
    """The output projection of one attention layer; its input is the concatenated outputs of the layer's heads.

    `number` and streams are those of a record. The model has not run, so `queries` and `keys` are not lengths, but
    alike where streams are.
    """

    name: str
    projection: nn.Module
    heads: int
    width: int
    kind: Literal["self", "cross"] = "self"
    queries: int = 0
    keys: int = 0
    query_tokens: str = "text"
    key_tokens: str = "text"
    number: int = 0


@contextlib.contextmanager
def ablate_heads(
    model: nn.Module,
    heads: Heads,
    *,
    replace: Replacement = "zero",
    stream: Stream | None = None,
) -> Iterator[nn.Module]:
    """Run `model` without some heads inside the `with` block, and restore it afterwards.

    The output of each head is set to 0 before the output projection (Michel et al. 2019, arXiv:1905.10650, section
    2.3), or to its mean over all positions and sequences of the call.

    Args:
        model: A model of transformers (Llama, BERT, GPT-2 and their kin) or a regard.models.Transformer.
        heads: Heads in the forms that `regard.watch` takes: "5.11", (5, 11), a layer such as 5 for all of its heads,
            the name of a module in place of its number, or a HeadSet. Layers have the numbers of `regard.watch`.
        replace: "zero" or "mean".
        stream: Stream of the layers, or the pair ("target", "source") of cross-attention, if the model has several. By
            default that of the HeadSet.

    Raises:
        InputError: A layer or head does not exist, a head is given twice, or none is given.
        ObservationError: The output projections are not found, or layers share one; the model is compiled, it was not
            run in the block, or a mean would be over a single position.

    >>> import torch
    >>> from regard.models import Transformer, TransformerConfig
    >>> sizes = {"vocab_size": 9, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 16}
    >>> config = TransformerConfig(**sizes, encoder_layers=1)
    >>> encoder, ids = Transformer(config).eval(), torch.tensor([[1, 2, 3]])
    >>> whole = encoder(ids).last_hidden_state
    >>> with ablate_heads(encoder, [(0, 1)]):
    ...     torch.equal(encoder(ids).last_hidden_state, whole)
    False
    >>> torch.equal(encoder(ids).last_hidden_state, whole)
    True
    """
    if replace not in ("zero", "mean"):
        raise InputError(f'`replace` must be "zero" or "mean", got {replace!r}')
    refuse_compiled(model)
    layers = head_outputs(model)
    chosen = by_layer(layers, heads, stream)
    ran, passing = set[int](), _Pass()
    with contextlib.ExitStack() as stack:
        stack.callback(model.register_forward_pre_hook(passing.begin).remove)
        stack.callback(model.register_forward_hook(passing.end, always_call=True).remove)
        for layer, gone in chosen.items():
            counted = partial(passing.call, layers[layer].name, layer)
            hook = partial(_without, layers[layer], layer, tuple(gone), replace, ran)
            for one in (counted, hook):
                stack.callback(layers[layer].projection.register_forward_pre_hook(one).remove)
        yield model
    _refuse_idle(layers, set(chosen) - ran)


@dataclass(eq=False)
class _Pass:
    """One forward pass of the model. It detects projections shared by several layers, which would lose the head in all
    of them.
    """

    calls: Counter[int] = field(default_factory=Counter)
    running: bool = False

    def begin(self, *_: Any) -> None:
        self.calls.clear()
        self.running = True

    def end(self, *_: Any) -> None:
        self.running = False

    def call(self, name: str, number: int, *_: Any) -> None:
        self.calls[number] += 1
        if self.running and self.calls[number] > 1:
            raise ObservationError(
                f"{name} is called more than once in a pass of the model, as layers share it (ALBERT), so that no head "
                "can be removed from only one of them: remove it with a hook of your own"
            )


def _refuse_idle(layers: Sequence[HeadsOut], idle: Set[int]) -> None:
    if idle:
        first = layers[min(idle)]
        raise ObservationError(
            f"no head of layer {first.number} was removed, as {first.name} was not called: run the model inside of the "
            "block"
        )


def head_outputs(model: nn.Module) -> tuple[HeadsOut, ...]:
    """Return the output projections of a model's attention layers, in the order in which the model holds them, those
    of an encoder first.

    Raises:
        ObservationError: There is none, or the model has layers that never call theirs (nn.MultiheadAttention).
    """
    found: list[HeadsOut] = []
    taken: set[int] = set()
    for name, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention):
            raise ObservationError(
                f"{name or 'the model'} is an nn.MultiheadAttention, which never calls its output projection, so that "
                "no head can be taken out there: build the model with regard.nn.MultiHeadAttention"
            )
        if (projection := _projection(module)) is None or id(projection) in taken:
            continue
        if _DIFFERENTIAL in dict(module.named_parameters(recurse=False)):
            raise ObservationError(
                f"{name or 'the model'} ({type(module).__name__}) is differential attention, whose output is the "
                "difference of two softmaxes, with a head for two of them: remove it with a hook of your own"
            )
        taken.add(id(projection))
        width = _in_width(projection)
        heads = _heads(module, model)
        if heads is None or width % heads:
            raise ObservationError(
                f"the number of heads of {name or 'the model'} ({type(module).__name__}) is not known: it needs an "
                f"attribute `num_heads` that divides the {width} numbers its output projection takes in"
            )
        found.append(HeadsOut(name, projection, heads, width // heads))
    if not found:
        raise ObservationError(
            f"no attention with an output projection was found in {type(model).__name__}: a module with "
            f"{', '.join(_QUERIES[:3])} … and {', '.join(_OUTPUTS[:3])} … is looked for"
        )
    return _numbered(found, Places(model))


def _numbered(found: Sequence[HeadsOut], places: Places) -> tuple[HeadsOut, ...]:
    """Return the layers with the streams and numbers that they have in a record."""
    known = sorted(((one, places.of(one.name, {})) for one in found), key=lambda pair: pair[1].role != "encoder")
    groups = list(dict.fromkeys(_group(place) for _, place in known))
    layers: list[HeadsOut] = []
    for one, place in known:
        own = groups.index(_group(place)) + 1
        inner = one.name.removeprefix(place.layer).lower()
        if not any(part in inner for part in _CROSS):
            layers.append(dataclasses.replace(one, queries=own, keys=own))
            continue
        others = [at for at, group in enumerate(groups, 1) if at != own]
        encoders = [at for at in others if groups[at - 1][1] == "encoder"] or others
        layers.append(dataclasses.replace(one, kind="cross", queries=own, keys=encoders[0] if encoders else 0))
    return cast("tuple[HeadsOut, ...]", name_streams(cast("list[Layer]", layers), [place for _, place in known]))


def _group(place: Place) -> tuple[str | None, str | None]:
    return (place.tower, place.role) if place.tower not in (None, "text") else (None, place.role)


def _projection(module: nn.Module) -> nn.Module | None:
    """Return the output projection of an attention module (for BERT, `output.dense` next to `self.query`), or None."""
    inner = getattr(module, "self", None)
    if isinstance(inner, nn.Module) and _has_queries(inner):
        dense = getattr(getattr(module, "output", None), "dense", None)
        return dense if _is_linear(dense) else None
    if not _has_queries(module):
        return None
    return next((one for name in _OUTPUTS if _is_linear(one := getattr(module, name, None))), None)


def _has_queries(module: nn.Module) -> bool:
    return any(isinstance(getattr(module, name, None), nn.Module) for name in _QUERIES)


def _is_linear(module: Any) -> bool:
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def _in_width(projection: nn.Module) -> int:
    weight = projection.weight
    assert isinstance(weight, Tensor)
    return int(weight.shape[0] if type(projection).__name__ == "Conv1D" else weight.shape[1])


def _heads(module: nn.Module, model: nn.Module) -> int | None:
    """Return the number of query heads of a layer, from its own attributes, its configuration or the model's
    configuration.
    """
    holders = (module, getattr(module, "self", None), getattr(module, "config", None), getattr(model, "config", None))
    found = (getattr(holder, name, None) for holder in holders for name in _HEADS)
    return next((one for one in found if isinstance(one, int) and one > 0), None)


def by_layer(layers: Sequence[HeadsOut], heads: Heads, stream: Stream | None = None) -> dict[int, list[int]]:
    """Group `heads` by layer, an index of `layers`, and raise InputError if a layer or head does not exist."""
    if stream is None and several_streams(layers):
        stream = getattr(heads, "stream", None)  # of a HeadSet
    chosen: dict[int, list[int]] = {}
    for layer, head in HeadsChosen.of(heads).pairs:
        # BERT's projection is beside the module that a record names.
        found = find_layer(layers, layer.removesuffix(".self") if isinstance(layer, str) else layer, stream)
        if head is not None and not 0 <= head < found.heads:
            raise InputError(f"`head` must be from 0 to {found.heads - 1} in layer {layer}, got {layer}.{head}")
        gone = chosen.setdefault(next(at for at, one in enumerate(layers) if one is found), [])
        some = range(found.heads) if head is None else [head]
        if not set(gone).isdisjoint(some):
            raise InputError(f"`heads` must differ, got heads of {found.name} under two names")
        gone.extend(some)
    return chosen


def _without(
    layer: HeadsOut, number: int, gone: tuple[int, ...], replace: Replacement, ran: set[int], _: Any, args: Any
) -> Any:
    """Return the projection's input with the ablated heads replaced, as a copy, since the caller may still use the
    original.
    """
    ran.add(number)
    outputs, others = args[0], args[1:]
    if replace == "mean" and outputs.numel() == outputs.shape[-1]:
        raise ObservationError('replace="mean" needs more than one position, and this call has one: use "zero"')
    changed = outputs.clone()
    for head in gone:
        here = slice(head * layer.width, (head + 1) * layer.width)
        own = outputs[..., here]
        changed[..., here] = 0 if replace == "zero" else own.flatten(0, -2).mean(0)
    return (changed, *others)
