"""The methods that source_peers.py compares: each gives a score to each part of the same prompt for the same answer."""

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

import regard
from regard import HeadSet
from regard.interpret.source_prompt import encode, joined, prompt_of, token_ranges
from regard.record.text_parts import PartKind
from sources import words

HELD_OUT = 16
_NOT_USED = ("nltk", "pandas", "datasets", "spacy", "spacy.lang", "spacy.lang.en")  # of what context_cite imports
Scores = npt.NDArray[np.float64]
Kept = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Question:
    """Documents and a question; the model answers where no answer is given."""

    name: str
    documents: dict[str, str]
    question: str
    answer: str | None
    parts: PartKind
    source: int | None = None


class Asked:
    """A prompt with an answer, and the log-probability of the answer when parts of the prompt are left out."""

    def __init__(self, loaded: Any, asked: Question, answer: str) -> None:
        self.loaded, self.asked, self.answer = loaded, asked, answer
        self.made = prompt_of(
            loaded.tokenizer, prompt=None, documents=asked.documents, question=asked.question, messages=None,
            parts=asked.parts,
        )  # fmt: skip
        self.ids, spans, first = joined(loaded.tokenizer, self.made.text, answer, typed=self.made.typed)
        self.new = len(self.ids) - first
        self.ranges = token_ranges(self.made.text, spans, self.made.places)
        self.parts = len(self.ranges)
        self._cache, self._cached = _empty_cache(), list[int]()
        self._known: dict[bytes, float] = {}
        self.ablated: list[float] = []  # ContextCite's outputs of its ablations so far

    def text(self, kept: Kept) -> str:
        """The text without the parts that are not kept, as `verify` removes them."""
        return without(self.made.text, [one for one, stays in zip(self.made.places, kept, strict=True) if not stays])

    def log_prob(self, kept: Kept) -> float:
        """The log-probability of the answer."""
        if kept.tobytes() not in self._known:
            ids = joined(self.loaded.tokenizer, self.text(kept), self.answer, typed=self.made.typed)[0]
            assert ids[-self.new :] == self.ids[-self.new :]
            rows = self.logits(ids).double().log_softmax(-1)
            self._known[kept.tobytes()] = float(rows.gather(1, torch.tensor(ids[-self.new :])[:, None]).sum())
        return self._known[kept.tobytes()]

    def logits(self, ids: list[int]) -> Tensor:
        """The rows that predict the answer, (tokens, vocabulary); what the prompt shares with the last is not run."""
        same = next((at for at, (one, other) in enumerate(zip(ids, self._cached)) if one != other), 0)  # noqa: B905
        same = min(same, len(ids) - self.new - 1)
        if drop := self._cache.get_seq_length() - same:
            self._cache.crop(-drop)
        with torch.no_grad():
            given = torch.tensor([ids[same:]])
            found = self.loaded.model(given, past_key_values=self._cache, logits_to_keep=self.new + 1).logits
        self._cached = ids
        return found[0, :-1]

    def whole(self) -> Kept:
        return np.ones(self.parts, dtype=bool)


def _empty_cache() -> Any:
    from transformers import DynamicCache

    return DynamicCache()


def without(text: str, places: Sequence[tuple[int, int]]) -> str:
    """A text without some places, the spaces after each, and a line that held nothing else."""
    for start, end in sorted(places, reverse=True):
        while text[end : end + 1] in (" ", "\t"):
            end += 1
        alone = (start == 0 or text[start - 1] == "\n") and text[end : end + 1] == "\n"
        text = text[:start] + text[end + alone :]
    return text


def held_out(asked: Asked, count: int = HELD_OUT) -> list[Kept]:
    """The parts that are kept in prompts that no method sees, each with probability 1/2."""
    draw = np.random.default_rng([20261123, len(asked.ids), asked.parts])
    return list(draw.random((count, asked.parts)) < 0.5)


def by_regard(asked: Asked, heads: HeadSet | None = None) -> Scores:
    """`regard.sources` with the heads that come with the model, or others."""
    one = asked.asked
    found = regard.sources(
        asked.loaded, documents=one.documents, question=one.question, answer=asked.answer, parts=one.parts, heads=heads
    )
    return found.scores


def by_mean_of_heads(asked: Asked) -> Scores:
    config = asked.loaded.model.config
    layers, heads = config.num_hidden_layers, config.num_attention_heads
    return by_regard(asked, HeadSet([(layer, head) for layer in range(layers) for head in range(heads)]))


def by_leaving_out(asked: Asked) -> Scores:
    """The drop without each part; from the last to the first, so that most of the prompt is still in the cache."""
    whole = asked.log_prob(asked.whole())
    drops = np.zeros(asked.parts)
    for at in reversed(range(asked.parts)):
        drops[at] = whole - asked.log_prob(np.arange(asked.parts) != at)
    return drops


