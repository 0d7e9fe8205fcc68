"""The claim about sources: its verdicts turn with the numbers."""

from regard_lab.claims import sources

KNOWN = {"score": [0.3], "drop": [0.25], "drop of another": [0.5]}
MADE_UP = {"score": [0.4], "drop": [5.0], "drop of another": [0.25]}


def verdicts(few=1.0, every=0.0, auroc=1.0, known=KNOWN, made_up=MADE_UP):
    parts = sources.judge(
        {
            "prompts": 5,
            "source found": {"few heads": few, "mean of all heads": every},
            "AUROC with and without the answer": auroc,
            "capitals": {"known": known, "made up": made_up},
        }
    )
    return ["holds" if str(part.verdict) == "holds" else "not" for part in parts]


def test_each_part_of_sources_turns_with_its_number():
    assert verdicts() == ["holds", "not", "holds", "holds", "not"]
    assert verdicts(few=0.79)[0] == "not"
    assert verdicts(every=0.9)[1] == "holds"
    assert verdicts(made_up={**MADE_UP, "drop of another": [4.5]})[2] == "not"
    assert verdicts(auroc=0.89)[3] == "not"
    assert verdicts(known={**KNOWN, "drop": [2.5]})[4] == "holds"
