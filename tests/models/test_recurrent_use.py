"""The recurrent encoder–decoder in use: padding, decoding, watching, training, saving, and what it refuses."""

import copy
import dataclasses
import io
import json

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import regard
from regard.errors import InputError
from regard.models.decoding import BeamSearch, GenerationLimits, Greedy
from regard.models.recurrent import RecurrentConfig, RecurrentSeq2Seq
from sweeps import sweep

SIZES = {"src_vocab_size": 11, "tgt_vocab_size": 9, "embedding_dim": 6, "hidden_size": 6}
IDS = torch.tensor([[3, 4, 5, 6, 7, 8], [5, 9, 10, 0, 0, 0], [8, 7, 6, 5, 4, 0]])
TARGET = torch.tensor([[1, 4, 5, 6, 3], [1, 3, 3, 4, 8], [1, 8, 7, 4, 5]])
KINDS = [
    {"attention": None},
    {"attention": None, "feed_context": True, "cell": "lstm"},
    {"attention": "bahdanau", "num_layers": 2, "cell": "lstm"},
    {"attention": "dot", "bidirectional": False},
    {"attention": "general", "num_layers": 2},
    {"attention": "concat", "input_feeding": False},
    {"attention": "local-m", "radius": 1},
    {"attention": "local-m", "radius": 1, "input_feeding": False},
    {"attention": "local-p", "radius": 2, "cell": "lstm"},
]


