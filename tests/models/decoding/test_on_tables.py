"""Decoding on Markov tables: brute force over all texts, streams, what is refused."""

from itertools import pairwise, product

import numpy as np
import pytest
import torch

from regard.errors import InputError
from regard.models.decoding import (
    BadWords,
    BeamSearch,
    GenerationLimits,
    Greedy,
    Markov,
    NoRepeatNGram,
    RepetitionPenalty,
    Sampling,
)
from sweeps import sweep

STOP = 3


def table(size=4, seed=0):
    return 1.5 * torch.randn(size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def every_text(logits, first, most, length_penalty):
    """All texts that end with STOP or at the limit, with their scores, best first."""
    chances = np.asarray(logits) - np.log(np.exp(np.asarray(logits)).sum(1, keepdims=True))
    texts = {}
    for tokens in product(range(len(chances)), repeat=most):
        text = tokens[: tokens.index(STOP) + 1] if STOP in tokens else tokens
        total = sum(chances[i, j] for i, j in pairwise((first, *text)))
        texts[text] = total / len(text) ** length_penalty
    return sorted(texts.items(), key=lambda item: -item[1])


def test_a_wide_beam_finds_all_texts_in_their_order():
    for case in sweep(product([-1.0, 0.0, 0.5, 1.0, 2.0], range(4))):
        with case as (length_penalty, seed):
            logits = table(seed=seed)
            beam = BeamSearch(200, length_penalty, "never", num_return_sequences=7)
            found = beam.search(
                Markov(logits), torch.tensor([[0], [2]]), GenerationLimits(max_new_tokens=4, eos_token_id=(STOP,))
            )
            for first, row in ((0, found[:7]), (2, found[7:])):
                texts = every_text(logits, first, 4, length_penalty)
                np.testing.assert_allclose([one.score for one in row], [score for _, score in texts[:7]], rtol=1e-12)
                # Texts with the same steps in another order have the same score.
                assert [one.score for one in row] == pytest.approx([dict(texts)[one.tokens] for one in row], rel=1e-12)
                assert len({one.tokens for one in row}) == 7


def test_scores_that_change_by_less_than_half_the_margin_lead_to_the_same_tokens():
    """And by more to others: the margin is a bound that a rounding error has to reach."""
    searches = [Greedy(), *(BeamSearch(n, p, e, n) for n, p, e in [(1, 1.0, True), (2, 1.0, False), (3, 0.0, "never")])]
    changed = 0
    for case in sweep(product(searches, range(30))):
        with case as (search, seed):
            limits = GenerationLimits(max_new_tokens=4, eos_token_id=(STOP,))
            logits = table(size=6, seed=seed).log_softmax(1)
            found = search.search(Markov(logits), torch.tensor([[0], [2]]), limits)
            noise = torch.rand(6, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2 - 1
            margin = min(one.margin for one in found)
            assert margin < torch.inf  # 0 where texts have the same steps in another order
            for share, same in ((0.99, margin > 1e-9), (30, False)):
                # log_softmax moves a logit by as much again, and a text has at most four
                noisy = Markov(logits + noise * share * margin / 2 / 4 / 2)
                again = search.search(noisy, torch.tensor([[0], [2]]), limits)
                differ = [one.tokens for one in again] != [one.tokens for one in found]
                assert not (same and differ)
                changed += differ
    assert changed > 10


def test_a_margin_is_that_of_the_row():
    """Token 1 is ahead of token 2 by 0.5 at first, and by 3 afterwards; a row that begins later has a margin of 3."""
    logits = torch.tensor([[-9.0, 1.0, 0.5, -9.0], [-9.0, -9.0, 0.0, 3.0], [-9.0, -9.0, 0.0, 3.0], [0, 0, 0, 0]])
    limits = GenerationLimits(max_new_tokens=4, eos_token_id=(STOP,))
    found = Greedy().search(Markov(logits), torch.tensor([[0], [1]]), limits)
    assert [one.margin for one in found] == pytest.approx([0.5, 3.0])
    assert Sampling().search(Markov(logits), torch.tensor([[0]]), limits)[0].margin == torch.inf
    found = BeamSearch(1, early_stopping=True).search(Markov(logits), torch.tensor([[0], [1]]), limits)
    assert [one.tokens for one in found] == [(1, 3), (3,)]
    assert [one.margin for one in found] == pytest.approx([0.5, 3.0])


def test_a_beam_finds_what_greedy_misses():
    better = 0
    for seed in range(10):
        arguments = (
            Markov(table(seed=seed)),
            torch.tensor([[0]]),
            GenerationLimits(max_new_tokens=4, eos_token_id=(STOP,)),
        )
        greedy, beam = Greedy().search(*arguments)[0], BeamSearch(3, 0.0).search(*arguments)[0]
        assert beam.score >= greedy.score - 1e-9
        better += beam.score > greedy.score + 1e-9
    assert better > 0


def test_results_that_do_not_exist_are_empty():
    only = BeamSearch(4, num_return_sequences=4).search(
        Markov(table()),
        torch.tensor([[0]]),
        GenerationLimits(max_new_tokens=1, eos_token_id=(STOP,), suppress_tokens=(0,)),
    )
    assert sorted(one.tokens for one in only) == [(), (1,), (2,), (3,)]
    assert only[-1].score == -float("inf")


def test_a_row_whose_texts_have_all_ended_is_done():
    certain = torch.full((4, 4), -torch.inf)
    certain[0, 1] = certain[1, STOP] = 0.0
    assert BeamSearch(3).search(
        Markov(certain), torch.tensor([[0]]), GenerationLimits(max_new_tokens=9, eos_token_id=(STOP,))
    )[0].tokens == (1, STOP)


def test_where_all_stop_tokens_come_first_a_beam_goes_on_beside_them():
    logits = torch.tensor([[0.05, 0.15, 0.4, 0.4]] * 4).log()
    limits = GenerationLimits(max_new_tokens=3, eos_token_id=(2, 3))
    (one,) = BeamSearch(1, 5.0, "never").search(Markov(logits), torch.tensor([[0]]), limits)
    assert one.tokens[:2] == (1, 1)
    assert len(one.tokens) == 3


def test_never_hopes_for_the_present_length_where_longer_texts_lose():
    """Were it for the limit, (2, 3) would be second best: it ends before (1, 2, 3), whose score is higher."""
    logits = torch.tensor([[0, 0.6, 0.1, 0.3], [0.05, 0, 0.9, 0.05], [0.1, 0, 0, 0.9], [1, 0, 0, 0]]).log()
    arguments = Markov(logits), torch.tensor([[0]]), GenerationLimits(max_new_tokens=20, eos_token_id=(STOP,))
    found = BeamSearch(2, -1.0, "never", num_return_sequences=2).search(*arguments)
    assert [one.tokens for one in found] == [(3,), (1, 2, 3)]


def test_the_last_real_token_counts_where_the_prompt_is_padded():
    prompt, mask = torch.tensor([[0, 2], [1, 0]]), torch.tensor([[1, 1], [1, 0]])
    assert torch.equal(Markov(table()).step(prompt, mask.bool()), table()[[2, 1]])
    limits = GenerationLimits(max_new_tokens=3)
    for decoding in (Greedy(), BeamSearch(2)):  # search takes zeros and ones as well
        found = decoding.search(Markov(table()), prompt, limits, attention_mask=mask)
        assert found == decoding.search(Markov(table()), torch.tensor([[2], [1]]), limits)


@pytest.mark.parametrize(
    "decoding", [Greedy(), Sampling(generator=torch.Generator().manual_seed(1))], ids=["greedy", "sampling"]
)
def test_a_stream_gives_each_token_before_the_next_is_read(decoding):
    class Counting(Markov):
        reads = 0

        def step(self, tokens, attention_mask=None):
            assert not torch.is_grad_enabled()
            self.reads += 1
            return super().step(tokens, attention_mask)

    text = Counting(table().requires_grad_())
    steps = decoding.stream(text, torch.tensor([[0], [1]]), GenerationLimits(max_new_tokens=5))
    assert text.reads == 0
    for n, _ in enumerate(steps, start=1):
        assert text.reads == n
        assert torch.is_grad_enabled()
    assert n == 5


def test_a_stream_is_what_is_written_with_padding_behind_the_ends():
    logits, prompt = table(5, seed=3), torch.arange(5)[:, None]
    limits = GenerationLimits(max_new_tokens=9, eos_token_id=(STOP,), pad_token_id=77)
    rows = torch.stack(list(Greedy().stream(Markov(logits), prompt, limits)), 1).tolist()
    texts = [one.tokens for one in Greedy().search(Markov(logits), prompt, limits)]
    longest = max(map(len, texts))
    assert rows == [[*text, *[77] * (longest - len(text))] for text in texts]
    assert len({len(text) for text in texts}) > 1


def test_no_rows_are_no_texts():
    for case in sweep([Greedy(), Sampling(), BeamSearch(2)]):
        with case as decoding:
            assert decoding.search(Markov(table()), torch.zeros(0, 3, dtype=torch.int64), GenerationLimits()) == []


def test_logits_that_leave_nothing_are_refused():
    for case in sweep(
        [Greedy(), Sampling(), Sampling(top_k=2), Sampling(top_p=0.5), BeamSearch(2)], lambda d: type(d).__name__
    ):
        with case as decoding:

            def write(logits, **limits):
                return decoding.search(
                    Markov(logits), torch.tensor([[0], [1]]), GenerationLimits(max_new_tokens=3, **limits)
                )

            for broken in (torch.nan, torch.inf):
                logits = table()
                logits[1, 2] = broken
                with pytest.raises(InputError, match=r"`text` must give logits .* got NaN, \+inf, or -inf"):
                    write(logits)
            with pytest.raises(InputError, match=r"leave nothing .* one of them, `suppress_tokens`, `min_new_tokens`$"):
                write(table(), suppress_tokens=(0, 1, 2), eos_token_id=(3,), min_new_tokens=1)
            rules = RepetitionPenalty(2.0), NoRepeatNGram(1), BadWords(((1,), (2,), (3,)))
            with pytest.raises(InputError, match=r"one of them, `no_repeat_ngram_size`, `bad_words_ids`$"):
                write(table(), rules=rules)
            with pytest.raises(InputError, match="got NaN"):
                write(torch.tensor([[torch.nan] * 4, *[[0.0] * 4] * 3]), forced_bos_token_id=1)


def test_limits_and_methods_of_decoding_refuse_what_has_no_meaning():
    cases = [
        (lambda: GenerationLimits(max_new_tokens=0), "`max_new_tokens` .* at least 1, got 0"),
        (lambda: GenerationLimits(max_new_tokens=True), "`max_new_tokens` counts"),
        (lambda: GenerationLimits(min_new_tokens=-1), "`min_new_tokens` counts"),
        (
            lambda: GenerationLimits(max_new_tokens=3, min_new_tokens=4),
            r"`min_new_tokens` \(4\) .* `max_new_tokens` \(3\)",
        ),
        (lambda: GenerationLimits(eos_token_id=2), r"`eos_token_id` .* got 2: write \(2,\)"),
        (lambda: GenerationLimits(eos_token_id=[2]), r"`eos_token_id` .* got \[2\]: .* tuple\(tokens\)"),
        (lambda: GenerationLimits(suppress_tokens=(-1,)), "`suppress_tokens` must be a tuple of tokens"),
        (
            lambda: GenerationLimits(eos_token_id=(1, 2), suppress_tokens=(2, 3)),
            r"`suppress_tokens` and `eos_token_id` .* got \[2\] in both",
        ),
        (lambda: GenerationLimits(forced_eos_token_id=-1), "`forced_eos_token_id` is a token"),
        (lambda: BeamSearch(0), "`num_beams` counts"),
        (lambda: BeamSearch(2, num_return_sequences=3), r"`num_return_sequences` \(3\) .* `num_beams` \(2\)"),
        (lambda: BeamSearch(early_stopping="always"), "`early_stopping` .*\"never\", got 'always'"),
        (lambda: BeamSearch(early_stopping=1), '`early_stopping` .*"never", got 1'),
        (lambda: BeamSearch(length_penalty=float("nan")), "`length_penalty`"),
        (lambda: Sampling(temperature=0), r"`temperature` .* got 0: Greedy\(\)"),
        (lambda: Sampling(top_k=0), "`top_k` counts"),
        (lambda: Sampling(top_p=0.0), r"`top_p` .* above 0 and at most 1, got 0.0"),
        (lambda: Sampling(top_p=1.5), r"`top_p` .* above 0 and at most 1, got 1.5"),
        (
            lambda: Greedy().stream(Markov(table()), torch.tensor([1, 2]), GenerationLimits()),  # before a step
            "`prompt` must be integers",
        ),
        (lambda: Markov(torch.zeros(2, 3)), "`table` must be floats"),
    ]
    for case in sweep(cases):
        with case as (make, message), pytest.raises(InputError, match=message):
            make()


def test_prompts_of_another_shape_are_refused_at_once():
    for case in sweep([Greedy(), Sampling(), BeamSearch(2)]):
        with case as decoding:

            def write(prompt, attention_mask=None, **limits):
                return decoding.search(Markov(table()), prompt, GenerationLimits(**limits), attention_mask)

            with pytest.raises(InputError, match=r"`prompt` must be integers .* write prompt\[None\]"):
                write(torch.tensor([1, 2]))
            with pytest.raises(InputError, match="begin an empty one with its start token"):
                write(torch.zeros(2, 0, dtype=torch.int64))
            with pytest.raises(InputError, match=r"`attention_mask` must have shape \(2, 1\) .*, got \(2, 2\)"):
                write(torch.zeros(2, 1, dtype=torch.int64), torch.ones(2, 2))
            with pytest.raises(InputError, match=r"`attention_mask` has 1 \(or True\) for tokens .* got 2"):
                write(torch.zeros(2, 1, dtype=torch.int64), torch.full((2, 1), 2))
            with pytest.raises(InputError, match="only padding in row 1"):
                write(torch.zeros(2, 1, dtype=torch.int64), torch.tensor([[True], [False]]))
            for name, value in {
                "eos_token_id": (4,),
                "suppress_tokens": (0, 4),
                "forced_bos_token_id": 4,
                "forced_eos_token_id": 4,
            }.items():
                with pytest.raises(InputError, match=f"`{name}` must be of the model's vocabulary of 4, got 4"):
                    write(torch.zeros(2, 1, dtype=torch.int64), **{name: value})
