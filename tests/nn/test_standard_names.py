"""Code that a PyTorch or transformers user writes from memory runs, or is refused by a sentence with the way out."""

import inspect
from functools import partial

import pytest
import torch
from torch import nn as torch_nn

from regard import attention, masks, nn, positions, scores
from regard.cache import KVCache
from regard.errors import InputError
from regard.nn.standard_names import FORWARD, INIT
from sweeps import sweep


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X, MEMORY = randn(3, 5, 8), randn(3, 7, 8, seed=1)
PADDING = torch.arange(5)[None] < torch.tensor([[0], [2], [1]])  # on the left, where causal modules see it
MEMORY_PADDING = torch.arange(7)[None] >= torch.tensor([[7], [2], [5]])
GRID, GRID_PADDING = randn(3, 2, 3, 8, seed=2), torch.arange(6).view(1, 2, 3) >= torch.tensor([6, 4, 3])[:, None, None]


def encoder():
    return nn.Encoder([nn.EncoderBlock(8, 2, 16)])


def decoder():
    return nn.Decoder([nn.DecoderBlock(8, 2, 16)])


# Every attention module, with what it is called with and the padding of its keys.
MODULES = {
    "AdditiveAttention": (lambda **o: nn.AdditiveAttention(8, **o), (X, MEMORY), MEMORY_PADDING),
    "AttentionDecoderCell": (lambda **o: nn.AttentionDecoderCell(8, 6, 8, **o), (X[:, 0], MEMORY), MEMORY_PADDING),
    "AttentionPooling": (lambda **o: nn.AttentionPooling(8, **o), (X,), PADDING),
    "AxialAttention": (lambda **o: nn.AxialAttention(8, 2, **o), (GRID,), GRID_PADDING),
    "BigBirdAttention": (lambda **o: nn.BigBirdAttention(8, 2, block=1, num_random_blocks=1, **o), (X,), PADDING),
    "BilinearAttention": (lambda **o: nn.BilinearAttention(8, **o), (X, MEMORY), MEMORY_PADDING),
    "Decoder": (lambda **o: nn.Decoder(decoder().layers, **o), (X, MEMORY), PADDING),
    "DecoderBlock": (lambda **o: nn.DecoderBlock(8, 2, 16, **o), (X, MEMORY), PADDING),
    "Encoder": (lambda **o: nn.Encoder(encoder().layers, **o), (X,), PADDING),
    "EncoderBlock": (lambda **o: nn.EncoderBlock(8, 2, 16, **o), (X,), PADDING),
    "LocalAttention": (lambda **o: nn.LocalAttention(8, 2, **o), (X, MEMORY), MEMORY_PADDING),
    "LongformerAttention": (lambda **o: nn.LongformerAttention(8, 2, 2, **o), (X,), PADDING),
    "MultiHeadAttention": (lambda **o: nn.MultiHeadAttention(8, 2, **o), (X, MEMORY), MEMORY_PADDING),
    "NeighborhoodAttention": (lambda **o: nn.NeighborhoodAttention(8, 2, (1, 3), **o), (GRID,), GRID_PADDING),
    "SlidingWindowAttention": (lambda **o: nn.SlidingWindowAttention(8, 2, 3, **o), (X,), PADDING),
}
OTHERS = {
    "EncoderDecoder": (lambda **o: nn.EncoderDecoder(encoder(), decoder(), **o), (X, X)),
    "Elman": (lambda **o: nn.Elman(8, 6, **o), (X,)),
    "ElmanCell": (lambda **o: nn.ElmanCell(8, 6, **o), (X[:, 0],)),
    "FeedForward": (lambda **o: nn.FeedForward(8, 16, **o), (X,)),
    "LearnedPositions": (lambda **o: nn.LearnedPositions(8, 9, **o), (X,)),
    "PositionalEncoding": (lambda **o: nn.PositionalEncoding(8, **o), (X,)),
}
EVERY = MODULES | {name: (*one, None) for name, one in OTHERS.items()}


def made(name, **options):
    torch.manual_seed(0)
    return EVERY[name][0](**options).double().eval()


def refusal(call):
    try:
        call()
    except (InputError, TypeError) as error:
        return str(error)
    return "nothing was refused"


