"""look(): run a pretrained model on a text and show what each word attends to."""

import dataclasses
import difflib
import hashlib
import inspect
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from regard.backends import preferred
from regard.checks import check_unicode
from regard.errors import InputError
from regard.files import check_writable
from regard.hub import Loaded
from regard.interpret.look_result import LookResult
from regard.interpret.model_loading import advice, load_model, model_for, positions
from regard.interpret.watch import watch
from regard.observe.recorder import OnLayerEnd
from regard.observe.requested_statistics import Keep
from regard.observe.selection import Heads, Keys, Queries
from regard.problem import DEFAULT_MAX_BYTES
from regard.record.atlas import read_atlas, save_atlas
from regard.record.highlight import choose_focus
from regard.record.places import Name, find_place
from regard.record.records import Layer
from regard.record.tokenizer_adapter import adapt
from regard.record.tokens import Token, is_word
from regard.record.tokens_from_tokenizer import text_between, tokens_of

__all__ = ["LookResult", "Prepared", "look", "model_identity", "prepare"]

Progress = Callable[[int, int | None], None]

_ANSWER = 64  # tokens that an encoder–decoder generates if no target is given


@dataclass(frozen=True, eq=False)
class Prepared:
    """A text prepared for its model: the arguments of the call, and the tokens of its streams."""

    loaded: Loaded
    inputs: dict[str, torch.Tensor]
    tokens: Mapping[str, tuple[tuple[Token, ...], ...]]

    def run(self) -> None:
        """Run the model once; a language model computes the logits of the last position only, since they are
        not used.
        """
        options: dict[str, object] = {} if self.loaded.kind == "encoder" else {"use_cache": False}
        if "logits_to_keep" in inspect.signature(self.loaded.model.forward).parameters:
            options["logits_to_keep"] = 1
        with torch.inference_mode():
            self.loaded.model(**self.inputs, **options)


def model_identity(loaded: Loaded) -> dict[str, object]:
    """Return what identifies the weights and settings of a model."""
    weights = 0
    for name, one in loaded.model.state_dict().items():
        about = f"{name} {one.dtype} {tuple(one.shape)}".encode()
        numbers = one.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
        weights = zlib.crc32(numbers, zlib.crc32(about, weights))
    config = getattr(loaded.model, "config", None)
    said = "" if config is None else f"{config.to_json_string()} {getattr(config, '_attn_implementation', '')}"
    settings = hashlib.sha256(said.encode()).hexdigest()
    return {"weights of the model": weights, "settings of the model": settings}