def by_gradient(asked: Asked) -> Scores:
    """Gradient × input of the embeddings, summed over each part, of the log-probability of the answer (captum)."""
    from captum.attr import LayerGradientXActivation

    model, ids = asked.loaded.model, torch.tensor([asked.ids])

    def log_prob(given: Tensor) -> Tensor:
        rows = model(given, use_cache=False, logits_to_keep=asked.new + 1).logits[:, :-1].log_softmax(-1)
        return rows.gather(2, given[:, -asked.new :, None]).sum((1, 2))

    found = LayerGradientXActivation(log_prob, model.get_input_embeddings()).attribute(ids)
    return over_parts(found[0].sum(-1), asked.ranges)


def by_attn_lrp(asked: Asked) -> Scores:
    """AttnLRP: gradient × input of the sum of the answer's logits, with the rules of `lxt` in the backward pass."""
    model, ids = asked.loaded.model, torch.tensor([asked.ids])
    with lrp_rules(model):
        embedded = model.get_input_embeddings()(ids).detach().requires_grad_()
        logits = model(inputs_embeds=embedded, use_cache=False, logits_to_keep=asked.new + 1).logits[0, :-1]
        total = logits.gather(1, ids[0, -asked.new :, None]).sum()
        (gradient,) = torch.autograd.grad(total, embedded)
    return over_parts((gradient * embedded)[0].sum(-1).detach(), asked.ranges)


def by_embedding(asked: Asked, encoder: Any) -> Scores:
    """The cosine of the embeddings of question with answer and of each part, by multilingual-e5-small."""
    texts = [f"query: {asked.asked.question} {asked.answer}"]
    texts += [f"passage: {asked.made.text[start:end]}" for start, end in asked.made.places]
    vectors = []
    for text in texts:
        ids = torch.tensor([encoder.tokenizer(text)["input_ids"]])
        with torch.no_grad():
            states = encoder.model(ids)
        vectors.append(torch.nn.functional.normalize(states.last_hidden_state[0].mean(0), dim=0))
    return (torch.stack(vectors[1:]) @ vectors[0]).double().numpy()


def by_words(asked: Asked) -> Scores:
    """How many words of question and answer a part has."""
    about = words(f"{asked.asked.question} {asked.answer}")
    return np.array([float(len(words(asked.made.text[start:end]) & about)) for start, end in asked.made.places])


def by_context_cite(asked: Asked, ablations: int) -> Scores:
    """ContextCite as it is, for the times."""
    citer = context_citer(asked, ablations, asked.loaded.model)
    return np.asarray(citer.get_attributions(verbose=False), dtype=float)


def by_more_context_cite(asked: Asked, ablations: int) -> Scores:
    """ContextCite's scores, from the ablations that were run before and those that are missing.

    Its ablation of number n is drawn with the seed n, so the first 32 of 64 are those of 32. Its model keeps what one
    prompt shares with the next, and computes the logits of the answer alone. The outputs are of the whole answer: a
    single column of them is what ContextCite makes of its columns, one for each token.
    """

    def model(input_ids: Tensor, **_: Any) -> Any:
        return SimpleNamespace(logits=torch.nn.functional.pad(asked.logits(input_ids[0].tolist()), (0, 0, 0, 1))[None])

    model.device = torch.device("cpu")  # type: ignore[attr-defined]
    citer = context_citer(asked, ablations, model)
    utils = sys.modules["context_cite.utils"]
    if (known := len(asked.ablated)) < ablations:
        more = utils.get_masks_and_logit_probs(
            model, asked.loaded.tokenizer, ablations - known, asked.parts, citer._get_prompt_ids, citer._response_ids,
            citer.ablation_keep_prob, citer.batch_size, base_seed=known,
        )[1]  # fmt: skip
        asked.ablated += [float(one) for one in utils.aggregate_logit_probs(more)]
    masks = [utils._create_mask(asked.parts, citer.ablation_keep_prob, seed) for seed in range(ablations)]
    outputs = np.array(asked.ablated[:ablations], dtype=np.float32)[:, None]
    citer._cache |= {"reg_masks": np.array(masks), "reg_logit_probs": outputs}
    return np.asarray(citer.get_attributions(verbose=False), dtype=float)