def first(found):
    return found[0] if isinstance(found, tuple) else found


def test_every_module_is_here():
    kinds = {
        name for name in nn.__all__ if isinstance(one := getattr(nn, name), type) and issubclass(one, torch_nn.Module)
    }
    assert kinds - {"ValueModule"} == EVERY.keys()


def test_a_standard_name_of_a_constructor_is_taken_or_answered():
    """Every name of the table is an own argument, or is refused by a sentence, or says nothing about this module."""
    for case in sweep(EVERY):
        with case as name:
            answered = 0
            known = inspect.signature(getattr(nn, name).__init__).parameters.keys()
            if "options" in known:
                known = known | inspect.signature(nn.MultiHeadAttention.__init__).parameters.keys()
            for standard in INIT.keys() - known:
                text = refusal(partial(EVERY[name][0], **{standard: 2}))
                assert f"has no argument `{standard}`: " in text or "unexpected keyword argument" in text, (
                    standard,
                    text,
                )
                answered += "has no argument" in text
            assert answered >= (0 if name == "EncoderDecoder" else 1 if name in ("Decoder", "Encoder") else 3)


def test_a_constructor_says_which_of_its_names_is_meant():
    cases = [
        (lambda: nn.MultiHeadAttention(hidden_size=8, num_heads=2), "`hidden_size`: `embed_dim` is meant"),
        (lambda: nn.MultiHeadAttention(8, num_attention_heads=2), "`num_attention_heads`: `num_heads` is meant"),
        (lambda: nn.MultiHeadAttention(8, heads=2), "`heads`: `num_heads` is meant"),
        (lambda: nn.MultiHeadAttention(8, 2, kv_heads=1), "`kv_heads`: `num_kv_heads` is meant"),
        (lambda: nn.MultiHeadAttention(8, 2, dim_head=4), "`dim_head`: `head_dim` is meant"),
        (lambda: nn.MultiHeadAttention(8, 2, attention_bias=False), "`attention_bias`: `bias` is meant"),
        (lambda: nn.MultiHeadAttention(8, 2, attn_dropout=0.1), "`attn_dropout`: `dropout` is meant"),
        (lambda: nn.MultiHeadAttention(8, 2, add_zero_attn=True), r"normalizers\.Softmax\(sink\)"),
        (lambda: nn.MultiHeadAttention(8, 2, causal=True), r"mask=masks\.Causal\(\) is meant"),
        (lambda: nn.MultiHeadAttention(8, 2, hidden=512), "unexpected keyword argument 'hidden'"),
        (lambda: nn.EncoderBlock(d_model=8, nhead=2, dim_feedforward=16), "`d_model`: `embed_dim` is meant"),
        (lambda: nn.EncoderBlock(8, 2, hidden=512), "`hidden`: `dim_feedforward` is meant"),
        (lambda: nn.EncoderBlock(8, 2, intermediate_size=512), "`intermediate_size`: `dim_feedforward` is meant"),
        (lambda: nn.EncoderBlock(8, 2, 16, eps=1e-6), "`eps`: `layer_norm_eps` is meant"),
        (lambda: nn.DecoderBlock(8, 2, 16, kdim=6), "`kdim`: `memory_dim` is meant"),
        (lambda: nn.FeedForward(8, dim_feedforward=16), "`dim_feedforward`: `hidden_features` is meant"),
        (lambda: nn.Elman(8, 6, num_layers=2), "put several after one another"),
        (lambda: nn.SlidingWindowAttention(8, 2, window_size=4), "`window_size`: `sliding_window` is meant"),
        (lambda: nn.SlidingWindowAttention(8, 2, 4, kv_heads=1), "`kv_heads`: `num_kv_heads` is meant"),
        (lambda: nn.LongformerAttention(8, 2, attention_window=4), "`attention_window`: `window` is meant"),
        (lambda: nn.MultiHeadAttention(8, 2, batch_first=False), r"`batch_first=True` .* give x\.transpose\(0, 1\)"),
    ]
    for case in sweep(cases):
        with case as (make, words), pytest.raises((InputError, TypeError), match=words):
            make()


