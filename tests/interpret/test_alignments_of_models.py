"""Alignments of encoder–decoders of every kind equal what the models themselves give."""

from typing import Any

import numpy as np
import pytest
import torch

import regard
from regard.models import Sinusoidal, SpecialTokens, Transformer, TransformerConfig, output_heads
from regard.models.recurrent import RecurrentConfig, RecurrentSeq2Seq

t = pytest.importorskip("transformers")

IDS, TARGET = torch.tensor([[5, 6, 7, 8, 2]]), torch.tensor([[1, 9, 10, 11]])
T5 = {"vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
MARIAN = {"vocab_size": 99, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4}
MARIAN |= {"decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "pad_token_id": 0}
MARIAN |= {"decoder_start_token_id": 1, "eos_token_id": 2, "max_position_embeddings": 64}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {"T5": ("T5", T5), "Marian": ("Marian", MARIAN)}


def lively(model: torch.nn.Module) -> torch.nn.Module:
    torch.manual_seed(1)
    with torch.no_grad():
        for one in model.parameters():
            if one.ndim >= 2:
                one.normal_(0, one.shape[-1] ** -0.5)
    return model.eval()


@pytest.mark.parametrize("name", KINDS)
def test_of_transformers_it_is_the_mean_of_its_cross_attentions(name: str) -> None:
    kind, given = KINDS[name]
    config = getattr(t, f"{kind}Config")(**given)
    model = lively(getattr(t, f"{kind}Model")._from_config(config, attn_implementation="eager"))
    with torch.no_grad(), regard.watch(model) as seen:
        out = model(input_ids=IDS, decoder_input_ids=TARGET, output_attentions=True)
    figure = seen.plot_alignment()
    mean = torch.stack(out.cross_attentions).mean((0, 2))[0]
    np.testing.assert_allclose(figure.axes[0].images[0].get_array(), mean, atol=1e-6)
    one = seen.plot_alignment([(1, 3)]).axes[0].images[0].get_array()
    np.testing.assert_allclose(one, out.cross_attentions[1][0, 3], atol=1e-6)
    assert len([axes for axes in seen.plot_alignment("each").axes if axes.images]) == 8


def test_of_regards_own_transformer_too() -> None:
    config = TransformerConfig(
        vocab_size=30, hidden_size=16, num_attention_heads=4, intermediate_size=24, encoder_layers=1,
        decoder_layers=2, positions=Sinusoidal(50),
        output_head=output_heads.LanguageModel(),
        special_tokens=SpecialTokens(bos_token_id=1, eos_token_id=2, pad_token_id=0),
    )  # fmt: skip
    model = lively(Transformer(config))
    with torch.no_grad(), regard.watch(model) as seen:
        model(IDS, decoder_input_ids=TARGET)
    crossing = [number for number, one in enumerate(seen.record) if one.kind == "cross"]
    assert len(crossing) == 2
    laid = seen.plot_alignment().axes[0].images[0].get_array()
    by_hand = np.mean(
        [seen.weights(layer=layer, head=head, stream=("target", "source"))[0] for layer in (0, 1) for head in range(4)],
        axis=0,
    )
    assert laid.shape == (4, 5)
    np.testing.assert_allclose(laid, by_hand, atol=1e-7)


@pytest.mark.parametrize("attention", ["bahdanau", "general"])
def test_of_a_recurrent_one_it_is_its_one_attention(attention: str) -> None:
    sizes = {"src_vocab_size": 11, "tgt_vocab_size": 12, "embedding_dim": 6, "hidden_size": 6, "attention": attention}
    model = lively(RecurrentSeq2Seq(RecurrentConfig(**sizes)))
    with torch.no_grad(), regard.watch(model) as seen:
        out = model(IDS, decoder_input_ids=TARGET)
    assert [one.kind for one in seen.record] == ["cross"]
    laid = seen.plot_alignment().axes[0].images[0].get_array()
    assert laid.shape == (4, 5)
    np.testing.assert_allclose(laid.sum(-1), 1, atol=1e-6)
    if getattr(out, "weights", None) is not None:
        np.testing.assert_allclose(laid, out.weights[0].reshape(4, 5), atol=1e-6)


def test_generation_adds_a_row_a_step() -> None:
    model = lively(t.MarianMTModel(t.MarianConfig(**MARIAN)))
    model.generation_config.eos_token_id = model.generation_config.forced_eos_token_id = None
    with torch.no_grad(), regard.watch(model) as seen:
        text = model.generate(IDS, max_new_tokens=6, num_beams=1, do_sample=False)
    with torch.no_grad(), regard.watch(model) as whole:
        model(input_ids=IDS, decoder_input_ids=text[:, :-1])
    grown, once = (one.plot_alignment().axes[0].images[0].get_array() for one in (seen, whole))
    assert grown.shape == (6, 5)
    np.testing.assert_allclose(grown, once, atol=1e-6)
