"""Statistics of real architectures: which tokens they are told of, and which projection they find."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import regard
from regard.observe.statistics import Mass, Rollout, ValueNorm
from sweeps import sweep

transformers = pytest.importorskip("transformers", reason="transformers is not installed (the extra `models`)")

IDS = torch.tensor([[5, 3, 5, 3, 7, 5, 3, 2], [4, 4, 4, 1, 6, 1, 6, 1]])
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 9}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "vocab_size": 9}


def llama() -> Any:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, num_key_value_heads=2))


def gpt2() -> Any:
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=9))


def bert() -> Any:
    return transformers.BertModel(transformers.BertConfig(**SIZES))


def t5() -> Any:
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**T5, decoder_start_token_id=0))


# A model, its modules that give values (GPT-2's gives queries and keys too), and those that take in what heads give.
KINDS = {
    "llama": (llama, "self_attn.v_proj", "self_attn.o_proj"),
    "gpt2": (gpt2, "attn.c_attn", "attn.c_proj"),
    "bert": (bert, "attention.self.value", "attention.output.dense"),
    "opt": (
        lambda: transformers.OPTModel(
            transformers.OPTConfig(
                **{k: v for k, v in SIZES.items() if "inter" not in k}, ffn_dim=48, word_embed_proj_dim=32
            )
        ),
        "self_attn.v_proj",
        "self_attn.out_proj",
    ),
    "distilbert": (
        lambda: transformers.DistilBertModel(
            transformers.DistilBertConfig(dim=32, n_layers=2, n_heads=4, hidden_dim=48, vocab_size=9)
        ),
        "attention.v_lin",
        "attention.out_lin",
    ),
}


def seeded(make: Any) -> Any:
    torch.manual_seed(0)
    return make().eval()


def eager(model: Any, **inputs: Any) -> list[np.ndarray]:
    model.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            output = model(**inputs, output_attentions=True)
    finally:
        model.set_attn_implementation("sdpa")
    return [one.double().numpy() for one in output.attentions]


def test_value_norms_are_those_of_the_projections_the_model_has() -> None:
    def check(kind: str) -> None:
        make, values, out = KINDS[kind]
        model = seeded(make)
        weights = eager(model, input_ids=IDS)
        heard: list[np.ndarray] = []
        hooks = [
            module.register_forward_hook(lambda _, __, given: heard.append(given.double().detach().numpy()))
            for name, module in model.named_modules()
            if name.endswith(values)
        ]
        with torch.no_grad(), regard.watch(model, statistics=["value_norm"]) as seen:
            model(input_ids=IDS)
        for hook in hooks:
            hook.remove()
        parts = [module for name, module in model.named_modules() if name.endswith(out)]
        assert len(heard) == len(parts) == len(weights) == 2
        for layer, (value, part, weight) in enumerate(zip(heard, parts, weights, strict=True)):
            value = value[..., -32:] if kind == "gpt2" else value
            split = value.reshape(2, 8, -1, 8).swapaxes(1, 2)
            split = np.repeat(split, 4 // split.shape[1], 1)
            through = part.weight.detach().double().numpy()
            through = (through if kind == "gpt2" else through.T).reshape(4, 8, 32)
            moved = weight * np.linalg.norm(np.einsum("bhjd,hdo->bhjo", split, through), axis=-1)[:, :, None]
            np.testing.assert_allclose(seen.statistic("value_norm.mean", layer=layer), moved, rtol=2e-4, atol=1e-6)
            np.testing.assert_allclose(seen.statistic("value_norm", layer=layer), moved.sum(-2), rtol=2e-4, atol=1e-6)

    for case in sweep(KINDS):
        with case as kind:
            check(kind)


def test_value_norms_of_multihead_attention() -> None:
    for case in sweep(itertools.product([True, False], [True, False])):
        with case as (batch_first, crossed):
            torch.manual_seed(0)
            module = nn.MultiheadAttention(8, 2, batch_first=batch_first, vdim=6, kdim=8, add_bias_kv=True).eval()
            x, v = torch.randn(3, 5, 8), torch.randn(3, 5, 6)
            y = torch.randn(3, 5, 8) if crossed else x
            q, k, value = (one if batch_first else one.transpose(0, 1) for one in (x, y, v))
            with torch.no_grad(), regard.watch(module, statistics=["value_norm"]) as seen:
                module(q, k, value)
            with torch.no_grad():
                weights = module(q, k, value, average_attn_weights=False)[1].double().numpy()
            bias = module.in_proj_bias[16:].double().detach().numpy()
            values = v.double().numpy() @ module.v_proj_weight.double().detach().numpy().T + bias
            values = np.concatenate([values, np.broadcast_to(module.bias_v.double().detach().numpy(), (3, 1, 8))], 1)
            through = module.out_proj.weight.double().detach().numpy().T.reshape(2, 4, 8)
            moved = np.einsum("bjhd,hdo->bhjo", values.reshape(3, 6, 2, 4), through)
            expected = weights * np.linalg.norm(moved, axis=-1)[:, :, None]
            np.testing.assert_allclose(seen.statistic("value_norm.mean", layer=0), expected, rtol=1e-4, atol=1e-6)


class Bare(nn.Module):
    """Attention whose projection has a name that nobody knows."""

    def __init__(self, mixers: int = 1) -> None:
        super().__init__()
        self.mixer = nn.Linear(8, 8)
        for name in ("out_proj", "proj")[: mixers - 1] + ("o_proj",) * (mixers > 1):
            setattr(self, name, nn.Linear(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mixer(nn.functional.scaled_dot_product_attention(x, x, x).transpose(1, 2).flatten(2))


def test_a_projection_that_is_not_known_is_asked_for() -> None:
    x = torch.randn(1, 2, 5, 4)
    for model, words in (
        (Bare(), "no module there takes in the 8 numbers of all its heads: name it with statistics.ValueNorm"),
        (Bare(2), "several modules may be it"),
    ):
        with pytest.raises(regard.ObservationError, match=words), regard.watch(model, statistics=["value_norm"]):
            model(x)
    model = Bare()
    named = [ValueNorm(model.mixer), ValueNorm(model.mixer.weight), ValueNorm({"": model.mixer})]
    found = []
    for one in named:
        with torch.no_grad(), regard.watch(model, statistics=[one]) as seen:
            model(x)
        found.append(seen.statistic("value_norm", layer=0))
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])
    wrong = ValueNorm(nn.Linear(9, 8))
    with (
        pytest.raises(regard.ObservationError, match="must take in 2 heads of 4, 8 numbers, got 9"),
        regard.watch(model, statistics=[wrong]),
    ):
        model(x)


# --- tokens


def same(ids: np.ndarray, weights: np.ndarray, behind: int) -> np.ndarray:
    """The mass on earlier keys with the query's token, or on those behind them; a loop, as one would say it."""
    found = np.zeros(weights.shape[:3])
    for batch_index, text in enumerate(ids):
        for i in range(weights.shape[2]):
            for j in range(weights.shape[3]):
                if behind <= j < i + behind and text[i] == text[j - behind]:
                    found[batch_index, :, i] += weights[batch_index, :, i, j]
    return found


