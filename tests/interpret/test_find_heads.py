"""Heads that were planted by hand are found, exactly those; their readout is right, and shuffled labels are chance."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.errors import InputError, ObservationError
from regard.heads import JOBS
from regard.hub import Loaded
from regard.interpret.find_heads import find_heads, fingerprint
from regard.interpret.source_readout import nonnegative_ridge
from regard.interpret.sources import sources
from sweeps import sweep

transformers = pytest.importorskip("transformers", reason="transformers is not installed (the extra `models`)")

WORDS = [f"w{number}" for number in range(60)]
LENGTH = 256
SHARP = 40.0  # the score of what a planted head looks for, over 0 for all else


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers

    ids = {word: number for number, word in enumerate(["[PAD]", "[UNK]", *WORDS])}
    backend = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]")


def pattern(kind: str, ids: Tensor) -> Tensor:
    """The scores (n, n) of a planted head, from what its rule says of each pair."""
    n = len(ids)
    i, j = torch.arange(n)[:, None], torch.arange(n)[None]
    earlier = torch.roll(ids, 1)  # the token before each key
    rules = {
        "previous": j == (i - 1).clamp(min=0),
        "sink": (j == 0).expand(n, n),
        "local": (i - j).abs() < 8,
        "induction": (ids[:, None] == earlier[None]) & (j > 0) & (j <= i),
        "even": torch.zeros(n, n, dtype=torch.bool),
    }
    return SHARP * rules[kind].float()


class Planted(nn.Module):
    """Layers of heads that follow rules: q is a row of the rule's scores, and k a row of the identity."""

    def __init__(self, layers: list[list[str]], *, causal: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(kinds, causal=causal) for kinds in layers)
        self.embedding = nn.Embedding(len(WORDS) + 2, 8)
        self.config = SimpleNamespace(is_encoder_decoder=False, max_position_embeddings=LENGTH, vocab_size=62)

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        x = self.embedding(input_ids)
        for layer in self.layers:
            x = x + layer(x, input_ids)
        return x


class Layer(nn.Module):
    def __init__(self, kinds: list[str], *, causal: bool) -> None:
        super().__init__()
        self.kinds, self.causal = kinds, causal

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        q = torch.stack([torch.stack([pattern(kind, row) for kind in self.kinds]) for row in ids])
        k = torch.eye(ids.shape[1]).expand_as(q)
        v = x[:, None].expand(-1, len(self.kinds), -1, -1)
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal, scale=1.0)
        return out.mean(1)


class Translating(nn.Module):
    """An encoder–decoder whose second cross-attention head attends, in row i, to key i of the source."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.ModuleDict({"layers": nn.ModuleList([Layer(["even", "sink"], causal=False)])})
        self.decoder = nn.ModuleDict({"layers": nn.ModuleList([Crossing()])})
        self.embedding = nn.Embedding(len(WORDS) + 2, 8)
        self.config = SimpleNamespace(is_encoder_decoder=True, decoder_start_token_id=0)

    def forward(self, input_ids: Tensor, decoder_input_ids: Tensor, **_: Any) -> Tensor:
        source, target = (
            torch.cat([self.embedding(ids), torch.eye(ids.shape[1], 32)[None]], -1)
            for ids in (input_ids, decoder_input_ids)
        )
        for layer in self.encoder["layers"]:
            source = source + 0 * layer(source, input_ids)
        for layer in self.decoder["layers"]:
            target = layer(target, source, decoder_input_ids)
        return target


class Crossing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn, self.cross_attn = Layer(["sink", "previous"], causal=True), Cross()

    def forward(self, target: Tensor, source: Tensor, ids: Tensor) -> Tensor:
        target = target + 0 * self.self_attn(target, ids)
        return target + self.cross_attn(target, source)


class Cross(nn.Module):
    """The first head is even, the second one attends to the key of its own position."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj = nn.Linear(40, 64, bias=False), nn.Linear(40, 64, bias=False)
        with torch.no_grad():
            for projection, scale in ((self.q_proj, SHARP), (self.k_proj, 1.0)):
                projection.weight.zero_()
                projection.weight[32:, 8:] = scale * torch.eye(32)

    def forward(self, target: Tensor, source: Tensor) -> Tensor:
        q, k = (one.unflatten(-1, (2, 32)).transpose(1, 2) for one in (self.q_proj(target), self.k_proj(source)))
        return functional.scaled_dot_product_attention(q, k, source[:, None].expand(-1, 2, -1, -1), scale=1.0).mean(1)


