"""Training with dropout, watched: the same output, the same gradients and the same random numbers, to the bit."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import regard
from regard import models
from regard import nn as rnn
from regard.models import RecurrentConfig, Transformer, TransformerConfig, output_heads
from regard.models.decoding import Sampling
from regard.nn import tutorials
from regard.observe import statistics
from regard.observe.requested_statistics import NAMED
from sweeps import sweep

E, H, N, P = 16, 2, 6, 0.4
X, MEMORY = (torch.randn(2, n, E, generator=torch.Generator().manual_seed(n)) for n in (N, 9))
IDS = torch.randint(3, 20, (2, N), generator=torch.Generator().manual_seed(1))
SOURCE = torch.randint(3, 20, (2, 9), generator=torch.Generator().manual_seed(2))

Call = Callable[[], Any]


def tensors(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    parts = result if isinstance(result, (tuple, list)) else vars(result).values() if hasattr(result, "logits") else ()
    return [one for part in parts for one in tensors(part)]


def trained(model: nn.Module, call: Call, generator: torch.Generator | None = None) -> list[Tensor]:
    """Output, gradients and the state of every generator after one step."""
    model.zero_grad()
    torch.manual_seed(7)
    if generator is not None:
        generator.manual_seed(8)
    output = tensors(call())
    sum(one.square().sum() for one in output if one.requires_grad).backward()
    found = [one.detach().clone() for one in output]
    found += [one.grad.clone() for one in model.parameters() if one.grad is not None]
    return [*found, torch.get_rng_state(), *([] if generator is None else [generator.get_state()])]


def assert_same(model: nn.Module, call: Call, generator: torch.Generator | None = None, **asked: Any) -> Any:
    """What was seen, after checking that nothing else differs."""
    plain = trained(model, call, generator)
    with regard.watch(model, **asked) as seen:
        watched = trained(model, call, generator)
    assert len(plain) == len(watched) > 1
    for one, other in zip(plain, watched, strict=True):
        assert torch.equal(one, other)
    return seen


def transformer(**given: Any) -> Transformer:
    sizes = {"vocab_size": 20, "hidden_size": E, "num_attention_heads": H, "intermediate_size": 24, "dropout": P}
    return Transformer(TransformerConfig(**sizes | given))


def recurrent(attention: str) -> models.RecurrentSeq2Seq:
    sizes = {"src_vocab_size": 20, "tgt_vocab_size": 20, "embedding_dim": 8, "hidden_size": 12, "dropout": P}
    return models.RecurrentSeq2Seq(RecurrentConfig(attention=attention, **sizes))


def decode(model: nn.Module) -> Any:
    return model(X, MEMORY)


# Every class of regard.nn and regard.models that drops, and how it is called.
DROPPING: dict[str, tuple[Callable[[], nn.Module], Callable[[Any], Any]]] = {
    "AdditiveAttention": (lambda: rnn.AdditiveAttention(E, dropout=P), decode),
    "AttentionDecoderCell": (
        lambda: rnn.AttentionDecoderCell(E, E, E, attention=rnn.AdditiveAttention(E, dropout=P)),
        lambda cell: cell(X[:, 0], MEMORY),
    ),
    "AxialAttention": (
        lambda: rnn.AxialAttention(E, H, num_axes=2, dropout=P),
        lambda model: model(MEMORY.view(2, 3, 3, E)),
    ),
    "BigBirdAttention": (
        lambda: rnn.BigBirdAttention(E, H, block=2, num_random_blocks=1, dropout=P),
        lambda model: model(X),
    ),
    "BilinearAttention": (lambda: rnn.BilinearAttention(E, dropout=P), decode),
    "DecoderBlock": (lambda: rnn.DecoderBlock(E, H, 24, dropout=P), decode),
    "EncoderBlock": (lambda: rnn.EncoderBlock(E, H, 24, dropout=P), lambda model: model(X)),
    "LongformerAttention": (lambda: rnn.LongformerAttention(E, H, 2, dropout=P), lambda model: model(X)),
    "MultiHeadAttention": (lambda: rnn.MultiHeadAttention(E, H, dropout=P), lambda model: model(X)),
    "NeighborhoodAttention": (
        lambda: rnn.NeighborhoodAttention(E, H, 3, dropout=P),
        lambda model: model(MEMORY.view(2, 3, 3, E)),
    ),
    "SlidingWindowAttention": (lambda: rnn.SlidingWindowAttention(E, H, 3, dropout=P), lambda model: model(X)),
    "Transformer, encoder": (lambda: transformer(encoder_layers=2), lambda model: model(IDS)),
    "Transformer, decoder": (
        lambda: transformer(decoder_layers=2, output_head=output_heads.LanguageModel()),
        lambda model: model(IDS),
    ),
    "Transformer": (
        lambda: transformer(encoder_layers=1, decoder_layers=1, output_head=output_heads.LanguageModel()),
        lambda model: model(SOURCE, decoder_input_ids=IDS),
    ),
    "RecurrentSeq2Seq, bahdanau": (lambda: recurrent("bahdanau"), lambda model: model(SOURCE, decoder_input_ids=IDS)),
    "RecurrentSeq2Seq, general": (lambda: recurrent("general"), lambda model: model(SOURCE, decoder_input_ids=IDS)),
    "multi_head.MultiHeadAttention": (
        lambda: tutorials.multi_head.MultiHeadAttention(E, H, P),
        lambda model: model(X, MEMORY, MEMORY),
    ),
    "cross_attention.MultiHeadAttention": (
        lambda: tutorials.cross_attention.MultiHeadAttention(E, H, P),
        lambda model: model(X, MEMORY, MEMORY),
    ),
    "encoder.EncoderLayer": (lambda: tutorials.EncoderLayer(E, H, 24, P), lambda model: model(X)),
    "encoder.TransformerEncoder": (
        lambda: tutorials.TransformerEncoder(20, E, H, 2, 24, 12, P),
        lambda model: model(IDS),
    ),
}
# They drop activations, and attend to nothing.
PLAIN = {"FeedForward", "LearnedPositions", "PositionalEncoding"}


def test_the_table_has_every_class_that_drops() -> None:
    def drops(one: Any) -> bool:
        named = inspect.isclass(one) and issubclass(one, nn.Module) and inspect.signature(one.__init__).parameters
        return bool(named) and bool({"dropout", "options", "attention", "config"} & set(named))

    found = {name for name in rnn.__all__ if drops(getattr(rnn, name))}
    found |= {name for name in models.__all__ if drops(getattr(models, name))}
    for lesson in (tutorials.single_head, tutorials.multi_head, tutorials.encoder, tutorials.cross_attention):
        prefix = lesson.__name__.rpartition(".")[2]
        found |= {f"{prefix}.{name}" for name in lesson.__all__ if drops(getattr(lesson, name))}
    plain = PLAIN | {f"encoder.{name}" for name in PLAIN}
    assert {name.partition(",")[0] for name in DROPPING} == found - plain


def test_each_module_trains_as_it_does_unwatched() -> None:
    def check(name: str) -> None:
        torch.manual_seed(0)
        make, call = DROPPING[name]
        model = make().train()
        assert_same(model, lambda: call(model))
        once, again = (tensors(call(model))[0] for _ in "ab")
        assert not torch.equal(once, again)  # something was dropped

    for case in sweep(DROPPING):
        with case as name:
            check(name)


STATISTICS = [
    *NAMED,
    statistics.Rollout(key=0),
    statistics.Rows([1]),
    statistics.Columns([0, 2]),
    statistics.Rectangle(slice(1, 4), slice(0, 3)),
]


@pytest.mark.parametrize("keep", ["maps", "weights", "qk"])
def test_statistics_of_every_kind_draw_nothing_from_either_generator(keep: str) -> None:
    torch.manual_seed(0)
    generator = torch.Generator()

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = rnn.MultiHeadAttention(E, H, dropout=P)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(self.layer(x), generator=generator)

    model, x = Model(), X[:1]
    words = ["the", "cat", ",", "the", "cat", "."]
    asked = {"keep": keep, "tokens": words, "statistics": STATISTICS}
    seen = assert_same(model, lambda: model(x), generator, **asked)
    assert {"gradient_x_attention.keys", "value_norm", "separators", "rollout", "rectangle"} <= set(
        seen.layer(0).statistics
    )
    assert len(seen.record) == 2


SOFTMAXES_BY_HAND: dict[str, Callable[[Tensor], Tensor]] = {
    "exp and sum": lambda scores: scores.exp() / scores.exp().sum(-1, keepdim=True),
    "logsumexp": lambda scores: (scores - scores.logsumexp(-1, keepdim=True)).exp(),
    "normalize": lambda scores: functional.normalize(scores.exp(), p=1, dim=-1),
}
DROPOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "nn.Dropout": nn.Dropout(P),
    "alpha_dropout": lambda x: functional.alpha_dropout(x, P, training=True),
    "native_dropout": lambda x: torch.native_dropout(x, P, True)[0],
    "feature_dropout": lambda x: torch.feature_dropout(x, P, True),
    "in place": lambda x: functional.dropout(x, P, training=True, inplace=True),
}
BY_HAND = [
    *((softmax, "nn.Dropout") for softmax in SOFTMAXES_BY_HAND),
    *(("exp and sum", drop) for drop in list(DROPOUTS)[1:]),
]


class Attends(nn.Module):
    def __init__(self, weigh: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.q, self.k, self.weigh = nn.Linear(E, E), nn.Linear(E, E), weigh

    def forward(self, x: Tensor) -> Tensor:
        return self.weigh(self.q(x) @ self.k(x).mT) @ x


def test_a_softmax_by_hand_with_dropout_is_missing_as_it_is_without() -> None:
    def check(softmax: str, drop: str) -> None:
        torch.manual_seed(0)
        by_hand = Attends(lambda scores: DROPOUTS[drop](SOFTMAXES_BY_HAND[softmax](scores)))
        model = nn.Sequential(Attends(lambda scores: functional.dropout(scores.softmax(-1), P)), by_hand).train()
        seen = assert_same(model, lambda: model(X), strict=False)
        assert [layer.name for layer in seen.layers] == ["0"]
        assert [(one.module, one.calls, "by exp and a sum" in one.reason) for one in seen.missing] == [("1", 1, True)]

    for case in sweep(BY_HAND):
        with case as values:
            check(*values)


def test_scores_that_are_dropped_are_followed_to_their_softmax() -> None:
    model = Attends(lambda scores: functional.dropout(scores, P).softmax(-1)).train()
    assert len(assert_same(model, lambda: model(X)).layers) == 1


def test_weights_that_are_shown_are_those_before_dropout(far) -> None:
    class Direct(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return regard.attention(q, k, v, dropout=P)

    q, k = (torch.randn(2, H, n, 8) for n in (N, 9))
    weights = torch.softmax(q.double() @ k.double().mT / 8**0.5, -1)
    with regard.watch(model := Direct(), keep="weights") as seen:
        output = model(q, k, k)
    assert not torch.allclose(output.double(), weights @ k.double(), atol=0.01)  # which has been dropped from
    assert far(seen.layer(0).weights, weights) < 1e-6


BERT = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "vocab_size": 20}
T5 = {"d_model": 16, "d_kv": 8, "num_layers": 2, "num_heads": 2, "d_ff": 24, "vocab_size": 20, "dropout_rate": P}


TRAINED = [
    ("Bert", BERT | {"attention_probs_dropout_prob": P}, False),
    ("Llama", BERT | {"attention_dropout": P}, True),
    ("T5", T5, False),
]


@pytest.mark.parametrize("implementation", ["regard", "sdpa", "eager"])
def test_models_of_transformers_train_as_they_do_unwatched(implementation: str) -> None:
    def check(kind: str, sizes: dict[str, Any], again: bool) -> None:
        transformers = pytest.importorskip("transformers")
        regard.register_with_transformers()
        config = getattr(transformers, f"{kind}Config")(**sizes, use_cache=False, attn_implementation=implementation)
        torch.manual_seed(0)
        model = getattr(transformers, f"{kind}Model")(config).train()
        if again:
            # The second name is that before transformers 5.23.
            (getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable)()
        target = {"decoder_input_ids": IDS[:, :4]} if kind == "T5" else {}
        seen = assert_same(model, lambda: model(input_ids=IDS, **target)[0])
        assert len(seen.record) == (6 if kind == "T5" else 2)

    for case in sweep(TRAINED):
        with case as values:
            check(*values)


@pytest.mark.parametrize(
    "make", [lambda: transformer(decoder_layers=1, output_head=output_heads.LanguageModel()), None]
)
def test_sampling_of_texts_that_end_apart_draws_the_same_numbers(make: Callable[[], nn.Module] | None) -> None:
    torch.manual_seed(0)
    model = (make() if make else recurrent("bahdanau")).eval()
    ends: set[int] = set()

    def written(generator: torch.Generator) -> list[list[int]]:
        found = model.generate(
            [[3, 4], [5, 6], [7, 8]],
            search_strategy=Sampling(generator=generator),
            max_new_tokens=12,
            eos_token_id=[0, 1, 2, 9, 10, 11],
            return_dict_in_generate=True,
        ).new_tokens
        ends.update(map(len, found))
        return found

    for seed in range(4):
        plain, watched = (torch.Generator().manual_seed(seed) for _ in "ab")
        expected = written(plain)
        with regard.watch(model):
            assert written(watched) == expected
        assert torch.equal(plain.get_state(), watched.get_state())
    assert len(ends) > 2
