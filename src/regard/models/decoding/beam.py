"""Beam search: several texts of each row go on side by side, and the best whole one is given."""

from dataclasses import dataclass
from itertools import compress
from math import inf
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.errors import InputError
from regard.models.decoding.base import Continuation, Limits, Written
from regard.models.decoding.checks import check_count, check_prompt, is_number, nothing_to_choose
from regard.models.decoding.hypotheses import Hypotheses
from regard.models.decoding.rules import Rules, cut

__all__ = ["Beam"]


@dataclass(frozen=True)
class Beam:
    """Keep the `beams` likeliest texts at each step, and give the best that have ended.

        score(y) = Σ_t log p(y_t | y_1 … y_{t−1}, prompt) / length(y) ** length_penalty

    Sutskever et al. 2014, arXiv:1409.3215, section 3.2; the same texts and scores as transformers' `generate`, apart
    from the order of equal scores. Of the (1 + number of stop tokens) · beams best continuations, at least 2 · beams,
    the first `beams` may end a text, and the best that go on are held. A row is done at the limit, or when its best
    open text cannot pass the worst of its `beams` ended ones; what that one can still reach is a guess, see `early`.
    Rows that are done leave the batch, and no row depends on the others.

    Args:
        beams: Texts held of each row.
        length_penalty: Above 0 longer texts gain, below 0 shorter ones; 0 is the plain sum.
        early: True is done as soon as `beams` texts have ended. False guesses that an open text keeps its score at its
            present length. "never" guesses, for a length_penalty above 0, that it keeps its sum up to the limit.
        results: Texts given for each row, best first. Where there are fewer, the rest is empty with score −∞.

    Raises:
        InputError: A number is out of its range, or the model's logits leave nothing to choose from (NaN).

    Likelier first steps can lead to a less likely whole. Token 1 has 0.6 but nothing good behind it, token 2 has 0.4
    and ends (3) with 0.9:

    >>> from regard.models.decoding import Greedy, Limits, Markov
    >>> table = torch.tensor([[0, 0.6, 0.4, 0], [0.35, 0.35, 0, 0.3], [0.1, 0, 0, 0.9], [1, 0, 0, 0]]).log()
    >>> Greedy().write(Markov(table), torch.tensor([[0]]), Limits(most=2, stop=(3,)))[0].tokens
    (1, 0)
    >>> Beam(beams=2).write(Markov(table), torch.tensor([[0]]), Limits(most=2, stop=(3,)))[0].tokens
    (2, 3)
    """

    beams: int = 4
    length_penalty: float = 1.0
    early: bool | Literal["never"] = False
    results: int = 1

    def __post_init__(self) -> None:
        check_count("beams", self.beams, "counts the texts held of each row", at_least=1)
        check_count("results", self.results, "counts the texts given for each row", at_least=1)
        if self.results > self.beams:
            raise InputError(
                f"`results` ({self.results}) cannot be above `beams` ({self.beams}): no more texts are held, raise "
                "`beams`"
            )
        if not is_number(self.length_penalty) or not -inf < self.length_penalty < inf:
            raise InputError(
                f"`length_penalty` is the power of the length that divides the score, got {self.length_penalty!r}: 0 "
                "is the plain sum"
            )
        if self.early not in (True, False, "never") or isinstance(self.early, int) != isinstance(self.early, bool):
            raise InputError(f'`early` must be True, False or "never", got {self.early!r}')

    @torch.inference_mode()
    def write(
        self,
        text: Continuation,
        prompt: Int[Tensor, "rows n"],
        limits: Limits,
        real: Bool[Tensor, "rows n"] | None = None,
    ) -> list[Written]:
        """Go on with every row of the prompt until it ends; `results` texts a row, in the rows' order."""
        check_prompt(prompt, real)
        if not prompt.shape[0]:
            return []
        logits = text.read(prompt, real)
        rules, log_probs = Rules(limits, logits), Rules.log_softmax(logits)
        running = Hypotheses.empty(1, 0.0, log_probs)
        finished = Hypotheses.empty(self.beams, -inf, log_probs)
        live, written = list(range(prompt.shape[0])), [list[Written]() for _ in range(prompt.shape[0])]
        while True:
            held = running.scores.shape[1]
            nan = log_probs[:, 0].isnan() & (running.scores.flatten() > -inf)
            running, finished, parents = self._step(running, finished, log_probs, rules)
            done = self._done(running, finished, limits)
            broken, *over = torch.cat([nan.any()[None], done]).tolist()
            if broken:
                raise nothing_to_choose()
            if any(over):
                for row, texts in zip(compress(live, over), self._given(finished.rows(done), limits), strict=True):
                    written[row] = texts
                if all(over):
                    return [one for texts in written for one in texts]
                live = [row for row, is_over in zip(live, over, strict=True) if not is_over]
                running, finished = running.rows(~done), finished.rows(~done)
            before = torch.arange(len(over), device=done.device)[:, None] * held + parents
            text.select((before[~done] if any(over) else before).flatten())
            log_probs = rules.log_softmax(text.read(running.tokens[..., -1].reshape(-1, 1)))

    def _step(
        self, running: Hypotheses, finished: Hypotheses, log_probs: Float[Tensor, "texts vocabulary"], rules: Rules
    ) -> tuple[Hypotheses, Hypotheses, Int[Tensor, "rows beams"]]:
        """Write one token: the open texts, the ended ones, and which text before each open one goes on with."""
        n = running.tokens.shape[2] + 1
        allowed = rules(log_probs, n - 1).unflatten(0, running.scores.shape)
        found, parents = running.extended(allowed, max(2, 1 + len(rules.limits.stop)) * self.beams)
        ended = rules.ends(found.tokens[..., -1]) | (n == rules.limits.most)
        whole = found.without(~ended).first(self.beams).divided(n**self.length_penalty)
        finished, _ = finished.joined(whole, rules.limits.pad).best(self.beams)
        running, index = found.without(ended).best(self.beams)
        return running, finished, parents.gather(1, index)

    def _done(self, running: Hypotheses, finished: Hypotheses, limits: Limits) -> Bool[Tensor, " rows"]:
        """Which rows have nothing to gain any more."""
        length = running.tokens.shape[2]
        if self.early == "never" and self.length_penalty > 0:
            length = limits.most
        best, worst = running.scores[:, 0] / float(length**self.length_penalty), finished.scores[:, -1]
        done = ~(best > worst)
        return done | (worst > -inf) if self.early is True else done

    def _given(self, finished: Hypotheses, limits: Limits) -> list[list[Written]]:
        """The results of these rows."""
        given = finished.first(self.results)
        rows = [
            [Written(cut(t, limits.stop) if s > -inf else (), s) for t, s in zip(*row, strict=True)]
            for row in zip(given.tokens.tolist(), given.scores.tolist(), strict=True)
        ]
        if any(texts[0].score == -inf for texts in rows):
            raise nothing_to_choose()
        return rows
