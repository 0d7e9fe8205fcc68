"""Whether tensors are numbers in memory, as code that reads addresses needs them."""

from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from regard.torch_private import TorchDispatchModeKey, get_dispatch_mode

__all__ = ["are_in_memory"]

_TRACING = (
    TorchDispatchModeKey.FAKE,
    TorchDispatchModeKey.PROXY,
    TorchDispatchModeKey.FUNCTIONAL,
)


def are_in_memory(*tensors: Tensor) -> bool:
    """Whether these are plain tensors on a device with memory, and nobody traces what is done with them.

    Fake tensors (`FakeTensorMode`, `torch.export`) have none, `make_fx` sees operations alone, and a tensor inside
    `forward_ad.dual_level` may carry a tangent.
    """
    return (
        all(type(one) in (Tensor, Parameter) and one.device.type != "meta" for one in tensors)
        and forward_ad._current_level < 0
        and all(get_dispatch_mode(key) is None for key in _TRACING)
    )
