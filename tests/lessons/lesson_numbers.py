"""The numbers of a lesson's state by regard itself in float64, and random states and edits."""

import copy
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import regard
from regard.masks import Causal, Dense, Mask, Padding, RandomBlocks, Window, bigbird, longformer, prefix_lm
from regard.positions import sinusoidal
from regard.scores import Additive, Bilinear, Cosine, ScaledDot, Score

State = dict[str, Any]
TOLERANCE = 1e-9
MASK_KINDS = ("none", "causal", "window", "padding", "longformer", "bigbird", "prefix", "drawn")


def matrix(rows: Any) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def mask_of(mask: dict[str, Any], keys: int) -> Mask | None:
    """The mask of regard that a state's mask means."""
    match mask:
        case {"kind": "none"}:
            return None
        case {"kind": "causal"}:
            return Causal()
        case {"kind": "window", "left": left, "right": right}:
            return Window(left=left, right=right)
        case {"kind": "padding", "hidden": hidden}:
            return Padding(torch.tensor([[key not in hidden for key in range(keys)]]))
        case {"kind": "longformer", "window": window, "globals": positions}:
            return longformer(window, positions)
        case {"kind": "bigbird", "window": window, "globals": count, "table": table}:
            near = bigbird(window, count, 0, block=1)
            return near | RandomBlocks(block=1, table=torch.tensor([table])) if any(table) else near
        case {"kind": "prefix", "length": length}:
            return prefix_lm(length)
        case {"kind": "drawn", "rows": rows}:
            return Dense(torch.tensor([[flag == "1" for flag in row] for row in rows]))
    raise AssertionError(mask)


def score_of(score: dict[str, Any]) -> Score:
    match score["kind"]:
        case "dot":
            return ScaledDot()
        case "additive":
            return Additive(matrix(score["query"]), matrix(score["key"]), matrix(score["vector"]))
        case "bilinear":
            return Bilinear(matrix(score["weight"]))
        case "cosine":
            return Cosine()
    raise AssertionError(score)


def expected(state: State) -> dict[str, Tensor]:
    """Every matrix of the page by its name; of a matrix that the state has not, there is none."""
    names = {"x": state["x"], "keyX": state["keyX"], "valueX": state["valueX"]}
    inputs = {name: matrix(rows) for name, rows in names.items() if rows is not None}
    found = {}
    if state["positions"] == "sinusoidal":
        tables = {name: sinusoidal(*rows.shape, dtype=torch.float64) for name, rows in inputs.items()}
        found["positions"] = tables["x"]
        inputs = {name: rows + tables[name] for name, rows in inputs.items()}
    found |= inputs
    x = inputs["x"]
    key_x = inputs.get("keyX", x)
    value_x = inputs.get("valueX", key_x)
    outputs = []
    for number, head in enumerate(state["heads"] or [None]):
        q, k, v = x, key_x, value_x
        if head is not None:
            weights = {part: matrix(head[part]) for part in ("query", "key", "value")}
            found |= {f"w-{part}-{number}": weight for part, weight in weights.items()}
            q, k, v = x @ weights["query"], key_x @ weights["key"], value_x @ weights["value"]
        steps = head_steps(state, q, k, v)
        found |= {f"{name}-{number}": step for name, step in steps.items()}
        outputs.append(steps["output"])
    found["joined"] = torch.cat(outputs, -1)
    if state["output"] is not None:
        found["w-output"] = matrix(state["output"])
        found["result"] = found["joined"] @ found["w-output"]
    return found


def head_steps(state: State, q: Tensor, k: Tensor, v: Tensor) -> dict[str, Tensor]:
    score, mask = score_of(state["score"]), mask_of(state["mask"], len(k))
    rows, columns = torch.arange(len(q)), torch.arange(len(k))
    scores = score.tile(q[None, None], k[None, None], rows, columns)[0, 0]
    scale = {"default": score.default_scale(q.shape[-1]), "none": 1.0}.get(state["scale"], state["scale"])
    output, weights = regard.attention(
        q, k, v, score=score, scale=scale / state["temperature"], mask=mask, return_weights=True
    )
    everything = torch.ones(len(q), len(k), dtype=torch.bool)
    visible = everything if mask is None else mask.bind(len(q), len(k)).dense()[0, 0]
    return {
        "queries": q,
        "keys": k,
        "values": v,
        "scores": scores,
        "scaled": scores * scale,
        "logits": scores * scale / state["temperature"],
        "visible": visible.double(),
        "weights": weights,
        "output": output,
    }


