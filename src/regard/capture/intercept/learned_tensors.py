"""Which tensors are learned: parameters and buffers of the model, and what is computed from nothing else."""

from collections.abc import Callable

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from regard.capture.intercept.call_names import TorchCall
from regard.capture.intercept.operation_kinds import DROPOUTS, LINEAR, PRODUCTS

__all__ = ["Learned"]

_ACTIVATES = DROPOUTS | LINEAR | PRODUCTS | {"__setitem__"}  # projections of parameters are activations


class Learned:
    """Follows parameters through casts, reshapes and whatever merges them."""

    def __init__(self, is_parameter: Callable[[Tensor], bool]) -> None:
        self._is_parameter = is_parameter
        self._constants = WeakIdKeyDictionary()  # computed from parameters; True: without a product

    def holds(self, one: Tensor) -> bool:
        """Whether it is a parameter or buffer of the model, or made of nothing else without a projection."""
        return bool(self._constants.get(one, False)) or self._is_parameter(one)

    def is_constant(self, one: Tensor) -> bool:
        """Whether it is computed from nothing but parameters, as the merged weight of a linear layer is."""
        return one in self._constants or self._is_parameter(one)

    def activations(self, call: TorchCall) -> list[Tensor]:
        """The activations that a call takes."""
        return [one for one in call.tensors if one.is_floating_point() and not self.is_constant(one)]

    def carry(self, call: TorchCall, results: list[Tensor]) -> bool:
        """Take note of one call that has returned; whether what it gave is learned."""
        tensors = call.tensors
        if not tensors or not all(map(self.is_constant, tensors)):
            return False
        learned = call.name not in _ACTIVATES and all(map(self.holds, tensors))
        for result in results:
            self._constants[result] = learned
        return learned
