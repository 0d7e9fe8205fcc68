"""The same texts and scores as transformers' generate(), on tiny random models that recompute everything."""

import itertools

import numpy as np
import pytest
import torch

from regard.models.decoding import BeamSearch, GenerationLimits, Greedy, Sampling
from sweeps import sweep

pytest.importorskip("transformers")
from models.decoding import transformers_models as tiny

MAKERS = [tiny.gpt2, tiny.t5, tiny.marian, tiny.bart]
STOP = (2, 5, 11)


@pytest.fixture(scope="module", params=MAKERS, ids=lambda make: make.__name__)
def made(request):
    return request.param(seed=0)


def written(made, decoding, limits):
    text, prompt, real = made.arguments()
    return decoding.search(text, prompt, limits, real)


def assert_as_generate(made, beam, limits, **options):
    tokens, scores = made.generate(
        limits.eos_token_id,
        max_new_tokens=limits.max_new_tokens,
        num_beams=beam.num_beams,
        length_penalty=beam.length_penalty,
        early_stopping=beam.early_stopping,
        num_return_sequences=beam.num_return_sequences,
        **options,
    )
    found = written(made, beam, limits)
    assert [one.tokens for one in found] == tokens
    np.testing.assert_allclose([one.score for one in found], scores, atol=1e-4)
    return tokens


BEHIND_PADDING = [(-1.0, "never"), (0.0, True), (1.0, False), (2.0, "never")]


@pytest.mark.parametrize(
    "ways",
    [
        BEHIND_PADDING,
        pytest.param(
            [
                way
                for way in itertools.product((-1.0, 0.0, 1.0, 2.0), (False, True, "never"))
                if way not in BEHIND_PADDING
            ],
            marks=pytest.mark.slow,
        ),
    ],
    ids=["some", "others"],
)
def test_beams_of_gpt2_behind_padding(ways):
    gpt2 = tiny.gpt2(seed=0)
    for case in sweep(ways):
        with case as (length_penalty, early):
            lengths = [
                len(text)
                for beams in (2, 3, 4, 5)
                for text in assert_as_generate(
                    gpt2,
                    BeamSearch(beams, length_penalty, early, num_return_sequences=2),
                    GenerationLimits(max_new_tokens=10, eos_token_id=STOP[: beams - 1]),
                )
            ]
            assert max(lengths) == 10
            assert min(lengths) < 10 or length_penalty == 2.0, "some texts end by themselves, some at the limit"


def test_beams_of_every_model(made):
    ways = zip((2, 3, 4, 5, 3, 4), (-1.0, 0.0, 1.0, 2.0, 2.0, -1.0), (False, True, "never") * 2, strict=True)
    lengths = set()
    for (beams, length_penalty, early), stop in itertools.product(ways, (STOP, (2, 7))):
        beam = BeamSearch(beams, length_penalty, early)
        lengths |= {
            len(text) for text in assert_as_generate(made, beam, GenerationLimits(max_new_tokens=12, eos_token_id=stop))
        }
    assert len(lengths) > 2


def test_beams_without_a_stop_token_are_those_of_the_limit(made):
    tokens = assert_as_generate(made, BeamSearch(3, num_return_sequences=3), GenerationLimits(max_new_tokens=6))
    assert {len(text) for text in tokens} == {6}


def test_beams_with_forced_and_banned_tokens(made):
    for case in sweep([0, 3]):
        with case as least:
            options = {"forced_eos_token_id": 2, "bad_words_ids": [[0], [7]], "min_new_tokens": least}
            limits = {"forced_eos_token_id": 2, "suppress_tokens": (0, 7), "min_new_tokens": least}
            if made.source is not None:
                options["forced_bos_token_id"] = limits["forced_bos_token_id"] = 9
            for beams, length_penalty in ((2, 0.0), (4, 1.0), (5, 2.0)):
                limit = GenerationLimits(max_new_tokens=7, eos_token_id=STOP, **limits)
                tokens = assert_as_generate(
                    made, BeamSearch(beams, length_penalty, num_return_sequences=2), limit, **options
                )
                assert all(len(text) > least and not {0, 7} & set(text) for text in tokens)
                assert any(len(text) == 7 and text[-1] == 2 for text in tokens)