def texts(path: Path, length: int = 48) -> Path:
    draw = torch.Generator().manual_seed(1)
    every = []
    for _ in range(12):
        words = [WORDS[at] for _ in range(2) for at in torch.randperm(60, generator=draw).tolist()]
        every.append(json.dumps({"text": " ".join(words[:length])}))
    path.write_text("\n".join(every), encoding="utf-8")
    return path


LAYERS = [["even", "previous", "sink"], ["local", "even", "induction"]]
PLANTED = {"previous": (0, 1), "sink": (0, 2), "local": (1, 0), "induction": (1, 2)}


@pytest.mark.parametrize("job", PLANTED)
def test_planted_heads_of_a_causal_model_are_found(job: str, tmp_path: Path) -> None:
    model = Planted(LAYERS, causal=True)
    found = find_heads(model, tokenizer(), job, examples=texts(tmp_path / "texts.jsonl"))
    nested = {(0, 1)} if job == "local" else set()  # the previous key is a near one
    assert set(found.heads) == {PLANTED[job]} | nested
    assert found.head_scores[0] > 0.99
    assert found.held_out is not None
    assert found.held_out.accuracy == 1
    assert not found.control_failed
    assert found.fingerprint == fingerprint(model)


@pytest.mark.parametrize("job", ["previous", "sink", "local"])
def test_planted_heads_of_an_encoder_are_found(job: str, tmp_path: Path) -> None:
    found = find_heads(Planted(LAYERS, causal=False), tokenizer(), job, examples=texts(tmp_path / "texts.jsonl", 100))
    nested = {(0, 1)} if job == "local" else set()
    assert set(found.heads) == {PLANTED[job]} | nested


