"""Which tensors a loss trains that no module has: found in its graph."""

from torch import Tensor, nn

__all__ = ["unregistered_parameters"]


def unregistered_parameters(loss: Tensor, *modules: nn.Module) -> list[Tensor]:
    """Return the leaves of a loss's graph that are no parameter of these modules: nothing moves, saves or trains them.

    A value such as `positions.T5Bias(nn.Parameter(...))` that is assigned to a module as it is hides its parameter from
    PyTorch; `regard.nn` modules wrap the values that they get, and `ValueModule` wraps others. Inputs that require
    gradients are leaves too. Of what reentrant checkpointing computes, the graph has only the inputs.

    Args:
        loss: A tensor with a graph, before its backward.
        modules: The model, and whatever else has parameters of its own.

    Returns:
        The tensors, in the order of the graph from the loss on.

    >>> import regard, torch
    >>> from regard.positions import T5Bias
    >>> table, x = nn.Parameter(torch.zeros(32, 2)), torch.randn(1, 2, 3, 4)
    >>> loss = regard.attention(x, x, x, bias=T5Bias(table, bidirectional=True)).sum()
    >>> [tuple(tensor.shape) for tensor in unregistered_parameters(loss, nn.Linear(2, 2))]
    [(32, 2)]
    """
    own = {id(parameter) for module in modules for parameter in module.parameters()}
    nodes = [] if loss.grad_fn is None else [loss.grad_fn]
    seen, leaves = set(nodes), {}
    while nodes:
        node = nodes.pop()
        variable = getattr(node, "variable", None)  # of AccumulateGrad
        if isinstance(variable, Tensor) and id(variable) not in own:
            leaves[id(variable)] = variable
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                nodes.append(following)
    return list(leaves.values())
