"""Texts as vectors: each as if it stood alone, whatever else is embedded with it."""

import pytest
import torch

from regard.errors import InputError
from regard.models import Transformer, TransformerConfig, embed, output_heads


def model(head):
    torch.manual_seed(0)
    config = TransformerConfig(
        vocab_size=50,
        hidden_size=16,
        num_attention_heads=2,
        intermediate_size=32,
        encoder_layers=2,
        dropout=0.5,
        output_head=head,
    )
    return Transformer(config)


def test_each_vector_is_that_of_the_text_alone_in_the_order_of_the_texts():
    encoder = model(output_heads.SentenceEmbedding())
    generator = torch.Generator().manual_seed(1)
    texts = [torch.randint(50, (n,), generator=generator).tolist() for n in (3, 7, 3, 1, 7, 7, 12)]
    encoder.train()  # dropout would make two calls differ
    found = embed(encoder, texts, max_tokens_per_batch=14)
    assert encoder.training
    encoder.eval()
    with torch.no_grad():
        alone = torch.cat([encoder(torch.tensor([text])).logits for text in texts])
    torch.testing.assert_close(found, alone)
    torch.testing.assert_close(found.norm(dim=-1), torch.ones(7))


def test_a_model_without_sentence_vectors_and_empty_texts_are_refused():
    with pytest.raises(InputError, match="SentenceEmbedding, got MaskedLanguageModel"):
        embed(model(output_heads.MaskedLanguageModel()), [[1]])
    with pytest.raises(InputError, match="text 1 has none"):
        embed(model(output_heads.SentenceEmbedding()), [[1], []])
    assert embed(model(output_heads.SentenceEmbedding()), []).shape == (0, 16)
