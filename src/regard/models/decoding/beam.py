"""The texts that a beam search holds of each row."""

from dataclasses import dataclass
from itertools import compress
from math import inf, log
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn import functional

from regard.checks import check_size, is_number
from regard.errors import InputError
from regard.models.decoding.base import (
    Continuation,
    GeneratedSequence,
    GenerationLimits,
    Rules,
    check_prompt,
    cut,
    nothing_to_choose,
)

__all__ = ["BeamSearch", "Hypotheses"]

_EXPONENT = 60.0  # e^±60 leaves room in float32, which ends at e^±88


@dataclass(frozen=True, eq=False)
class Hypotheses:
    """Some texts of each row, best first, all of the same length; a score of −∞ says that there is none.

    Args:
        tokens: The new tokens.
        scores: What they are ordered by.
    """

    tokens: Int[Tensor, "rows texts n"]
    scores: Float[Tensor, "rows texts"]

    @classmethod
    def empty(cls, texts: int, score: float, like: Float[Tensor, "rows vocabulary"]) -> "Hypotheses":
        """As many texts without a token for each row of `like`."""
        tokens = torch.zeros(like.shape[0], texts, 0, dtype=torch.int64, device=like.device)
        return cls(tokens, like.new_full((like.shape[0], texts), score))

    def extended(
        self, log_probs: Float[Tensor, "rows texts vocabulary"], count: int
    ) -> tuple["Hypotheses", Int[Tensor, "rows found"]]:
        """Give the `count` best texts with one token more, and for each the text that it goes on with."""
        vocabulary = log_probs.shape[2]
        # What is read behind no text may be anything, NaN too.
        every = (self.scores[..., None] + log_probs).masked_fill_(self.scores[..., None] == -torch.inf, -torch.inf)
        scores, index = every.flatten(1).topk(min(count, every[0].numel()))
        parents = index // vocabulary
        tokens = torch.cat([_take(self.tokens, parents), (index % vocabulary)[..., None]], dim=2)
        return Hypotheses(tokens, scores), parents

    def best(self, count: int) -> tuple["Hypotheses", Int[Tensor, "rows best"]]:
        """Give the best texts, and where they stood."""
        scores, index = self.scores.topk(min(count, self.scores.shape[1]))
        return Hypotheses(_take(self.tokens, index), scores), index

    def first(self, count: int) -> "Hypotheses":
        """Take the first texts of each row."""
        return Hypotheses(self.tokens[:, :count], self.scores[:, :count])

    def divided(self, by: float) -> "Hypotheses":
        """Divide the scores."""
        return Hypotheses(self.tokens, self.scores / by)

    def without(self, which: Bool[Tensor, "rows texts"]) -> "Hypotheses":
        """Let these texts be none."""
        return Hypotheses(self.tokens, self.scores.masked_fill(which, -torch.inf))

    def joined(self, others: "Hypotheses", pad: int) -> "Hypotheses":
        """Put longer texts behind these; the shorter are filled up."""
        missing = others.tokens.shape[2] - self.tokens.shape[2]
        tokens = torch.cat([functional.pad(self.tokens, (0, missing), value=pad), others.tokens], dim=1)
        return Hypotheses(tokens, torch.cat([self.scores, others.scores], dim=1))

    def rows(self, which: Bool[Tensor, " rows"]) -> "Hypotheses":
        """Take these rows alone."""
        return Hypotheses(self.tokens[which], self.scores[which])


def _take(tokens: Int[Tensor, "rows texts n"], index: Int[Tensor, "rows chosen"]) -> Int[Tensor, "rows chosen n"]:
    """Take texts of each row."""
    return tokens.gather(1, index[..., None].expand(-1, -1, tokens.shape[2]))


def _gaps(scores: Float[Tensor, "rows texts"]) -> Float[Tensor, "rows texts"]:
    """How far each score lies above the next one; infinitely where either text is none, and behind the last."""
    lower = functional.pad(scores[:, 1:], (0, 1), value=-inf)
    return (scores - lower).nan_to_num(nan=inf)


