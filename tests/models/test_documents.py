"""Several texts in a row are read as if each stood alone."""

from itertools import product

import pytest
import torch

from regard.errors import InputError
from regard.models import Learned, Sinusoidal, SpecialTokens, Transformer, TransformerConfig, output_heads
from regard.positions import DynamicNTK, LongRoPE, RoPE
from sweeps import sweep

LENGTHS = [[5, 3, 4], [7, 2]]  # and padding behind, to 13


def packed():
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1, 20, (2, 13), generator=generator)
    documents = torch.full((2, 13), -1)
    for row, lengths in enumerate(LENGTHS):
        documents[row, : sum(lengths)] = torch.repeat_interleave(torch.tensor(lengths))
    return ids, documents


def model(positions, side, **more):
    torch.manual_seed(0)
    layers = {f"{side}_layers": 2}
    head = output_heads.LanguageModel() if side == "decoder" else output_heads.TokenClassification(3)
    options = (
        {"vocab_size": 20, "hidden_size": 16, "num_attention_heads": 4, "intermediate_size": 8, "output_head": head}
        | layers
        | more
    )
    options |= {"position_bias": positions} if isinstance(positions, str) else {"positions": positions}
    if positions == "shaw":
        options["max_relative_position"] = 2
    return Transformer(TransformerConfig(**options)).eval()


def test_each_document_is_read_as_if_it_stood_alone():
    for case in sweep(
        product(
            ["encoder", "decoder"],
            [Sinusoidal(), Learned(8), "t5", "alibi", "shaw", RoPE(4), None]
            + [RoPE(4, scaling=scaling) for scaling in (DynamicNTK(3.0, 2), LongRoPE(3.0, (1.0, 1.0), (1.0, 9.0), 2))],
        )
    ):
        with case as (side, positions):
            ids, documents = packed()
            found = model(positions, side)
            whole = found(ids, documents=documents).logits
            for row, lengths in enumerate(LENGTHS):
                first = 0
                for length in lengths:
                    here = slice(first, first + length)
                    torch.testing.assert_close(
                        whole[row, here], found(ids[row : row + 1, here]).logits[0], atol=2e-6, rtol=1e-5
                    )
                    first += length


def test_a_window_reaches_no_further_than_its_document():
    ids, documents = packed()
    found = model(RoPE(4), "decoder", sliding_window=3)
    whole = found(ids, documents=documents).logits
    torch.testing.assert_close(whole[0, 5:8], found(ids[:1, 5:8]).logits[0], atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_the_loss_is_that_of_the_texts(side):
    """No token is foretold by another text's, and padding is no label."""
    ids, documents = packed()
    found, labels = model(RoPE(4), side).double(), ids if side == "decoder" else ids % 3
    total = count = 0
    for row, lengths in enumerate(LENGTHS):
        first = 0
        for length in lengths:
            here = slice(first, first + length)
            logits, wanted = found(ids[row : row + 1, here]).logits[0], labels[row, here]
            logits, wanted = (logits[:-1], wanted[1:]) if side == "decoder" else (logits, wanted)
            total -= logits.log_softmax(-1).gather(1, wanted[:, None]).sum()
            count, first = count + len(wanted), first + length
    assert (documents < 0).any()
    torch.testing.assert_close(found(ids, documents=documents, labels=labels).loss, total / count, rtol=1e-12, atol=0)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_foretells_no_token(side):
    found, text = model(RoPE(4), "decoder").double(), packed()[0][:1, :6]
    fill = torch.zeros(1, 3, dtype=torch.long)
    rows, real = (torch.cat([p, t] if side == "left" else [t, p], 1) for p, t in ((fill, text), (fill, text * 0 + 1)))
    given = {"attention_mask": real, "labels": rows.masked_fill(real == 0, -100)}
    torch.testing.assert_close(found(rows, **given).loss, found(text, labels=text).loss, rtol=1e-12, atol=0)
    if side == "right":  # padding that is named as a label counts, as in transformers
        logits = found(rows, attention_mask=real).logits[0, :-1].log_softmax(-1)
        expected = -logits.gather(1, rows[0, 1:, None]).mean()
        torch.testing.assert_close(found(rows, attention_mask=real, labels=rows).loss, expected)


def test_gradients_reach_no_other_document():
    ids, documents = packed()
    found = model(Sinusoidal(), "decoder")
    embedded = []
    found.embedding.register_forward_hook(lambda module, given, out: embedded.append(out) or out.retain_grad())
    found(ids, documents=documents).logits[0, 7].sum().backward()
    reached = embedded[0].grad[0].abs().sum(-1) > 0
    assert reached.tolist() == [False] * 5 + [True] * 3 + [False] * 5


def test_what_does_not_go_together_is_refused():
    cases = [
        ({"attention_mask": torch.ones(2, 13, dtype=torch.bool)}, "leave `attention_mask`, `past_key_values` and"),
        ({"documents": torch.zeros(2, 12, dtype=torch.long)}, r"of the shape of `input_ids`, \(2, 13\)"),
        ({"documents": torch.zeros(2, 13)}, "must be integers"),
    ]
    for case in sweep(cases):
        with case as (given, words):
            ids, documents = packed()
            with pytest.raises(InputError, match=words):
                model(None, "decoder")(ids, **({"documents": documents} | given))


def test_what_makes_one_thing_of_a_row_is_refused():
    ids, documents = packed()
    config = TransformerConfig(
        vocab_size=20,
        hidden_size=8,
        num_attention_heads=2,
        intermediate_size=8,
        encoder_layers=1,
        output_head=output_heads.SentenceEmbedding(),
    )
    with pytest.raises(InputError, match="`documents` share rows, and SentenceEmbedding"):
        Transformer(config).eval()(ids, documents=documents)
    pair = TransformerConfig(
        vocab_size=20, hidden_size=8, num_attention_heads=2, intermediate_size=8, encoder_layers=1, decoder_layers=1
    )
    with pytest.raises(InputError, match="an encoder–decoder runs on pairs"):
        Transformer(pair).eval()(ids, decoder_input_ids=ids, documents=documents)


def test_labels_of_none_at_the_end_are_no_part_of_a_target_whose_length_counts():
    """Each target's angles are those of its own length, as if it stood alone, with its labels alone."""
    tokens = SpecialTokens(pad_token_id=0, decoder_start_token_id=1)
    options = {"encoder_layers": 1, "special_tokens": tokens}
    angles = RoPE(4, scaling=DynamicNTK(8.0, 2))
    found = model(angles, "decoder", **options).double()
    source = packed()[0]
    labels = source[:, 1:9].clone()
    lengths = (3, 8)
    labels[0, lengths[0] :] = -100
    labels[1, 2] = -100  # within a target, and no padding
    alone = [found(source[i : i + 1], labels=labels[i : i + 1, :n]).loss for i, n in enumerate(lengths)]
    mean = (alone[0] * 3 + alone[1] * 7) / 10
    torch.testing.assert_close(found(source, labels=labels).loss, mean, rtol=1e-12, atol=0)
    assert (found(source[:1], labels=labels[:1], decoder_attention_mask=torch.ones(1, 8)).loss - alone[0]).abs() > 1e-6


def test_labels_of_whole_texts_make_no_target():
    found = model(RoPE(4), "decoder", encoder_layers=1, special_tokens=SpecialTokens(bos_token_id=1))
    with pytest.raises(InputError, match=r"shape \(2,\) are no target \(batch, tokens\): give decoder_input_ids="):
        found(packed()[0], labels=torch.tensor([0, 1]))
