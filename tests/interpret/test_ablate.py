"""Models without a head: the oracle takes the head's rows out of W_O; afterwards the model is what it was."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import regard
from regard.errors import InputError, ObservationError
from regard.interpret.ablate_heads import ablate_heads, head_outputs
from regard.models import Transformer, TransformerConfig
from regard.nn import MultiHeadAttention
from sweeps import sweep

transformers = pytest.importorskip("transformers", reason="transformers is not installed (the extra `models`)")

IDS = torch.tensor([[5, 3, 5, 3, 7, 5, 3, 2], [4, 4, 4, 1, 6, 1, 6, 1]])
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 9}
OPT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 9, "ffn_dim": 48}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "vocab_size": 9}
NEOX = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 9}
OURS = {"vocab_size": 9, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48}

# A model, and where the output projection of layer 1 is.
KINDS: dict[str, tuple[Callable[[], Any], str]] = {
    "llama": (
        lambda: transformers.LlamaModel(transformers.LlamaConfig(**SIZES, num_key_value_heads=2)),
        "layers.1.self_attn.o_proj",
    ),
    "llama, heads wider than hidden / heads": (
        lambda: transformers.LlamaModel(transformers.LlamaConfig(**SIZES, head_dim=16)),
        "layers.1.self_attn.o_proj",
    ),
    "gpt2": (
        lambda: transformers.GPT2Model(transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=9)),
        "h.1.attn.c_proj",
    ),
    "bert": (
        lambda: transformers.BertModel(transformers.BertConfig(**SIZES)),
        "encoder.layer.1.attention.output.dense",
    ),
    "distilbert": (
        lambda: transformers.DistilBertModel(
            transformers.DistilBertConfig(dim=32, n_layers=2, n_heads=4, hidden_dim=48, vocab_size=9)
        ),
        "transformer.layer.1.attention.out_lin",
    ),
    "opt": (
        lambda: transformers.OPTModel(transformers.OPTConfig(**OPT, word_embed_proj_dim=32)),
        "decoder.layers.1.self_attn.out_proj",
    ),
    "gpt-neox": (
        lambda: transformers.GPTNeoXModel(transformers.GPTNeoXConfig(**NEOX)),
        "layers.1.attention.dense",
    ),
    "t5 encoder": (
        lambda: transformers.T5EncoderModel(transformers.T5Config(**T5)),
        "encoder.block.1.layer.0.SelfAttention.o",
    ),
    "regard encoder": (
        lambda: Transformer(TransformerConfig(**OURS, encoder_layers=2)),
        "encoder.layers.1.attention.out_proj",
    ),
    "regard decoder": (
        lambda: Transformer(TransformerConfig(**OURS, decoder_layers=2)),
        "decoder.layers.1.attention.out_proj",
    ),
}


@pytest.fixture(scope="module")
def models() -> dict[str, tuple[nn.Module, nn.Module]]:
    """Each model with the output projection of its layer 1; whoever changes a weight puts it back."""
    made = {}
    for kind, (make, where) in KINDS.items():
        torch.manual_seed(2)
        model = make().eval()
        made[kind] = model, model.get_submodule(where)
    return made


def run(model: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        output = model(IDS)
    return output.last_hidden_state


def columns(projection: nn.Module, head: int) -> tuple[Any, ...]:
    """Where the weights of a head are; GPT-2 holds W_O the other way round."""
    conv = type(projection).__name__ == "Conv1D"
    wide = projection.weight.shape[0 if conv else 1] // 4
    here = slice(head * wide, (head + 1) * wide)
    return (here, slice(None)) if conv else (slice(None), here)


def test_a_head_set_to_zero_is_a_projection_without_its_rows(models) -> None:
    for case in sweep(models):
        with case as kind:
            model, projection = models[kind]
            whole = run(model)
            with ablate_heads(model, [(1, 2)]):
                without = run(model)
            kept = projection.weight.detach().clone()
            with torch.no_grad():
                projection.weight[columns(projection, 2)] = 0
                expected = run(model)
                projection.weight.copy_(kept)
            assert not torch.equal(without, whole)
            torch.testing.assert_close(without, expected, rtol=1e-5, atol=1e-6)
            assert torch.equal(run(model), whole)


def test_layers_are_counted_as_a_watch_counts_them(models) -> None:
    for case in sweep(models):
        with case as kind:
            model, projection = models[kind]
            with torch.no_grad(), regard.watch(model) as seen:
                seen_output = model(IDS).last_hidden_state
            outputs = head_outputs(model)
            assert len(seen.layers) == len(outputs) == 2
            assert outputs[1].projection is projection
            assert [one.heads for one in outputs] == [layer.heads for layer in seen.layers]
            for layer, one in zip(seen.layers, outputs, strict=True):
                assert layer.name.startswith(one.name)
                with ablate_heads(model, [(layer.name, 1)]):
                    assert not torch.equal(run(model), seen_output)


def test_a_mean_takes_the_place_of_the_head_at_every_position(models) -> None:
    def check(model: nn.Module, projection: nn.Module) -> None:
        inputs: list[torch.Tensor] = []
        first = projection.register_forward_pre_hook(lambda _, args: inputs.append(args[0].detach().clone()))
        run(model)
        with ablate_heads(model, [(1, 0), (1, 3)], replace="mean"):
            last = projection.register_forward_pre_hook(lambda _, args: inputs.append(args[0].detach().clone()))
            run(model)
        first.remove()
        last.remove()
        plain, changed = inputs[0], inputs[-1]
        wide = plain.shape[-1] // 4
        heads = plain.reshape(-1, 4, wide)
        expected = heads.clone()
        for head in (0, 3):
            expected[:, head] = heads[:, head].mean(0)
        torch.testing.assert_close(changed.reshape(-1, 4, wide), expected)
        assert torch.equal(changed.reshape(-1, 4, wide)[:, 1:3], heads[:, 1:3])

    for case in sweep(models):
        with case as kind:
            check(*models[kind])


def test_the_model_is_restored_after_an_error_too(models) -> None:
    for case in sweep(models):
        with case as kind:
            model, _ = models[kind]
            whole = run(model)
            state = {name: one.clone() for name, one in model.state_dict().items()}
            with pytest.raises(RuntimeError, match="of the caller"), ablate_heads(model, [(0, 1), (1, 1)]):
                raise RuntimeError("of the caller")
            assert not any(one._forward_pre_hooks for one in model.modules())
            assert torch.equal(run(model), whole)
            assert all(torch.equal(one, state[name]) for name, one in model.state_dict().items())


def test_gradients_flow_through_the_heads_that_are_left() -> None:
    model = KINDS["llama"][0]()
    with ablate_heads(model, [(1, 2)]):
        model(IDS).last_hidden_state.sum().backward()
    slope = model.layers[1].self_attn.o_proj.weight.grad
    assert slope[:, 16:24].abs().max() == 0
    assert slope[:, :16].abs().min() > 0


@pytest.mark.parametrize("replace", ["zero", "mean"])
def test_what_the_caller_holds_is_not_changed(replace: str) -> None:
    layer = MultiHeadAttention(8, num_heads=2).eval()
    outputs = torch.randn(1, 4, 8, generator=torch.Generator().manual_seed(0))
    kept = outputs.clone()
    with torch.no_grad(), ablate_heads(layer, [(0, 1)], replace=replace):
        layer.out_proj(outputs)
    assert torch.equal(outputs, kept)


def test_a_projection_that_layers_share_is_refused() -> None:
    """ALBERT runs one layer several times: a watch counts three, and 0.1 would be gone from all of them."""
    config = transformers.AlbertConfig(**SIZES | {"num_hidden_layers": 3}, embedding_size=8)
    model = transformers.AlbertModel(config).eval()
    with torch.no_grad(), regard.watch(model) as seen:
        model(IDS)
    assert len(seen.layers) == 3
    whole = run(model)
    with pytest.raises(ObservationError, match="called more than once in a pass"), ablate_heads(model, [(0, 1)]):
        run(model)
    assert torch.equal(run(model), whole)


def test_a_model_may_run_many_times_in_the_block() -> None:
    model = transformers.LlamaModel(transformers.LlamaConfig(**SIZES)).eval()
    with ablate_heads(model, [(0, 1)]):
        assert torch.equal(run(model), run(model))


def test_one_attention_layer_is_a_model_too() -> None:
    layer = MultiHeadAttention(8, num_heads=2).eval()
    x = torch.randn(1, 4, 8, generator=torch.Generator().manual_seed(0))
    for heads in ([(0, 0), (0, 1)], [0]):
        with torch.no_grad(), ablate_heads(layer, heads):
            nothing = layer(x)
        torch.testing.assert_close(nothing, layer.out_proj.bias.detach().expand(1, 4, 8))


MARIAN = {"vocab_size": 9, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
          "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "pad_token_id": 0}  # fmt: skip
LFM2 = {**SIZES, "num_hidden_layers": 4, "num_key_value_heads": 2, "layer_types": ["conv", "full_attention"] * 2}
TARGET = {"input_ids": IDS, "decoder_input_ids": IDS[:, :5]}

# A model, its inputs, a layer and its stream, and the module that it is.
NUMBERED: dict[str, tuple[Callable[[], Any], dict[str, Any], int, Any, str]] = {
    "layers without attention": (
        lambda: transformers.Lfm2Model(transformers.Lfm2Config(**LFM2, pad_token_id=0, bos_token_id=1, eos_token_id=2)),
        {"input_ids": IDS},
        3,
        None,
        "layers.3.self_attn.out_proj",
    ),
    **{
        str(stream): (
            lambda: transformers.MarianModel(transformers.MarianConfig(**MARIAN, decoder_start_token_id=0)),
            TARGET,
            1,
            stream,
            name,
        )
        for stream, name in (
            ("source", "encoder.layers.1.self_attn.out_proj"),
            ("target", "decoder.layers.1.self_attn.out_proj"),
            (("target", "source"), "decoder.layers.1.encoder_attn.out_proj"),
        )
    },
    "cross of T5": (
        lambda: transformers.T5Model(transformers.T5Config(**T5, decoder_start_token_id=0)),
        TARGET,
        1,
        ("target", "source"),
        "decoder.block.1.layer.1.EncDecAttention.o",
    ),
}


def test_heads_have_the_numbers_of_a_watch_within_their_stream() -> None:
    """They were counted over all attention modules: another head went, without a word."""

    def check(kind: str) -> None:
        make, inputs, layer, stream, where = NUMBERED[kind]
        torch.manual_seed(3)
        model = make().eval()
        with torch.no_grad(), regard.watch(model) as seen:
            model(**inputs)
        assert where.startswith(seen.layer(layer, stream=stream).name)

        def states() -> torch.Tensor:
            with torch.no_grad():
                return model(**inputs).last_hidden_state

        projection, whole = model.get_submodule(where), states()
        found = []
        named = [(where.rpartition(".")[0], 2)]
        for heads, options in (
            ([(layer, 2)], {"stream": stream}),
            (regard.HeadSet([(layer, 2)], stream=stream or "text"), {}),
            ([f"{layer}.2"], {"stream": stream}),
            (named, {}),
        ):
            with ablate_heads(model, heads, **options):
                found.append(states())
        with torch.no_grad():
            projection.weight[columns(projection, 2)] = 0
        expected = states()
        assert not torch.allclose(expected, whole, atol=1e-4)
        for one in found:
            torch.testing.assert_close(one, expected, rtol=1e-5, atol=1e-6)

    for case in sweep(NUMBERED):
        with case as kind:
            check(kind)


class Bare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.out_proj = nn.Linear(8, 8), nn.Linear(8, 8)


def built(kind: str) -> nn.Module:
    torch.manual_seed(0)
    return KINDS[kind][0]().eval()


def entered(model: nn.Module, heads: Any, *, ids: torch.Tensor | None = None, **options: Any) -> None:
    with ablate_heads(model, heads, **options):
        if ids is not None:
            model(ids)


def differential() -> nn.Module:
    config = transformers.DiffLlamaConfig(**SIZES | {"vocab_size": 99})
    return transformers.DiffLlamaForCausalLM(config).eval()


# The heads of a BERT that are refused, and the argument and way out that the error names.
NO_HEADS = {
    "none": ([], "`heads` must be a list of heads: .*, got none"),
    "a text": ("0.1", r"`heads` must be a list of heads: .*, got '0\.1': put it in"),
    "no pair": ([(0,)], r"`heads` must be a list of heads: .*, got \(0,\) in it"),
    "half a head": ([(0, 1), (0, 1.5)], r"`heads` must be a list of heads: .*, got \(0, 1\.5\) in it"),
    "a layer that is true": ([(True, 1)], r"`heads` must be a list of heads: .*, got \(True, 1\) in it"),
    "a layer beyond the last": ([(2, 0)], "`layer` must be from 0 to 1 .*, got 2"),
    "a layer from the end": ([(-1, 0)], r"`heads` must be a list of heads: .*, counted from 0, got \(-1, 0\) in it"),
    "another name": (
        [("encoder.layer.2.attention", 0)], r"`layer` must name a layer .* seen: encoder\.layer\.0\.attention, ",
    ),
    "a number and a name": ([("encoder.layer.1.attention", 0), (1, 0)], r"`heads` must differ, got heads of encoder\."),
    "a head beyond the last": ([(1, 4)], r"`head` must be from 0 to 3 in layer 1, got 1\.4"),
    "a head twice": ([(1, 1), (0, 0), (1, 1)], r"`heads` must differ, got 1\.1 twice"),
}  # fmt: skip
# Whatever else is refused: the call, the error, and the way out that it names.
REFUSED: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "another replacement": (
        lambda: entered(built("llama"), [(1, 0)], replace="max"), InputError, '`replace` must be "zero" or "mean"',
    ),
    "nothing was called": (
        lambda: entered(built("llama"), [(1, 0)]),
        ObservationError, r"layer 1 was removed, as layers\.1\.self_attn was not called: run",
    ),
    "the mean of one token": (
        lambda: entered(built("llama"), [(1, 0)], replace="mean", ids=IDS[:1, :1]), ObservationError, 'use "zero"',
    ),
    "compiled": (lambda: entered(torch.compile(built("llama")), [(1, 0)]), ObservationError, "compile"),
    # Two heads make one of the output, so that head 1 would be half of the output's head 0.
    "differential": (
        lambda: entered(differential(), [(0, 1)], ids=torch.tensor([[1, 2, 3]])),
        ObservationError, r"model\.layers\.0\.self_attn .* is differential attention",
    ),
    "a layer of two streams": (
        lambda: entered(NUMBERED["source"][0](), [(1, 2)]), InputError,
        r"`layer` 1 needs a `stream` too.* \"source\" \(layers 0 to 1\), \"target\" .*\(\"target\", \"source\"\)",
    ),
    "another stream": (
        lambda: entered(NUMBERED["source"][0](), [(1, 2)], stream="text"), InputError, "`stream` must be one of",
    ),
    "the fast path of PyTorch": (
        lambda: head_outputs(nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, batch_first=True), 1)),
        ObservationError, r"build the model with regard\.nn\.MultiHeadAttention",
    ),
    "no attention": (
        lambda: head_outputs(nn.Sequential(nn.Linear(2, 2))),
        ObservationError, "no attention with an output projection was found in Sequential",
    ),
    "an unknown number of heads": (
        lambda: head_outputs(nn.Sequential(Bare())), ObservationError, "the number of heads of 0 .* is not known",
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, when it compiles
def test_what_cannot_be_removed_is_refused_with_the_way_out() -> None:
    bert = built("bert")
    calls = {
        name: (lambda heads=heads: entered(bert, heads), InputError, out) for name, (heads, out) in NO_HEADS.items()
    }
    calls |= REFUSED
    for case in sweep(calls):
        with case as name:
            call, error, way_out = calls[name]
            with pytest.raises(error, match=way_out):
                call()
