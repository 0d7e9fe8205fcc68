"""Other libraries that show attention: attnread for the weights of one layer, bertviz for a page."""

import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

import regard
from regard_bench.cases.inputs import real_tokens, without_gradients
from regard_bench.cases.peers import prepared
from regard_bench.comparing import compare
from regard_bench.rows import Case, Effort, Row, at_least
from regard_bench.timing import Call, Ratio

__all__ = ["SEEING"]

FASTER = at_least(20.0)
LAYER = 15
WEIGHTS, PAGE = (512, 2048), (128, 256)  # tokens, of a quick run and of another
_TRIED = 64  # tokens of the call in which a peer is tried


def _rows(effort: Effort) -> Iterator[Row]:
    """Yield the times of attnread and bertviz, and the size of the page, relative to regard's."""
    yield _one_layer(effort)
    yield from _page(effort)


def _one_layer(effort: Effort) -> Row:
    """Return the row for all weights of one layer of SmolLM2.

    attnread runs the model once for each 64 tokens, and once more: 9 minutes at 4,096 on two cores. So it is called
    once, at 2,048 tokens, between calls of ours. What is reached there is reached beyond: both its passes and ours
    grow alike, and the number of its passes with the text.
    """
    n = WEIGHTS[effort.max_tokens > 4096]
    row = Row(
        "one layer's weights of SmolLM2, against attnread", f"{n:,} tokens, one call", "its time / time",
        target=FASTER if n == WEIGHTS[True] else None,
    )  # fmt: skip
    if not effort.wants(row):
        return row
    effort.progress(f"{row.case}, {row.at}")
    calls = prepared("attnread", "attnread", partial(_attnread, n))
    if isinstance(calls, str):
        return replace(row, why=calls)
    theirs, ours = calls
    ours()
    before = [_seconds(ours) for _ in range(2)]
    slow = _seconds(theirs)
    mine = (*before, *(_seconds(ours) for _ in range(2)))
    quick = statistics.median(mine)
    times = slow / quick  # one call of theirs, so no interval
    return replace(row, ratio=Ratio(times, times, times, 1), seconds=(("attnread", slow), ("regard", quick)))


def _watched(model: Any, ids: Int[Tensor, "1 n"]) -> Float[np.ndarray, "heads n n"]:
    """Return the weights of the layer, recording no other layer."""
    part = model.model.layers[LAYER].self_attn
    with torch.inference_mode(), regard.watch(part, keep="weights") as seen:
        model(input_ids=ids, use_cache=False, logits_to_keep=1)
    heads = range(model.config.num_attention_heads)
    return np.stack([seen.weights(layer=0, head=head)[0] for head in heads])


def _attnread(n: int) -> tuple[Call, Call]:
    """Return attnread's call and ours for this number of tokens, after checking on a few that the weights are equal."""
    from attnread import extract_attention

    loaded = regard.load_model("smollm2")
    model: Any = loaded.model
    ids = real_tokens(loaded.tokenizer, n)
    heads = [(LAYER, head) for head in range(model.config.num_attention_heads)]
    some = ids[:, :_TRIED]
    found = extract_attention(model, {"input_ids": some}, heads=heads)
    theirs = np.concatenate([found["text", *one].numpy() for one in heads])
    if not (error := float(abs(theirs - _watched(model, some)).max())) < 1e-4:
        raise ValueError(f"it gives other weights, {error:.2g} apart")
    return partial(extract_attention, model, {"input_ids": ids}, heads=heads), partial(_watched, model, ids)


def _page(effort: Effort) -> Iterator[Row]:
    """Yield the rows for a page with the attention of all heads of MiniLM; bertviz stores every weight as a number."""
    n = PAGE[effort.max_tokens > 4096]
    row = Row("a page of MiniLM, against bertviz", f"{n:,} tokens", "its time / time")
    size = replace(row, what="its bytes / bytes")
    if not effort.wants(row) and not effort.wants(size):
        return
    effort.progress(f"{row.case}, {row.at}")
    with tempfile.TemporaryDirectory() as folder:
        paths = Path(folder) / "theirs.html", Path(folder) / "ours.html"
        calls = prepared("bertviz", "bertviz", partial(_bertviz, n, *paths))
        if isinstance(calls, str):
            yield replace(row, why=calls)
            return
        sides = {"bertviz": calls[0], "regard": calls[1]}
        yield compare(effort, row.case, row.at, row.what, sides, over=("bertviz", "regard"))
        theirs, ours = (path.stat().st_size for path in paths)
        yield replace(size, ratio=Ratio(theirs / ours, theirs / ours, theirs / ours, 1))


def _bertviz(n: int, theirs: Path, ours: Path) -> tuple[Call, Call]:
    """Return bertviz's call from a text to a page, which needs the weights of all layers from the model, and ours."""
    from bertviz import head_view

    loaded, eager = (regard.load_model("minilm", attn_implementation=one) for one in ("sdpa", "eager"))
    ids = real_tokens(loaded.tokenizer, n)

    def view(ids: Int[Tensor, "1 n"]) -> None:
        attentions = eager.model(input_ids=ids, output_attentions=True).attentions
        words = loaded.tokenizer.convert_ids_to_tokens(ids[0])
        theirs.write_text(head_view(attentions, words, html_action="return").data, encoding="utf-8")

    def watch() -> None:
        with regard.watch(loaded.model, tokenizer=loaded.tokenizer) as seen:
            loaded.model(input_ids=ids)
        seen.to_html(ours)

    without_gradients(lambda: view(ids[:, :_TRIED]))()
    return without_gradients(lambda: view(ids)), without_gradients(watch)


def _seconds(call: Call) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


SEEING = Case("seeing", "one layer's weights against attnread, a page against bertviz", _rows)
