"""lesson(): a page on which every number of attention can be touched, of one's own numbers or of a real head."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from regard.errors import InputError
from regard.lessons.example import EXAMPLE
from regard.lessons.lesson import NO_MASK, Lesson, lesson_of_heads, lesson_of_translation
from regard.lessons.limits import LARGEST_COUNT, LARGEST_NUMBER
from regard.lessons.own_numbers import OwnNumbers, as_array, shown
from regard.lessons.text_words import Language, check_language
from regard.record.places import Name, find_place
from regard.record.tokens import Token

if TYPE_CHECKING:  # PyTorch takes seconds, and numbers of one's own need none of it
    from torch import Tensor

    from regard.hub import Loaded
    from regard.masks import Mask

    Array = npt.ArrayLike | Tensor

__all__ = ["lesson"]


def lesson(
    text: str | None = None,
    *,
    model: "str | Loaded | None" = None,
    layer: int | None = None,
    head: int | None = None,
    token: Name | None = None,
    translator: "str | Loaded | None" = None,
    x: "Array | None" = None,
    w_query: "Array | None" = None,
    w_key: "Array | None" = None,
    w_value: "Array | None" = None,
    w_output: "Array | None" = None,
    key_x: "Array | None" = None,
    value_x: "Array | None" = None,
    tokens: str | Sequence[str] | None = None,
    query_tokens: str | Sequence[str] | None = None,
    mask: "Mask | Array | None" = None,
    scale: float | None = None,
    lang: Language = "en",
) -> Lesson:
    """Return a lesson: attention step by step, as a page whose numbers can be changed, and as text.

    Formula: softmax(x W_Q (x W_K)ᵀ · scale) x W_V, for each head; the outputs side by side, times W_O.

    Without arguments it is the worked example, 我 爱 你. Matrices are lists, NumPy arrays or tensors. The page opens in
    a notebook, or is saved by `.to_html("lesson.html")`; `.text` has the same numbers as `regard steps` prints them.

    With a text it opens with a head of a model that reads it, from its real q, k and v on; with a text and a translator
    with the translation as it is written, a token at a time. `seen.lesson(…)` makes it of what was watched.

    >>> import regard
    >>> ones = regard.lesson(x=[[1, 0], [0, 1]], w_query=[[1], [0]], w_key=[[0], [1]], w_value=[[1], [2]], tokens="a b")
    >>> ones.steps.worked.scores.tolist()
    [[0.0, 1.0], [0.0, 0.0]]

    Args:
        text: A text for `model`, or for `translator`.
        model: A bundled model, a Hugging Face folder or id, or a loaded model; by default the text's language chooses.
        layer, head: The head that is looked at first, counted from 0, of the model, or of matrices (then `head` alone);
            by default as `regard.look` chooses them, or the first.
        token: The query that is looked at first: its name, its number from 1 as a text, or its index from 0.
        translator: A run of `regard train` that translates, or another encoder–decoder.
        x: The vectors of the queries, a row a token: (n, D).
        w_query, w_key, w_value: W_Q (D, d), W_K (D, d) and W_V (D, dv); of several heads a list of matrices each, or an
            array (heads, D, d). Without the three, `x`, `key_x` and `value_x` are Q, K and V themselves.
        w_output: W_O, with a row for each number of the outputs side by side: (heads · dv, any width).
        key_x, value_x: The vectors of which keys (m, D) and values (m, any width) are made, where these are not `x`;
            values are made of `key_x` unless `value_x` is given.
        tokens: Names of the rows of `x`, or of `key_x` where that is given; a text is split at its spaces.
        query_tokens: Names of the rows of `x` where `key_x` is given.
        mask: A mask of `regard.masks`, or a boolean matrix (n, m), True = may see.
        scale: What scores are multiplied by; 1/√d by default.
        lang: "en" or "zh"; readers can switch.

    Raises:
        InputError: An argument is no matrix of finite numbers or does not fit the others, or there are more than a page
            shows: 32 tokens, 8 heads, 2 MB of numbers; 256 tokens of a text. Or the text is empty, the model or what is
            looked at does not exist, or arguments exclude each other.
        ObservationError: The model's attention runs where its queries and keys cannot be seen.
    """
    check_language(lang)
    about = {"w_query": w_query, "w_key": w_key, "w_value": w_value, "w_output": w_output, "key_x": key_x}
    about |= {"value_x": value_x, "tokens": tokens, "query_tokens": query_tokens}
    if text is not None:
        numbers = {"x": x, **about, "mask": mask, "scale": scale}
        _check_text(text, {"model": model, "translator": translator}, {"layer": layer, "head": head})
        _exclude(numbers, "is for numbers of your own, and a text is read by a model: give one of them")
        if translator is None:
            return _lesson_of_text(text, model, layer, head, token, lang)
        chosen = {"model": model, "layer": layer, "head": head, "token": token}
        _exclude(chosen, "is for a head of a model, and `translator` writes a translation: leave one of them out")
        return _lesson_of_translation(text, translator, lang)
    needy = {"model": model, "layer": layer, "translator": translator}
    _exclude(needy, 'needs a text to read, as in regard.lesson("The cat sat.", model="minilm")')
    if x is None:
        _exclude(about, "belongs to numbers of your own: give `x` with it, a row a token")
    return _lesson_of_numbers(EXAMPLE if x is None else OwnNumbers.read(x, **about), mask, scale, head, token, lang)


def _exclude(arguments: Mapping[str, Any], rule: str) -> None:
    """Refuse the first of some arguments that has a value."""
    for name, value in arguments.items():
        if value is not None:
            raise InputError(f"`{name}` {rule}")


def _check_text(text: object, models: Mapping[str, Any], numbers: Mapping[str, Any]) -> None:
    from regard.hub import Loaded

    if not isinstance(text, str):
        raise InputError(
            f"`text` must be a text that a model reads, got {shown(text)}: numbers of your own are given by name, as "
            "in regard.lesson(x=[[1, 0], [0, 1]], …)"
        )
    for name, model in models.items():
        if model is not None and not isinstance(model, str | Loaded):
            raise InputError(
                f"`{name}` must be a name, a folder or what regard.load_model returns, got {type(model).__name__}: "
                "give the folder that it is loaded from"
            )
    for name, number in numbers.items():
        if number is not None and (isinstance(number, bool) or not isinstance(number, int)):
            raise InputError(f"`{name}` must be a number from 0, got {shown(number)}")


def _lesson_of_text(
    text: str, model: "str | Loaded | None", layer: int | None, head: int | None, token: Name | None, lang: Language
) -> Lesson:
    """Open with the query that `regard steps` works out: of a word of several tokens, the first."""
    from regard.interpret.head_vectors import query_place
    from regard.interpret.look import look
    from regard.lessons.recorded_heads import lesson_of_record
    from regard.lessons.text import pieces_note

    looked = look(text, model=model, layer=layer, head=head, token=token, keep="qkv")
    record, focus = looked.record, looked.highlight
    if len(record.tokens) != 1:  # an encoder–decoder, whose queries are tokens of the target
        return lesson_of_record(record, layer=layer, head=head, token=token, lang=lang)
    if token is None and (layer is None or head is None):
        token = focus.queries[focus.word].text
    (stream,) = record.tokens.values()
    place, first = query_place(stream[0], token), focus.looks[0]
    lesson = lesson_of_record(record, layer=first.layer, head=first.head, token=place.first, lang=lang)
    note = pieces_note(place.text, len(place.positions), lang)
    return replace(lesson, steps=replace(lesson.steps, note=note)) if note else lesson


def _lesson_of_translation(text: str, translator: "str | Loaded", lang: Language) -> Lesson:
    from regard.interpret.translation_steps import record_translation

    return lesson_of_translation(asdict(record_translation(translator, text)), language=lang)


def _lesson_of_numbers(
    numbers: OwnNumbers, mask: Any, scale: Any, head: Any, token: Name | None, lang: Language
) -> Lesson:
    is_number = isinstance(scale, int | float) and not isinstance(scale, bool)
    if scale is not None and not (is_number and abs(scale) <= LARGEST_NUMBER):  # nor is a NaN
        raise InputError(f"`scale` must be a finite number up to {LARGEST_NUMBER:.0e}, got {shown(scale)}")
    state, visible = (NO_MASK, None) if mask is None else _read_mask(mask, numbers.pairs, numbers.count)
    heads = numbers.work(scale=scale, visible=visible)
    count = len(heads.heads)
    if head is not None and (isinstance(head, bool) or not isinstance(head, int) or not 0 <= head < count):
        raise InputError(f"`head` must be a number from 0 to {count - 1}, got {shown(head)}")
    names = [Token(name) for name in heads.heads[0].query_tokens]
    return lesson_of_heads(
        heads,
        language=lang,
        row=0 if token is None else find_place(names, token).first,
        head=head or 0,
        mask=state,
        scale="default" if scale is None else scale,
    )


def _read_mask(mask: Any, pairs: tuple[int, int], heads: int) -> tuple[Mapping[str, Any], npt.NDArray[np.bool_]]:
    """Return a mask as the page's state has it, by its name if the page knows it, and its matrix."""
    if isinstance(mask, type) and hasattr(mask, "bind"):
        raise InputError(f"`mask` must be a mask, got the class {mask.__name__}: make one, as in {mask.__name__}(…)")
    if hasattr(mask, "bind"):
        bound = mask.bind(*pairs)
        dense = bound.dense()
        if dense.shape[:2] != (1, 1):
            raise InputError(
                "`mask` must be one mask for all heads of one text, got one for "
                f"{dense.shape[0]} texts and {dense.shape[1]} heads"
            )
        # A function of the head declares no heads.
        if any(not other.equal(dense[0, 0]) for other in bound.dense(batch=1, heads=heads)[0]):
            raise InputError(
                "`mask` must be one mask for all heads, got one that differs by head: make a lesson of each"
            )
        visible = np.asarray(dense[0, 0])
        return _named_mask(mask, pairs[1]) or _drawn(visible), visible
    visible = as_array("mask", mask)
    if visible.dtype.kind != "b" or visible.shape != pairs:
        raise InputError(
            f"`mask` must be a mask of regard.masks, or a matrix of True (may see) and False of shape {pairs}, "
            f"got {visible.dtype} of shape {visible.shape}"
        )
    return _drawn(visible), visible


