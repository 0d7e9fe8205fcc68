"""The dispatch mode that follows what a model computes, where its attention is written by hand or not known yet.

It lies below autograd and below operators that PyTorch makes of others, so attention by hand is a few operators however
it is spelled: F.linear is t and addmm, einsum is permute and bmm, a product with heads is expand, view and bmm. What a
heard operator computes inside (`listening.py`), and what a backward pass repeats, is not followed.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from regard.hooks import HEARING
from regard.observe.following.operators import Operator, operator_of
from regard.observe.following.rules import Rules
from regard.observe.following.rules import Watcher as _Watcher
from regard.observe.listening import unheard
from regard.record.missing_attention import KERNEL_REASON
from regard.tensors import unwrapped
from regard.torch_private import (
    OpOverload,
    count_dispatch_modes,
    current_graph_task_id,
    dispatch_key,
    has_kernel,
    include_dispatch_key,
    is_tracing,
    maybe_current_level,
    pop_dispatch_mode,
    push_dispatch_mode,
)

__all__ = ["Follower", "Watcher"]

_ATTENDS = re.compile(r"flash|attention|sdpa|attn_(func|fwd|forward|varlen)|mha_(fwd|forward)", re.IGNORECASE)
_BEFORE = {"sub", "mul", "unsqueeze", "squeeze", "transpose", "t", "exp"}  # what writes its first argument


class Watcher(_Watcher, Protocol):
    """Who is told of the attention that was found, and waits for the output of the last call."""

    pending: Any  # what has the output of the last call, which autograd does not know yet

    def flush(self) -> None:
        """Process that autograd knows it."""
        ...


class Follower(TorchDispatchMode):
    """Follows tensors in the thread that enters it; it can be entered and left between calls of the model."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return that no compiler is to be disabled at each operator: none is active where tensors are followed."""
        return False

    def __init__(self, watcher: Watcher) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.rules = Rules(watcher)
        self._watcher = watcher
        self._operators: dict[Any, tuple[Operator, Callable[..., None] | None, bool]] = {}
        self._is_on = self._is_pushed = self._is_aside = False
        self._depth = 0  # of operators that are running in it

    @property
    def is_active(self) -> bool:
        """Whether it follows its thread."""
        return self._is_on

    def start(self) -> None:
        """Follow this thread from now on."""
        self._is_on = True
        if not self._is_pushed:
            push_dispatch_mode(self)
            self._is_pushed = True
        elif not self._depth:  # it was stopped, or the inference mode in which it was started has ended
            _reach_modes(True)

    def stop(self) -> None:
        """Follow nothing until the next start.

        It stays on the stack of modes, which operators do not reach: PyTorch restores what they reach at the end of
        inference modes, transforms and compiled functions, and would look for a mode that is gone.
        """
        self._is_on = False
        self.settle()

    def settle(self) -> None:
        """Let operators not reach it again, where the end of such a context has brought that back."""
        if not self._is_on and self._is_pushed and not self._depth and count_dispatch_modes() == 1:
            _reach_modes(False)

    def step_aside(self) -> None:
        """Leave the stack of modes until `step_back`, which comes where operators reach what they do here."""
        self._is_on, self._is_aside = False, self._is_pushed
        self._pop()

    def step_back(self) -> None:
        """Return to the stack of modes, if it was there."""
        if self._is_aside:
            self._is_aside = False
            push_dispatch_mode(self)
            self._is_pushed = True
            self.settle()

    def end(self) -> None:
        """Leave the stack of modes for good."""
        self._is_on = False
        self._pop()
        if not self._is_aside and not count_dispatch_modes():
            _reach_modes(False)

    def _pop(self) -> None:
        """Leave the stack of modes; others may have been entered since."""
        if self._is_pushed:
            self._is_pushed = False
            above = []
            while (mode := pop_dispatch_mode()) is not self:
                above.append(mode)
            for mode in reversed(above):
                push_dispatch_mode(mode)

    def knows(self, parameters: Sequence[Tensor]) -> None:
        """Note which tensors are learned."""
        for tensor in parameters:
            self.rules.memory.cell(tensor).learned = 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, then follow its result."""
        self._depth += 1
        try:
            return self._follow(func, types, args, kwargs)
        finally:
            self._depth -= 1

    def _follow(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if not self._is_on or HEARING.inside or current_graph_task_id() != -1:
            return _run(func, args, kwargs or {})
        kwargs = kwargs or {}
        if (types and any(kind.__name__ == "FakeTensor" for kind in types)) or is_tracing():
            return _run(func, args, kwargs)
        found = self._operators.get(func)
        if found is None:
            operator = operator_of(func)
            before = operator.name in _BEFORE and (operator.is_in_place or operator.name == "sub")
            rule = None if operator.rule == "nothing" and not operator.is_in_place else self._rule(operator)
            found = self._operators[func] = operator, rule, before
        operator, rule, before = found
        waits = self._watcher.pending
        if waits is not None and not (operator.rule == "view" and args[0] is waits.output):
            self._watcher.flush()
            waits = None
        if operator.is_composite and not types and self._decomposes(func, args):
            push_dispatch_mode(self)
            try:
                return func.decompose(*args, **kwargs)
            finally:
                pop_dispatch_mode()
        rules = self.rules
        if before:
            with unheard():
                rules.before(operator, args)
        result = _run(func, args, kwargs)
        if rule is None:
            return result
        if not operator.is_aten and self._attends(func, args):
            return result
        if waits is not None:
            waits.output = result
        HEARING.inside = True
        try:
            rules.apply(rule, operator, args, kwargs, result, func)
        finally:
            HEARING.inside = False
        return result

    def hear(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Follow the result of an operator that was heard as a whole."""
        if maybe_current_level() is not None:  # where tensors are wrapped
            args = tuple(unwrapped(one) if isinstance(one, Tensor) else one for one in args)
            result = unwrapped(result) if isinstance(result, Tensor) else result
        operator = operator_of(func)
        self.rules.apply(self._rule(operator), operator, args, kwargs, result, func)

    def _rule(self, operator: Operator) -> Callable[..., None]:
        rule: Callable[..., None] = getattr(self.rules, f"_{operator.rule}")
        return rule

    def _attends(self, func: Any, args: Any) -> bool:
        """Process an operator of another library whose name is one of attention, which is missing."""
        name = str(getattr(func, "overloadpacket", func))
        if not _ATTENDS.search(name):
            return False
        if (caller := self._watcher.find_caller()) is not None:
            self._watcher.miss(caller, KERNEL_REASON.format(name))
        return True

    def _decomposes(self, func: Any, args: Any) -> bool:
        """Return whether an operator is one of several parts for these tensors (in inference mode it comes as one)."""
        flat = (one for part in args for one in (part if isinstance(part, list | tuple) else (part,)))
        tensor = next((one for one in flat if isinstance(one, Tensor)), None)
        if tensor is None or tensor.is_nested or tensor.layout is not torch.strided:
            return False
        kind = tensor.device.type.upper()
        return not has_kernel(func.name(), kind)


def _run(func: Any, args: Any, kwargs: Any) -> Any:
    """Run an operator. A mode gets numbers where TorchScript has tensors of one, which not every operator takes."""
    try:
        return func(*args, **kwargs)
    except RuntimeError:
        if not isinstance(func, OpOverload):
            raise
        expected = [isinstance(one.type, torch.TensorType) for one in func._schema.arguments]
        wrong = [is_tensor and isinstance(one, int | float) for is_tensor, one in zip(expected, args, strict=False)]
        if not any(wrong):
            raise
        args = [torch.tensor(one) if is_number else one for is_number, one in zip(wrong, args, strict=True)]
        return func(*args, **kwargs)


_REACHING = tuple(map(dispatch_key, ("Python", "PythonTLSSnapshot")))


def _reach_modes(on: bool) -> None:
    """Let operators of this thread reach its dispatch modes, or not."""
    for key in _REACHING:
        include_dispatch_key(key, on)