@dataclass(frozen=True)
class BeamSearch:
    """Keep the `num_beams` likeliest texts at each step, and return the best that have ended.

        score(y) = Σ_t log p(y_t | y_1 … y_{t−1}, prompt) / length(y) ** length_penalty

    Sutskever et al. 2014, arXiv:1409.3215, section 3.2; the same texts and scores as transformers' `generate`, apart
    from the order of equal scores. Of the (1 + number of end tokens) · num_beams best continuations, at least
    2 · num_beams, the first `num_beams` may end a text, and the best others are held. A row is done at the limit, or
    when its best open text cannot pass the worst of its ended ones; what that one can still reach is a guess, see
    `early_stopping`. Rows that are done leave the batch, and no row depends on the others.

    Args:
        num_beams: Texts held of each row.
        length_penalty: Above 0 longer texts gain, below 0 shorter ones; 0 is the plain sum.
        early_stopping: True is done as soon as `num_beams` texts have ended. False guesses that an open text keeps its
            score at its present length. "never" guesses, for a length_penalty above 0, that it keeps its sum up to the
            limit.
        num_return_sequences: Texts returned for each row, best first. Where there are fewer, the rest is empty with
            score −∞.

    Raises:
        InputError: A number is out of its range, or the model's logits leave nothing to choose from (NaN).

    Likelier first steps can lead to a less likely whole. Token 1 has 0.6 but nothing good after it, token 2 has 0.4
    and ends (3) with 0.9:

    >>> from regard.models.decoding import Greedy, GenerationLimits, Markov
    >>> table = torch.tensor([[0, 0.6, 0.4, 0], [0.35, 0.35, 0, 0.3], [0.1, 0, 0, 0.9], [1, 0, 0, 0]]).log()
    >>> limits = GenerationLimits(max_new_tokens=2, eos_token_id=(3,))
    >>> Greedy().search(Markov(table), torch.tensor([[0]]), limits)[0].tokens
    (1, 0)
    >>> BeamSearch(num_beams=2).search(Markov(table), torch.tensor([[0]]), limits)[0].tokens
    (2, 3)
    """

    num_beams: int = 4
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    num_return_sequences: int = 1

    def __post_init__(self) -> None:
        check_size("num_beams", self.num_beams, "counts the texts held of each row")
        check_size("num_return_sequences", self.num_return_sequences, "counts the texts returned for each row")
        if self.num_return_sequences > self.num_beams:
            raise InputError(
                f"`num_return_sequences` ({self.num_return_sequences}) cannot be above `num_beams` ({self.num_beams}), "
                "which is how many texts are held: raise `num_beams`"
            )
        if not is_number(self.length_penalty) or not -inf < self.length_penalty < inf:
            raise InputError(
                f"`length_penalty` is the power of the length that divides the score, got {self.length_penalty!r}: 0 "
                "is the plain sum"
            )
        early = self.early_stopping
        if early not in (True, False, "never") or isinstance(early, int) != isinstance(early, bool):
            raise InputError(f'`early_stopping` must be True, False or "never", got {early!r}')

    @torch.inference_mode()
    def search(
        self,
        text: Continuation,
        prompt: Int[Tensor, "rows n"],
        limits: GenerationLimits,
        /,
        attention_mask: Shaped[Tensor, "rows n"] | None = None,
    ) -> list[GeneratedSequence]:
        """Continue every row until it ends; return `num_return_sequences` texts a row, in the rows' order."""
        mask = check_prompt(prompt, attention_mask)
        if not prompt.shape[0]:
            return []
        logits = text.step(prompt, mask)
        rules, log_probs = Rules.of(limits, logits, prompt, mask), Rules.log_softmax(logits)
        self._check_penalty(max(rules.max_new_tokens))
        running = Hypotheses.empty(1, 0.0, log_probs)
        finished = Hypotheses.empty(self.num_beams, -inf, log_probs)
        margins = log_probs.new_full((len(prompt),), inf)
        live, written = list(range(prompt.shape[0])), [list[GeneratedSequence]() for _ in range(prompt.shape[0])]
        while True:
            held = running.scores.shape[1]
            nan = log_probs[:, 0].isnan() & (running.scores.flatten() > -inf)
            running, finished, parents, margin = self._step(running, finished, log_probs, rules)
            done, gained = self._done(running, finished, rules)
            margins = torch.stack([margins, margin, gained]).amin(0)
            broken, *over = torch.cat([nan.any()[None], done]).tolist()
            if broken:
                raise nothing_to_choose(limits, is_nan=True)
            if any(over):
                given = self._given(finished.rows(done), limits, margins[done])
                for row, texts in zip(compress(live, over), given, strict=True):
                    written[row] = texts
                if all(over):
                    return [one for texts in written for one in texts]
                live = [row for row, is_over in zip(live, over, strict=True) if not is_over]
                running, finished, margins = running.rows(~done), finished.rows(~done), margins[~done]
                rules = rules.select([row for row, is_over in enumerate(over) if not is_over])
            before = torch.arange(len(over), device=done.device)[:, None] * held + parents
            text.reorder((before[~done] if any(over) else before).flatten())
            log_probs = rules.log_softmax(text.step(running.tokens[..., -1].reshape(-1, 1)))

    def _step(
        self, running: Hypotheses, finished: Hypotheses, log_probs: Float[Tensor, "texts vocabulary"], rules: Rules
    ) -> tuple[Hypotheses, Hypotheses, Int[Tensor, "rows beams"], Float[Tensor, " rows"]]:
        """Add one token: return the open texts, the ended ones, which text before each open one continues, and the
        margin by which these were chosen.
        """
        n = running.tokens.shape[2] + 1
        allowed = rules(log_probs, running.tokens.flatten(0, 1)).unflatten(0, running.scores.shape)
        count = max(2, 1 + len(rules.limits.eos_token_id)) * self.num_beams
        found, parents = running.extended(allowed, count + 1)  # one more than can be held, for the margin
        at_limit = torch.tensor(rules.at_limit(n), device=parents.device)
        ended = rules.ends(found.tokens[..., -1]) | at_limit[:, None]
        whole = found.without(~ended).first(self.num_beams).divided(n**self.length_penalty)
        finished, _ = finished.joined(whole, rules.limits.pad_token_id).best(self.num_beams + 1)
        running, index = found.without(ended).best(self.num_beams + 1)
        borders = [_gaps(one.scores)[:, self.num_beams - 1 : self.num_beams] for one in (found, finished, running)]
        margin = torch.cat([*borders, running.scores.new_full((len(running.scores), 1), inf)], 1).amin(1)
        running, finished = running.first(self.num_beams), finished.first(self.num_beams)
        return running, finished, parents.gather(1, index[:, : self.num_beams]), margin

    def _done(
        self, running: Hypotheses, finished: Hypotheses, rules: Rules
    ) -> tuple[Bool[Tensor, " rows"], Float[Tensor, " rows"]]:
        """Which rows have nothing to gain any more, and the margin of that."""
        lengths = [running.tokens.shape[2]] * len(running.scores)
        if self.early_stopping == "never" and self.length_penalty > 0:
            lengths = rules.max_new_tokens
        by = running.scores.new_tensor([length**self.length_penalty for length in lengths])
        best, worst = running.scores[:, 0] / by, finished.scores[:, -1]
        done, margin = ~(best > worst), (best - worst).abs().nan_to_num(nan=inf)
        return (done | (worst > -inf) if self.early_stopping is True else done), margin

    def _check_penalty(self, longest: int) -> None:
        """Raise where no score of a text of the longest length could be told from 0 or from infinity."""
        if abs(self.length_penalty) * log(longest) > _EXPONENT:
            most = _EXPONENT / log(longest)
            raise InputError(
                f"`length_penalty` is the power of the length that divides a score, and {longest} ** "
                f"{self.length_penalty} is beyond its numbers: choose one from -{most:.0f} to {most:.0f}"
            )

    def _given(
        self, finished: Hypotheses, limits: GenerationLimits, margins: Float[Tensor, " rows"]
    ) -> list[list[GeneratedSequence]]:
        """The results of these rows."""
        given = finished.first(self.num_return_sequences)
        order = _gaps(finished.scores)[:, : self.num_return_sequences].amin(1)
        lists = given.tokens.tolist(), given.scores.tolist(), torch.minimum(margins, order).tolist()
        rows = [
            [
                GeneratedSequence(cut(t, limits.eos_token_id) if s > -inf else (), s, margin)
                for t, s in zip(tokens, scores, strict=True)
            ]
            for tokens, scores, margin in zip(*lists, strict=True)
        ]
        if any(texts[0].score == -inf for texts in rows):
            raise nothing_to_choose(limits, is_nan=False)
        return rows