@pytest.mark.parametrize("make", [llama, bert])
def test_ids_are_heard_without_a_tokenizer(make: Any) -> None:
    model = seeded(make)
    with (
        torch.no_grad(),
        regard.watch(model, statistics=["duplicate_token", "induction", Mass(token_ids=[3, 4])]) as seen,
    ):
        model(input_ids=IDS)
    for layer, weights in enumerate(eager(model, input_ids=IDS)):
        for name, behind in (("duplicate_token", 0), ("induction", 1)):
            expected = same(IDS.numpy(), weights, behind)
            np.testing.assert_allclose(seen.statistic(name, layer=layer), expected, rtol=1e-4, atol=1e-6)
        chosen = np.isin(IDS.numpy(), [3, 4])[:, None, None]
        np.testing.assert_allclose(seen.statistic("tokens", layer=layer), (weights * chosen).sum(-1), rtol=1e-4)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_ids_of_a_generation_are_joined(cache: str) -> None:
    model = seeded(llama)
    asked = [
        "duplicate_token",
        "induction",
        "previous",
        "first",
        "distance",
        "sink",
        "value_norm",
        Rollout(key=2),
        Rollout(query=-1, name="back"),
    ]
    with regard.watch(model, statistics=asked) as seen:
        out = model.generate(
            IDS, attention_mask=torch.ones_like(IDS), max_new_tokens=6, do_sample=False, pad_token_id=0,
            eos_token_id=None, cache_implementation=cache,
        )  # fmt: skip
    text = out[:, :-1]
    with torch.no_grad(), regard.watch(model, statistics=asked) as whole:
        model(input_ids=text)
    assert text.shape[1] == 13
    for layer, weights in enumerate(eager(model, input_ids=text)):
        for name, behind in (("duplicate_token", 0), ("induction", 1)):
            expected = same(text.numpy(), weights, behind)
            np.testing.assert_allclose(seen.statistic(name, layer=layer), expected, rtol=1e-3, atol=1e-5)
        for name in seen.layer(layer).statistics:
            np.testing.assert_allclose(
                seen.statistic(name, layer=layer), whole.statistic(name, layer=layer), rtol=1e-3, atol=1e-5
            )