def _named_mask(mask: "Mask", keys: int) -> Mapping[str, Any] | None:
    """Return the masks that the page has by name; None for others."""
    from regard.masks import Causal, Global, Padding, Prefix, Window
    from regard.masks.base import Or

    def most(count: int) -> int:  # a page holds no more tokens than this
        return min(count, LARGEST_COUNT)

    match mask:
        case Causal(align="end", shift=0):
            return {"kind": "causal"}
        case Window(left=left, right=right):
            return {"kind": "window", "left": most(left), "right": most(right)}
        case Padding(attention_mask=tokens):
            return {"kind": "padding", "hidden": np.flatnonzero(~np.asarray(tokens[0])).tolist()}
        case Or(left=Causal(align="end", shift=0), right=Prefix(length=int(length))):
            return {"kind": "prefix", "length": most(length)}
        case Or(left=Window(left=left, right=right), right=Global(tokens=tuple(tokens))) if left == right:
            marked = sorted({token for token in tokens if token < keys})
            return {"kind": "longformer", "window": most(2 * left), "globals": marked}
    return None


def _drawn(visible: npt.NDArray[np.bool_]) -> Mapping[str, Any]:
    """Return a matrix as a mask drawn by hand."""
    if visible.all():
        return NO_MASK
    return {"kind": "drawn", "rows": ["".join("1" if see else "0" for see in row) for row in visible]}
