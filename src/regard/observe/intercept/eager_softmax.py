"""Recognize attention written by hand: a softmax over products of queries and keys whose result multiplies values.

The following tensors are tracked through all torch functions that a model calls:

    scores   the product of two activations, and the result of any call on it that preserves queries and keys
    weights  a softmax over scores, and the result of any call on it
    seen     the product that sums weights over the dimension of the softmax

A language model's output softmax, a router's and a pooling's are not attention: their scores come from a product with
a parameter, or their result multiplies nothing. Weights that cannot be shown as queries × keys are reported to `miss`.

Recorded are the softmax's weights (before dropout, and before heads are mixed, since mixtures can be negative), with
later masks, factors and sums applied.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from regard.observe.intercept.call_names_and_products import Product, TorchCall, read_product
from regard.observe.intercept.copied_entries import UsedPart
from regard.observe.intercept.eager_scores import (
    FollowedScores,
    Spreads,
    Transformed,
    blind_before,
    blind_rows,
    both_ways,
    is_exponential,
    may_multiply,
    softmax_dim,
)
from regard.observe.intercept.eager_weights import (
    FollowedWeights,
    SoftmaxUse,
    Verdicts,
    drops_in_place,
    forget_written,
    layouts_after,
    main_factors,
    multiplies_one_by_one,
    passed_on,
    reweighted,
    show,
)
from regard.observe.intercept.head_dimensions import Features, Merged
from regard.observe.intercept.layouts import follows, is_transformed, summed
from regard.observe.intercept.operation_kinds import CASTS, LINEAR, MIXES, REWEIGHTS, SHAPES, SOFTMAXES, SUBTRACTS
from regard.observe.intercept.tensor_origins import LearnedTensors, Origins, Outputs, crosses
from regard.observe.watched_call import WatchedCall
from regard.record import missing_attention as missing
from regard.record.missing_attention import Caller

__all__ = ["Eager"]

Miss = Callable[[Caller, str], None]
FindCaller = Callable[[], Caller | None]  # None if another model is running


class Eager:
    """Tracks scores and weights through the calls of a forward pass."""

    def __init__(
        self, learned: LearnedTensors, origins: Origins, outputs: Outputs, miss: Miss, find_caller: FindCaller
    ) -> None:
        self._learned, self._origins, self._outputs = learned, origins, outputs
        self._miss, self._find_caller = miss, find_caller
        self._scores, self._weights = WeakIdKeyDictionary(), WeakIdKeyDictionary()
        self._logs = WeakIdKeyDictionary()  # results of log_softmax over scores, with its dimension
        self._blind: Tensor | None = None  # rows of the scores of the running call
        self._latest: tuple[SoftmaxUse, ...] = ()
        self._verdicts, self._features = Verdicts(miss, outputs.take_back), Features()
        self._spreads, self._transformed, self._merged = Spreads(origins, learned.holds), Transformed(), Merged()

    def after(self, call: TorchCall, results: list[Tensor]) -> WatchedCall | None:
        """Process one call that has returned, and return the attention call if this was its last step."""
        if not results:
            return None
        result = results[0]
        self._verdicts.suspect(self._transformed.carry(call, self._scores, self._weights), missing.TRANSFORMED)
        product = read_product(call)
        projects = product is None or (call.name == "linear" and self._learned.is_constant(product.factors[1]))
        if product is not None and not projects and (seen := self._product(product, call, result)) is not None:
            return seen
        if call.name in SOFTMAXES:
            scores = call.args[0] if call.args else call.kwargs.get("input", call.kwargs.get("logits"))
            self._softmax(scores, softmax_dim(call), result)
        elif call.name in ("exp", "exp_") and call.tensors[0] in self._logs:
            scores, dim = self._logs[call.tensors[0]]
            self._softmax(scores, dim, result)
        else:
            self._pass_on(call, results)
            if call.name in ("log_softmax", "special_log_softmax") and call.tensors[0] in self._scores:
                self._logs[result] = call.tensors[0], call.dim()
        return None

    def before(self, call: TorchCall) -> None:
        """Copy weights that a dropout is about to overwrite, and find hidden rows before a shift of the scores."""
        if call.name in SUBTRACTS:
            self._blind = blind_before(call) if call.args and call.args[0] in self._scores else None
        elif drops_in_place(call) and (weights := self._weights.get(call.args[0])) is not None:
            weights.source = call.args[0].detach().clone() if weights.source is None else weights.source

    def finish(self) -> None:
        """Report softmaxes that were only suspected, at the end of the pass."""
        self._verdicts.finish()

    def scripted(self, tensors: Iterable[Tensor], results: list[Tensor]) -> None:
        """Process a TorchScript function that contains a softmax."""
        for one in tensors:
            if one in self._scores and (caller := self._find_caller()) is not None:
                for result in results:
                    self._weights[result] = FollowedWeights(None, (SoftmaxUse(caller),), None, self._scores[one].ends)

    def _softmax(self, scores: object, dim: object, result: Tensor) -> None:
        if not isinstance(scores, Tensor) or not result.ndim or not result.numel():
            return  # no queries or no keys: nothing to record
        known = self._scores.get(scores) or self._weights.get(scores)
        if known is None and (layout := self._features.window(scores, dim)) is not None:
            known = FollowedScores(layout, (self._origins.of(scores),) * 2)
        if known is None or (caller := self._find_caller()) is None:
            return  # of another model
        if is_transformed():
            self._miss(caller, missing.TRANSFORMED)
            return
        layout, ends, softmax = known.layout, known.ends, SoftmaxUse(caller)
        unplaced = layout is None or not isinstance(dim, int) or layout[dim] not in "qk"
        if unplaced and isinstance(known, FollowedScores) and known.weak:
            return
        if layout is None or not isinstance(dim, int) or unplaced or result.layout is not torch.strided:
            self._weights[result] = FollowedWeights(None, (softmax,), None, ends, lost=known.lost)
            return
        if layout[dim] == "q":
            layout, ends = layout.translate(str.maketrans("qk", "kq")), ends[::-1]
        # In a fully masked row the model has even weights or NaN; the recorded weights are 0.
        blind = blind_rows(scores, dim, known.blind if isinstance(known, FollowedScores) else None)
        source = result.detach().masked_fill(blind, 0.0) if bool(blind.any()) else None
        self._weights[result] = FollowedWeights(source, (softmax,), layout, ends, odd=getattr(known, "odd", None))
        self._merged.carry([scores], [result])
        self._origins.give(result, ends[0])

    def _pass_on(self, call: TorchCall, results: list[Tensor]) -> None:
        """Mark results of scores as scores, and results of weights as weights."""
        name, tensors = call.name, call.tensors
        self._merged.carry(tensors, results, call)
        if self._learned.carry(call, results):
            return
        weighted = next((one for one in tensors if one in self._weights), None)
        scored = None if weighted is not None else self._scored(tensors, results[0])
        if weighted is None and scored is None:
            learned = name in LINEAR and len(tensors) > 1 and self._learned.holds(tensors[1])
            self._features.carry(call, tensors, results[0], learned=learned)
            self._begin_scores(call, results)
            return
        for result in (one for one in results if one.ndim):  # a loss holds no weights
            if weighted is not None:
                self._pass_weights(call, weighted, result)
            elif scored is not None:
                self._pass_scores(call, scored, result)

    def _begin_scores(self, call: TorchCall, results: list[Tensor]) -> None:
        """Process a sum over broadcast tensors, or an unknown function that may be a product of two activations."""
        if (result := results[0]) in self._scores:
            return  # a known product
        active = self._learned.activations(call)
        scores = self._spreads.carry(call, call.tensors, active, results)
        if scores is None and len(active) > 1 and may_multiply(call, active, result):
            scores = FollowedScores(None, (self._origins.of(active[0]), self._origins.of(active[1])))
        if scores is not None:
            self._scores[result] = scores

    def _scored(self, tensors: list[Tensor], result: Tensor) -> Tensor | None:
        """Return the scores among some tensors; of several, those whose layout is known and preserved."""
        known = [one for one in tensors if one in self._scores]
        found = (one for one in known if result not in self._scores or not self._scores[one].is_gate(tensors, result))
        return max(found, key=lambda one: self._scores[one].rank(one, result), default=None)

    def _pass_scores(self, call: TorchCall, one: Tensor, result: Tensor) -> None:
        scores = self._scores[one]
        if scores.exponential and self._multiplies_values(call, one, result):
            self._miss_by_hand()
        elif follows(scores.layout or scores.lost, call, one, result):
            layout, lost = layouts_after(scores, call, one, result)
            exponential = scores.exponential or is_exponential(call, one)
            blind = scores.blind if call.name not in SUBTRACTS or self._blind is None else self._blind
            self._scores[result] = replace(scores, layout=layout, lost=lost, exponential=exponential, blind=blind)

    def _pass_weights(self, call: TorchCall, one: Tensor, result: Tensor) -> None:
        name, weights = call.name, self._weights[one]
        parts = [found for x in call.tensors if (found := self._weights.get(x)) is not None]
        forget_written(call, self._weights)
        others = [x for x in self._learned.activations(call) if x is not one and x not in self._weights]
        if result.is_complex() and name not in CASTS and name not in SHAPES:
            self._verdicts.fail(weights.softmaxes, missing.UNKNOWN.format(name))
            return
        if others and may_multiply(call, [one, *others], result):
            self._verdicts.doubt(weights, one, missing.UNKNOWN.format(name))
        if self._multiplies_values(call, one, result):
            self._verdicts.doubt(weights, one, missing.ONE_BY_ONE)
        elif (name in REWEIGHTS or name in MIXES) and not weights.blended:
            self._weights[result] = reweighted(call, weights, parts, one, result)
        elif result is not one and (passed := passed_on(call, weights, parts, one, result)) is not None:
            self._weights[result] = passed

    def _multiplies_values(self, call: TorchCall, one: Tensor, result: Tensor) -> bool:
        others = (x for x in call.tensors if x is not one and x not in self._weights and not self._learned.holds(x))
        return multiplies_one_by_one(call, one, others, result)

    def _product(self, product: Product, call: TorchCall, result: Tensor) -> WatchedCall | None:
        """Process a product of queries and keys, or of weights and values."""
        pair = main_factors(product, result, self._learned, self._weights)
        if pair is None:
            return None
        for at, one in enumerate(pair.factors):
            weights = self._weights.get(one)
            if weights is not None and all(softmax.used for softmax in weights.softmaxes):
                self._verdicts.use_again(weights, one)
            elif weights is not None:
                return self._sum(weights, at, pair, call, result)
        if any(map(self._learned.holds, pair.factors)) or self._spreads.are_weighted(pair.factors):
            self._pass_on(call, [result])
        elif not any(one in self._weights for one in pair.factors):
            self._score(pair, result)
        return None

    def _sum(
        self, weights: FollowedWeights, at: int, pair: Product, call: TorchCall, result: Tensor
    ) -> WatchedCall | None:
        """Process the product of weights, factor number `at`, and another tensor."""
        other, labels = pair.factors[1 - at], pair.labels
        if self._learned.holds(other):
            self._pass_on(call, [result])
            return None
        if other in self._weights or self._outputs.chains(other, weights.softmaxes[0].caller):
            self._chain(weights, other, result)
            return None
        axis = None if weights.layout is None else summed(weights.layout, at, other, labels)
        if axis is None:
            self._verdicts.suspect(
                weights.softmaxes, missing.REARRANGED if weights.layout is None else missing.OTHER_SUM
            )
            return None
        if labels is not None and set(labels[1 - at]) <= set(labels[at]):
            other = other[..., None]  # values with a single number each
        plain = result if at == 0 and labels is None else None
        return self._used(weights, pair.factors[at], other, axis, plain, result)

    def _chain(self, weights: FollowedWeights, other: Tensor, result: Tensor) -> None:
        """Process weights on other weights, or on an attention's output: softmaxes over landmarks."""
        chained = self._weights.get(other)
        softmaxes = weights.softmaxes + (() if chained is None else chained.softmaxes)
        (self._verdicts.suspect if len(set(softmaxes)) == 1 else self._verdicts.fail)(softmaxes, missing.LANDMARKS)
        if chained is None:
            self._outputs.chain(other)
        else:
            self._weights[result] = FollowedWeights(None, softmaxes, None, weights.ends)

    def _used(
        self, weights: FollowedWeights, one: Tensor, values: Tensor, axis: int, plain: Tensor | None, result: Tensor
    ) -> WatchedCall | None:
        """Process weights on values, unless the weights can be negative."""
        if weights.altered and bool(((one if weights.source is None else weights.source) < 0).any()):
            self._verdicts.fail(weights.softmaxes, missing.NEGATIVE)
            return None
        doubts = [one.suspect for one in weights.softmaxes if one.suspect and weights.part]
        if weights.odd or doubts:
            self._verdicts.fail(weights.softmaxes, weights.odd or str(doubts[0]))
            return None
        for softmax in weights.softmaxes:
            softmax.used, softmax.part = True, UsedPart(one) if weights.part else None
        self._latest = weights.softmaxes
        self._origins.give(result, weights.ends[0])
        matrix = one.detach() if weights.source is None else weights.source
        seen = show(matrix, weights.layout or "", self._merged.get(one), values.detach(), axis)
        output = plain if plain is not None and plain.ndim == 4 and weights.layout == "bbqk" else None
        return seen.having(cross=crosses(*weights.ends), output=output)

    def keep(self, ticket: object) -> None:
        """Store the ticket of the last recorded call."""
        for softmax in self._latest:
            softmax.ticket = ticket

    def _score(self, pair: Product, result: Tensor) -> None:
        """Process a product of two activations; if one is made of exponentials of scores, a softmax written by hand."""
        for at, one in enumerate(pair.factors):
            scores = self._scores.get(one)
            layouts = both_ways(scores.layout) if scores is not None and scores.exponential and scores.layout else ()
            if any(summed(layout, at, pair.factors[1 - at], pair.labels) is not None for layout in layouts):
                self._miss_by_hand()
                return
        self._scores[result] = self._spreads.of_product(pair, result)
        self._transformed.begin(result, self._scores[result])
        self._merged.carry(pair.factors, [result])

    def _miss_by_hand(self) -> None:
        if (caller := self._find_caller()) is not None:
            self._miss(caller, missing.BY_HAND)
