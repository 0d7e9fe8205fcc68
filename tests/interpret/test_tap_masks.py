"""The rows of a tap are those of the formula in float64, whatever mask, type and memory layout a kernel's call has."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import regard
from sweeps import sweep

CHOSEN = {"neighbours": (2, 3), "any order": (5, 0, 4), "all": tuple(range(6)), "one": (1,)}
LOWEST = torch.finfo(torch.float32).min


class Attention(nn.Module):
    """PyTorch's kernel."""

    def forward(self, q: Tensor, k: Tensor, **options: Any) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, k, enable_gqa=True, **options)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()

    def forward(self, q: Tensor, k: Tensor, **options: Any) -> Tensor:
        return self.attention(q, k, **options)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def formula(q: Tensor, k: Tensor, visible: Tensor, bias: Tensor | float = 0.0, scale: float | None = None) -> Tensor:
    """The whole matrix in float64; rows that see nothing are 0."""
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1).double()
    scores = q.double() @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale) + bias
    return scores.masked_fill(~visible, -torch.inf).softmax(-1).nan_to_num(0.0)


def tapped(q: Tensor, k: Tensor, heads: tuple[int, ...] = (0,), **options: Any) -> list[Tensor]:
    """The rows of two calls: the first is read as a watch reads it, of the second PyTorch's kernel alone is heard."""
    model, matrices = Model(), []
    with torch.no_grad(), regard.tap(model, heads=[(0, head) for head in heads], queries="new") as tap:
        for _ in range(2):
            model(q, k, **options)
    assert len(tap.rows) == 2 * q.shape[2]
    for rows in (tap.rows[: q.shape[2]], tap.rows[q.shape[2] :]):
        assert [row.position for row in rows] == list(range(q.shape[2]))
        wide = [functional.pad(row.weights, (0, k.shape[2] - row.weights.shape[-1])) for row in rows]
        matrices.append(torch.stack(wide, 2))
    return matrices


def check(matrices: list[Tensor], exact: Tensor, most: float = 1e-6) -> None:
    for weights in matrices:
        assert weights.shape == exact.shape
        assert (weights - exact).abs().max() < most
        assert torch.equal(weights == 0, exact == 0)


def padded(n: int) -> tuple[Tensor, Tensor, Tensor | float]:
    visible = torch.ones(2, 1, 1, n, dtype=torch.bool)
    visible[1, ..., : n // 2] = False
    return visible, visible, 0.0


def boolean(*shape: int) -> tuple[Tensor, Tensor, Tensor | float]:
    visible = drawn(*shape, seed=2) > 0
    return visible, visible, 0.0


def additive(n: int) -> tuple[Tensor, Tensor, Tensor | float]:
    visible, bias = drawn(2, 1, n, n, seed=5) > 0, drawn(2, 1, n, n, seed=4)
    return bias.masked_fill(~visible, -torch.inf), visible, bias.double()


def window(n: int) -> tuple[Tensor, Tensor, Tensor | float]:
    visible = torch.ones(2, 1, n, n, dtype=torch.bool).tril().triu(-7)
    return torch.where(visible, 0.0, LOWEST), visible, 0.0


MASKS: dict[str, Callable[[int], tuple[Tensor | None, Tensor, Tensor | float]]] = {
    "none": lambda _: (None, torch.tensor([True]), 0.0),
    "left padding": padded,
    "of each head": lambda n: boolean(2, 6, n, n),
    "for all sequences": lambda n: boolean(n, n),
    "of heads alone": lambda n: boolean(6, n, n),
    "additive": additive,
    "window": window,
}


def test_rows_are_those_of_the_formula_for_every_mask_and_any_heads() -> None:
    for case in sweep(itertools.product(MASKS, CHOSEN, [1, 9, 130])):
        with case as (name, chosen, n):
            heads = CHOSEN[chosen]
            q, k = drawn(2, 6, n, 20), drawn(2, 3, n, 20, seed=1)
            mask, visible, bias = MASKS[name](n)
            check(tapped(q, k, heads, attn_mask=mask), formula(q, k, visible, bias)[:, list(heads)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_rows_of_every_type_are_computed_in_float32_or_wider(dtype: torch.dtype) -> None:
    q, k = drawn(1, 4, 70, 16).to(dtype), drawn(1, 2, 70, 16, seed=1).to(dtype)
    matrices = tapped(q, k, (3, 0), is_causal=True)
    check(matrices, formula(q, k, torch.ones(70, 70, dtype=torch.bool).tril())[:, [3, 0]])
    assert {one.dtype for one in matrices} == {torch.promote_types(dtype, torch.float32)}


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "heads behind keys": lambda k: k.transpose(1, 2).contiguous().transpose(1, 2),
    "a part of a static cache": lambda k: torch.cat([k, drawn(*k.shape, seed=9)], 2)[:, :, : k.shape[2]],
    "a part of wider rows": lambda k: torch.cat([k, k], 3)[..., : k.shape[3]],
    "numbers of a key apart": lambda k: k.mT.contiguous().mT,
    "one sequence for all beams": lambda k: k[:1].expand(len(k), -1, -1, -1),
    "sequences in another order": lambda k: k[[1, 0, 1]],
}


def test_tensors_may_lie_in_memory_as_they_like() -> None:
    for case in sweep(LAYOUTS):
        with case as layout:
            k = LAYOUTS[layout](drawn(3, 2, 70, 17, seed=1))
            q = drawn(3, 70, 4, 17).transpose(1, 2)
            check(tapped(q, k, (3, 1), scale=-0.7), formula(q, k, torch.tensor([True]), scale=-0.7)[:, [3, 1]])


def test_rows_that_see_nothing_are_zero() -> None:
    q, k = drawn(1, 1, 9, 8), drawn(1, 1, 9, 8, seed=1)
    visible = torch.ones(9, 9, dtype=torch.bool).tril()
    visible[4] = False
    for case in sweep(["boolean", -torch.inf, LOWEST, -9999.0]):
        with case as lowest:
            mask = visible if lowest == "boolean" else torch.zeros(9, 9).masked_fill(~visible, lowest)
            check(tapped(q, k, attn_mask=mask), formula(q, k, visible))


def test_low_scores_without_a_mask_hide_no_key() -> None:
    q, k = drawn(1, 1, 70, 8), drawn(1, 1, 70, 8, seed=1)
    q[..., 0], k[..., 0] = 100.0, -100.0  # −10,000 in all scores, of which float32 keeps three decimals
    check(tapped(q, k, scale=1.0), formula(q, k, torch.tensor([True]), scale=1.0), 5e-3)


def test_nan_in_keys_that_a_mask_hides_stays_there() -> None:
    q, k = drawn(1, 1, 9, 8), drawn(1, 1, 9, 8, seed=1)
    hidden = torch.arange(9) % 3 == 1
    clean = formula(q, k, ~hidden)
    k[:, :, hidden] = torch.nan
    check(tapped(q, k, attn_mask=~hidden.expand(9, 9)), clean)
    assert all(one.isnan().all() for one in tapped(q, k))
