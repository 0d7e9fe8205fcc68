"""watch(): see every attention call of a model, without changing a line of it or a bit of its output."""

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import InputError, ObservationError
from regard.functional import attention
from regard.observe.atlas import load_atlas, save_atlas
from regard.observe.focus import choose_focus
from regard.observe.intercept import Interception
from regard.observe.recorder import Recorder
from regard.observe.records import Record
from regard.observe.rows import Computed
from regard.observe.site import Keep, Seen
from regard.observe.tokens import Token
from regard.problem import DENSE_BUDGET, Problem
from regard.render.figure import heatmap_figure
from regard.render.page import write_page
from regard.seeing.tokens import tokens_of

__all__ = ["Sight", "load", "watch"]

Streams = dict[str, tuple[tuple[Token, ...], ...]]


class Sight:
    """What was seen: one record a forward pass. Everything a record answers can be asked of it directly.

    `seen.weights(layer=, head=)`, `seen.heatmap(...)`, `seen.entropy(...)`, `seen.received(...)`, `seen.top(...)` and
    `seen.heads("it", "animal")` are those of `Record`, of the only pass; of several, choose `seen.forwards[i]`.
    """

    def __init__(self, forwards: tuple[Record, ...] = ()) -> None:
        self.forwards = forwards

    @property
    def record(self) -> Record:
        """The record of the only forward pass."""
        if not self.forwards:
            raise ObservationError("nothing has been seen yet: ask after the `with` block of regard.watch has ended")
        if len(self.forwards) > 1:
            raise ObservationError(
                f"{len(self.forwards)} forward passes were seen: choose one with seen.forwards[i], or watch one alone"
            )
        return self.forwards[0]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or (not hasattr(Record, name) and name not in Record.__dataclass_fields__):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.record, name)

    def __repr__(self) -> str:
        return f"<{len(self.forwards)} forward passes seen, of {[len(one) for one in self.forwards]} layers>"

    def plot(self, *, layer: int | str, head: int, sequence: int = 0) -> Any:
        """Draw the heat map of one head as a matplotlib Figure (`.savefig`, or shown by a notebook)."""
        return heatmap_figure(self.record, layer=layer, head=head, sequence=sequence)

    def to_html(self, path: str | os.PathLike[str], *, token: str | None = None, title: str = "") -> None:
        """Write one self-contained page that a browser opens without a server; needs the tokens to be known."""
        record = self.record
        write_page(record, choose_focus(record, token=token), Path(path), title=title or record.model)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to one atlas file, atomically; regard.load reads it."""
        if not self.forwards:
            raise ObservationError("nothing has been seen yet, so there is nothing to save")
        save_atlas(self.forwards, path)


def load(path: str | os.PathLike[str]) -> Sight:
    """Read an atlas that `seen.save` or `regard look --out it.atlas` wrote.

    Raises:
        AtlasError: The file is missing, cut off, damaged, of another version, or not an atlas.
    """
    return Sight(load_atlas(path))


@contextlib.contextmanager
def watch(
    model: nn.Module,
    *,
    keep: Keep = "maps",
    tokenizer: Any = None,
    tokens: Sequence[str] | None = None,
    budget: int = DENSE_BUDGET,
) -> Iterator[Sight]:
    """See every attention call of `model` inside the `with` block; its output stays the same to the bit.

    Sees `F.scaled_dot_product_attention`, `nn.MultiheadAttention` and `nn.TransformerEncoder` with their fast paths,
    `regard.attention`, and attention written out by hand: a softmax over products of queries and keys that multiplies
    values. Weights are those before dropout. Rows are folded block by block: no n × n matrix is kept unless asked for.

    Args:
        model: Any module; a compiled one is refused.
        keep: "maps" keeps pooled heat maps (exact up to 512 tokens), the 8 strongest keys of each query, entropy, and
            what each key received. "weights" keeps every weight too, within the budget.
        tokenizer: A Hugging Face tokenizer; the `input_ids` that the model is called with are then known as words.
        tokens: The tokens themselves, of a batch of one.
        budget: Bytes that keep="weights" may take.

    Raises:
        InputError: `model` is not a module, or `keep` is neither of the two.
        ObservationError: The model is compiled, no attention call was seen, the budget is too small, or a cache was
            reordered by beam search.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"`model` must be an nn.Module, got {type(model).__name__}")
    if keep not in ("maps", "weights"):
        raise InputError(f'`keep` must be "maps" or "weights", got {keep!r}')
    _refuse_compiled(model)
    recorder, sight = Recorder(model, keep, budget), Sight()
    with contextlib.ExitStack() as stack:
        heard = _Ids()
        if tokenizer is not None:
            # Only where tokens are wanted: a hook on an nn.TransformerEncoder would switch its fast path off.
            handle = model.register_forward_pre_hook(heard, with_kwargs=True)
            stack.callback(handle.remove)
        stack.enter_context(_refusing_compiled_code())
        interception = stack.enter_context(Interception(model, recorder, {attention: _read_attention}))
        yield sight
    _refuse_gaps(model, interception)
    if not recorder.calls:
        raise ObservationError(_why_nothing(model))
    given: Streams = {"text": (tuple(Token(text) for text in tokens),)} if tokens is not None else {}
    named = given or heard.streams(tokenizer)
    model_name = str(getattr(getattr(model, "config", None), "_name_or_path", "") or type(model).__name__)
    sight.forwards = tuple(
        Record(one.layers, _fitting(one, named), model_name, {"keep": keep}) for one in recorder.finish()
    )


