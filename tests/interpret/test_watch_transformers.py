"""Models of transformers with small random weights, of each type of the corpus: weights, and output to the bit."""

from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
import transformers as t

import regard
from corpus import MODELS, SMALL, T5, eager_weights, inputs, made, randomized
from oracles import set_attention
from regard.errors import ObservationError
from regard.observe.intercept.torch_attention_calls import groups_of, unpack_groups
from sweeps import sweep

# One of each kind; the others run in the slow tier.
FAST = {
    *("T5", "BART", "GPT-2", "ViT", "Mistral", "Mixtral", "Gemma-2", "GPT-OSS", "Bloom", "XGLM", "DeBERTa-v2", "XLNet"),
    "ALBERT",
}
CASES = [
    (name, kind)
    for name, entry in MODELS.items()
    for kind in ("eager", "sdpa")
    if kind == "eager" or not entry.only_eager
]


def compare(seen: Any, expected: dict[str, tuple[torch.Tensor, ...]], far: Any) -> float:
    worst = 0.0
    for streams, theirs in expected.items():
        ours = [one for one in seen.record if f"{one.query_tokens} {one.key_tokens}" == streams]
        assert len(ours) == len(theirs)
        worst = max([worst] + [far(one.weights, other) for one, other in zip(ours, theirs, strict=True)])
    assert len(seen.record) == sum(map(len, expected.values()))
    return worst


def check(watched, far, kernel_calls, name: str, kind: str) -> None:
    model, given = made(name), inputs(name)
    set_attention(model, kind)
    with torch.no_grad(), kernel_calls() as calls:
        seen = watched(model, lambda: model(**given))
    assert compare(seen, eager_weights(model, **given), far) < 2e-5
    if kind == "sdpa":
        calls = calls[len(calls) // 2 :]  # of the watched run
        assert max(far(ours.weights, theirs) for ours, theirs in zip(seen.record, calls, strict=True)) < 2e-6


def test_weights_agree_with_eager_attention(watched, far, kernel_calls) -> None:
    for case in sweep([row for row in CASES if row[0] in FAST]):
        with case as (name, kind):
            check(watched, far, kernel_calls, name, kind)


@pytest.mark.slow
def test_weights_of_every_other_model_agree_with_eager_attention(watched, far, kernel_calls) -> None:
    for case in sweep([row for row in CASES if row[0] not in FAST]):
        with case as (name, kind):
            check(watched, far, kernel_calls, name, kind)


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        ("Longformer", SMALL | {"attention_window": 4}, "LongformerSelfAttention .* bands or blocks"),
        ("BigBird", SMALL | {"block_size": 4, "num_random_blocks": 1, "max_position_embeddings": 256},
         "BigBirdBlockSparseAttention .*original_full"),
        ("LongT5", T5 | {"local_radius": 4, "decoder_start_token_id": 0}, "LongT5LocalAttention .* queries × keys"),
    ],
)  # fmt: skip
def test_layouts_that_are_no_matrix_of_pairs_are_refused_by_name(kind: str, given: Any, message: str) -> None:
    model = randomized(getattr(t, f"{kind}Model")(getattr(t, f"{kind}Config")(**given)))
    ids = torch.randint(3, 99, (1, 64 if kind == "BigBird" else 12))
    more = {"decoder_input_ids": ids} if kind == "LongT5" else {}
    with pytest.raises(ObservationError, match=message), torch.no_grad(), regard.watch(model):
        model(input_ids=ids, **more)


def test_shared_layers_are_seen_at_each_turn(watched) -> None:
    model = made("ALBERT")
    seen = watched(model, lambda: model(**inputs("ALBERT")))
    stem = "encoder.albert_layer_groups.0.albert_layers.0.attention"
    assert [layer.name for layer in seen.record] == [stem, f"{stem}#2", f"{stem}#3"]


def test_the_corpus_has_forty_types_and_more() -> None:
    assert len({entry.kind for entry in MODELS.values()}) >= 60


def test_the_key_heads_of_a_layer_are_its_own_where_layers_differ_in_them() -> None:
    class Config:
        per_layer_config: ClassVar = {3: SimpleNamespace(num_key_value_heads=2)}

        @property
        def num_key_value_heads(self) -> int:
            raise RuntimeError("a per-layer attribute, as transformers says of EmbeddingGemma 2")

    module = SimpleNamespace(num_key_value_groups=4, layer_idx=3, config=Config())
    packed = torch.zeros(1, 2, 4, 8)  # one query of 8 heads, in 2 groups
    assert unpack_groups(groups_of(module), packed, torch.zeros(1, 2, 5, 8), None)[0].shape == (1, 8, 1, 8)
    other = torch.zeros(1, 8, 4, 8)
    assert unpack_groups(groups_of(module), other, torch.zeros(1, 8, 5, 8), None)[0] is other
