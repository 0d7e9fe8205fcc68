"""The program's own examples of `sources`: one document has the answer, and its counterpart lacks just that."""

import numpy as np

from regard.interpret.source_examples import draw_question


def test_one_document_has_the_answer_and_its_counterpart_has_none():
    draw = np.random.default_rng(5)
    for _ in range(50):
        asked, absent = draw_question(draw)
        assert len(asked.documents) == len(absent.documents) == 8
        assert (asked.question, asked.answer) == (absent.question, absent.answer)
        differ = [
            at for at, pair in enumerate(zip(asked.documents, absent.documents, strict=True)) if pair[0] != pair[1]
        ]
        assert differ == [asked.source]
        assert absent.source is None
        person = next(
            word.rstrip("?")
            for word in asked.question.split()
            if word[0].isupper() and word != asked.question.split()[0]
        )
        holders = [at for at, text in enumerate(asked.documents) if person in text.replace(".", "").split()]
        assert holders == [asked.source]
        assert not any(person in text.replace(".", "").split() for text in absent.documents)
        value = asked.answer.rstrip(".").split()[-1]
        assert [at for at, text in enumerate(asked.documents) if value in text.replace(".", "").split()] == holders
        assert not any(value in text.replace(".", "").split() for text in absent.documents)


def test_answers_are_sentences_and_words():
    draw = np.random.default_rng(0)
    lengths = {len(draw_question(draw)[0].answer.split()) for _ in range(50)}
    assert min(lengths) == 1
    assert max(lengths) > 4


def test_the_same_seed_draws_the_same():
    first, again, other = (draw_question(np.random.default_rng(seed))[0] for seed in (1, 1, 2))
    assert first == again != other
