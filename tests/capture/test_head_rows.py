"""The compiled loop of a tap computes the rows that PyTorch's operators do; where it does not read a call, they run."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from regard.backends.numba_loops import object_code
from regard.capture.compiled_rows import weights_by_loop
from regard.capture.row_weights import weights_of_sdpa
from sweeps import sweep

pytest.importorskip("numba")

HEADS = {"neighbours": (2, 3), "any order": (5, 0, 4), "all": tuple(range(6)), "one": (1,)}


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """As in a process that has found the loops kept, on a processor on which they were measured; calls are counted."""
    calls: list[int] = []
    here = object_code.loops()

    def counting(job: Any) -> None:
        calls.append(1)
        here.functions["weigh_rows"](job)

    counted = object_code.Loops(here.addresses, {**here.functions, "weigh_rows": counting}, here.engine)
    monkeypatch.setattr(object_code, "_loops", counted)
    monkeypatch.setattr(object_code, "_ready", True)
    monkeypatch.setattr(object_code, "processor", lambda: object_code.Processor("", frozenset({"avx512f"})))
    return calls


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def formula(q: Tensor, k: Tensor, visible: Tensor, bias: Tensor | float = 0.0, scale: float | None = None) -> Tensor:
    """The whole matrix in float64; rows that see nothing are 0."""
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1).double()
    scores = q.double() @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale) + bias
    return scores.masked_fill(~visible, -torch.inf).softmax(-1).nan_to_num(0.0)


def check(loop: list[int], ours: Tensor, plain: Tensor, dense: Tensor) -> None:
    """Compare the loop's weights with those of PyTorch's operators and of the formula."""
    assert loop == [1]
    assert ours.shape == plain.shape == dense.shape
    assert (ours - plain).abs().max() < 1e-6
    assert (ours - dense).abs().max() < 1e-6
    assert torch.equal(ours == 0, dense == 0)


def both(monkeypatch: pytest.MonkeyPatch, *given: Any, **more: Any) -> tuple[Tensor, Tensor]:
    """The weights by the loop, and by PyTorch's operators."""
    ours = weights_of_sdpa(*given, **more)
    with monkeypatch.context() as away:
        away.setattr(object_code, "_ready", False)
        return ours, weights_of_sdpa(*given, **more)


MASKS = ["none", "causal", "left padding", "of each head", "for all sequences", "of heads alone", "additive", "window"]


