"""Code as people from PyTorch and transformers type it from memory runs at the first try."""

import pytest
import torch
from torch import nn

import regard
from regard import masks
from regard.models import Transformer, TransformerConfig, output_heads

IDS = torch.tensor([[5, 6, 7, 8, 9], [5, 6, 7, 1, 1]])
ATTENTION_MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(2, 5, 64, generator=GENERATOR)
SIZES = {"vocab_size": 100, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128}


@pytest.fixture(scope="module")
def decoder() -> Transformer:
    torch.manual_seed(0)
    config = TransformerConfig(**SIZES, decoder_layers=2, output_head=output_heads.LanguageModel())
    return Transformer(config).eval()


@pytest.fixture(scope="module")
def encoder() -> Transformer:
    torch.manual_seed(0)
    return Transformer(TransformerConfig(**SIZES, encoder_layers=2)).eval()


@pytest.fixture(scope="module")
def translator() -> Transformer:
    torch.manual_seed(0)
    head = output_heads.LanguageModel()
    config = TransformerConfig(**SIZES, encoder_layers=1, decoder_layers=1, output_head=head)
    return Transformer(config).eval()


def test_multi_head_attention_by_pytorchs_sizes():
    layer = regard.nn.MultiHeadAttention(embed_dim=64, num_heads=4)
    assert layer(X, X, X).shape == X.shape


def test_multi_head_attention_with_weights_and_hidden_keys():
    layer = regard.nn.MultiHeadAttention(embed_dim=64, num_heads=4, kdim=32, vdim=48, dropout=0.0, bias=True)
    keys, values = torch.randn(2, 7, 32), torch.randn(2, 7, 48)
    hidden = torch.zeros(2, 7, dtype=torch.bool)
    hidden[1, 4:] = True
    output, weights = layer(X, keys, values, key_padding_mask=hidden, need_weights=True)
    assert output.shape == X.shape
    assert weights.shape[-2:] == (5, 7)
    assert (weights[1, ..., 4:] == 0).all()


def test_multi_head_attention_from_pytorchs_own():
    theirs = nn.MultiheadAttention(64, 4, batch_first=True)
    ours = regard.nn.MultiHeadAttention.from_torch(theirs)
    torch.testing.assert_close(ours(X, X, X), theirs(X, X, X)[0])


def test_an_encoder_block_by_pytorchs_sizes():
    block = regard.nn.EncoderBlock(embed_dim=64, num_heads=4, dim_feedforward=128, dropout=0.0)
    assert block(X).shape == X.shape


def test_a_decoder_block_by_pytorchs_sizes():
    block = regard.nn.DecoderBlock(embed_dim=64, num_heads=4, dim_feedforward=128, dropout=0.0)
    assert block(X, X).shape == X.shape


def test_attention_in_the_place_of_pytorchs_function():
    q = k = v = torch.randn(2, 4, 5, 16)
    torch.testing.assert_close(regard.attention(q, k, v), nn.functional.scaled_dot_product_attention(q, k, v))
    output, weights = regard.attention(q, k, v, mask=masks.Causal(), return_weights=True)
    assert output.shape == q.shape
    assert weights.shape == (2, 4, 5, 5)


def test_a_tokenizers_mask_is_taken_as_it_is():
    q = k = v = torch.randn(2, 4, 5, 16)
    weights = regard.attention(q, k, v, mask=masks.Padding(ATTENTION_MASK), return_weights=True)[1]
    assert (weights[1, :, :, 3:] == 0).all()


def test_a_function_of_flex_attention_is_a_mask():
    q = k = v = torch.randn(1, 2, 5, 16)

    def mask_mod(b, h, q_idx, kv_idx):
        return q_idx >= kv_idx

    torch.testing.assert_close(
        regard.attention(q, k, v, mask=masks.MaskMod(mask_mod)), regard.attention(q, k, v, mask=masks.Causal())
    )