@pytest.fixture(autouse=True)
def one_thread():
    """Matrices of a few numbers: threads wait for each other longer than they work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def made(**more):
    torch.manual_seed(0)
    return RecurrentSeq2Seq(RecurrentConfig(**SIZES | more)).eval()


def test_padding_has_no_influence_and_no_gradient():
    for case in sweep(KINDS, lambda kind: "-".join(map(str, kind.values()))):
        with case as kind:
            model = made(**kind)
            embedded = []
            model.encoder.embedding.register_forward_hook(
                lambda _, __, out, embedded=embedded: embedded.append(out) or out.retain_grad()
            )
            found = model(IDS, decoder_input_ids=TARGET)
            found.logits.square().sum().backward()
            real = IDS != 0
            assert (embedded[0].grad[~real] == 0).all()
            assert (embedded[0].grad[real] != 0).any(-1).all()
            assert (model.encoder.embedding.weight.grad[0] == 0).all()
            other = model(torch.where(real, IDS, 7), decoder_input_ids=TARGET, attention_mask=real).logits
            assert torch.equal(other, found.logits)
            for b, length in enumerate(real.sum(1)):
                torch.testing.assert_close(
                    model(IDS[b : b + 1, :length], decoder_input_ids=TARGET[b : b + 1]).logits[0], found.logits[b]
                )


def test_padding_is_the_pad_token_unless_something_else_is_said():
    model, everything = made(), torch.ones_like(IDS, dtype=torch.bool)
    assert torch.equal(
        model(IDS, decoder_input_ids=TARGET).logits,
        model(IDS, decoder_input_ids=TARGET, attention_mask=IDS != 0).logits,
    )
    said = model(IDS, decoder_input_ids=TARGET, attention_mask=everything).logits
    assert not torch.allclose(said[1], model(IDS, decoder_input_ids=TARGET).logits[1])
    without = RecurrentSeq2Seq(dataclasses.replace(model.config, pad_token_id=None)).eval()
    without.load_state_dict(model.state_dict())
    assert torch.equal(without(IDS, decoder_input_ids=TARGET).logits, said)


def test_step_by_step_is_teacher_forcing():
    for case in sweep(KINDS, lambda kind: "-".join(map(str, kind.values()))):
        with case as kind:
            model = made(**kind)
            whole = model(IDS, decoder_input_ids=TARGET).logits
            steps, twice = model.writing(IDS), model.writing(IDS)
            for t in range(TARGET.shape[1]):
                torch.testing.assert_close(steps.step(TARGET[:, t : t + 1]), whole[:, t])
            torch.testing.assert_close(twice.step(TARGET[:, :3]), whole[:, 2])
            torch.testing.assert_close(twice.step(TARGET[:, 3:]), whole[:, 4])
            assert (steps.bos_token_id, steps.eos_token_id) == (1, 2)
            assert steps.state.steps.tolist() == [5, 5, 5]


def test_rows_are_repeated_reordered_and_left_out():
    for case in sweep(KINDS, lambda kind: "-".join(map(str, kind.values()))):
        with case as kind:
            model = made(**kind)
            steps, rows = model.writing(IDS), torch.tensor([2, 0, 2, 2])
            steps.step(TARGET[:, :2])
            steps.reorder(rows)
            after = torch.tensor([[3], [4], [5], [6]])
            text = torch.cat([TARGET[rows, :2], after], 1)
            wanted = model(IDS[rows], decoder_input_ids=text).logits[:, -1]
            torch.testing.assert_close(steps.step(after), wanted)
            steps.reorder(torch.tensor([3, 1]))
            nothing = steps.step(torch.tensor([[5], [5]]), torch.tensor([[False], [False]]))
            torch.testing.assert_close(nothing, wanted[[3, 1]])


def test_greedy_and_beams_write_what_teacher_forcing_reads():
    for case in sweep(KINDS, lambda kind: "-".join(map(str, kind.values()))):
        with case as kind:
            model = made(**kind)
            limits, start = GenerationLimits(max_new_tokens=6, eos_token_id=(2,)), torch.ones(3, 1, dtype=torch.long)
            with torch.no_grad():
                model.output.weight.mul_(6)  # texts that differ
                greedy = Greedy().search(model.writing(IDS), start, limits)
                beams = BeamSearch(num_beams=3, length_penalty=0.0).search(model.writing(IDS), start, limits)
                for written in (greedy, beams):
                    for b, one in enumerate(written):
                        text = torch.tensor([1, *one.tokens])
                        logits = model(IDS[b : b + 1], decoder_input_ids=text[None, :-1]).logits[0].double()
                        if written is greedy:
                            assert logits.argmax(-1).tolist() == list(one.tokens)
                        log_probs = logits.log_softmax(-1)[range(len(one.tokens)), text[1:]]
                        assert one.score == pytest.approx(log_probs.sum().item(), abs=1e-4)


def test_a_row_without_a_token_stays_as_it_is():
    for case in sweep(KINDS, lambda kind: "-".join(map(str, kind.values()))):
        with case as kind:
            model = made(**kind)
            steps = model.writing(IDS)
            real = torch.tensor([[True, True, True], [True, True, False], [False, True, True]])
            steps.step(TARGET[:, :3], real)
            ends = [TARGET[0, :3], TARGET[1, :2], TARGET[2, 1:3]]
            found = steps.step(torch.tensor([[7], [7], [7]]), torch.tensor([[True], [True], [False]]))
            for b, read in enumerate(ends):
                text = read if b == 2 else torch.cat([read, torch.tensor([7])])
                torch.testing.assert_close(found[b], model(IDS[b : b + 1], decoder_input_ids=text[None]).logits[0, -1])
            assert steps.state.steps.tolist() == [4, 3, 2]
            with pytest.raises(
                InputError, match=r"`attention_mask` must have a token in each row .* begin with the start token \(1\)"
            ):
                model.writing(IDS).step(TARGET[:, :1], real[:, :1])


def test_decoding_is_watched_as_one_cross_attention():
    for case in sweep(KINDS[2:], lambda kind: "-".join(map(str, kind.values()))):
        with case as kind:
            model = made(**kind)
            wanted = model(IDS, decoder_input_ids=TARGET, return_weights=True)
            with regard.watch(model, keep="weights") as seen, torch.no_grad():
                steps = model.writing(IDS)
                for t in range(TARGET.shape[1]):
                    torch.testing.assert_close(steps.step(TARGET[:, t : t + 1]), wanted.logits[:, t])
            (record,) = seen.records
            (layer,) = record.layers
            assert layer.kind == "cross"
            assert layer.name.startswith("decoder.cross_attention")
            np.testing.assert_allclose(seen.weights(layer=0, head=0), wanted.weights.detach(), atol=1e-5)


def test_teacher_forcing_is_watched_as_one_cross_attention():
    for case in sweep(KINDS[2:], lambda kind: "-".join(map(str, kind.values()))):
        with case as kind:
            model = made(**kind)
            with torch.no_grad():
                plain = model(IDS, decoder_input_ids=TARGET, return_weights=True)
            with regard.watch(model, keep="weights") as seen, torch.no_grad():
                assert torch.equal(model(IDS, decoder_input_ids=TARGET).logits, plain.logits)
            (layer,) = seen.records[0].layers
            assert layer.kind == "cross"
            np.testing.assert_allclose(seen.weights(layer=0, head=0), plain.weights, atol=1e-5)


def test_teacher_forcing_is_watched_and_every_step_is_seen():
    for case in sweep(KINDS[2:], lambda kind: "-".join(map(str, kind.values()))):
        with case as kind:
            model = made(**kind)
            with torch.no_grad():
                plain = model(IDS, decoder_input_ids=TARGET, return_weights=True)
            with regard.watch(model, keep="weights") as seen, torch.no_grad():
                assert torch.equal(model(IDS, decoder_input_ids=TARGET).logits, plain.logits)
            layers = range(len(seen.records[0].layers))
            rows = np.concatenate([seen.weights(layer=layer, head=0) for layer in layers], 1)
            np.testing.assert_allclose(rows, plain.weights, atol=1e-5)


def test_a_model_is_copied_saved_and_moved():
    for case in sweep(KINDS, lambda kind: "-".join(map(str, kind.values()))):
        with case as kind:
            model = made(**kind, tie_word_embeddings=True)
            plain, file = model(IDS, decoder_input_ids=TARGET).logits, io.BytesIO()
            # To the last bit or two: the LSTM's kernel depends on where in memory its weights lie.
            torch.testing.assert_close(copy.deepcopy(model)(IDS, decoder_input_ids=TARGET).logits, plain)
            torch.save(model.state_dict(), file)
            file.seek(0)
            other = RecurrentSeq2Seq(RecurrentConfig(**json.loads(json.dumps(dataclasses.asdict(model.config))))).eval()
            other.load_state_dict(torch.load(file, weights_only=True))
            torch.testing.assert_close(other(IDS, decoder_input_ids=TARGET).logits, plain)
            torch.testing.assert_close(
                other.double()(IDS, decoder_input_ids=TARGET).logits, plain.double(), atol=1e-5, rtol=1e-5
            )
            assert len({one.data_ptr() for one in model.state_dict().values()}) == len(model.state_dict())


def test_dropout_is_in_training_alone_and_in_each_place():
    deep, flat = made(dropout=0.5, num_layers=3), made(dropout=0.5)
    assert torch.equal(deep(IDS, decoder_input_ids=TARGET).logits, deep(IDS, decoder_input_ids=TARGET).logits)
    assert [one.dropout for one in deep.modules() if isinstance(one, nn.GRU)] == [0.5, 0.5]
    assert [one.dropout for one in flat.modules() if isinstance(one, nn.GRU)] == [0.0]
    two, states = made(dropout=0.5, num_layers=2), torch.ones(3, 6)
    before, x = (flat.encode(IDS), two.encode(IDS)), torch.ones(3, 4, 6)
    places = {
        "source embedding": lambda: flat.encoder(IDS).last_hidden_state,
        "target embedding": lambda: flat.step(TARGET[:, 0], before[0])[0],
        "below the attention cell": lambda: two.decoder(x, before[1])[0],
        "before the output layer": lambda: flat.logits(states),
    }
    flat.train()
    two.train()
    for place, run in places.items():
        assert not torch.equal(run(), run()), place


@pytest.mark.slow
def test_attention_learns_to_copy():
    torch.manual_seed(0)
    config = RecurrentConfig(src_vocab_size=10, tgt_vocab_size=10, embedding_dim=32, hidden_size=32)
    model, draw = RecurrentSeq2Seq(config), torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)

    def batch(rows):
        ids = torch.randint(3, 10, (rows, 5), generator=draw)
        return ids, torch.cat([torch.ones(rows, 1, dtype=torch.long), ids], 1)

    for _ in range(200):
        ids, target = batch(32)
        loss = cross_entropy(model(ids, decoder_input_ids=target[:, :-1]).logits.flatten(0, 1), target[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    ids, target = batch(200)
    steps, token, written = model.eval().writing(ids), target[:, :1], []
    with torch.no_grad():
        for _ in range(5):
            token = steps.step(token).argmax(-1, keepdim=True)
            written.append(token)
    assert (torch.cat(written, 1) == ids).double().mean() > 0.9


def test_configs_without_a_meaning_are_refused():
    cases = [
        ({"src_vocab_size": 0}, "`src_vocab_size` counts the source tokens"),
        ({"hidden_size": True}, "`hidden_size` is that of the states"),
        ({"num_layers": 0}, "`num_layers` counts"),
        ({"dropout": 1.0}, "`dropout` is a probability"),
        ({"cell": "rnn"}, '`cell` must be "gru" or "lstm", got \'rnn\''),
        ({"attention": "luong"}, '`attention` must be None or one of "bahdanau", "dot", .*, got \'luong\''),
        ({"tie_word_embeddings": 1}, "`tie_word_embeddings` must be True or False, got 1"),
        ({"attention": "dot"}, r'got 6 in the decoder and 12 .* say bidirectional=False or attention="general"'),
        ({"feed_context": True}, r'`feed_context` .* got attention="bahdanau", .* say attention=None'),
        ({"input_feeding": False}, r'`input_feeding=False` is for the attention of Luong, got attention="bahdanau"'),
        ({"attention": None, "input_feeding": False}, r"`input_feeding=False` .* got attention=None"),
        ({"attention": "general", "radius": 3}, r'`radius` is for .* got radius=3 and attention="general"'),
        (
            {"tie_word_embeddings": True, "embedding_dim": 4},
            "`tie_word_embeddings` .* embedding_dim=4 and hidden_size=6: say .*=6 or tie_word_embeddings=False",
        ),
        ({"eos_token_id": 9}, r"`eos_token_id` must be a token from 0 to 8, got 9: .*`tgt_vocab_size`"),
        ({"bos_token_id": None}, "`bos_token_id` must be a token from 0 to 8, got None"),
        ({"pad_token_id": 11}, "`pad_token_id` must be a token from 0 to 10, got 11: .*`src_vocab_size`"),
    ]
    for case in sweep(cases):
        with case as (asked, words), pytest.raises(InputError, match=words):
            RecurrentConfig(**SIZES | asked)


def test_a_standard_name_is_refused_with_ours():
    cases = {
        "num_hidden_layers": "num_layers",
        "vocab_size": "src_vocab_size and tgt_vocab_size",
        "embed_dim": "embedding_dim",
        "decoder_start_token_id": "bos_token_id",
        "layers": "num_layers",
        "tied": "tie_word_embeddings",
    }.items()
    for case in sweep(cases):
        with case as (word, ours), pytest.raises(InputError, match=f"`{word}`: {ours}.* is meant"):
            RecurrentConfig(**SIZES | {word: 1})


def test_masks_of_zeros_and_ones_and_a_start_token_are_taken():
    model, mask = made(), torch.tensor([[1, 1, 1], [1, 1, 0], [0, 1, 1]])
    assert torch.equal(
        model.writing(IDS).step(TARGET[:, :3], mask), model.writing(IDS).step(TARGET[:, :3], mask.bool())
    )
    started = model.generate(IDS, max_new_tokens=3, decoder_start_token_id=5)
    assert (started[:, 0] == 5).all()
    text, start = model.writing(IDS), torch.full((3, 1), 5)
    found = Greedy().search(text, start, GenerationLimits(max_new_tokens=3, eos_token_id=(2,)))
    assert [list(one.tokens) for one in found] == [
        [t for at, t in enumerate(row) if 2 not in row[:at]] for row in started[:, 1:].tolist()
    ]


def test_texts_that_cannot_be_read_are_refused():
    model, real = made(), torch.ones_like(IDS, dtype=torch.bool)
    for flags in ([0, 1, 1, 1, 1, 1], [1, 0, 1, 1, 1, 1], [0] * 6):
        real[1] = torch.tensor(flags).bool()
        with pytest.raises(InputError, match=r"`attention_mask` must be 1 for the first tokens .* pad on the right"):
            model(IDS, decoder_input_ids=TARGET, attention_mask=real)
    with pytest.raises(InputError, match=r"`attention_mask` must have shape \(3, 6\).*got \(3, 5\)"):
        model(IDS, decoder_input_ids=TARGET, attention_mask=real[:, 1:])
    with pytest.raises(InputError, match=r"`attention_mask` has 1 \(or True\) for tokens .* got 7"):
        model(IDS, decoder_input_ids=TARGET, attention_mask=torch.full_like(IDS, 7))
    with pytest.raises(InputError, match=r"`input_ids` must be token ids \(batch, length\).* \(6,\)"):
        model.encode(IDS[0])
    with pytest.raises(InputError, match="`input_ids` must hold tokens from 0 to 10, got 11: raise `src_vocab_size`"):
        model.encode(IDS + 1)
    with pytest.raises(
        InputError, match="`decoder_input_ids` must hold tokens from 0 to 8, got -1: raise `tgt_vocab_size`"
    ):
        model(IDS, decoder_input_ids=TARGET - 2)
    with pytest.raises(InputError, match="`decoder_input_ids` must have a row for each of 3 texts, got 2"):
        model(IDS, decoder_input_ids=TARGET[:2])
    with pytest.raises(InputError, match="`tokens` must have a row for each of 3 texts, got 1"):
        model.writing(IDS).step(TARGET[:1, :1])
    with pytest.raises(InputError, match=r"`return_weights=True` .* attention=None"):
        made(attention=None)(IDS, decoder_input_ids=TARGET, return_weights=True)