def test_the_first_token_is_behind_padding_on_the_left() -> None:
    model = seeded(llama)
    mask = torch.tensor([[1] * 8, [0, 0, 0] + [1] * 5])
    with torch.no_grad(), regard.watch(model, statistics=["first"]) as seen:
        model(input_ids=IDS, attention_mask=mask)
    exact = seen.layer(0).exact
    assert exact is not None
    expected = np.stack([exact[0, :, :, 0], exact[1, :, :, 3]])
    np.testing.assert_allclose(seen.statistic("first", layer=0), expected, rtol=1e-5)
    assert (seen.statistic("first", layer=0)[1, :, 3:] > 0).all()


def test_an_encoder_decoder_reads_two_texts() -> None:
    model, target = seeded(t5), torch.tensor([[0, 5, 7], [0, 4, 6]])
    with torch.no_grad(), regard.watch(model, statistics=["duplicate_token"]) as seen:
        model(input_ids=IDS, decoder_input_ids=target)
    for layer in seen.record:
        queries, keys = (
            {"source": IDS, "target": target}[stream].numpy() for stream in (layer.query_tokens, layer.key_tokens)
        )
        assert layer.exact is not None
        equal = queries[:, :, None] == keys[:, None]
        if layer.kind == "self":
            equal &= np.tri(equal.shape[1], equal.shape[2], -1, dtype=bool)
        expected = (layer.exact * equal[:, None]).sum(-1)
        np.testing.assert_allclose(layer.statistics["duplicate_token"], expected, rtol=1e-5, atol=1e-7)


