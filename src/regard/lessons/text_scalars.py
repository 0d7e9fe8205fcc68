"""One output of attention computed number by number: q·k, scaled, exponentiated, divided by the sum, z = Σ w v."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from regard.lessons.matrix_text import cell_len, choices, clip, factor, number, pad, pick, subscript, vector
from regard.lessons.steps import Floats, Worked
from regard.lessons.text_words import Wording

__all__ = ["FEW", "Scalars", "Section", "scaling"]

FEW = 10  # maximum number of keys shown in the order of the text
STRONGEST = 8  # number shown if there are more, the strongest first
COMPONENTS = 4  # number of entries shown of each summed vector
STEEP = 10  # if the largest score exceeds ±10, it is subtracted before e^, as in every implementation

Section = tuple[str, list[str]]  # a heading and its lines


def scaling(worked: Worked) -> str:
    """Return the scaling as written after the scores: / √64, or · 0.2 for another scale."""
    dim = worked.queries.shape[1]
    return f"/ √{dim}" if np.isclose(worked.scale, dim**-0.5) else f"· {factor(worked.scale)}"


@dataclass(frozen=True, eq=False)
class Scalars:
    """One row of a `Worked`, in one language, for lines of `room` cells."""

    worked: Worked
    row: int
    say: Wording
    room: int

    @property
    def position(self) -> int:
        """Position of the query in its text, counted from 0."""
        return self.worked.first_query + self.row

    @property
    def shown(self) -> list[int]:
        """The keys that are shown: all in the order of the text, or the strongest first."""
        if self._few:
            return list(range(len(self.worked.keys)))
        best = np.argsort(-self.worked.weights[self.row], kind="stable")
        visible: list[int] = best[self.worked.visible[self.row, best]].tolist()
        return visible if len(visible) <= FEW else visible[:STRONGEST]

    def sections(self) -> Iterator[Section]:
        """Yield the steps in their order."""
        yield self._vectors()
        if not self.worked.visible[self.row].any():
            yield self.say.scores.format(token=self._token), [self.say.blind]
            return
        yield self._scores()
        yield from self._logits()
        yield from self._softmax()
        if self.worked.has_values:
            yield self._output()

    @property
    def _token(self) -> str:
        return clip(self.worked.query_tokens[self.row], 16)

    @property
    def _few(self) -> bool:
        return len(self.worked.keys) <= FEW

    @property
    def _visible(self) -> list[bool]:
        """Whether each of the shown keys is visible."""
        visible: list[bool] = self.worked.visible[self.row, self.shown].tolist()
        return visible

    @property
    def _labels(self) -> list[str]:
        """The tokens of the shown keys, padded to one width, and the sink's."""
        return _columns([*(clip(self.worked.tokens[key], 12) for key in self.shown), *self._sinks])

    @property
    def _sinks(self) -> list[str]:
        return [] if self.worked.sink is None else [self.say.sink]

    def _vectors(self) -> Section:
        worked, at = self.worked, subscript(self.position)
        query = worked.queries[self.row]
        if worked.x is None or worked.w_query is None:
            lines = [self._vector(f"q{at}", query)]
            if worked.tokens[self.position : self.position + 1] == (worked.query_tokens[self.row],):
                lines.append(self._vector(f"k{at}", worked.keys[self.position]))
                lines += [self._vector(f"v{at}", worked.values[self.position])] if worked.has_values else []
            return self.say.given.format(token=self._token), lines
        x = worked.x[self.row]
        components = _components(query)
        lines = [
            self._vector(f"x{at}", x),
            self._vector(f"q{at} = x{at} W_Q", query),
            *self._sums(
                [f"  q{at}[{index + 1}]" for index in components],
                [_products(x, worked.w_query[:, index]) for index in components],
                [number(query[index]) for index in components],
            ),
        ]
        if worked.key_x is not None:
            return self.say.project_query.format(token=self._token), [*lines, self.say.keys_of_others]
        lines += [
            self._vector(f"k{at} = x{at} W_K", worked.keys[self.row]),
            self._vector(f"v{at} = x{at} W_V", worked.values[self.row]),
            self.say.others_alike,
        ]
        return self.say.project.format(token=self._token), lines

    def _scores(self) -> Section:
        worked, at, shown = self.worked, subscript(self.position), self.shown
        query, visible = worked.queries[self.row], worked.visible[self.row]
        lines = self._sums(
            [f"{label}  q{at}·k{subscript(key)}" for key, label in zip(shown, self._labels, strict=False)],
            [_products(query, worked.keys[key]) if visible[key] else [] for key in shown],
            [number(worked.scores[self.row, key]) for key in shown],
        )
        if not self._few:
            lines.insert(0, self.say.some_keys.format(shown=len(shown), count=len(visible)))
        if not self._few and not visible.all():
            lines.append(self.say.hidden_keys.format(count=int((~visible).sum()), keys=len(visible)))
        return self.say.scores.format(token=self._token), lines

    def _logits(self) -> Iterator[Section]:
        """Yield the scaled scores, then the capped and biased ones, if the head has a softcap or a bias."""
        worked, row, operator = self.worked, self.row, scaling(self.worked)
        scores, scaled, logits = worked.scores[row], worked.scaled[row], worked.logits[row]
        dim = worked.queries.shape[1]
        heading = self.say.divided.format(root=f"√{dim} = {number(dim**0.5)}")
        if not operator.startswith("/"):
            heading = self.say.multiplied.format(scale=number(worked.scale))
        yield heading, self._keys(lambda key: f"{number(scores[key])} {operator}", scaled)
        bias = worked.bias[row] if worked.bias is not None else np.zeros_like(scaled)
        capped = logits - bias
        if worked.softcap is not None:
            cap = number(worked.softcap)
            lines = self._keys(lambda key: f"{cap}·tanh({number(scaled[key])} / {cap})", capped)
            yield self.say.capped.format(cap=cap), lines
        if worked.bias is not None:
            yield self.say.biased, self._keys(lambda key: f"{number(capped[key])} + {factor(bias[key])}", logits)

    def _softmax(self) -> Iterator[Section]:
        worked, row = self.worked, self.row
        logits, weights, visible = worked.logits[row], worked.weights[row], worked.visible[row]
        sink = [] if worked.sink is None else [worked.sink]
        largest = float(max([*logits[visible].tolist(), *sink]))
        less = largest if abs(largest) > STEEP else 0.0
        powers = np.exp(logits - less, where=visible, out=np.zeros_like(logits))
        drained = [float(np.exp(value - less)) for value in sink]
        total = float(powers.sum()) + sum(drained)

        lines = self._keys(lambda key: _power(logits[key], less), powers)
        label = self._labels[-1]
        lines += [f"{label}  {_power(at, less)} = {number(value)}" for at, value in zip(sink, drained, strict=True)]
        lines.append(f"{self.say.total} = {number(total)}")
        yield (self.say.shifted.format(largest=number(less)) if less else self.say.powers), lines

        lines = self._keys(
            lambda key: f"{number(powers[key])} / {number(total)}",
            weights,
            symbol=lambda key: f"  w{subscript(self.position, key)}",
        )
        rest = np.setdiff1d(np.flatnonzero(visible), self.shown)
        if rest.size:
            lines.append(self.say.others.format(count=rest.size, weight=number(float(weights[rest].sum()))))
        lines += [f"{label}  {number(value)} / {number(total)} = {number(value / total)}" for value in drained]
        yield self.say.weights, lines

    def _output(self) -> Section:
        worked, at = self.worked, subscript(self.position)
        keys = [key for key, is_visible in zip(self.shown, self._visible, strict=True) if is_visible]
        weights, values, output = worked.weights[self.row], worked.values, worked.output[self.row]
        total = int(worked.visible[self.row].sum())
        symbols = [f"w{subscript(self.position, key)} v{subscript(key)}" for key in keys]
        components = _components(output)
        lines = self._sums([f"z{at}"], [symbols], [""], total=total)
        lines += self._sums(
            [f"  z{at}[{index + 1}]" for index in components],
            [[f"{number(weights[key])}·{factor(values[key, index])}" for key in keys] for index in components],
            [number(output[index]) for index in components],
            total=total,
        )
        lines.append(self._vector(f"z{at}", output))
        return self.say.output, lines

    def _vector(self, lead: str, values: Floats) -> str:
        return f"{lead} = {vector(values, self.room - cell_len(lead) - 3, self.say.numbers)}"

    def _keys(
        self, expression: Callable[[int], str], results: Floats, *, symbol: Callable[[int], str] = lambda _: ""
    ) -> list[str]:
        """Return one line per key: its token, expression = result; — if the mask hides it."""
        visible = self._visible
        symbols = _columns([symbol(key) for key in self.shown])
        written = _columns([expression(key) if shows else "" for key, shows in zip(self.shown, visible, strict=True)])
        lines = []
        for place, key in enumerate(self.shown):
            lead = f"{self._labels[place]}{symbols[place]}" + (" = " if symbols[place] and visible[place] else "  ")
            lines.append(lead + (f"{written[place]} = {number(results[key])}" if visible[place] else self._hidden))
        return lines

    @property
    def _hidden(self) -> str:
        return f"— {self.say.hidden}"

    def _sums(
        self, leads: Sequence[str], parts: Sequence[Sequence[str]], results: Sequence[str], *, total: int | None = None
    ) -> list[str]:
        """Return lines `lead = part + part = result`, shortened alike until they fit; a line without parts is hidden.

        `total` is the number of terms if `parts` has only the first of them.
        """
        count = total or max(map(len, parts))
        lines: list[str] = []
        shown = count
        for shown in (*choices(count), 1):
            written = [" + ".join(_some(terms, shown, count)) if terms else "" for terms in parts]
            lines = [
                f"{lead} = {terms}{f' = {result}' if result else ''}" if terms else f"{lead}  {self._hidden}"
                for lead, terms, result in zip(_columns(leads), written, results, strict=True)
            ]
            if max(map(cell_len, lines)) <= self.room:
                break
        if count > shown:
            lines.append(self.say.terms.format(count=count, shown=shown).strip())
        return lines


def _some(terms: Sequence[str], shown: int, count: int) -> list[str]:
    """Return the terms shown of `count`: the first and the last, or only the first if the last are not given."""
    if shown < count and (shown == 1 or len(terms) < count):
        return [*terms[:shown], "…"]
    return ["…" if at is None else terms[at] for at in pick(count, shown)]


def _power(logit: float, less: float) -> str:
    if less:
        return f"e^({number(logit)} - {factor(less)})"
    return f"e^({number(logit)})" if logit < 0 else f"e^{number(logit)}"


def _components(values: Floats) -> list[int]:
    return [index for index in pick(len(values), COMPONENTS) if index is not None]


def _products(left: Floats, right: Floats) -> list[str]:
    return [f"{factor(a)}·{factor(b)}" for a, b in zip(left.tolist(), right.tolist(), strict=True)]


def _columns(texts: Sequence[str]) -> list[str]:
    widest = max(map(cell_len, texts))
    return [pad(text, widest) for text in texts]