def test_greedy(made):
    for stop in ((), STOP):
        tokens, _ = made.generate(stop, max_new_tokens=12)
        assert [
            one.tokens for one in written(made, Greedy(), GenerationLimits(max_new_tokens=12, eos_token_id=stop))
        ] == tokens
    options = {"forced_eos_token_id": 2, "bad_words_ids": [[7], [8], [9]], "min_new_tokens": 4}
    tokens, _ = made.generate(STOP, max_new_tokens=9, **options)
    limits = GenerationLimits(
        max_new_tokens=9, eos_token_id=STOP, forced_eos_token_id=2, suppress_tokens=(7, 8, 9), min_new_tokens=4
    )
    assert [one.tokens for one in written(made, Greedy(), limits)] == tokens


def test_a_beam_of_one_that_sums_is_greedy(made):
    limits = GenerationLimits(max_new_tokens=12, eos_token_id=STOP)
    beam, greedy = written(made, BeamSearch(1, length_penalty=0.0), limits), written(made, Greedy(), limits)
    assert [one.tokens for one in beam] == [one.tokens for one in greedy]
    np.testing.assert_allclose([one.score for one in beam], [one.score for one in greedy], rtol=1e-5)


@pytest.mark.parametrize("decoding", [Greedy(), Sampling(temperature=2.0, top_k=9)], ids=["greedy", "sampling"])
def test_the_score_is_the_models_own_log_probability_of_the_text(decoding):
    gpt2 = tiny.gpt2(seed=1)
    torch.manual_seed(3)
    limits = GenerationLimits(
        max_new_tokens=8, eos_token_id=STOP, suppress_tokens=(7,), min_new_tokens=2, forced_eos_token_id=2
    )
    for row, one in enumerate(written(gpt2, decoding, limits)):
        prompt = gpt2.alone(row).prompt
        whole = torch.cat([prompt, torch.tensor([one.tokens])], 1)
        with torch.no_grad():
            chances = gpt2.model(whole).logits.log_softmax(-1)[0, prompt.shape[1] - 1 : -1]
        expected = chances[range(len(one.tokens)), one.tokens].sum()
        assert one.score == pytest.approx(float(expected), abs=1e-4)


def test_sampling_draws_what_generate_draws_from_the_same_seed(made):
    torch.manual_seed(5)
    expected, _ = made.generate((), max_new_tokens=8, do_sample=True, temperature=1.7, top_k=0)
    torch.manual_seed(5)
    found = written(made, Sampling(temperature=1.7), GenerationLimits(max_new_tokens=8))
    assert [one.tokens for one in found] == expected


def test_no_row_depends_on_the_others(made):
    for case in sweep(
        [Greedy(), *(BeamSearch(3, 1.0, early, num_return_sequences=2) for early in (False, True, "never"))]
    ):
        with case as decoding:
            limits = GenerationLimits(max_new_tokens=10, eos_token_id=STOP)
            together = written(made, decoding, limits)
            apart = [one for row in range(5) for one in written(made.alone(row), decoding, limits)]
            assert [one.tokens for one in together] == [one.tokens for one in apart]
            np.testing.assert_allclose([one.score for one in together], [one.score for one in apart], atol=1e-4)


def test_rows_that_have_ended_are_not_read_again():
    text, prompt, real = tiny.gpt2(seed=1).arguments()
    found = Greedy().search(text, prompt, GenerationLimits(max_new_tokens=10, eos_token_id=STOP), real)
    lengths = [len(one.tokens) for one in found]
    assert len(set(lengths)) > 1
    assert text.reads[1:] == [(sum(length > n for length in lengths), 1) for n in range(1, max(lengths))]