def look(
    text: str,
    *,
    model: str | Loaded | None = None,
    token: Name | None = None,
    layer: int | None = None,
    head: int | None = None,
    target: str | None = None,
    keep: Keep = "maps",
    layers: Sequence[int | str] | None = None,
    heads: Heads | None = None,
    queries: Queries | None = None,
    keys: Keys | None = None,
    statistics: Sequence[str] = (),
    max_bytes: int = DEFAULT_MAX_BYTES,
    out: str | os.PathLike[str] | None = None,
    tokens: tuple[int, int] | None = None,
    strict: bool = True,
    progress: Progress | None = None,
) -> LookResult:
    """Run a model on a text and return what its words attend to.

    Args:
        text: The text; the source of an encoder–decoder.
        model: A bundled model, a Hugging Face folder or id, or a loaded model; by default it is chosen by the text's
            language.
        token: The word whose row is shown, or another place (see `find_place`): "it", the second one "it#2", the
            number of a token counted from 1 ("7"), an index counted from 0 (6). By default a pronoun with a large
            weight on one word, else the word with the largest weight on one content word. `compare_looks` compares two
            texts.
        layer: The layer of the first head shown, counted from 0.
        head: The first head shown, counted from 0 within its layer.
        target: The target text of an encoder–decoder; by default the text that it generates greedily.
        keep: "maps", "weights" to store every weight, "qk" to store q and k, from which any weight can be computed
            later, or "qkv" to store the values too, for `lesson`.
        layers: The layers to record, by number or name; by default all.
        heads, queries, keys: The heads, queries and named spans of keys to record, as in `regard.watch`.
        statistics: Names of statistics to compute in the same pass.
        max_bytes: Limit of bytes for keep="weights", "qk" or "qkv".
        out: Path of an atlas to save, atomically, when the model has run.
        tokens: The first and the last token of a long text to run on, counted from 1; by default all.
        strict: Whether attention that ran and could not be recorded raises an error. With False, it is listed in the
            record's `missing`, and the result shows the rest.
        progress: Called with the number of finished layers and of all layers, or None if the configuration does not
            specify it.

    Raises:
        InputError: The text is empty, of one word or too long for the model; the model, word, layer, head or statistic
            does not exist; or `out` cannot be written.
    """
    prepared = prepare(text, model=model, target=target, tokens=tokens)
    loaded = prepared.loaded
    count = _count(loaded)
    _check_wanted(prepared, token, layer, head, count)
    _check_layers(loaded, layers or (), count)
    if out is not None:
        check_writable(Path(out))
    with watch(
        loaded.model,
        keep=keep,
        layers=layers,
        heads=heads,
        queries=queries,
        keys=keys,
        statistics=statistics,
        max_bytes=max_bytes,
        on_layer_end=_reporting(progress, count),
        strict=strict,
        tokenizer=loaded.tokenizer if statistics else None,
    ) as seen:
        prepared.run()
    record = dataclasses.replace(seen.record, tokens=prepared.tokens, model=loaded.name)
    if out is not None:
        save_atlas((record,), out)
        record = read_atlas(out)[0]
    try:
        focus = choose_focus(record, token=token, layer=layer, head=head)
    except InputError as problem:
        if token is None and _is_wordless(prepared.tokens.get("target")):
            way = "what it is to write as" if target is None else "a longer"
            raise InputError(f"what {loaded.name} generates has no word to show: give {way} `--target`") from problem
        raise
    warnings = [advice(loaded, text)]
    if seen.fallback_reasons:
        why = next(iter(seen.fallback_reasons.values()))
        warnings.append(f"{preferred()} did not compute {len(seen.fallback_reasons)} of {len(record)} layers: {why}")
    return LookResult(record, focus, loaded.name, "; ".join(filter(None, warnings)) or None)


def _reporting(progress: Progress | None, count: int | None) -> OnLayerEnd:
    """Return a callback that reports each finished layer."""

    def report(number: int, layer: Layer) -> None:  # noqa: ARG001
        if progress is not None:
            progress(number + 1, count)

    return report


def _count(loaded: Loaded) -> int | None:
    """Return the number of attention calls of a pass, if the model's configuration specifies it."""
    config = getattr(loaded.model, "config", None)
    if loaded.kind == "encoder-decoder":
        sides = (
            getattr(config, "num_layers", getattr(config, "encoder_layers", None)),
            getattr(config, "num_decoder_layers", getattr(config, "decoder_layers", None)),
        )
        return sides[0] + 2 * sides[1] if sides[0] and sides[1] else None
    return getattr(config, "num_hidden_layers", None)


def _check_wanted(
    prepared: Prepared, token: Name | None, layer: int | None, head: int | None, count: int | None
) -> None:
    """Refuse a word, layer or head that does not exist, before the model runs and an atlas is written."""
    if head is not None and layer is None:
        raise InputError(f"`head` {head} needs a `layer` too: heads are counted within their layer")
    if layer is not None and count is not None and not -count <= layer < count:
        raise InputError(f"`layer` must be from 0 to {count - 1} (seen layers: {count}), got {layer}")
    if token is not None and (
        "text" in prepared.tokens or layer is None
    ):  # otherwise the layer determines which text is meant
        find_place(prepared.tokens["text" if "text" in prepared.tokens else "target"][0], token)


def _check_layers(loaded: Loaded, layers: Sequence[int | str], count: int | None) -> None:
    """Refuse invalid layers before the model runs: a number that is too high, or a name that no module has."""
    modules = dict(loaded.model.named_modules(remove_duplicate=False))
    for one in layers:
        if isinstance(one, int) and count is not None and one >= count:
            raise InputError(
                f"`layers` must name layers that are seen, from 0 to {count - 1} of {loaded.name}, got {layers}"
            )
        if isinstance(one, str) and one.partition("#")[0] not in modules:  # "#2" is a module's second call
            near = difflib.get_close_matches(one, modules, 1)
            numbers = "their numbers" if count is None else f"numbers from 0 to {count - 1}"
            raise InputError(
                f"`layers` must name layers that are seen, by {numbers} or the names of modules of {loaded.name}, got "
                f"{one!r}" + (f": did you mean {near[0]!r}?" if near else "")
            )


