"""sources(): find which parts of a prompt an answer came from by the weights of a few heads, and check by removal."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from regard.checks import check_count, check_flag, check_unicode
from regard.errors import InputError
from regard.heads.answer_sources import Removal, Scores, SourcePart, Sources
from regard.heads.head_set import HeadSet
from regard.hub import Loaded
from regard.interpret.answer_log_probs import device_of, log_probs_of
from regard.interpret.find_heads import as_loaded
from regard.interpret.model_loading import positions
from regard.interpret.source_heads import heads_for
from regard.interpret.source_prompt import (
    Prompt,
    encode,
    joined,
    prompt_of,
    read_tokens,
    space_before,
    token_ranges,
    without_end,
)
from regard.interpret.tap import tap
from regard.record.text_parts import Parts, Span, sentences
from regard.record.tokenizer_adapter import adapt

__all__ = ["SourcesResult", "sources"]

_ABOUT = 0.25  # relative difference of the tokens of a part and its control
_NEAREST = 3  # candidates for a control if none is about as long


class SourcesResult(Sources):
    """What `sources` returns: `Sources`, which a notebook shows, and which can be saved as a page."""

    def _repr_html_(self) -> str:
        from regard.render.sources_page import sources_card

        return sources_card(self)

    def save_page(self, path: str | os.PathLike[str], *, question: str = "") -> None:
        """Save a self-contained HTML page, whole or not at all.

        Raises:
            InputError: It cannot be written.
        """
        from regard.render.sources_page import write_sources_page

        write_sources_page(self, os.fspath(path), question=question)


def sources(
    model: nn.Module | Loaded | str,
    tokenizer: Any = None,
    prompt: str | None = None,
    answer: str | None = None,
    *,
    documents: Mapping[str, str] | Sequence[str] | None = None,
    question: str | None = None,
    messages: Sequence[Mapping[str, str]] | None = None,
    parts: Parts = "auto",
    heads: HeadSet | None = None,
    max_new_tokens: int = 64,
    verify: bool = False,
    num_removals: int = 1,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> SourcesResult:
    """Find which parts of a prompt an answer came from.

    The model reads the prompt with the answer once, or generates the answer, while the rows of a few heads are tapped.
    A part's score for a token of the answer is the weighted sum, over these heads, of the attention weights from the
    position that predicts the token to the part's tokens, without the first of the prompt and special ones, on which
    heads rest when they find nothing. This shows what the heads attend to; whether the answer depends on a
    part is shown by `verify`, which removes it.

    Args:
        model: A causal language model of transformers or regard with its `tokenizer`, a loaded one, or the name of one.
        tokenizer: The tokenizer of a model that is given as a module.
        prompt: The prompt, as the model reads it, or
        documents: texts by name, or a list of texts, of which a prompt with the `question` is made (by the tokenizer's
            chat template if it has one), or
        messages: a chat, [{"role": "user", "content": ...}, ...].
        question: The question about the documents.
        answer: The answer; without it, the model generates one (greedily, at most `max_new_tokens`).
        parts: "sentence", "paragraph", "line", "document", or "auto" (lines of code and of tables, else sentences); for
            a single text also a list of spans (start, end) of characters.
        heads: The heads and their readout. By default those that come with the model (smollm2) or, for another one,
            those that `regard.find_heads(model, tokenizer, "sources")` finds, about a minute the first time.
        verify: Whether to remove parts and measure what the answer loses, for `Sources.removals`.
        num_removals: How many of the parts with the largest scores `verify` removes, one at a time; each takes three
            passes.
        seed: Seed of the choice of the part that is removed for comparison.
        progress: Called with one line of text for each step.

    Raises:
        InputError: An argument is of another type or empty, the prompt has no part, the text is longer than the model's
            positions, the model is no causal language model, the heads are another model's, or `verify` leaves no
            prompt.
    """
    check_flag("verify", verify)
    check_count("seed", seed, 0, most=None)
    _check_answer(answer, max_new_tokens, num_removals)
    say = progress or (lambda _: None)
    loaded = as_loaded(model, tokenizer)
    made = prompt_of(
        loaded.tokenizer, prompt=prompt, documents=documents, question=question, messages=messages, parts=parts
    )
    _check_parts(made, verify)
    readout = heads_for(loaded, heads, say)
    say(f"{loaded.name} {'answers' if answer is None else 'reads'}")
    if answer is None:
        asked = _Asked(loaded, made, *_generated(loaded, made, max_new_tokens))
    else:
        before = answer[: len(answer) - len(answer.lstrip())]  # white space that is given is read, but in a chat
        made = made if made.typed else replace(made, text=made.text + before)
        asked = _Asked(loaded, made, answer.strip())
    ids, first = asked.ids(made.text)
    ranges = token_ranges(made.text, asked.prompt_spans(), made.places)
    weights, log_probs = _tapped(loaded.model, ids, first, read_tokens(loaded.tokenizer, ids, ranges), readout)
    found = SourcesResult(
        model=loaded.name,
        documents=made.documents,
        parts=made.parts,
        answer=asked.answer,
        token_spans=asked.spans(),
        sentence_spans=tuple(sentences(asked.answer)),
        log_probs=log_probs,
        token_scores=np.einsum("h,thp->tp", np.array(readout.weights), weights),
        heads=readout,
        threshold=readout.threshold,
        error_rate=readout.error_rate,
        strength=float(np.einsum("h,thp->tp", np.array(readout.strength_weights), weights).max(1).mean()),
    )
    if not verify:
        return found
    return replace(found, removals=_removals(asked, found, ranges, num_removals, np.random.default_rng(seed), say))


def _check_answer(answer: str | None, max_new_tokens: int, num_removals: int) -> None:
    for name, count in (("max_new_tokens", max_new_tokens), ("num_removals", num_removals)):
        if type(count) is not int or count < 1:
            raise InputError(f"`{name}` must be a whole number from 1, got {count!r}")
    if answer is not None and (not isinstance(answer, str) or not answer.strip()):
        raise InputError(f"`answer` must be a text with at least one word, or None to generate one, got {answer!r}")
    if answer is not None:
        check_unicode("answer", answer)


def _check_parts(made: Prompt, verify: bool) -> None:
    if not made.parts:
        raise InputError("the prompt has no part: `documents` must have at least one sentence or line")
    if verify and any(not made.without(one).strip() for one in made.parts):
        raise InputError(
            "`verify` removes a part and asks again, and the prompt is nothing but one part: add the question to it, "
            "or divide it by `parts`"
        )


@dataclass(frozen=True)
class _Asked:
    """The answer to a prompt: its text, or its ids if the model generated it, after `blanks` ids of white space."""

    loaded: Loaded
    made: Prompt
    answer: str
    new_ids: tuple[int, ...] | None = None
    blanks: int = 0

    def ids(self, prompt: str) -> tuple[list[int], int]:
        """Return the ids of a prompt with the answer, and the number of the answer's first token."""
        if self.new_ids is None:
            ids, _, first = joined(self.loaded.tokenizer, prompt, self.answer, typed=self.made.typed)
            return _fitting(self.loaded, ids), first
        before = [one for one, _ in without_end(*encode(self.loaded.tokenizer, prompt, typed=self.made.typed))]
        return _fitting(self.loaded, before + list(self.new_ids)), len(before) + self.blanks

    def prompt_spans(self) -> list[Span]:
        """Return the characters of the prompt that each of its tokens covers.

        A space at the end of a prompt may belong to the first token of the answer, which is none of the prompt's.
        """
        if self.new_ids is None:
            _, spans, first = joined(self.loaded.tokenizer, self.made.text, self.answer, typed=self.made.typed)
            return spans[:first]
        return [span for _, span in without_end(*encode(self.loaded.tokenizer, self.made.text, typed=self.made.typed))]

    def spans(self) -> tuple[Span, ...]:
        """Return the characters of the answer that each of its tokens covers."""
        text, typed = self.made.text, self.made.typed
        if self.new_ids is None:
            _, spans, first = joined(self.loaded.tokenizer, text, self.answer, typed=typed)
            shift = len(text) + len(space_before(text, self.answer, typed=typed))
            return tuple((max(0, start - shift), end - shift) for start, end in spans[first:])
        ends = [len(_decoded(self.loaded.tokenizer, self.new_ids[: at + 1])) for at in range(len(self.new_ids))]
        lead = len(_decoded(self.loaded.tokenizer, self.new_ids).rstrip()) - len(self.answer)
        ends = [min(max(end - lead, 0), len(self.answer)) for end in ends]
        return tuple(zip([0, *ends[:-1]], ends, strict=True))[self.blanks :]