def test_the_head_that_copies_from_a_document_is_found(tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(2)
    lines = []
    for number in range(12):
        order = [WORDS[at] for at in torch.randperm(60, generator=draw).tolist()]
        documents = [" ".join(order[at : at + 6]) for at in range(0, 48, 6)]
        asked = documents[number * 5 % 8].split()
        lines.append(json.dumps({"documents": documents, "question": asked[1], "answer": " ".join(asked[2:5])}))
    path = tmp_path / "documents.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    found = find_heads(Planted(LAYERS, causal=True), tokenizer(), "retrieval", examples=path)
    assert found.heads == ((1, 2),)
    assert found.head_scores[0] > 0.99
    assert found.chance == 1 / 8
    assert found.held_out is not None
    assert found.held_out.accuracy == 1
    assert not found.control_failed


class Writing(Planted):
    """It predicts the token that its induction head attends to; its other heads change nothing."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        n = input_ids.shape[1]
        super().forward(input_ids)
        weights = pattern("induction", input_ids[0]).masked_fill(torch.ones(n, n).triu(1) > 0, -torch.inf).softmax(-1)
        read = weights @ functional.one_hot(input_ids[0], len(WORDS) + 2).float()
        return SimpleNamespace(logits=8 * read[None])


def asked(count: int = 12, **more: Any) -> list[dict[str, Any]]:
    draw = torch.Generator().manual_seed(3)
    made = []
    for number in range(count):
        order = [WORDS[at] for at in torch.randperm(60, generator=draw).tolist()]
        documents = [" ".join(order[at : at + 6]) for at in range(0, 48, 6)]
        source = number * 5 % 8
        words = documents[source].split()
        made.append({"documents": documents, "question": words[0], "answer": " ".join(words[1:]), "source": source + 1})
    return [one | more for one in made]


def written(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("\n".join(json.dumps(one) for one in lines), encoding="utf-8")
    return path


def test_the_head_that_the_answer_depends_on_is_found(tmp_path: Path) -> None:
    path = written(tmp_path / "documents.jsonl", asked())
    found = find_heads(Writing(LAYERS, causal=True), tokenizer(), "sources", examples=path)
    assert found.heads[0] == (1, 2)
    assert found.weights[0] > 0.75  # some of the rest stays with heads that weigh all documents alike
    assert sum(found.weights) == pytest.approx(1)
    assert found.head_scores[0] > 0.5
    assert found.correlation is not None
    assert found.correlation > 0.95
    assert found.held_out is not None
    assert found.held_out.accuracy == 1
    assert found.chance == 1 / 8
    assert not found.control_failed
    assert found.threshold is None  # a file has no counterparts without the answer
    unlabelled = written(path, [{name: one[name] for name in one if name != "source"} for one in asked()])
    again = find_heads(Writing(LAYERS, causal=True), tokenizer(), "sources", examples=unlabelled)
    assert (again.heads, again.correlation, again.held_out) == (found.heads, found.correlation, None)
    best = find_heads(Writing(LAYERS, causal=True), tokenizer(), "sources", examples=unlabelled, num_heads=1)
    assert (best.heads, best.weights) == (((1, 2),), (1.0,))


def test_the_regression_is_the_best_one_without_negative_weights() -> None:
    """The conditions of Karush, Kuhn and Tucker, which the minimum alone meets."""
    draw = np.random.default_rng(0)
    for rows, columns, ridge in ((40, 12, 0.1), (8, 30, 0.5), (60, 60, 1e-3)):
        x = draw.normal(size=(rows, columns))
        y = x[:, :3] @ [1.0, 2.0, -1.5] + draw.normal(size=rows)
        w = nonnegative_ridge(x, y, ridge)
        slope = x.T @ (x @ w - y) + ridge * w
        assert (w >= 0).all()
        assert 0 < (w > 0).sum() < columns
        np.testing.assert_allclose(slope[w > 0], 0, atol=1e-6)
        assert (slope[w == 0] > -1e-6).all()


def test_the_cross_attention_of_translated_words_is_found(tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(4)
    lines = []
    for number in range(12):
        words = [WORDS[at] for at in torch.randperm(60, generator=draw)[:10].tolist()]
        asked = words[number % 8]  # the last one is only predicted
        lines.append(
            json.dumps({"source": " ".join(words), "target": " ".join(words[:9]), "pairs": f"{asked}>{asked}"})
        )
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    found = find_heads(Translating(), tokenizer(), "alignment", examples=path)
    assert (found.heads, found.stream) == (((0, 1),), ("target", "source"))
    assert found.head_scores[0] > 0.99
    assert not found.control_failed
    with pytest.raises(InputError, match="does not know numbers"):
        find_heads(Translating(), tokenizer(), "alignment")
    with pytest.raises(InputError, match="no heads for sink, as an encoder–decoder has three"):
        find_heads(Translating(), tokenizer(), "sink")


def test_a_label_that_never_changes_fails_the_control(tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(3)
    lines = []
    for _ in range(20):
        order = [WORDS[at] for at in torch.randperm(60, generator=draw).tolist()]
        documents = [" ".join(order[at : at + 6]) for at in range(0, 48, 6)]
        lines.append(json.dumps({"documents": documents, "question": order[1], "answer": " ".join(order[2:5])}))
    path = tmp_path / "documents.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    found = find_heads(Planted(LAYERS, causal=True), tokenizer(), "retrieval", examples=path)
    assert found.control_failed
    assert found.shuffled_labels is not None
    assert found.shuffled_labels.accuracy == 1


@pytest.mark.slow
def test_the_programs_own_examples_find_them_too() -> None:
    found = find_heads(Planted(LAYERS, causal=True), tokenizer(), "retrieval", seed=3)
    assert found.heads == ((1, 2),)
    again = find_heads(Planted(LAYERS, causal=True), tokenizer(), "retrieval", seed=3)
    assert dataclasses.replace(again, fingerprint="") == dataclasses.replace(found, fingerprint="")


@pytest.mark.parametrize("loaded", [False, True])
def test_a_job_in_the_place_of_the_tokenizer_is_refused(loaded: bool) -> None:
    model = Loaded("small", Planted(LAYERS, causal=True), tokenizer(), "decoder") if loaded else "smollm2"
    with pytest.raises(InputError, match=r"`tokenizer` goes with a module, .* by name \(job=, .* got str 'induction'"):
        find_heads(model, "induction")
    with pytest.raises(InputError, match=r"`tokenizer` goes with a module, .* by name \(.* got str 'Where is it\?'"):
        sources(model, "Where is it?", "Here.")
    with pytest.raises(InputError, match="`tokenizer` must be that of the model, got 'induction'"):
        find_heads(Planted(LAYERS, causal=True), "induction")


def test_a_loaded_model_may_come_with_its_own_tokenizer(tmp_path: Path) -> None:
    loaded, path = (
        Loaded("small", Planted(LAYERS, causal=True), tokenizer(), "encoder"),
        texts(tmp_path / "texts.jsonl"),
    )
    found = find_heads(loaded, job="previous", examples=path)
    assert find_heads(loaded, loaded.tokenizer, "previous", examples=path) == found


def test_a_fingerprint_is_of_the_numbers_and_not_of_their_precision() -> None:
    torch.manual_seed(0)
    one, other = nn.Linear(9, 9), nn.Linear(9, 9)
    wide = nn.Linear(9, 9).double()
    wide.load_state_dict(one.state_dict())
    assert fingerprint(one) == fingerprint(wide) != fingerprint(other)


def test_every_job_has_a_source_and_models() -> None:
    assert all(job.test.source and job.kinds and 0 <= job.threshold < 1 for job in JOBS.values())


def test_the_method_says_that_an_example_of_ones_own_shows_one_row(tmp_path: Path) -> None:
    model, path = Planted(LAYERS, causal=True), texts(tmp_path / "texts.jsonl")
    own = find_heads(model, tokenizer(), "previous", examples=path)
    assert "on one row, drawn by the seed, of each in half of the examples" in own.method
    assert "on the inputs of head_scores" in find_heads(model, tokenizer(), "previous").method


class Deaf(Writing):
    """Its answers depend on no document."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        return SimpleNamespace(logits=0 * super().forward(input_ids).logits)


def find(job: str = "previous", model: nn.Module | None = None, **options: Any) -> Any:
    return find_heads(model or Planted(LAYERS, causal=True), tokenizer(), job, **options)


def text(path: Path, content: str) -> Path:
    path.write_text(content, encoding="utf-8")
    return path


SHORT = '{"text": "w1 w2 w3 w4 w5 w6 w7 w8 w9"}\n'
# A call with a path for examples, the error, and what it names: the argument or line, and the way out.
REFUSED: dict[str, tuple[Callable[[Path], object], type[Exception], str]] = {
    "half a head": (
        lambda _: find(num_heads=1.5), InputError, "`num_heads` must be a whole number from 1, got 1.5"),
    "true heads": (
        lambda _: find(num_heads=True), InputError, "`num_heads` must be a whole number from 1, got True"),
    "examples in a list": (
        lambda _: find(examples=[{"text": "The cat sat."}]), InputError, "`examples` must be .* JSON Lines, got list"),
    "an encoder's induction": (
        lambda _: find("induction", Planted(LAYERS, causal=False)),
        InputError, r"no heads for induction, as it is how causal .* previous, sink, local"),
    "a decoder's alignment": (
        lambda _: find("alignment"), InputError, "no heads for alignment, as it is cross-attention"),
    "another job": (lambda _: find("beauty"), InputError, "`job` must be one of retrieval, sources, induction"),
    "no head above the threshold": (
        lambda path: find(model=Planted([["even", "sink"]], causal=True), examples=texts(path)),
        ObservationError, r"no head of Planted does previous: .* above 0\.5, .* of 0\."),
    "answers that depend on no document": (
        lambda path: find("sources", Deaf(LAYERS, causal=True), examples=written(path, asked())),
        ObservationError, "do not predict what its answers lose"),
    **{
        f"the source {number!r}": (
            lambda path, number=number: find(
                "sources", Writing(LAYERS, causal=True), examples=written(path, [*asked(), asked(1, source=number)[0]])
            ),
            InputError, "line 13 of .*: `source` must be the number of a document from 1, got ",
        )
        for number in (9, 0, True, "1")
    },
    "few examples of sources": (
        lambda path: find("sources", Writing(LAYERS, causal=True), examples=written(path, asked(9))),
        InputError, "from 10 to 1,000, got 9"),
    "a line that is a list": (
        lambda path: find(examples=text(path, "[1]")), InputError, "line 1 of .* must be a JSON object"),
    "a line that is no JSON": (
        lambda path: find(examples=text(path, "{")), InputError, "line 1 of .* must be a JSON object"),
    "an empty text": (
        lambda path: find(examples=text(path, '{"text": ""}')),
        InputError, "line 1 of .* is no example of previous: it needs text as texts, got '' for `text`"),
    "a short text": (
        lambda path: find(examples=text(path, '{"text": "w1 w2"}')), InputError, "line 1 of .*: it is too short"),
    "one example": (lambda path: find(examples=text(path, SHORT)), InputError, "from 10 to 1,000, got 1"),
    "1,001 examples": (
        lambda path: find(examples=text(path, SHORT * 1001)), InputError, "from 10 to 1,000, got 1001"),
}  # fmt: skip


def test_what_has_no_heads_is_refused_with_the_way_out(tmp_path: Path) -> None:
    for case in sweep(REFUSED):
        with case as name:
            call, error, way_out = REFUSED[name]
            with pytest.raises(error, match=way_out):
                call(tmp_path / "examples.jsonl")