def test_batch_first_is_what_all_modules_do():
    for case in sweep(EVERY):
        with case as name:
            inputs = EVERY[name][1]
            assert torch.equal(first(made(name, batch_first=True)(*inputs)), first(made(name)(*inputs)))
            with pytest.raises(InputError, match="`batch_first=True` is what all modules do, got False"):
                made(name, batch_first=False)


def test_pytorch_s_third_and_fourth_arguments_are_dropout_and_bias():
    ours, theirs = nn.MultiHeadAttention(8, 2, 0.25, False), torch_nn.MultiheadAttention(8, 2, 0.25, False)
    assert ours.dropout == theirs.dropout
    assert ours.q_proj.bias is theirs.in_proj_bias is None


def test_padding_is_hidden_by_pytorch_s_key_padding_mask_or_refused_by_a_sentence():
    for case in sweep(MODULES):
        with case as name:
            _, inputs, padding = MODULES[name]
            module = made(name)
            keys = inputs[-1] if padding is not PADDING else inputs[0]
            if name == "AxialAttention":
                with pytest.raises(
                    InputError, match=r"no argument `key_padding_mask`: lines have no padding: cut the grid"
                ):
                    module(*inputs, key_padding_mask=padding)
                continue
            other = keys.masked_fill(padding[..., None], 9.0)
            changed = tuple(other if one is keys else one for one in inputs)
            found, again = (
                first(module(*inputs, key_padding_mask=padding)),
                first(module(*changed, key_padding_mask=padding)),
            )
            # Rows of queries that are themselves padding are no one's business.
            rows = padding if keys is inputs[0] and found.ndim > 2 else torch.zeros(found.shape[:-1], dtype=torch.bool)
            torch.testing.assert_close(found[~rows], again[~rows])
            assert not torch.allclose(first(module(*inputs))[~rows], first(module(*changed))[~rows])
            with pytest.raises(InputError, match="attention_mask == 0 if 1 is a token"):
                module(*inputs, key_padding_mask=(~padding).long())


def test_a_backend_can_be_chosen_in_every_module():
    for case in sweep(MODULES):
        with case as name:
            inputs, module = MODULES[name][1], made(name)
            plain = first(module(*inputs))
            torch.testing.assert_close(first(module(*inputs, backend="reference")), plain)
            with pytest.raises(InputError, match="nonsense"):
                module(*inputs, backend="nonsense")


NO_MASK = {
    "AttentionPooling": "one query sees the whole set: key_padding_mask= hides vectors",
    "AxialAttention": "give `mask=` to the constructor",
    "LongformerAttention": r"key_padding_mask= hides padding, and MultiHeadAttention with mask=masks\.longformer",
}


def test_a_mask_is_taken_by_every_module_or_refused_by_a_sentence():
    for case in sweep(MODULES):
        with case as name:
            inputs, module = MODULES[name][1], made(name)
            if name in NO_MASK:
                with pytest.raises(InputError, match=f"no argument `mask`: .*{NO_MASK[name]}"):
                    module(*inputs, mask=masks.Causal())
                continue
            rows = 1 if name == "AttentionDecoderCell" else 6 if name == "NeighborhoodAttention" else 5
            columns = 7 if inputs[-1] is MEMORY and name not in ("Decoder", "DecoderBlock") else rows
            shown = torch.ones(1, 1, rows, columns, dtype=torch.bool)
            shown[..., 1:] = False
            for mask in (shown, masks.Dense(shown)):
                found = first(module(*inputs, mask=mask))
                assert not torch.allclose(found, first(module(*inputs)))
                torch.testing.assert_close(found, first(module(*inputs, mask=shown, backend="reference")))


PASSED_ON = {
    "is_causal",
    "average_attn_weights",
    "position_ids",
    "cache",
    "attn_bias",
    "key",
    "value",
    "memory_key_padding_mask",
}  # to MultiHeadAttention, or the blocks


def test_a_standard_name_of_a_call_is_taken_or_answered():
    for case in sweep(EVERY):
        with case as name:
            module, inputs = made(name), EVERY[name][1]
            known = inspect.signature(module.forward).parameters.keys()
            for standard in FORWARD.keys() - known - PASSED_ON:
                text = refusal(partial(module, *inputs, **{standard: torch.zeros(3, 5)}))
                assert f"has no argument `{standard}`: " in text or "unexpected keyword argument" in text, text