def test_rows_are_those_of_pytorch_and_of_the_formula(loop: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    for case in sweep(itertools.product(MASKS, HEADS, [(1, 1), (1, 63), (1, 130), (5, 64), (130, 130)])):
        with case as (mask, chosen, (queries, keys)):
            loop.clear()
            q, k = drawn(2, 6, queries, 20), drawn(2, 3, keys, 20, seed=1)
            rows = slice(max(0, queries - 3), queries)
            visible = torch.ones(2, 6, queries, keys, dtype=torch.bool)
            bias: Tensor | float = 0.0
            given: Tensor | None = None
            if mask == "causal":
                visible = visible.tril()
            elif mask == "left padding":
                visible[1, ..., : keys // 2] = False
                given = visible[:, :1, :1]
            elif mask == "of each head":
                given = visible = drawn(2, 6, queries, keys, seed=2) > 0
            elif mask == "for all sequences":
                given = drawn(queries, keys, seed=3) > 0
                visible = given.expand_as(visible)
            elif mask == "of heads alone":
                given = drawn(6, queries, keys, seed=3) > 0
                visible = given.expand_as(visible)
            elif mask == "additive":
                given = drawn(2, 1, queries, keys, seed=4).masked_fill(
                    drawn(2, 1, queries, keys, seed=5) > 0, -torch.inf
                )
                visible, bias = (given > -torch.inf).expand_as(visible), given.double().clamp_min(-1e9)
            elif mask == "window":
                visible = visible.tril(keys - queries).triu(keys - queries - 7)
                given = torch.where(visible[:, :1], 0.0, torch.finfo(torch.float32).min)
            ours, plain = both(monkeypatch, q, k, rows, HEADS[chosen], mask=given, is_causal=mask == "causal")
            check(loop, ours, plain, formula(q, k, visible, bias)[:, list(HEADS[chosen]), rows])


LAYOUTS = {
    "heads behind keys": lambda k: k.transpose(1, 2).contiguous().transpose(1, 2),
    "a part of a static cache": lambda k: torch.cat([k, drawn(*k.shape, seed=9)], 2)[:, :, : k.shape[2]],
    "a part of wider rows": lambda k: torch.cat([k, k], 3)[..., : k.shape[3]],
    "one sequence for all beams": lambda k: k[:1].expand(len(k), -1, -1, -1),
    "sequences in another order": lambda k: k[[1, 0, 1]],
}


def test_tensors_are_read_where_they_lie(loop: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    for case in sweep(LAYOUTS):
        with case as layout:
            loop.clear()
            k = LAYOUTS[layout](drawn(3, 2, 70, 17, seed=1))
            q = drawn(3, 1, 4, 17).transpose(1, 2)
            q = q.expand(len(k), -1, -1, -1)
            ours, plain = both(monkeypatch, q, k, slice(0, 1), (3, 1), scale=-0.7)
            check(loop, ours, plain, formula(q, k, torch.tensor([True]), scale=-0.7)[:, [3, 1]])


def test_what_the_loop_does_not_read_is_left_to_pytorch(loop: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    q, k = drawn(1, 2, 9, 8), drawn(1, 2, 9, 8, seed=1)
    row, heads = slice(8, 9), (0, 1)
    seen = torch.tensor([True])

    def by_loop(q: Tensor = q, k: Tensor = k, rows: slice = row, mask: Tensor | None = None) -> Tensor | None:
        return weights_by_loop(q, k, rows, heads, mask, is_causal=False, scale=8**-0.5)

    assert by_loop() is not None
    assert by_loop(rows=slice(0, 9)) is None  # a product of matrices
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        assert by_loop(q.to(dtype), k.to(dtype)) is None
        ours = weights_of_sdpa(q.to(dtype), k.to(dtype), row, heads)
        assert (ours - formula(q.to(dtype), k.to(dtype), seen)[:, :, row]).abs().max() < 1e-5
    across = k.mT.contiguous().mT  # the numbers of a key are not adjacent
    assert by_loop(k=across) is None
    assert (
        torch.equal(weights_of_sdpa(q, across, row, heads), weights_of_sdpa(q, k, row, heads))
        or (weights_of_sdpa(q, across, row, heads) - weights_of_sdpa(q, k, row, heads)).abs().max() < 1e-6
    )
    for mask in (torch.ones(1, 1, 9, 1, dtype=torch.bool), torch.zeros(9, 9).T, torch.zeros(9, 9, dtype=torch.float64)):
        assert by_loop(mask=mask) is None or mask.stride(-1) == 1
    assert by_loop(q.as_subclass(torch.nn.Parameter), k) is None
    loop.clear()
    monkeypatch.setattr(object_code, "processor", lambda: object_code.Processor("", frozenset({"avx2"})))
    assert by_loop() is None
    monkeypatch.setattr(object_code, "_ready", False)
    assert by_loop() is None
    assert loop == []


def test_rows_that_see_nothing_are_zero_and_nan_in_hidden_keys_stays_there(
    loop: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k = drawn(1, 1, 1, 8), drawn(1, 1, 70, 8, seed=1)
    k[:, :, ::3] = torch.nan
    hidden = torch.arange(70) % 3 == 0
    bias = torch.zeros(1, 70).masked_fill(hidden, -torch.inf)
    for mask, is_nan in ((~hidden[None], False), (torch.zeros(1, 70, dtype=torch.bool), False), (bias, True)):
        ours, plain = both(monkeypatch, q, k, slice(0, 1), (0,), mask=mask)
        torch.testing.assert_close(ours, plain, atol=1e-6, rtol=0, equal_nan=True)
        assert bool(ours.isnan().all()) == is_nan == bool(ours.isnan().any())
        assert is_nan or not ours[..., ~mask[0]].any()
    ours, plain = both(monkeypatch, q, k, slice(0, 1), (0,), is_causal=True)
    assert ours.isnan().all()
    assert plain.isnan().all()
    for mask in (torch.full((1, 70), torch.finfo(torch.float32).min), torch.full((1, 70), -9000.0 - 99)):
        ours, plain = both(monkeypatch, q, drawn(1, 1, 70, 8), slice(0, 1), (0,), mask=mask)
        assert not ours.any()
        assert not plain.any()
    ours, plain = both(monkeypatch, 1e4 * q, drawn(1, 1, 70, 8), slice(0, 1), (0,), scale=-5.0)
    torch.testing.assert_close(ours, plain, atol=1e-6, rtol=0)  # low scores without a mask are no hidden keys
    assert len(loop) == 7


@pytest.mark.parametrize("left", [0, 3])
def test_a_tapped_generation_has_the_same_rows_and_tokens_with_the_loop(
    loop: list[int], monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 99, "hidden_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"num_key_value_heads": 2, "intermediate_size": 64, "head_dim": 10, "sliding_window": 6}
    torch.manual_seed(0)
    model = transformers.MistralForCausalLM(transformers.MistralConfig(**sizes)).eval()
    ids = torch.randint(3, 99, (2, 5), generator=torch.Generator().manual_seed(0))
    seen = torch.ones_like(ids)
    seen[1, :left] = 0
    asked = {"max_new_tokens": 6, "do_sample": False, "num_beams": 2, "eos_token_id": None, "pad_token_id": 0}

    def generated() -> tuple[Tensor, tuple[Any, ...]]:
        with regard.tap(model, heads=["1.3", "0.1", "0.0"]) as tap:
            text = model.generate(ids, attention_mask=seen, **asked)
        return text, tap.rows

    text, rows = generated()
    assert len(loop) == 11  # of two layers in six steps, the first call is read as a watch reads it
    with monkeypatch.context() as away:
        away.setattr(object_code, "_ready", False)
        plain, theirs = generated()
    assert len(loop) == 11
    assert torch.equal(text, plain)
    for ours, other in zip(rows, theirs, strict=True):
        assert (ours.weights - other.weights).abs().max() < 1e-6
        assert torch.equal(ours.weights == 0, other.weights == 0)
