"""What a trained translator makes of 30 sentences that are in no line it was trained on, though their words are.

python examples/data/judge.py runs/learning-machines
"""

import sys
from pathlib import Path

from regard.data import read_corpus
from regard.errors import RegardError
from regard.train import Translator, translation_scores

ASKED = Path(__file__).resolve().parent / "recombinations.tsv"


def main(run: str) -> None:
    translator = Translator.load(run)
    asked = read_corpus(ASKED)
    meant: dict[str, list[str]] = {}  # a sentence that is asked may stand on several lines, each with a right answer
    for source, target in zip(asked["source"], asked["target"], strict=True):
        meant.setdefault(source, []).append(target)
    said = translator.translate(list(meant))
    for one, (source, right) in zip(said, meant.items(), strict=True):
        print(f"{'=' if one in right else ' '} {source} → {one}" + ("" if one in right else f"   ({right[0]})"))
    score = translation_scores(said, list(meant.values()), "zh")
    exact = sum(one in right for one, right in zip(said, meant.values(), strict=True))
    print(f"{exact} of {len(said)} are as they were written; BLEU {score.bleu:.1f}, chrF {score.chrf:.1f}")
    print(score.bleu_signature)


if __name__ == "__main__":
    try:
        main(sys.argv[1] if len(sys.argv) > 1 else "runs/learning-machines")
    except RegardError as problem:
        sys.exit(str(problem))
