"""Attention written out by hand: a softmax over products of queries and keys whose result multiplies values.

What is followed, through whatever torch functions a model calls between them:

    scores   the product of two activations, and what any call makes of it that keeps queries and keys
    weights  a softmax over scores, and what any call makes of them
    seen     the product that sums weights over the softmax's own dimension

A language model's output softmax and a router's come from a product with a parameter; a pooling's too; and the first
is multiplied with nothing. So none of them is taken for attention. A softmax over scores whose weights do multiply
values, in a way that cannot be shown as queries × keys, is reported to `miss` with its reason: there is no third way.

Weights are shown as the softmax gave them (before dropout, and before heads are mixed: mixtures fall below 0), and as
they are used where they are masked, scaled or added to afterwards.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from regard.observe.intercept.calls import TRANSFORMED, is_transformed
from regard.observe.intercept.features import Features
from regard.observe.intercept.following import TorchCall, follows, moved, tensors_in
from regard.observe.intercept.layout import Layout, einsum_labels, product_layout, summed
from regard.observe.intercept.operations import (
    CASTS,
    DROPOUTS,
    LINEAR,
    MIXES,
    PARTS,
    PRODUCTS,
    REWEIGHTS,
    SHAPES,
    SOFTMAXES,
)
from regard.observe.intercept.origins import Origins, crosses
from regard.observe.intercept.outputs import LANDMARKS, Outputs
from regard.observe.intercept.shown import Merged, show
from regard.observe.intercept.weights import Scores, Softmax, Weights, changed, is_part, reweighted, source_of
from regard.observe.missing import Caller
from regard.observe.second_pass import HIDDEN
from regard.observe.site import Seen

__all__ = ["Eager"]

_OPERANDS = ("input", "self", "other", "mat1", "mat2", "batch1", "batch2", "tensor2", "operands", "x1", "x2")
_MULTIPLIES = {"mul", "__mul__", "__rmul__", "multiply", "mul_", "__imul__"}
_EXPONENTIALS = {"exp", "exp_", "exp2"}

FindCaller = Callable[[], Caller | None]  # None: another model is running

_NEVER_LEARNED = DROPOUTS | LINEAR | PRODUCTS | {"__setitem__"}  # projections of parameters are activations

_REARRANGED = (
    "rearranges its weights (in bands or blocks), takes them apart or puts them together before they meet the values, "
    "so they cannot be shown as queries × keys"
)
_NEGATIVE = "has weights below 0 after the softmax (one is taken from another), which cannot be shown as weights"
_ONE_BY_ONE = "multiplies its weights with the values one by one and sums, without a product of both"
_OTHER_SUM = "sums its weights over another dimension than its softmax runs over, so they are no weights of each query"
_BY_HAND = "makes its weights by exp and a sum instead of a softmax: let it call torch.softmax"


class Eager:
    """Follows scores and weights through the calls of a forward pass."""

    def __init__(
        self,
        is_parameter: Callable[[Tensor], bool],
        origins: Origins,
        outputs: Outputs,
        miss: Callable[[Caller, str], None],
    ) -> None:
        self._is_parameter, self._origins, self._outputs, self._miss = is_parameter, origins, outputs, miss
        self._learned = WeakIdKeyDictionary()  # reshaped and cast parameters
        self._scores = WeakIdKeyDictionary()
        self._weights = WeakIdKeyDictionary()
        self._logs = WeakIdKeyDictionary()  # log_softmax of scores, with its dimension
        self._parts_used = WeakIdKeyDictionary()  # weights of some keys that multiplied values
        self._latest: tuple[Softmax, ...] = ()
        self._features = Features()
        self._merged = Merged()

    def after(self, call: TorchCall, results: list[Tensor], find_caller: FindCaller) -> Seen | None:
        """Take note of one call that has returned; give what was seen if it was the last step of an attention."""
        if not results:
            return None
        result = results[0]
        if call.name in PRODUCTS and (seen := self._product(call, result, find_caller)) is not None:
            return seen
        if call.name in SOFTMAXES:
            scores = call.args[0] if call.args else call.kwargs.get("input", call.kwargs.get("logits"))
            self._softmax(scores, call.dim() if "gumbel" not in call.name else call.dim(4) or -1, result, find_caller)
        elif call.name in _EXPONENTIALS and call.tensors[0] in self._logs:
            scores, dim = self._logs[call.tensors[0]]
            self._softmax(scores, dim, result, find_caller)
        else:
            self._pass_on(call, results)
            if call.name == "log_softmax" and call.tensors[0] in self._scores:
                self._logs[result] = call.tensors[0], call.dim()
        return None

    def before(self, call: TorchCall) -> None:
        """Save weights that a dropout is about to overwrite."""
        name, args = call.name, call.args
        inplace = name == "dropout_" or call.kwargs.get("inplace") or (name == "dropout" and len(args) > 3 and args[3])
        if name in DROPOUTS and inplace and args and (weights := self._weights.get(args[0])) is not None:
            weights.source = args[0].detach().clone() if weights.source is None else weights.source

    def is_learned(self, one: Tensor) -> bool:
        """Whether it is a parameter or buffer of the model, or made of nothing else."""
        return one in self._learned or self._is_parameter(one)

    def scripted(self, tensors: Iterable[Tensor], results: list[Tensor], find_caller: FindCaller) -> None:
        """A TorchScript function with a softmax somewhere in it."""
        for one in tensors:
            if one in self._scores and (caller := find_caller()) is not None:
                for result in results:
                    self._weights[result] = Weights(None, (Softmax(caller),), None, self._scores[one].ends)

    def _softmax(self, scores: object, dim: object, result: Tensor, find_caller: FindCaller) -> None:
        if not isinstance(scores, Tensor) or result.ndim < 2 or not result.numel():
            return  # no queries or no keys: nothing to see
        known = self._scores.get(scores) or self._weights.get(scores)
        if known is None and (layout := self._features.window(scores, dim)) is not None:
            known = Scores(layout, (self._origins.of(scores),) * 2)
        if known is None or (caller := find_caller()) is None:
            return  # of another model
        if is_transformed():
            self._miss(caller, TRANSFORMED)
            return
        layout, ends = known.layout, known.ends
        softmax = Softmax(caller)
        if layout is None or not isinstance(dim, int) or layout[dim] not in "qk":
            self._weights[result] = Weights(None, (softmax,), None, ends)
            return
        if layout[dim] == "q":
            layout, ends = layout.translate(str.maketrans("qk", "kq")), ends[::-1]
        # Where all is hidden the model spreads its weight evenly, or has NaN; nothing is seen there.
        blind = scores.detach().amax(dim, keepdim=True) <= HIDDEN
        source = result.detach().masked_fill(blind, 0.0) if bool(blind.any()) else None
        self._weights[result] = Weights(source, (softmax,), layout, ends)
        self._merged.carry([scores], result)
        self._origins.give(result, ends[0])

    def _pass_on(self, call: TorchCall, results: list[Tensor]) -> None:
        """What is made of scores is scores; what is made of weights is weights."""
        name, tensors = call.name, call.tensors
        self._merged.carry(tensors, results[0])
        if name not in _NEVER_LEARNED and tensors and all(map(self.is_learned, tensors)):
            for result in results:
                self._learned[result] = True
            return
        weighted = next((one for one in tensors if one in self._weights), None)
        scored = None if weighted is not None else self._scored(tensors, results[0])
        if weighted is None and scored is None:
            learned = name in LINEAR and len(tensors) > 1 and self.is_learned(tensors[1])
            self._features.carry(call, tensors, results[0], learned=learned)
            return
        for result in results:
            if weighted is not None:
                self._pass_weights(call, weighted, result)
            elif scored is not None and name not in DROPOUTS:
                self._pass_scores(call, scored, result)

    def _scored(self, tensors: list[Tensor], result: Tensor) -> Tensor | None:
        """The scores among some tensors; of several those whose layout is known and stays."""
        found = [one for one in tensors if one in self._scores]
        return max(found, key=lambda one: (bool(self._scores[one].layout), one.shape == result.shape), default=None)

    def _pass_scores(self, call: TorchCall, one: Tensor, result: Tensor) -> None:
        scores = self._scores[one]
        if follows(scores.layout, call, one, result):
            layout = scores.layout and moved(scores.layout, call, one, result)
            exponential = scores.exponential or call.name in _EXPONENTIALS
            self._scores[result] = replace(scores, layout=layout, exponential=exponential)

    def _pass_weights(self, call: TorchCall, one: Tensor, result: Tensor) -> None:
        name, weights = call.name, self._weights[one]
        if name in _MULTIPLIES and self._multiplies_values(call, one, result):
            self._fail(weights.softmaxes, _ONE_BY_ONE)
        elif (name in REWEIGHTS or name in MIXES) and not weights.blended:
            self._weights[result] = reweighted(call, weights, self._parts(call), one, result)
        elif result is one:
            return
        elif name in DROPOUTS or name in CASTS:
            self._weights[result] = replace(weights, source=source_of(weights, one))
        elif name in PARTS or not follows(weights.layout, call, one, result):
            if name in PARTS:
                layout = weights.layout and moved(weights.layout, call, one, result)
                part = is_part(weights, one, layout, result)
                self._weights[result] = replace(weights, layout=layout, source=None, altered=True, part=part)
        elif name in SHAPES:
            layout = weights.layout and moved(weights.layout, call, one, result)
            source = weights.source
            if source is not None and call.args and call.args[0] is one:
                with torch._C.DisableTorchFunction():
                    # A view may need the strides that `contiguous` gave to the tensor in use.
                    again = name != "view"
                    source = call.func(source, *call.args[1:], **call.kwargs) if again else source.reshape(result.shape)
            part = is_part(weights, one, layout, result)
            self._weights[result] = replace(weights, source=source, layout=layout, part=part)
        else:
            self._weights[result] = changed(call, weights, self._parts(call), one, result)

    def _parts(self, call: TorchCall) -> list[Weights]:
        return [found for x in call.tensors if (found := self._weights.get(x)) is not None]

    def _multiplies_values(self, call: TorchCall, one: Tensor, result: Tensor) -> bool:
        """Whether weights with room for a width are multiplied with something that has one."""
        layout = self._weights[one].layout
        roomy = one.shape[-1] == 1 < result.shape[-1] and (layout is None or layout[-1] == "b")
        others = (x for x in call.tensors if x is not one and x not in self._weights and not self.is_learned(x))
        return roomy and any(x.is_floating_point() for x in others)

    def _fail(self, softmaxes: Iterable[Softmax], reason: str) -> None:
        for softmax in softmaxes:
            if not softmax.used and not softmax.missed:
                softmax.missed = True
                self._miss(softmax.caller, reason)

    def _product(self, call: TorchCall, result: Tensor, find_caller: FindCaller) -> Seen | None:
        """Scores of queries and keys, or weights on values."""
        operands, labels = self._operands(call)
        if len(operands) != 2 or (labels is None and call.name == "einsum"):
            return None
        learned = [self.is_learned(one) for one in operands]
        for at, one in enumerate(operands):
            weights, other = self._weights.get(one), operands[1 - at]
            if weights is None:
                continue
            if all(softmax.used for softmax in weights.softmaxes):
                self._used_again(weights, one)
                continue
            if learned[1 - at]:
                self._pass_on(call, [result])
                return None
            if other in self._weights or self._outputs.chains(other, weights.softmaxes[0].caller):
                self._chain(weights, other, result)
                return None
            axis = None if weights.layout is None else summed(weights.layout, at, other, labels)
            if axis is None:
                self._fail(weights.softmaxes, _REARRANGED if weights.layout is None else _OTHER_SUM)
                return None
            return self._used(weights, one, other, axis, result if at == 0 and labels is None else None, result)
        if any(learned):
            self._pass_on(call, [result])
        elif not any(one in self._weights for one in operands):
            self._score(operands, labels, call, result, find_caller)
        return None

    def _operands(self, call: TorchCall) -> tuple[list[Tensor], tuple[str, str, str] | None]:
        """The two factors of a product, and an einsum's labels."""
        named = tuple(call.kwargs[key] for key in _OPERANDS if key in call.kwargs)
        operands = list(tensors_in((*call.args, *named)))[1 if call.name in ("baddbmm", "addmm", "addbmm") else 0 :]
        if call.name == "__rmatmul__":
            operands.reverse()
        equation = call.args[0] if call.args else call.kwargs.get("equation")
        if call.name != "einsum" or len(operands) != 2 or not isinstance(equation, str):
            return operands, None
        return operands, einsum_labels(equation, operands[0], operands[1])

    def _chain(self, weights: Weights, other: Tensor, result: Tensor) -> None:
        """Weights on other weights, or on what attention gave: softmaxes over landmarks."""
        chained = self._weights.get(other)
        softmaxes = weights.softmaxes + (() if chained is None else chained.softmaxes)
        self._fail(softmaxes, LANDMARKS)
        if chained is None:
            self._outputs.chain(other)
        else:
            self._weights[result] = Weights(None, softmaxes, None, weights.ends)

    def _used(
        self, weights: Weights, one: Tensor, values: Tensor, axis: int, plain: Tensor | None, result: Tensor
    ) -> Seen | None:
        """Weights on values: what was looked for, unless they are below 0."""
        if weights.altered and bool(((one if weights.source is None else weights.source) < 0).any()):
            self._fail(weights.softmaxes, _NEGATIVE)
            return None
        for softmax in weights.softmaxes:
            softmax.used = True
        self._latest = weights.softmaxes
        if weights.part:
            self._parts_used[one] = True
        self._origins.give(result, weights.ends[0])
        matrix = one.detach() if weights.source is None else weights.source
        seen = show(matrix, weights.layout or "", self._merged.get(one), values.detach(), axis)
        output = plain if plain is not None and plain.ndim == 4 and weights.layout == "bbqk" else None
        return replace(seen, cross=crosses(*weights.ends), output=output)

    def _used_again(self, weights: Weights, one: Tensor) -> None:
        """A second part of weights on values of its own: neither is the whole row."""
        if weights.part and one not in self._parts_used:
            for softmax in weights.softmaxes:
                self._outputs.take_back(softmax.ticket, _REARRANGED)

    def keep(self, ticket: object) -> None:
        """Remember the ticket of what was seen last."""
        for softmax in self._latest:
            softmax.ticket = ticket

    def _score(
        self,
        operands: list[Tensor],
        labels: tuple[str, str, str] | None,
        call: TorchCall,
        result: Tensor,
        find_caller: FindCaller,
    ) -> None:
        """A product of two activations; or, where one is made of exponentials of scores, a softmax written out."""
        for at, one in enumerate(operands):
            scores = self._scores.get(one)
            layouts = _both(scores.layout) if scores is not None and scores.exponential and scores.layout else ()
            if any(summed(layout, at, operands[1 - at], labels) is not None for layout in layouts):
                if (caller := find_caller()) is not None:
                    self._miss(caller, _BY_HAND)
                return
        ends = self._origins.of(operands[0]), self._origins.of(operands[1])
        self._scores[result] = Scores(product_layout(result, labels), ends)
        self._merged.carry(operands, result)


def _both(layout: Layout) -> tuple[Layout, Layout]:
    """Keys may be either dimension."""
    return layout, layout.translate(str.maketrans("qk", "kq"))