def _decoded(tokenizer: Any, ids: Sequence[int]) -> str:
    """Return the text of ids without the replacement characters of a character that is not complete yet."""
    text: str = tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return text.rstrip("\ufffd")


def _fitting(loaded: Loaded, ids: list[int]) -> list[int]:
    limit = positions(loaded)
    if limit is not None and len(ids) > limit:
        raise InputError(
            f"prompt and answer have {len(ids):,} tokens, and {loaded.name} has positions for {limit:,}: give fewer or "
            "shorter documents"
        )
    return ids


def _generated(loaded: Loaded, made: Prompt, most: int) -> tuple[str, tuple[int, ...], int]:
    """Return an answer that the model generates greedily, its ids, and how many of them are white space before it."""
    before = [one for one, _ in without_end(*encode(loaded.tokenizer, made.text, typed=made.typed))]
    limit = positions(loaded)
    if limit is not None and len(before) >= limit:
        _fitting(loaded, [*before, 0])
    ids = torch.tensor([before], device=device_of(loaded.model))
    room = most if limit is None else min(most, limit - len(before))
    generate: Any = loaded.model.generate
    with torch.no_grad():
        written = generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=room, do_sample=False)
    special = adapt(loaded.tokenizer).special
    new = written[0, len(before) :].tolist()
    while new and new[-1] in special:
        new.pop()
    answer = _decoded(loaded.tokenizer, new).strip()
    if not answer:
        raise InputError(f"{loaded.name} answered nothing: give an `answer`, or ask another question")
    while _decoded(loaded.tokenizer, new[:-1]).strip() == answer:
        new.pop()  # white space after the answer, or a character that is not complete
    blanks = next(
        at for at in range(len(new)) if loaded.tokenizer.decode(new[: at + 1], skip_special_tokens=True).strip()
    )
    return answer, tuple(new), blanks


