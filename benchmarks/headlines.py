"""What `regard look` shows first of 200 texts, and whether it is a place where heads rest although a head looks.

    python benchmarks/headlines.py OUT.json

Texts and rules are those of tests/headline_texts.py. A headline is wrong if it rests, or is the word itself or the one
before it, and another head gives more than it, or a tenth of its weight, to a visible word that is none of these.
"""

import json
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import regard
from headline_texts import cases, judge


def main(out: str) -> None:
    """Judge all texts, print the counts and save what was shown."""
    models = {name: regard.load_model(name) for name in ("minilm", "me5", "smollm2")}
    found = [judge(case, models[case.model]) for case in cases()]
    resting = [one for one in found if one["rests"] or one["neighbour"]]
    wrong = [one for one in resting if one["heads with more on another word"]]
    missed = [one for one in resting if one["the most on another word"] >= 0.1]
    counts = {
        "texts": len(found),
        "headlines that rest": sum(one["rests"] for one in found),
        "headlines of the word itself or the one before it": sum(one["neighbour"] for one in found),
        "of these, another head gives more to a visible word": len(wrong),
        "of these, another head gives a tenth or more to a visible word": len(missed),
        "texts of each model": dict(Counter(f"{one['language']}, {one['model']}" for one in found)),
    }
    Path(out).write_text(json.dumps({"counts": counts, "texts": found}, ensure_ascii=False, indent=1) + "\n")
    print(json.dumps(counts, ensure_ascii=False, indent=1))
    sys.exit(bool(wrong or missed))


if __name__ == "__main__":
    main(sys.argv[1])
