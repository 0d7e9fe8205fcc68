"""Follow attention outputs up to the next projection, to detect those that are not sums of values over tokens.

Differential attention subtracts the outputs of two softmaxes; Nyström and agent attention use the output of one as the
values of the next, so that both are softmaxes over landmarks. Neither is attention from tokens to tokens.
"""

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from regard.capture.intercept.call_names import TorchCall
from regard.capture.intercept.matrix_products import pair_labels
from regard.capture.intercept.operation_kinds import CARRIES_OUTPUT, SUBTRACTS
from regard.capture.missing_attention import Caller

__all__ = ["DIFFERENCE", "LANDMARKS", "Outputs"]

DIFFERENCE = (
    "takes the output of one softmax from that of another (differential attention): neither holds the weights that are "
    "in use, and their difference falls below 0, as no weights do"
)
LANDMARKS = (
    "chains softmaxes over landmarks (Nyström, agents): the weights of one are multiplied with those or the output of "
    "another, so none of them are weights of tokens to tokens"
)


class Outputs:
    """Records for each tensor the attention calls whose output it is; `withdraw` removes a call, with the reason."""

    def __init__(self, withdraw: Callable[[Any, str], None]) -> None:
        self._withdraw = withdraw
        self._tickets = WeakIdKeyDictionary()

    def give(self, output: Any, ticket: object) -> None:
        """Record the output of an attention call."""
        output = output[0] if isinstance(output, tuple) and output else output
        if isinstance(output, Tensor) and ticket is not None:
            self._tickets[output] = frozenset([ticket])

    def carry(self, call: TorchCall, results: Iterable[Tensor]) -> None:
        """Process one call that has returned."""
        if not self._tickets:
            return
        known = [one for one in call.tensors if one in self._tickets]
        if not known:
            return
        tickets = frozenset[object]().union(*(self._tickets[one] for one in known))
        if call.name in SUBTRACTS and len(known) > 1 and not _are_spread(known[0], known[1]):
            for ticket in tickets:
                self.take_back(ticket, DIFFERENCE)
        elif call.name in CARRIES_OUTPUT:
            for result in results:
                self._tickets[result] = tickets

    def chains(self, values: Tensor, caller: Caller) -> bool:
        """Return whether these values are the output of an attention in the same run of the same module, as landmarks
        are.

        Outputs of another module are ordinary inputs of an attention without projections.
        """
        return any(one.caller == caller for one in self._tickets.get(values, ()))

    def chain(self, values: Tensor) -> None:
        """Process outputs that are the values of another attention."""
        for ticket in self._tickets[values]:
            self.take_back(ticket, LANDMARKS)

    def take_back(self, ticket: Any, reason: str) -> None:
        """Remove a recorded call that turns out not to be attention between tokens."""
        if ticket is not None:
            self._withdraw(ticket, reason)


def _are_spread(left: Tensor, right: Tensor) -> bool:
    """Return whether each output is subtracted from each, as for distances of positions, or a single position from
    itself.
    """
    labels = pair_labels(left, right)
    two_sided = labels is not None and bool(set(labels[0]) - set(labels[1])) and bool(set(labels[1]) - set(labels[0]))
    return two_sided or left.is_set_to(right)
