"""What a model is made of: its modules, the shapes of their parameters, and how many numbers those are."""

import html
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import InputError

__all__ = ["Summary", "summary"]


@dataclass(frozen=True)
class SummaryRow:
    """One module: its own parameters by name and shape, and the numbers in it and in all that it holds."""

    name: str
    depth: int
    kind: str
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    output: str | None
    parameters: int


@dataclass(frozen=True)
class Summary:
    """The rows of a model, and its parameters, each counted once however often it is shared; print it."""

    rows: tuple[SummaryRow, ...]
    parameters: int
    trainable: int

    def _table(self) -> list[tuple[str, ...]]:
        """The cells, those of the header first."""
        wants_output = any(row.output is not None for row in self.rows)
        table = [("module", "kind", "parameters of its own", *["output"] * wants_output, "parameters")]
        for row in self.rows:
            shapes = ", ".join(f"{name} {_shape(shape)}" for name, shape in row.shapes)
            output = [row.output or ""] * wants_output
            table.append(("  " * row.depth + row.name, row.kind, shapes, *output, f"{row.parameters:,}"))
        return table

    def _total(self) -> str:
        return f"{self.parameters:,} parameters, {self.trainable:,} of them trainable"

    def __str__(self) -> str:
        table = self._table()
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [
            "  ".join([cell.ljust(width) for cell, width in zip(line, widths, strict=True)][:-1])
            + line[-1].rjust(widths[-1] + 2)
            for line in table
        ]
        return "\n".join([*lines, self._total()])

    def _repr_html_(self) -> str:
        """The same table for a notebook."""
        head, *rows = self._table()
        names = "".join(f'<th style="text-align:left">{html.escape(name)}</th>' for name in head)
        lines = (
            f'<tr><td style="text-align:left;padding-left:{0.5 + 1.5 * row.depth}em">{html.escape(row.name)}</td>'
            + "".join(f'<td style="text-align:left;padding-right:1em">{html.escape(cell)}</td>' for cell in cells[1:-1])
            + f'<td style="text-align:right">{html.escape(cells[-1])}</td></tr>'
            for row, cells in zip(self.rows, rows, strict=True)
        )
        return f"<table><tr>{names}</tr>{''.join(lines)}</table><p>{html.escape(self._total())}</p>"


def summary(model: nn.Module, *inputs: Any, depth: int | None = None) -> Summary:
    """Tell of every module its parameters' shapes and how many numbers it holds.

    Args:
        model: Any module.
        inputs: With some, the model is called with them once, in eval mode and without gradients, and the table has
            the shape of what each module gave the last time that it was called.
        depth: How many levels of modules to show; all by default.

    Raises:
        InputError: `model` is not a module.

    >>> print(summary(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.zeros(3, 4)))
    module      kind        parameters of its own  output  parameters
    Sequential  Sequential                         3 × 2           58
      0         Linear      weight 8 × 4, bias 8   3 × 8           40
      1         ReLU                               3 × 8            0
      2         Linear      weight 2 × 8, bias 2   3 × 2           18
    58 parameters, 58 of them trainable
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"`model` must be an nn.Module, got {type(model).__name__}")
    outputs = _outputs(model, inputs) if inputs else None
    rows = []
    for path, module in model.named_modules():
        level = path.count(".") + 1 if path else 0
        if depth is not None and level > depth:
            continue
        rows.append(
            SummaryRow(
                name=path.rpartition(".")[2] or type(model).__name__,
                depth=level,
                kind=type(module).__name__,
                shapes=tuple((name, tuple(one.shape)) for name, one in module.named_parameters(recurse=False)),
                output=None if outputs is None else outputs.get(module, ""),
                parameters=sum(one.numel() for one in module.parameters()),
            )
        )
    every = list(model.parameters())
    return Summary(
        tuple(rows), sum(one.numel() for one in every), sum(one.numel() for one in every if one.requires_grad)
    )


def _outputs(model: nn.Module, inputs: tuple[Any, ...]) -> dict[nn.Module, str]:
    """Shapes of what each module gives; every module is in its own mode again afterwards."""
    modes, outputs = {module: module.training for module in model.modules()}, {}

    def remember(module: nn.Module, _given: Any, found: Any) -> None:
        outputs[module] = _describe(found)

    handles = [module.register_forward_hook(remember) for module in modes]
    try:
        with torch.no_grad():
            model.eval()(*inputs)
    finally:
        for handle in handles:
            handle.remove()
        for module, mode in modes.items():
            module.training = mode
    return outputs


def _describe(found: Any) -> str:
    if isinstance(found, Tensor):
        return _shape(tuple(found.shape))
    if isinstance(found, list | tuple):
        return ", ".join(filter(None, map(_describe, found)))
    return ""


def _shape(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape)) or "one number"
