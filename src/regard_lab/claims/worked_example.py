"""The worked example 「我 爱 你」 of many tutorials: check which of the published numbers are right."""

from typing import Any

import numpy as np

from regard.lessons.steps import work
from regard_lab.charts import LabeledMatrix, Matrices
from regard_lab.experiment import Claim, Finding, Numbers, Part, Setting, within

__all__ = ["CLAIM", "judge", "run"]

CLAIM = Claim(
    number=1,
    name="worked-example",
    title="The worked example 「我 爱 你」",
    statement="With X = [[1,0,1,0],[0,2,0,1],[1,1,1,1]], W = [[1,0],[0,1],[1,0],[0,1]] for queries, keys and values "
    "alike, and d_k = 2, the weights are [.43 .14 .43], [.01 .71 .28], [.05 .26 .69] and the outputs [1.72 1.29], "
    "[.57 1.84], [1.53 2.07].",
    source="Widely copied tutorial pages; the formula is equation 1 of Vaswani et al. 2017, arXiv:1706.03762",
)
WORDS = ("我", "爱", "你")
X = ((1.0, 0.0, 1.0, 0.0), (0.0, 2.0, 0.0, 1.0), (1.0, 1.0, 1.0, 1.0))
W = ((1.0, 0.0), (0.0, 1.0), (1.0, 0.0), (0.0, 1.0))
PRINTED_WEIGHTS = ((0.43, 0.14, 0.43), (0.01, 0.71, 0.28), (0.05, 0.26, 0.69))
PRINTED_OUTPUTS = ((1.72, 1.29), (0.57, 1.84), (1.53, 2.07))
ROUNDING = 0.005  # rounding error of two decimals


def judge(numbers: Numbers) -> tuple[Part, ...]:
    """Return the parts: a printed row is right if each of its numbers is the exact one, rounded to two digits."""
    parts = []
    for name in ("weights", "outputs"):
        rows = zip(WORDS, numbers[f"printed {name}"], numbers[name], strict=True)
        for word, printed, exact in rows:
            apart = max(abs(a - b) for a, b in zip(printed, exact, strict=True))
            text = f"{name} of {word} {_shown(printed)}: exactly {_shown(exact)}, {apart:.2f} apart"
            parts.append(Part(text, within(apart <= ROUNDING + 1e-9)))
    return tuple(parts)


def _shown(row: Any) -> str:
    return "[" + " ".join(f"{one:.2f}" for one in row) + "]"


def run(_: Setting) -> Finding:
    """Compute the example in float64, with every intermediate result."""
    worked = work(X, W, W, W, WORDS)
    values = worked.values
    numbers = {
        "Q = K = V": worked.queries.tolist(),
        "scores": worked.scores.tolist(),
        "scaled scores": worked.scaled.tolist(),
        "weights": worked.weights.tolist(),
        "outputs": worked.output.tolist(),
        "printed weights": [list(row) for row in PRINTED_WEIGHTS],
        "printed outputs": [list(row) for row in PRINTED_OUTPUTS],
        "outputs that the printed weights give": (np.array(PRINTED_WEIGHTS) @ values).tolist(),
    }
    parts = judge(numbers)
    right = sum(part.verdict == "holds" for part in parts)
    own = np.array(PRINTED_WEIGHTS) @ values
    # Each printed weight may be off by half of its last digit, and so may the printed output.
    room = ROUNDING * np.abs(values).sum(0) + ROUNDING
    follow = [bool((np.abs(row - printed) <= room).all()) for row, printed in zip(own, PRINTED_OUTPUTS, strict=True)]
    numbers["printed outputs follow from the printed weights"] = follow
    text = (
        f"{right} of the 6 printed rows are right. Q, K and V are [[2,0],[0,3],[2,2]], and the first word "
        "weighs itself "
        f"and the third with {worked.weights[0, 0]:.4f} = 1/(2 + exp(−2√2)). {sum(follow)} of the 3 printed outputs "
        "follow at least from the printed weights."
    )
    return Finding(
        parts, numbers, f"{right} of 6 rows right", text,
        "It says nothing on other numbers that those pages may have started from: only these X and W were tried.",
        (_chart(worked),),
    )  # fmt: skip


def _chart(worked: Any) -> Matrices:
    def matrix(name: str, rows: Any, columns: tuple[str, ...], most: float) -> LabeledMatrix:
        return LabeledMatrix(name, WORDS, columns, tuple(tuple(map(float, row)) for row in rows), most=most)

    outputs = ("z₁", "z₂")
    return Matrices(
        "The weights and outputs: printed, and worked out",
        "Four matrices: the weights and the outputs as printed in tutorials, and as they are. "
        "爱 looks at itself with .89 instead of .71.",
        (
            matrix("weights, printed", PRINTED_WEIGHTS, WORDS, 1.0),
            matrix("weights, exact", worked.weights, WORDS, 1.0),
            matrix("outputs, printed", PRINTED_OUTPUTS, outputs, 3.0),
            matrix("outputs, exact", worked.output, outputs, 3.0),
        ),
    )
