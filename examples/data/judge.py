"""What a trained translator makes of 30 sentences that are in no line it was trained on, though their words are.

python examples/data/judge.py runs/learning-machines
"""

import sys
from pathlib import Path

from regard.data import read_corpus
from regard.train import Translator, translation_scores

HERE = Path(__file__).resolve().parent


def main() -> None:
    translator = Translator.load(sys.argv[1] if len(sys.argv) > 1 else "runs/learning-machines")
    asked = read_corpus(HERE / "recombinations.tsv")
    said = translator.translate(asked["source"])
    for source, one, meant in zip(asked["source"], said, asked["target"], strict=True):
        print(f"{'=' if one == meant else ' '} {source} → {one}" + ("" if one == meant else f"   ({meant})"))
    right = sum(one == meant for one, meant in zip(said, asked["target"], strict=True))
    score = translation_scores(said, [[one] for one in asked["target"]], "zh")
    print(f"{right} of {len(said)} are as they were written; BLEU {score.bleu:.1f}, chrF {score.chrf:.1f}")
    print(score.bleu_signature)


if __name__ == "__main__":
    main()