def context_citer(asked: Asked, ablations: int, model: Any) -> Any:
    """ContextCite over our prompt, parts and answer.

    Raises:
        AssertionError: Its prompts would not be ours, token by token.
    """
    package = context_cite()
    text, question = asked.made.text, asked.asked.question
    instruction = "Answer the question from these documents.\n\n"
    start = text.index(instruction) + len(instruction)
    tail = len(text) - text.rindex("\n\nQuestion: ")

    def context(mask: Kept | None = None) -> str:
        left = asked.text(asked.whole() if mask is None else mask)
        return left[start : len(left) - tail]

    partitioner = SimpleNamespace(
        context=context(), num_sources=asked.parts, get_context=context, sources=[],
        get_source=lambda at: text[slice(*asked.made.places[at])],
    )  # fmt: skip
    citer = package.ContextCiter(
        model, asked.loaded.tokenizer, context(), question, num_ablations=ablations, partitioner=partitioner,
        prompt_template=instruction + "{context}\n\nQuestion: {query}",
    )  # fmt: skip
    citer._cache["output"] = citer._get_prompt_ids(return_prompt=True)[1] + asked.answer
    assert citer._response_ids == asked.ids[-asked.new :]
    for kept in (asked.whole(), *held_out(asked)[:3]):
        ours = encode(asked.loaded.tokenizer, asked.text(kept), typed=asked.made.typed)[0]
        assert citer._get_prompt_ids(mask=kept) == ours
    return citer


def context_cite() -> Any:
    """The package `context_cite`, without what it downloads and imports for texts and tables that are not used here."""
    if "context_cite" not in sys.modules:
        empty = {
            name: ModuleType(name) for name in ("nltk", "pandas", "datasets", "spacy", "spacy.lang", "spacy.lang.en")
        }
        empty["nltk"].download = lambda *_: None  # type: ignore[attr-defined]
        empty["pandas"].DataFrame = object  # type: ignore[attr-defined]
        empty["datasets"].Dataset = SimpleNamespace(from_dict=_rows_of)  # type: ignore[attr-defined]
        empty["spacy.lang.en"].English = object  # type: ignore[attr-defined]
        before = {name: sys.modules.get(name) for name in empty}
        sys.modules.update(empty)
        import context_cite.utils

        for name, one in before.items():
            sys.modules.pop(name)
            if one is not None:
                sys.modules[name] = one
        context_cite.utils.tqdm = lambda rows: rows
    return sys.modules["context_cite"]


def _rows_of(columns: dict[str, list[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def lrp_patches() -> Any:
    """The rules of `lxt` for Llama alone: its rules for BERT import what transformers 5 no longer has."""
    if "lxt.efficient.models.llama" not in sys.modules:
        spec = importlib.util.find_spec("lxt")
        if spec is None or not spec.submodule_search_locations:
            raise ImportError("lxt is not installed")
        for name in ("lxt.efficient", "lxt.efficient.models"):
            sys.modules[name] = ModuleType(name)
            sys.modules[name].__path__ = [str(Path(spec.submodule_search_locations[0], *name.split(".")[1:]))]
    return importlib.import_module("lxt.efficient.models.llama").attnLRP


@contextlib.contextmanager
def lrp_rules(model: Any) -> Iterator[None]:
    """The rules of `lxt` in transformers' Llama, with eager attention; undone at the end."""
    from transformers.models.llama import modeling_llama

    patches = lrp_patches()
    forwards = {one: one.forward for one in patches if isinstance(one, type)}
    functions, eager = modeling_llama.ALL_ATTENTION_FUNCTIONS, modeling_llama.eager_attention_forward
    implementation = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        for target, patch in patches.items():
            assert patch(target), target
        modeling_llama.ALL_ATTENTION_FUNCTIONS = functions  # lxt leaves a dict, which transformers 5 cannot read
        yield
    finally:
        modeling_llama.ALL_ATTENTION_FUNCTIONS, modeling_llama.eager_attention_forward = functions, eager
        for target, forward in forwards.items():
            target.forward = forward
        model.set_attn_implementation(implementation)


def over_parts(tokens: Tensor, ranges: Sequence[tuple[int, int]]) -> Scores:
    """The sums of the scores of tokens over each part."""
    return np.array([float(tokens[start:end].double().sum()) for start, end in ranges])


def methods(encoder: Any, kind: str, ablations: Sequence[int]) -> dict[str, Callable[[Asked], Scores]]:
    """What gives scores, by name; the gradients are for prompts alone."""
    found: dict[str, Callable[[Asked], Scores]] = {
        "regard": by_regard,
        "mean of heads": by_mean_of_heads,
        "leave one out": by_leaving_out,
    }
    if kind == "prompts":
        found |= {"gradient x input": by_gradient, "AttnLRP": by_attn_lrp}
    found |= {"embeddings (me5)": partial(by_embedding, encoder=encoder), "words in common": by_words}
    return found | {f"context_cite {count}": partial(by_more_context_cite, ablations=count) for count in ablations}