class _Ids:
    """A forward pre-hook that listens for token ids; those of the steps of one generation are joined."""

    def __init__(self) -> None:
        self.ids: dict[str, list[Tensor]] = {"input_ids": [], "decoder_input_ids": []}

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        first = args[0] if args and isinstance(args[0], Tensor) and not args[0].is_floating_point() else None
        for name, heard in self.ids.items():
            ids = kwargs.get(name, first if name == "input_ids" else None)
            if isinstance(ids, Tensor) and ids.ndim == 2:
                heard.append(ids.detach().cpu())

    def streams(self, tokenizer: Any) -> Streams:
        """Tokens by stream, as far as ids were heard."""
        texts, targets = self.ids["input_ids"], self.ids["decoder_input_ids"]
        named = {"source" if targets else "text": texts, "target": targets}
        return {
            stream: tuple(
                tokens_of(tokenizer, [int(one) for step in heard for one in step[sequence]])
                for sequence in range(len(heard[0]))
            )
            for stream, heard in named.items()
            if heard and all(len(step) == len(heard[0]) for step in heard)
        }


def _fitting(
    record: Record, named: dict[str, tuple[tuple[Token, ...], ...]]
) -> dict[str, tuple[tuple[Token, ...], ...]]:
    """The tokens, where there are as many as the record has positions: several passes are not told apart by ids."""
    lengths: dict[str, int] = {}
    for layer in record.layers:
        for stream, length in ((layer.query_tokens, layer.queries), (layer.key_tokens, layer.keys)):
            lengths[stream] = max(length, lengths.get(stream, 0))
    return {
        stream: tuple(one[: lengths[stream]] for one in many)
        for stream, many in named.items()
        if stream in lengths and all(len(one) >= lengths[stream] for one in many)
    }


def _read_attention(q: Tensor, k: Tensor, v: Tensor, *, backend: str = "auto", **asked: Any) -> Seen:  # noqa: ARG001
    """Read a call of regard.attention itself."""
    asked = asked | {"weights": False, "return_lse": False}
    problem = Problem.of(q.detach(), k.detach(), v.detach(), **asked)
    return Seen(Computed(problem), problem.k)


def _refuse_compiled(model: nn.Module) -> None:
    for name, module in model.named_modules():
        compiled = hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
        if compiled:
            which = f"its module {name!r} is" if name else "it is"
            raise ObservationError(
                f"this model cannot be watched: {which} compiled, and compiled code shows no calls; watch the model as "
                "it was before torch.compile (model._orig_mod), whose weights are the same"
            )


@contextlib.contextmanager
def _refusing_compiled_code() -> Iterator[None]:
    """Compiled functions inside a model would be compiled anew together with the watching: refuse them by name."""
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    if dynamo is None or dynamo._stance.stance != "default":
        yield  # no compiler around, or the caller has said what compiled code shall do
        return
    with torch.compiler.set_stance("fail_on_recompile"):
        try:
            yield
        except RuntimeError as error:
            if "'fail_on_recompile'" not in str(error):
                raise
            raise ObservationError(_COMPILED.format(_compiled_function(error))) from error


_COMPILED = (
    "this model cannot be watched as it is: inside it runs {}, and compiled code shows no calls; put "
    '`with torch.compiler.set_stance("force_eager"):` around regard.watch, or load a transformers model that uses '
    'flex_attention with attn_implementation="sdpa"'
)


def _compiled_function(error: BaseException) -> str:
    """The innermost function outside PyTorch that called something compiled."""
    frames = [one for one in traceback.extract_tb(error.__traceback__) if f"{os.sep}torch{os.sep}" not in one.filename]
    return f"a compiled function, called at {frames[-1].filename}:{frames[-1].lineno}" if frames else "compiled code"


def _refuse_gaps(model: nn.Module, interception: Interception) -> None:
    """What was noticed and could not be read: better no picture than one with layers missing."""
    for kernel, place in interception.unread_kernels.items():
        raise ObservationError(
            f"{place} calls the kernel {kernel} directly, which tells no one its weights: let it call "
            "F.scaled_dot_product_attention or regard.attention instead (a transformers model: load it with "
            'attn_implementation="sdpa")'
        )
    for place in interception.unread(rearranged=True):
        raise ObservationError(
            f"{place} of this {type(model).__name__} rearranges its weights (in bands or blocks) before they meet the "
            "values, so they cannot be shown as queries × keys: regard does not see this kind of attention"
        )


def _why_nothing(model: nn.Module) -> str:
    implementation = getattr(getattr(model, "config", None), "_attn_implementation", None) or ""
    if "flash" in implementation or "flex" in implementation or "/" in implementation:
        return (
            f"no attention call was seen: this model runs {implementation!r}, which calls its kernel directly; load it "
            'with attn_implementation="sdpa" (or "regard") to watch it'
        )
    return (
        f"no attention call of this {type(model).__name__} was seen inside the `with` block: call the model there; "
        "if it was called, it computes attention where PyTorch shows no calls (flash-attn called directly, a function "
        "under torch.compile, a kernel of its own): let it call F.scaled_dot_product_attention or regard.attention "
        "instead"
    )