def _tapped(
    model: nn.Module, ids: Sequence[int], first: int, tokens: Sequence[Sequence[int]], heads: HeadSet
) -> tuple[Scores, Scores]:
    """Return the weights from the rows that predict the answer to each part, (tokens, heads, parts), and the
    log-probability of each token of the answer.
    """
    filled = [at for at, some in enumerate(tokens) if some]
    if not filled:
        raise InputError(
            "no part of the prompt has a token besides the first of the text and special ones, on which heads rest: "
            "give a longer prompt"
        )
    keys = {str(at): tokens[at] for at in filled}
    with tap(model, heads=heads, keys=keys, queries=range(first - 1, len(ids) - 1)) as rows:
        log_probs = log_probs_of(model, ids, first)
    order = [rows.heads.index(one) for one in heads.heads]
    weights = np.zeros((len(ids) - first, len(order), len(tokens)))
    weights[:, :, filled] = torch.stack([row.weights[0] for row in rows.rows]).double().cpu().numpy()[:, order]
    return weights, log_probs


def _removals(
    asked: _Asked,
    found: Sources,
    ranges: Sequence[Span],
    count: int,
    draw: np.random.Generator,
    say: Callable[[str], None],
) -> tuple[Removal, ...]:
    """Remove the parts with the largest scores, one at a time, and another part of about the same length each."""
    model, made = asked.loaded.model, asked.made
    whole = float(found.log_probs.sum())
    drops: dict[str, float] = {}

    def drop(part: SourcePart) -> float:
        if part.id not in drops:
            ids, first = asked.ids(made.without(part))
            drops[part.id] = whole - float(log_probs_of(model, ids, first).sum())
        return drops[part.id]

    ids, first = asked.ids(made.text)
    chosen = []
    best = [found.parts.index(part) for part, _ in found.ranked()[:count]]
    for number, (part, _) in enumerate(found.ranked()[:count], 1):
        say(f"{asked.loaded.name} reads it without part {part.id}, {number} of {min(count, len(found.parts))}")
        at = found.parts.index(part)
        other = _control(found.parts, ranges, at, best, draw)
        hidden = whole - float(log_probs_of(model, ids, first, hidden=ranges[at]).sum())
        control = None if other is None else drop(other)
        chosen.append(Removal(part.id, drop(part), hidden, None if other is None else other.id, control))
    return tuple(chosen)


def _control(
    parts: Sequence[SourcePart], ranges: Sequence[Span], at: int, best: Sequence[int], draw: np.random.Generator
) -> SourcePart | None:
    """Return another part, drawn among those that are about as long, else among the nearest three; none that is removed
    for its score, if there are others.
    """
    sizes = np.array([end - start for start, end in ranges])
    free = [other for other in range(len(parts)) if other != at and sizes[other]]
    others = np.array([other for other in free if other not in best] or free)
    if not len(others):
        return None
    away = np.abs(sizes[others] - sizes[at])
    about = others[away <= _ABOUT * sizes[at]]
    nearest = about if len(about) else others[np.argsort(away, kind="stable")[:_NEAREST]]
    return parts[int(draw.choice(nearest))]
