"""A tap in compiled code: rows are computed from the q and k of the kernels that are heard, as in eager code.

`compiled_graphs.py` has what listens; compilers are kept for each model, whatever heads are tapped.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from regard.errors import ObservationError
from regard.observe.call_kinds import CallFromQK
from regard.observe.intercept.compiled_graphs import AROUND, CompiledBlock, read_heard
from regard.observe.intercept.graph_reading import GraphAttention
from regard.observe.intercept.tapped_layers import TappedSites
from regard.observe.intercept.torch_attention_calls import groups_of, is_plain, unpack_groups
from regard.observe.tap_steps import TapSite, TapSteps
from regard.observe.watched_call import Rows

__all__ = ["CompiledTap"]

_AROUND = (
    "this model ran inside a function that was compiled around it, of which a tap does not see the steps: compile the "
    "model itself, `model.forward = torch.compile(model.forward)`, and call it from a function that is not compiled"
)


Take = Callable[[TapSite, int, int, Callable[[], int], Callable[[Rows], Tensor]], None]


class CompiledTap(CompiledBlock):
    """The compiled calls of one tap; `take` receives a site, the numbers of queries and keys, and how the column of the
    newest key and rows of weights are found.
    """

    def __init__(
        self,
        model: nn.Module,
        sites: TappedSites,
        steps: TapSteps,
        take: Take,
    ) -> None:
        super().__init__(model)
        self._sites, self._steps, self._take = sites, steps, take
        self._parameters = {id(one) for one in model.parameters()}

    def callback(self, original: Any) -> Any:
        """Return what compiles the frames of the model's running call."""
        return self.compile_with(original, "tap")

    def checking(self, original: Any) -> Any:
        """Return what compiles other functions, and refuses those that run the tapped model."""
        return self.compile_with(original, AROUND)

    def begins_graph(self, kind: str, parameters: Sequence[Any], *, is_whole: bool) -> bool:
        """Return whether a graph is the model's.

        Raises:
            ObservationError: It is one of other code, and runs the model.
        """
        if kind == AROUND and any(id(one) in self._parameters for one in parameters):
            raise ObservationError(_AROUND)
        return kind != AROUND

    def hear(self, site: GraphAttention, call: dict[str, Any]) -> None:
        """Take the rows of a call, if heads of it were chosen."""
        modules = self.modules_of(site)
        if site.modules and (not modules or modules[-1][0] != site.modules[-1]):
            return  # of another model
        name = modules[-1][1] if modules else ""
        module = self._model.get_submodule(name)
        q, k, groups = call["query"], call["key"], groups_of(module)
        if not is_plain(call):
            return
        if site.operator is None:
            q, _ = unpack_groups(groups, q, k, None)
        place = self._sites.of_compiled(name, module, q.shape[1])
        if (place.heads or not self._steps.is_placed) and not q.shape[1] % k.shape[1]:

            @functools.cache
            def known() -> CallFromQK:
                return read_heard(site, groups, call)

            self._take(
                place,
                q.shape[2],
                k.shape[2],
                lambda: known().newest,
                lambda rows: known().weights_of(rows, place.heads),
            )

    def miss(self, site: GraphAttention, reason: str) -> None:
        """Leave it to the end of the step, which misses the layers that were chosen."""