def test_a_call_says_which_of_its_names_is_meant():
    module, block = made("MultiHeadAttention"), made("DecoderBlock")
    mask = torch.ones(5, 5, dtype=torch.bool)
    for call, words in (
        (lambda: module(X, attn_mask=mask), "a boolean one is mask=~attn_mask"),
        (lambda: module(X, attention_mask=mask), "key_padding_mask=attention_mask == 0 is meant"),
        (lambda: module(X, output_attentions=True), "`need_weights` is meant"),
        (lambda: module(X, encoder_hidden_states=MEMORY), "`key` is meant"),
        (lambda: block(X, MEMORY, tgt_mask=mask), "a boolean one is mask=~tgt_mask"),
        (lambda: block(X, MEMORY, memory_mask=mask), "a boolean one is cross_attn_mask=~memory_mask"),
        (lambda: block(X, MEMORY, tgt_key_padding_mask=PADDING), "`key_padding_mask` is meant"),
        (lambda: made("LongformerAttention")(X, is_causal=True), "SlidingWindowAttention.* is causal"),
        (lambda: made("AdditiveAttention")(X, MEMORY, average_attn_weights=True), r"weights\.mean\(1\)"),
        (lambda: module(X, MEMORY, is_causal=True), r"got 5 and 7: .*Causal\(align=\"start\"\)"),
        (
            lambda: module(X, position_ids=torch.zeros(3, 5, dtype=torch.long)),
            r"has none: build it with rotary=positions\.RoPE\(head_dim\)",
        ),
    ):
        with pytest.raises(InputError, match=words):
            call()


@pytest.mark.parametrize("average", [False, True])
def test_weights_and_padding_and_is_causal_are_pytorch_s(average):
    theirs = torch_nn.MultiheadAttention(8, 2, batch_first=True).double()
    ours, hidden = nn.MultiHeadAttention.from_torch(theirs), torch.ones(5, 5).triu(1).bool()
    padding = PADDING.flip(1)  # PyTorch gives NaN to a query that sees nothing
    options = {"key_padding_mask": padding, "average_attn_weights": average, "is_causal": True}
    expected = theirs(X, X, X, attn_mask=hidden, **options)
    found = ours(X, X, X, need_weights=True, **options)
    for mine, other in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, other)
    torch.testing.assert_close(ours(X, **options), expected[0])


def test_a_mask_of_two_dimensions_that_may_be_padding_is_refused():
    square, module = torch.ones(3, 3, dtype=torch.bool), made("MultiHeadAttention")
    with pytest.raises(InputError, match=r"write mask\[None, None\] for a matrix, masks\.Padding\(mask\) for flags"):
        module(X[:, :3], mask=square)
    torch.testing.assert_close(module(X[:1, :3], mask=square), module(X[:1, :3]))


def test_a_bare_output_is_not_a_pair():
    """PyTorch's module gives (output, weights), ours the output, of which unpacking makes rows (docs/migration.md)."""
    module = made("MultiHeadAttention")
    with pytest.raises(ValueError, match="too many values to unpack"):
        _output, _weights = module(X, X, X)
    _output, weights = module(X, X, X, need_weights=True)
    assert weights.shape == (3, 2, 5, 5)


@pytest.mark.parametrize("layout", ["halves", "interleaved"])
def test_padding_on_the_left_changes_nothing_with_position_ids(layout):
    rotary = positions.RoPE(4, interleaved=layout == "interleaved")
    module = nn.MultiHeadAttention(8, 2, num_kv_heads=1, rotary=rotary, mask=masks.Causal()).double()
    padding = torch.tensor([[True, True, False, False, False], [False] * 5, [True] + [False] * 4])
    position_ids = (~padding).cumsum(1).sub(1).clamp(min=0)
    found = module(X, key_padding_mask=padding, position_ids=position_ids)
    for row, drop in enumerate((2, 0, 1)):
        torch.testing.assert_close(found[row, drop:], module(X[row, drop:]))
    # Only distances count, and so it takes a shift within the sequence to see positions at all.
    shifted = position_ids + torch.tensor([0, 0, 3, 3, 9])
    assert not torch.allclose(module(X, key_padding_mask=padding, position_ids=shifted)[0, 3:], found[0, 3:])


