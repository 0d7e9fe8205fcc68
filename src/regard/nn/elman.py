"""The simple recurrence: a hidden state that is a function of the input and of the state before."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.checks import check_size
from regard.errors import InputError
from regard.nn.checks import check_width, public_module
from regard.nn.projections import check_width_of

__all__ = ["Elman", "ElmanCell"]

_WAY = "take hx[0] of an nn.RNN's (1, batch, hidden_size), {}.expand(...) where a batch shares it"


@public_module(takes_jagged=False)
class ElmanCell(nn.Module):
    """One step of a recurrent network (Elman 1990, Cognitive Science 14:179–211).

    Formula: H_t = φ(X_t W_xh + H_{t−1} W_hh + b_h); O_t = H_t W_hq + b_q

    The layers `input_to_hidden` (with b_h), `hidden_to_hidden` and `hidden_to_output` hold the transposed matrices.
    `nn.RNNCell` computes only H_t. It has two biases, and b_h is their sum.

    Args:
        input_size: Width of X.
        hidden_size: Width of H.
        output_size: Width of O; `hidden_size` by default.
        nonlinearity: φ, "tanh" or "relu".

    Raises:
        InputError: A width is not positive or does not fit, or the nonlinearity does not exist.

    >>> import torch
    >>> output, hidden = ElmanCell(4, 8, output_size=3)(torch.zeros(2, 4))
    >>> output.shape, hidden.shape
    (torch.Size([2, 3]), torch.Size([2, 8]))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        output_size: int | None = None,
        nonlinearity: Literal["tanh", "relu"] = "tanh",
    ) -> None:
        super().__init__()
        if nonlinearity not in ("tanh", "relu"):
            raise InputError(f'`nonlinearity` must be "tanh" or "relu", got {nonlinearity!r}')
        self.input_size = check_size("input_size", input_size, "is that of the input")
        self.hidden_size = check_size("hidden_size", hidden_size, "is that of the state")
        output_size = hidden_size if output_size is None else output_size
        self.nonlinearity = nonlinearity
        self.input_to_hidden = nn.Linear(input_size, hidden_size)
        self.hidden_to_hidden = nn.Linear(hidden_size, hidden_size, bias=False)
        self.hidden_to_output = nn.Linear(hidden_size, check_size("output_size", output_size, "is a width"))

    def forward(
        self, x: Float[Tensor, "batch input"], hx: Float[Tensor, "batch hidden"] | None = None
    ) -> tuple[Float[Tensor, "batch output"], Float[Tensor, "batch hidden"]]:
        """Give the output and the new state; the state before the first step is 0."""
        if x.shape[-1:] != (self.input_size,):
            raise InputError(
                f"`x` must be (batch, {self.input_size}), got shape {tuple(x.shape)}: build the module with another "
                "`input_size=`, or give the steps of a sequence to Elman"
            )
        hidden = self._step(self.input_to_hidden(x), self._state("hx", x, x.shape[:-1], hx))
        return self.hidden_to_output(hidden), hidden

    def _state(self, name: str, x: Tensor, batch: torch.Size, given: Tensor | None) -> Float[Tensor, "batch hidden"]:
        """Give the state before the first step: the given one, a row for each row of the batch, or zeros."""
        shape = (*batch, self.hidden_size)
        if given is None:
            return x.new_zeros(shape)
        if given.shape != shape:
            other = given.shape[-1:] != shape[-1:]
            way = (
                f"build the module with `hidden_size={given.shape[-1]}`" if other and given.ndim else _WAY.format(name)
            )
            raise InputError(f"`{name}` must be {shape} for x {tuple(x.shape)}, got {tuple(given.shape)}: {way}")
        return given

    def _step(
        self, projected_input: Float[Tensor, "batch hidden"], hx: Float[Tensor, "batch hidden"]
    ) -> Float[Tensor, "batch hidden"]:
        """Return the new state from X_t W_xh + b_h and the state before."""
        activation = torch.tanh if self.nonlinearity == "tanh" else torch.relu
        projected_state = self.hidden_to_hidden(hx)
        for name, projected in (("input_to_hidden", projected_input), ("hidden_to_hidden", projected_state)):
            check_width_of(name, projected, self.hidden_size)
        return activation(projected_input + projected_state)


@public_module(
    takes_jagged=False,
    hx="`hidden_state` is meant, of shape (batch, hidden_size), where that of nn.RNN is (1, batch, hidden_size)",
)
class Elman(nn.Module):
    """The recurrence of ElmanCell (as `.cell`) over whole sequences, beside nn.GRU and nn.LSTM.

    Formula: H_t = φ(X_t W_xh + H_{t−1} W_hh + b_h); O_t = H_t W_hq + b_q

    >>> import torch
    >>> outputs, hidden = Elman(4, 8, output_size=3)(torch.zeros(2, 5, 4))
    >>> outputs.shape, hidden.shape
    (torch.Size([2, 5, 3]), torch.Size([2, 8]))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        output_size: int | None = None,
        nonlinearity: Literal["tanh", "relu"] = "tanh",
    ) -> None:
        super().__init__()
        self.cell = ElmanCell(input_size, hidden_size, output_size=output_size, nonlinearity=nonlinearity)

    def forward(
        self, x: Float[Tensor, "batch n input"], hidden_state: Float[Tensor, "batch hidden"] | None = None
    ) -> tuple[Float[Tensor, "batch n output"], Float[Tensor, "batch hidden"]]:
        """Give the outputs of all steps and the last state; the state before the first step is 0 unless given."""
        check_width("x", x, self.cell.input_size, "input_size")
        hidden = self.cell._state("hidden_state", x, x.shape[:-2], hidden_state)
        if not x.shape[-2]:
            raise InputError(f"`x` must have a step at least, got shape {tuple(x.shape)}: leave out what is empty")
        states = []
        for given in self.cell.input_to_hidden(x).unbind(-2):
            hidden = self.cell._step(given, hidden)
            states.append(hidden)
        return self.cell.hidden_to_output(torch.stack(states, -2)), hidden
