"""Where an answer came from, in a terminal of 80 columns without colour."""

import dataclasses

from rich.cells import cell_len

from regard.render.sources_text import caution, source_lines, verdict
from render.sources_made import made_sources
from sweeps import sweep


def shown(found, **options):
    return [line.plain for line in source_lines(found, **options)]


def test_parts_stand_under_their_documents_with_their_numbers():
    found = made_sources()
    lines, by_sentence = shown(found), found.sentence_scores
    assert max(map(cell_len, lines)) <= 80
    assert lines[0].strip() == "Anna planted pears, because her mother loved them. 妈妈喜欢梨。"
    first = next(at for at, line in enumerate(lines) if line.startswith("garden.txt"))
    assert f"1.3  {found.scores[2]:.2f} ██████ She chose pears." in lines[first + 1]
    assert any(f"2.2  {found.scores[5]:.2f}" in line and "妈妈喜欢梨。" in line for line in lines)
    assert f"1.3 ({by_sentence[0, 2]:.2f}) for: Anna planted pears, because her mother loved them." in lines
    assert f"2.2 ({by_sentence[1, 5]:.2f}) for: 妈妈喜欢梨。" in lines


def test_what_was_removed_is_said_and_nothing_claims_a_cause():
    text = " ".join(" ".join(shown(made_sources())).split())
    assert "Without 1.3, the log-probability of the answer (−8.80) changes by −7.31" in text
    assert "(with its keys hidden instead: −6.90); without 1.2, a random part, by −0.04." in text
    plain = dataclasses.replace(made_sources(), removals=(), answer="Pears." + " " * 100)
    assert "ecause" not in "".join([*shown(plain), verdict(plain), caution(plain)])
    assert "--verify" in caution(plain)


def test_an_answer_from_nowhere_is_said():
    assert "0.57 of their weight on average, above 0.25" in verdict(made_sources())
    assert "wrong in 4% of other examples" in verdict(made_sources())
    below = dataclasses.replace(made_sources(), threshold=0.9)
    assert verdict(below).endswith(
        "0.57 of their weight on average, below 0.90, which was wrong in 4% of other examples); but it depends on 1.3."
    )
    assert verdict(dataclasses.replace(below, removals=())).startswith("The answer seems to come from nowhere in these")
    assert "no threshold" in verdict(dataclasses.replace(made_sources(), threshold=None))


def test_nothing_reaches_the_terminal_that_could_control_it():
    for case in sweep([40, 60, 200]):
        with case as width:
            found = dataclasses.replace(made_sources(), token_scores=made_sources().token_scores * 0 + 0.1)
            text = "".join(shown(found, width=width, top=50))
            assert "\x1b" not in text
            assert "\u202e" not in text
            assert "<script>" in text
            assert max(map(cell_len, shown(found, width=width, top=50))) <= max(width, 41)