def _is_wordless(target: tuple[tuple[Token, ...], ...] | None) -> bool:
    """Return whether there is a target without any word."""
    return target is not None and not any(is_word(token.text) and not token.special for token in target[0])


def prepare(
    text: str,
    *,
    model: str | Loaded | None = None,
    target: str | None = None,
    tokens: tuple[int, int] | None = None,
) -> Prepared:
    """Load the model and convert the text, or a range of its tokens, to the arguments of the model."""
    if not text.strip():
        raise InputError("the text is empty: write a sentence, or name a file that has one")
    if "\0" in text:
        raise InputError("the text contains a NUL byte: is it a binary file?")
    check_unicode("text", text)
    check_unicode("target", target or "")
    if isinstance(model, str) and not model.strip():
        raise InputError(f"`model` must be a name, a folder or an id of the hub, got {model!r}: or leave it out")
    loaded = model if isinstance(model, Loaded) else model_for(text) if model is None else load_model(model)
    if target is not None and loaded.kind != "encoder-decoder":
        raise InputError(f"`target` is for an encoder–decoder, and {loaded.name} is none: leave `--target` out")
    text = text if tokens is None else text_between(loaded.tokenizer, text, *tokens)
    ids = _ids(loaded, loaded.tokenizer, text)
    if loaded.kind != "encoder-decoder":
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        return Prepared(loaded, inputs, {"text": (tokens_of(loaded.tokenizer, ids[0].tolist(), text),)})
    writes = loaded.tokenizer if loaded.target_tokenizer is None else loaded.target_tokenizer
    start = _start(loaded)
    written = _write(loaded, ids) if target is None else _shifted(start, _ids(loaded, writes, target))
    if target is None:
        written_tokens = tokens_of(writes, written[0].tolist())
    else:
        begin = dataclasses.replace(tokens_of(writes, [start])[0], special=True, word=None)
        written_tokens = (begin, *tokens_of(writes, written[0, 1:].tolist(), target))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "decoder_input_ids": written}
    words = {
        "source": (tokens_of(loaded.tokenizer, ids[0].tolist(), text),),
        "target": (written_tokens,),
    }
    return Prepared(loaded, inputs, words)


def _ids(loaded: Loaded, tokenizer: Any, text: str) -> torch.Tensor:
    """Return token ids of shape (1, n), and raise InputError if n exceeds the model's positions."""
    adapter = adapt(tokenizer)
    ids = adapter.tokenize(text, special=True).ids
    limit = positions(loaded)
    if limit is not None and len(ids) > limit:
        other = " (smollm2 takes 8,192)" if loaded.name in ("me5", "minilm") and len(ids) <= 8192 else ""
        most = limit - len(adapter.tokenize("", special=True).ids)
        raise InputError(
            f"the text has {len(ids):,} tokens and {loaded.name} reads at most {limit:,}: shorten it (regard look "
            f"--tokens 1:{most} takes a part of it), or choose another --model{other}"
        )
    if not ids:
        raise InputError(f"the text has no tokens for {loaded.name}: write a sentence")
    return torch.tensor([ids], device="cpu")


def _write(loaded: Loaded, ids: torch.Tensor) -> torch.Tensor:
    """Return the target that the model generates greedily, as decoder input."""
    with torch.inference_mode():
        written: torch.Tensor = loaded.model.generate(  # type: ignore[operator]
            input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, num_beams=1, max_new_tokens=_ANSWER
        )
    return written[:, :-1] if written.shape[1] > 1 else written


def _start(loaded: Loaded) -> int:
    """Return the token before the target, as generation takes it."""
    for config in (getattr(loaded.model, "generation_config", None), loaded.model.config):
        for key in ("decoder_start_token_id", "bos_token_id"):
            if isinstance(token := getattr(config, key, None), int):
                return token
    raise InputError(
        f"the configuration of {loaded.name} has no `decoder_start_token_id`, the token that a target starts from: put "
        "it into config.json"
    )


def _shifted(start: int, ids: torch.Tensor) -> torch.Tensor:
    """Return a given target as decoder input: with the start token first, and without the last token, which is only
    predicted.
    """
    return torch.cat([torch.full((1, 1), start, device=ids.device), ids[:, :-1]], 1)