class CallsAttention(torch.nn.Module):
    def forward(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        return regard.attention(queries, keys, keys)


def test_tokens_that_nobody_told_are_asked_for() -> None:
    model = seeded(llama)
    embedded = model.model.embed_tokens(IDS).detach()
    words = "'duplicate_token' needs to know the tokens, and model.layers.0.self_attn did not show them: call the model"
    with pytest.raises(regard.ObservationError, match=words), regard.watch(model, statistics=["duplicate_token"]):
        model(inputs_embeds=embedded)
    with pytest.raises(regard.ObservationError, match=words), regard.watch(model, statistics=["duplicate_token"]):  # noqa: PT012
        model(input_ids=IDS)
        model.model(inputs_embeds=embedded)  # a part of the model, on something else
    with pytest.raises(regard.ObservationError) as error, regard.watch(model, statistics=["duplicate_token"]):
        model(inputs_embeds=embedded)
    way = str(error.value).split("or use ")[1].replace("...", "IDS")  # what the error advises works as it is written
    with torch.no_grad(), regard.watch(model, statistics=[eval(way)]) as seen:
        model(inputs_embeds=embedded)
    with torch.no_grad(), regard.watch(model, statistics=["duplicate_token"]) as heard:
        model(input_ids=IDS)
    assert np.array_equal(seen.statistic("duplicate_token", layer=1), heard.statistic("duplicate_token", layer=1))
    with (
        pytest.raises(regard.ObservationError, match=r"must name every position .*\(8 so far\), got 3"),
        regard.watch(model, statistics=[Mass("duplicate_token", input_ids=[1, 2, 3])]),
    ):
        model(input_ids=IDS)
    more_queries = CallsAttention()  # of another text
    with (
        pytest.raises(regard.ObservationError, match=r"must name every .*\(8 queries and 3 keys\), got 8"),
        regard.watch(more_queries, statistics=[Mass("duplicate_token", input_ids=range(8))]),
    ):
        more_queries(torch.randn(1, 2, 8, 4), torch.randn(1, 2, 3, 4))


def test_a_decoder_that_makes_its_own_ids_is_not_guessed_at() -> None:
    config = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4, "vocab_size": 9}
    config |= {"decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48}
    model = transformers.BartModel(transformers.BartConfig(**config)).eval()
    words = "'duplicate_token' needs to know the tokens, and decoder.layers.0.self_attn did not show them"
    with pytest.raises(regard.ObservationError, match=words), regard.watch(model, statistics=["duplicate_token"]):
        model(input_ids=IDS)


def test_separators_are_told_by_their_text() -> None:
    from tokenizers import Tokenizer, models

    pieces = ["<unk>", "[SEP]", ".", "cat", ",", "?!", "it's", "...", "a."]
    backend = Tokenizer(models.WordLevel({word: number for number, word in enumerate(pieces)}, unk_token="<unk>"))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", sep_token="[SEP]")
    model, ids = seeded(llama), torch.arange(9)[None]
    with torch.no_grad(), regard.watch(model, tokenizer=tokenizer, statistics=["separators"]) as seen:
        model(input_ids=ids)
    with torch.no_grad(), regard.watch(model, tokens=pieces, statistics=["separators", "duplicate_token"]) as named:
        model(inputs_embeds=model.model.embed_tokens(ids))
    exact = seen.layer(0).exact
    assert exact is not None
    expected = exact[..., [1, 2, 4, 5, 7]].sum(-1)
    for one in (seen, named):
        np.testing.assert_allclose(one.statistic("separators", layer=0), expected, rtol=1e-5)
    assert (named.statistic("duplicate_token", layer=0) == 0).all()
    with (
        pytest.raises(regard.ObservationError, match="needs to know which tokens are separators: pass `tokenizer=`"),
        regard.watch(model, statistics=["separators"]),
    ):
        model(input_ids=ids)


def test_tokens_of_a_generation_may_be_named_beforehand() -> None:
    model, names = seeded(llama), list("abcabcabc")
    with regard.watch(model, tokens=names, statistics=["duplicate_token"]) as seen:
        model.generate(
            IDS[:1, :3],
            attention_mask=torch.ones(1, 3),
            max_new_tokens=7,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=None,
        )
    exact = seen.layer(0).exact
    assert exact is not None
    equal = np.array(names)[:, None] == np.array(names)
    np.testing.assert_allclose(
        seen.statistic("duplicate_token", layer=0),
        (exact * (equal & np.tri(9, k=-1, dtype=bool))).sum(-1),
        rtol=1e-5,
        atol=1e-7,
    )


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_the_fast_path_stays_on_where_no_tokens_are_needed() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    x, hidden = torch.randn(2, 5, 8), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    with torch.no_grad():
        plain = model(x, src_key_padding_mask=hidden)
        with regard.watch(
            model, statistics=["distance", "value_norm", Mass("duplicate_token", input_ids=torch.zeros(2, 5).long())]
        ):
            assert torch.equal(model(x, src_key_padding_mask=hidden), plain)


def test_named_tokens_reach_back_to_what_was_not_watched() -> None:
    class Late(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.scaled_dot_product_attention(x[:, :, 4:], x, x)

    names, x = list("abbcabaca"), torch.randn(1, 2, 9, 4)
    with torch.no_grad(), regard.watch(model := Late(), tokens=names, statistics=["duplicate_token"]) as seen:
        model(x)
    exact = seen.layer(0).exact
    assert exact is not None
    equal = ((np.array(names)[:, None] == np.array(names)) & np.tri(9, k=-1, dtype=bool))[4:]
    np.testing.assert_allclose(
        seen.statistic("duplicate_token", layer=0), (exact * equal).sum(-1), rtol=1e-5, atol=1e-7
    )


class Jagged(nn.Module):
    """Self-attention of a jagged batch."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = (one(x).unflatten(-1, (2, 4)).transpose(1, 2) for one in (self.q, self.k, self.v))
        return nn.functional.scaled_dot_product_attention(*heads)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("keep", ["maps", "weights"])
def test_a_text_of_a_jagged_batch_has_the_sums_that_it_has_alone(keep: Any) -> None:
    """Queries behind its end were counted: they had equal weights on its keys."""
    torch.manual_seed(0)
    model, texts = Jagged(), [torch.randn(2, 8), torch.randn(6, 8)]
    batch = torch.nested.nested_tensor(texts, layout=torch.jagged)
    with torch.no_grad(), regard.watch(model, keep=keep, statistics=["distance"]) as seen:
        model(batch)
    for at, text in enumerate(texts):
        q, k = (one(text).unflatten(-1, (2, 4)).transpose(0, 1).detach() for one in (model.q, model.k))
        weights, n = (q @ k.mT / 2).softmax(-1), len(text)
        assert not seen.weights(layer=0)[at, :, n:].any()
        np.testing.assert_allclose(seen.weights(layer=0)[at, :, :n, :n], weights, rtol=1e-5)
        np.testing.assert_allclose(seen.layer(0).received[at, :, :n], weights.sum(1), rtol=1e-5)
        assert not seen.layer(0).statistics["distance"][at, :, n:].any()
    with (
        pytest.raises(regard.ObservationError, match="needs the output of each head"),
        regard.watch(model, statistics=["gradient_x_attention"]),
    ):
        model(batch).values().sum().backward()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_padding_on_the_fast_path_adds_nothing_to_the_sums_of_keys() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model, x = nn.TransformerEncoder(layer, 1).eval(), torch.randn(2, 5, 8)
    hidden = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    with torch.no_grad():
        with regard.watch(model, keep="weights") as seen:
            model(x, src_key_padding_mask=hidden)
        _, alone = model.layers[0].self_attn(*[x[1:, :3]] * 3, average_attn_weights=False)
    np.testing.assert_allclose(seen.layer(0).received[1], nn.functional.pad(alone[0].sum(1), (0, 2)), rtol=1e-5)
