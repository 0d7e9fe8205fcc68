"""Track learned tensors: parameters and buffers of the model, and tensors computed only from these."""

from collections.abc import Callable

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from regard.capture.intercept.call_names import TorchCall
from regard.capture.intercept.operation_kinds import DROPOUTS, LINEAR, PRODUCTS

__all__ = ["Learned"]

_ACTIVATES = DROPOUTS | LINEAR | PRODUCTS | {"__setitem__"}  # projections of parameters are activations


class Learned:
    """Tracks parameters through casts, reshapes and merges."""

    def __init__(self, is_parameter: Callable[[Tensor], bool]) -> None:
        self._is_parameter = is_parameter
        self._constants = WeakIdKeyDictionary()  # tensors computed from parameters; True if without a product

    def holds(self, one: Tensor) -> bool:
        """Return whether it is a parameter or buffer of the model, or computed only from these without a projection."""
        return bool(self._constants.get(one, False)) or self._is_parameter(one)

    def is_constant(self, one: Tensor) -> bool:
        """Return whether it is computed only from parameters, such as the merged weight of a linear layer."""
        return one in self._constants or self._is_parameter(one)

    def activations(self, call: TorchCall) -> list[Tensor]:
        """Return the activations among a call's arguments."""
        return [one for one in call.tensors if one.is_floating_point() and not self.is_constant(one)]

    def carry(self, call: TorchCall, results: list[Tensor]) -> bool:
        """Process one call that has returned, and return whether its result is learned."""
        tensors = call.tensors
        if not tensors or not all(map(self.is_constant, tensors)):
            return False
        learned = call.name not in _ACTIVATES and all(map(self.holds, tensors))
        for result in results:
            self._constants[result] = learned
        return learned