def test_packed_rows_count_from_the_beginning_of_each_text():
    module = nn.MultiHeadAttention(8, 2, rotary=positions.RoPE(4)).double()
    documents = torch.tensor([[0, 0, 0, 1, 1]])
    position_ids = torch.tensor([[0, 1, 2, 0, 4]])
    found = module(X[:1], mask=masks.Document(documents), position_ids=position_ids)
    torch.testing.assert_close(found[:, :3], module(X[:1, :3]))
    torch.testing.assert_close(found[:, 3:], module(X[:1, 3:], position_ids=torch.tensor([[0, 4]])))


def test_a_cache_goes_on_with_position_ids():
    module = nn.MultiHeadAttention(8, 2, rotary=positions.RoPE(4), mask=masks.Causal()).double()
    position_ids = torch.tensor([[0, 1, 2, 3, 4], [0, 0, 1, 2, 7], [5, 6, 7, 8, 9]])
    whole, cache = module(X, position_ids=position_ids), KVCache()
    steps = [module(X[:, t : t + 1], cache=cache, position_ids=position_ids[:, t : t + 1]) for t in range(5)]
    torch.testing.assert_close(torch.cat(steps, 1), whole)
    with pytest.raises(InputError, match=r"must be \(batch, 1\), one for each token of this call, got \(3, 5\)"):
        module(X[:, :1], cache=KVCache(), position_ids=position_ids)


def test_attention_turns_by_the_positions_of_each_sequence():
    for case in sweep(["auto", "reference", "sdpa", "strips"]):
        with case as backend:
            q, k, v = randn(3, 2, 4, 8), randn(3, 1, 6, 8, seed=1), randn(3, 1, 6, 8, seed=2)
            rotary, position_ids = (
                positions.RoPE(8),
                torch.tensor([[0, 1, 2, 3, 4, 5], [0, 0, 0, 1, 2, 3], [3, 9, 4, 0, 1, 7]]),
            )
            found = attention(q, k, v, rotary=rotary.at(position_ids), mask=masks.Causal(), backend=backend)
            for row, at in enumerate(position_ids):
                turned = [rotary.rotate(q[row], at[2:]), rotary.rotate(k[row], at)]
                expected = attention(
                    *(one[None] for one in turned), v[row, None], mask=masks.Causal(), backend="reference"
                )
                torch.testing.assert_close(found[row, None], expected)


def test_positions_of_another_shape_are_refused():
    cases = [
        (torch.zeros(3, 4, dtype=torch.long), r"must be \(batch, 5\), one for each key, .* got \(3, 4\)"),
        (torch.zeros(2, 5, dtype=torch.long), r"with the batch of q, k and v \(3\) or 1, got \(2, 5\)"),
        (torch.zeros(5, dtype=torch.long), r"integers \(batch, keys\), .* write position_ids\[None\]"),
        (torch.zeros(3, 5), "must be integers"),
        ([[0, 1, 2, 3, 4]], "got list"),
    ]
    for case in sweep(cases):
        with case as (wrong, words):
            module = nn.MultiHeadAttention(8, 2, rotary=positions.RoPE(4)).double()
            with pytest.raises(InputError, match=words):
                module(X, position_ids=wrong)


def test_a_score_in_a_cell_and_a_module_in_a_cell_hide_the_same_padding():
    torch.manual_seed(0)
    bilinear = nn.BilinearAttention(6, 8)
    cells = [nn.AttentionDecoderCell(8, 6, 8, attention=one) for one in (bilinear, scores.Bilinear(bilinear.weight))]
    cells[1].load_state_dict(dict(zip(cells[1].state_dict(), cells[0].state_dict().values(), strict=True)))
    found = [one.double()(X[:, 0], MEMORY, key_padding_mask=MEMORY_PADDING, need_weights=True)[2] for one in cells]
    torch.testing.assert_close(*found)
    assert (found[0][MEMORY_PADDING] == 0).all()