def test_lengths_as_flash_attention_has_them():
    q = k = v = torch.randn(1, 2, 5, 16)
    mask = masks.Document.from_cu_seqlens(cu_seqlens_k=torch.tensor([0, 2, 5], dtype=torch.int32))
    weights = regard.attention(q, k, v, mask=mask, return_weights=True)[1]
    assert (weights[..., :2, 2:] == 0).all()


def test_a_models_sizes_and_its_call(encoder):
    output = encoder(input_ids=IDS, attention_mask=ATTENTION_MASK)
    assert output.last_hidden_state.shape == (2, 5, 64)
    torch.testing.assert_close(output[0], output.last_hidden_state)


def test_hidden_states_of_every_layer(encoder):
    output = encoder(input_ids=IDS, attention_mask=ATTENTION_MASK, output_hidden_states=True)
    assert len(output.hidden_states) == 3
    torch.testing.assert_close(output.hidden_states[-1], output.last_hidden_state)


def test_logits_of_the_last_token(decoder):
    output = decoder(input_ids=IDS, logits_to_keep=1)
    assert output.logits.shape == (2, 1, 100)
    torch.testing.assert_close(output.logits, decoder(IDS).logits[:, -1:])


def test_loss_of_labels(decoder):
    output = decoder(input_ids=IDS, labels=IDS)
    expected = nn.functional.cross_entropy(output.logits[:, :-1].reshape(-1, 100), IDS[:, 1:].reshape(-1))
    torch.testing.assert_close(output.loss, expected)


def test_generating_by_beam_search(decoder):
    ids = decoder.generate(IDS[:, :3], max_new_tokens=20, num_beams=4, eos_token_id=2)
    assert isinstance(ids, torch.Tensor)
    assert ids.shape[0] == 2
    assert 3 < ids.shape[1] <= 23
    assert (ids[:, :3] == IDS[:, :3]).all()


def test_generating_by_sampling(decoder):
    torch.manual_seed(0)
    ids = decoder.generate(IDS[:, :3], do_sample=True, temperature=0.8, top_k=50, top_p=0.95, max_new_tokens=5)
    assert ids.shape == (2, 8)


def test_generating_from_padded_prompts(decoder):
    left = torch.tensor([[5, 6, 7], [0, 5, 6]])
    ids = decoder.generate(left, attention_mask=(left != 0).long(), max_new_tokens=4, pad_token_id=0)
    alone = decoder.generate(left[1:, 1:], max_new_tokens=4)
    assert ids[1, 3:].tolist() == alone[0, 2:].tolist()


def test_a_translators_call(translator):
    output = translator(input_ids=IDS, attention_mask=ATTENTION_MASK, decoder_input_ids=IDS[:, :2])
    assert output.logits.shape == (2, 2, 100)
    assert output.encoder_last_hidden_state.shape == (2, 5, 64)


def test_a_translators_generate(translator):
    ids = translator.generate(
        IDS, attention_mask=ATTENTION_MASK, max_new_tokens=4, num_beams=2, decoder_start_token_id=3, eos_token_id=2
    )
    assert (ids[:, 0] == 3).all()
    assert ids.shape[1] <= 5


def test_saved_and_loaded(encoder, tmp_path):
    encoder.save_pretrained(tmp_path)
    again = Transformer.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(again(IDS).last_hidden_state, encoder(IDS).last_hidden_state)


def test_grouped_heads_and_rotary_positions_by_the_words_of_llama():
    rope = regard.positions.RoPE(16, base=10_000.0)
    config = TransformerConfig(
        **SIZES,
        decoder_layers=1,
        num_key_value_heads=2,
        hidden_act="silu",
        is_gated_act=True,
        norm="rms",
        positions=rope,
    )
    assert Transformer(config)(input_ids=IDS).last_hidden_state.shape == (2, 5, 64)


def test_watching_a_model_of_pytorch():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 2).eval()
    with regard.watch(model) as seen:
        model(X)
    assert seen.weights(layer=0, head=0).shape == (2, 5, 5)


def test_training_a_model_in_a_loop_of_ones_own():
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(**SIZES, decoder_layers=1, output_head=output_heads.LanguageModel()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(3):
        loss = model(input_ids=IDS, attention_mask=ATTENTION_MASK, labels=IDS).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