def difference(found: Any, wanted: Tensor) -> float:
    """The largest error, relative where numbers are larger than 1; infinite for another shape or what is no number."""
    numbers = matrix(found)
    if numbers.shape != wanted.shape or not bool(numbers.isfinite().all()):
        return float("inf")
    return float(((numbers - wanted).abs() / wanted.abs().clamp(min=1)).max()) if numbers.numel() else 0.0


def wrong(found: dict[str, Any], wanted: dict[str, Tensor]) -> dict[str, float]:
    """The matrices that differ, with their largest error."""
    errors = {name: difference(rows, wanted[name]) for name, rows in found.items()}
    return {name: error for name, error in errors.items() if not error <= TOLERANCE}


class Editor:
    """Random edits of a state, each such as a reader makes on the page; `random` decides them all."""

    def __init__(self, seed: int, most: int = 6) -> None:
        self.random = random.Random(seed)
        self.most = most  # tokens, and columns of a matrix

    def number(self) -> float:
        """Mostly small, at times 0, a whole number or a large one."""
        kind = self.random.random()
        if kind < 0.15:
            return self.random.choice([0, 1, -1, 2, 100, -30])
        return self.random.gauss(0, 1) if kind < 0.9 else self.random.gauss(0, 30)

    def rows(self, count: int, width: int) -> list[list[float]]:
        return [[self.number() for _ in range(width)] for _ in range(count)]

    def size(self) -> int:
        return self.random.randint(1, self.most)

    def mask(self, kind: str, queries: int, keys: int) -> State:
        draw = self.random.randint
        indices = [key for key in range(keys) if self.random.random() < 0.3]
        count = draw(0, keys)
        fields: dict[str, Callable[[], State]] = {
            "none": dict,
            "causal": dict,
            "window": lambda: {"left": draw(0, keys), "right": draw(0, keys)},
            "padding": lambda: {"hidden": indices},
            "longformer": lambda: {"window": 2 * draw(0, 2), "globals": indices},
            "bigbird": lambda: {
                "window": 2 * draw(0, 1) + 1,
                "globals": draw(0, 1),
                "table": [[draw(0, keys - 1) for _ in range(count)] for _ in range(keys)],
            },
            "prefix": lambda: {"length": draw(0, keys + 1)},
            "drawn": lambda: {
                "rows": ["".join(self.random.choice("0111") for _ in range(keys)) for _ in range(queries)]
            },
        }
        return {"kind": kind, **fields[kind]()}

    def score(self, kind: str, width: int) -> State:
        hidden = self.size()
        fields: dict[str, State] = {
            "dot": {},
            "cosine": {},
            "additive": {
                "query": self.rows(hidden, width),
                "key": self.rows(hidden, width),
                "vector": self.rows(1, hidden)[0],
            },
            "bilinear": {"weight": self.rows(width, width)},
        }
        return {"kind": kind, **fields[kind]}

    def given(self, state: State) -> State:
        """A state whose queries, keys and values are given themselves, with any mask, score and scale."""
        queries, keys, width = self.size(), self.size(), self.size()
        apart = self.random.random() < 0.7
        count = keys if apart else queries
        sides: State = {"keyTokens": None, "keyX": None, "valueX": None}
        if apart:
            sides = {"keyTokens": [f"k{key}" for key in range(keys)], "keyX": self.rows(keys, width)}
            sides["valueX"] = self.rows(keys, self.size())
        value_width = len(sides["valueX"][0]) if apart else width
        return state | sides | {
            "tokens": [f"q{query}" for query in range(queries)],
            "x": self.rows(queries, width),
            "heads": None,
            "output": self.random.choice([None, self.rows(value_width, self.size())]),
            "positions": self.random.choice(["none", "none", "sinusoidal"]),
            "mask": self.mask(self.random.choice(MASK_KINDS), queries, count),
            "score": self.score(self.random.choice(["dot", "dot", "additive", "bilinear", "cosine"]), width),
            "scale": self.random.choice(["default", "none", self.random.uniform(-2, 2)]),
            "temperature": self.random.choice([1, 2 ** self.random.uniform(-4, 4)]),
            "row": self.random.randrange(queries),
            "head": 0,
        }  # fmt: skip

    def edit(self, state: State) -> State:
        """The state after one more edit, of which the address of the page can hold the difference."""
        edited = copy.deepcopy(state)
        edits = [
            self.change_number, self.change_number, self.change_number, self.change_mask, self.change_mask,
            self.change_scale, self.change_temperature, self.change_heads, self.change_positions, self.change_score,
            self.change_tokens, self.change_sides, self.change_output, self.zero_row,
        ]  # fmt: skip
        self.random.choice(edits)(edited)
        edited["row"] = min(edited["row"], len(edited["x"]) - 1)
        edited["head"] = min(edited["head"], len(edited["heads"]) - 1)
        return edited

    def change_number(self, state: State) -> None:
        parts = [head[part] for head in state["heads"] for part in head]
        parts += [state[name] for name in ("x", "keyX", "valueX", "output") if state[name] is not None]
        parts += [part for part in state["score"].values() if isinstance(part, list) and isinstance(part[0], list)]
        row = self.random.choice(self.random.choice(parts))
        row[self.random.randrange(len(row))] = self.number()

    def zero_row(self, state: State) -> None:
        """A vector of zeros, which has no direction."""
        row = self.random.choice(state["x"])
        row[:] = [0] * len(row)

    def change_mask(self, state: State) -> None:
        state["mask"] = self.mask(self.random.choice(MASK_KINDS), len(state["x"]), len(state["keyX"] or state["x"]))

    def change_scale(self, state: State) -> None:
        state["scale"] = self.random.choice(["default", "none", self.random.uniform(-2, 2), 0])

    def change_temperature(self, state: State) -> None:
        state["temperature"] = self.random.choice([1, 2 ** self.random.uniform(-4, 4)])

    def change_positions(self, state: State) -> None:
        state["positions"] = "sinusoidal" if state["positions"] == "none" else "none"

    def change_score(self, state: State) -> None:
        kind = self.random.choice(["dot", "dot", "additive", "bilinear", "cosine"])
        state["score"] = self.score(kind, len(state["heads"][0]["query"][0]))

    def change_heads(self, state: State) -> None:
        heads = state["heads"]
        widths = {part: (len(rows), len(rows[0])) for part, rows in heads[0].items()}
        if len(heads) > 1 and self.random.random() < 0.5:
            heads.pop(self.random.randrange(len(heads)))
        elif len(heads) < 3:
            heads.append({part: self.rows(*shape) for part, shape in widths.items()})
        self.fit_output(state)

    def fit_output(self, state: State) -> None:
        if state["output"] is not None:
            joined = len(state["heads"]) * len(state["heads"][0]["value"][0])
            state["output"] = self.rows(joined, len(state["output"][0]))

    def change_output(self, state: State) -> None:
        state["output"] = None if state["output"] is not None else [[]]
        if state["output"] is not None:
            joined = len(state["heads"]) * len(state["heads"][0]["value"][0])
            state["output"] = self.rows(joined, self.size())

    def change_tokens(self, state: State) -> None:
        """One more token, or one less, on either side; the mask is drawn anew for other sizes."""
        names, rows = ("tokens", "x")
        if state["keyX"] is not None and self.random.random() < 0.5:
            names, rows = ("keyTokens", "keyX")
        at = self.random.randrange(len(state[rows]))
        if len(state[rows]) > 1 and self.random.random() < 0.5:
            state[names].pop(at)
            for matrix_name in (rows, "valueX") if rows == "keyX" and state["valueX"] else (rows,):
                state[matrix_name].pop(at)
        elif len(state[rows]) < self.most:
            state[names].insert(at, self.random.choice(["猫", "it", "a b", "\"'\\", "<b>", "#", "é\u2028\n"]))
            for matrix_name in (rows, "valueX") if rows == "keyX" and state["valueX"] else (rows,):
                state[matrix_name].insert(at, self.rows(1, len(state[matrix_name][0]))[0])
        state["mask"] = self.mask(state["mask"]["kind"], len(state["x"]), len(state["keyX"] or state["x"]))

    def change_sides(self, state: State) -> None:
        """Self-attention becomes cross-attention, with values of their own or not; or back, with matrices that fit."""
        model = len(state["x"][0])
        if state["keyX"] is None:
            keys, widths = self.size(), [self.size(), self.size()]
            state["keyTokens"] = [f"k{key}" for key in range(keys)]
            state["keyX"] = self.rows(keys, widths[0])
            state["valueX"] = self.rows(keys, widths[1]) if self.random.random() < 0.5 else None
        else:
            state["keyTokens"] = state["keyX"] = state["valueX"] = None
        key_width = len((state["keyX"] or state["x"])[0])
        value_width = len((state["valueX"] or state["keyX"] or state["x"])[0])
        for head in state["heads"]:
            head["query"] = self.rows(model, len(head["query"][0]))
            head["key"] = self.rows(key_width, len(head["query"][0]))
            head["value"] = self.rows(value_width, len(head["value"][0]))
        state["mask"] = self.mask(state["mask"]["kind"], len(state["x"]), len(state["keyX"] or state["x"]))
