"""What holds for attention of any backend, without another computation to compare with."""

import itertools

import pytest
import torch

import regard
from backend_lists import GENERAL
from regard import masks
from regard.backends.native import Native
from regard.normalizers import Sigmoid, Softmax
from regard.problem import Problem
from regard.scores import ScaledDot, Shaw
from sweeps import sweep

HEADS, KEYS = 2, 200  # two blocks of 128, the second one short
NARROW = torch.float32, torch.float16, torch.bfloat16


def _randn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def _inputs(keys=KEYS, dtype=torch.float64):
    return tuple(_randn(2, HEADS, keys, 6, seed=s, dtype=dtype) for s in range(3))


def _run(backend, q, k, v, **options):
    """The door, with the backend by name; None where it refuses. The native kernels take float32 at most."""
    if backend.name == "native":
        q, k, v = (x.float() if x.dtype == torch.float64 else x for x in (q, k, v))
    if backend.refuses(Problem.of(q, k, v, **options)) is not None:
        return None
    return regard.attention(q, k, v, backend=backend.name, **options)


every_backend = pytest.mark.parametrize("backend", [*GENERAL, Native()], ids=lambda one: one.name)
OPTIONS = {
    "plain": {},
    "scale": {"scale": -0.5},
    "softcap": {"score": ScaledDot(softcap=1.0)},
    "sink": {"normalizer": Softmax(torch.tensor([0.3, -1.0], dtype=torch.float64))},
    "sigmoid": {"normalizer": Sigmoid()},
}


@every_backend
def test_keys_may_come_in_any_order_with_their_values(backend):
    for case in sweep(OPTIONS):
        with case as name:
            options = OPTIONS[name]
            q, k, v = _inputs()
            order = torch.randperm(KEYS, generator=torch.Generator().manual_seed(5))
            ours = _run(backend, q, k, v, **options)
            if ours is not None:
                torch.testing.assert_close(_run(backend, q, k[:, :, order], v[:, :, order], **options), ours)


@every_backend
def test_queries_do_not_know_each_other(backend):
    for case in sweep(OPTIONS):
        with case as name:
            options = OPTIONS[name]
            q, k, v = _inputs()
            ours = _run(backend, q, k, v, **options)
            if ours is not None:
                for rows in (slice(0, 1), slice(70, 150), slice(199, 200)):
                    torch.testing.assert_close(_run(backend, q[:, :, rows], k, v, **options), ours[:, :, rows])


@every_backend
def test_values_are_weighted_linearly(backend):
    for case in sweep(OPTIONS):
        with case as name:
            options = OPTIONS[name]
            q, k, v = _inputs()
            other = _randn(*v.shape, seed=4)
            ours = [_run(backend, q, k, x, **options) for x in (v, other, 2 * v - 3 * other)]
            if ours[0] is not None:
                torch.testing.assert_close(2 * ours[0] - 3 * ours[1], ours[2])


@every_backend
def test_a_constant_in_all_scores_of_a_row_changes_nothing(backend):
    q, k, v = _inputs()
    ours = _run(backend, q, k, v, mask=masks.Causal())
    shifted = _run(backend, q, k, v, mask=masks.Causal(), bias=_randn(1, 1, KEYS, 1, seed=3) * 20)
    torch.testing.assert_close(shifted, ours)


@every_backend
def test_where_all_keys_are_alike_the_output_is_the_mean_of_the_visible_values(backend):
    q, k, v = _inputs()
    ours = _run(backend, q, torch.ones_like(k), v, mask=masks.Causal())
    mean = v.cumsum(2) / torch.arange(1, KEYS + 1)[:, None]
    torch.testing.assert_close(ours, mean.to(ours.dtype))


@every_backend
def test_large_scores_stay_finite_and_pick_the_largest(backend):
    q, k, v = _inputs()
    q, k, v = (x.clone().requires_grad_() for x in (1e4 * q, 1e4 * k, v))
    ours = _run(backend, q, k, v)
    largest = v.gather(2, (q @ k.mT).argmax(-1)[..., None].expand_as(v))
    torch.testing.assert_close(ours, largest.to(ours.dtype))
    assert all(bool(one.isfinite().all()) for one in torch.autograd.grad(ours.sum(), (q, k, v)))


@every_backend
def test_the_weights_of_a_softmax_sum_to_one(backend):
    for case in sweep(["none", "causal", "window", "random"]):
        with case as seen:
            q, k, v = _inputs()
            mask = {
                "none": None,
                "causal": masks.Causal(),
                "window": masks.Window(left=3, right=5),
                "random": torch.rand(KEYS, KEYS, generator=torch.Generator().manual_seed(0)) < 0.3,
            }[seen]
            # The sum of the weights is the output for values of 1, also where no weights are returned.
            sums = _run(backend, q, k, torch.ones_like(v), mask=mask)
            torch.testing.assert_close(sums, torch.ones_like(sums))
            both = _run(backend, q, k, v, mask=mask, return_weights=True)
            if both is None:
                assert backend.name in ("sdpa", "strips", "native")
                continue
            weights = both[1]
            assert (weights >= 0).all()
            torch.testing.assert_close(weights.sum(-1), torch.ones(2, HEADS, KEYS, dtype=torch.float64))
            if mask is not None:
                assert (weights[~Problem.of(q, k, v, mask=mask).visible().expand_as(weights)] == 0).all()


@every_backend
def test_two_parts_of_the_keys_merge_by_log_sum_exp_to_the_whole(backend):
    for case in sweep(itertools.product(["none", "mask", "bias"], [1, 77, 128, 190])):
        with case as (sides, cut):
            q, k, v = _inputs()
            seen = torch.rand(KEYS, KEYS, generator=torch.Generator().manual_seed(1)) < 0.4
            seen[5] = seen[6, :cut] = seen[7, cut:] = False  # rows that see nothing in all, in one, in the other
            bias = _randn(KEYS, KEYS, seed=2)

            def options(part, seen=seen, bias=bias, sides=sides):
                given = {"mask": {"mask": seen[:, part]}, "bias": {"bias": bias[:, part]}}.get(sides, {})
                return {"return_lse": True, **given}

            whole = _run(backend, q, k, v, **options(slice(0, KEYS)))
            if whole is None:
                assert backend.name == "sdpa"
                continue
            parts = [
                _run(backend, q, k[:, :, part], v[:, :, part], **options(part))
                for part in (slice(0, cut), slice(cut, KEYS))
            ]
            lse = torch.stack([one[1] for one in parts])
            total = lse.logsumexp(0)
            torch.testing.assert_close(total, whole[1])
            share = (lse - total.masked_fill(total == -torch.inf, 0)).exp()[..., None]
            torch.testing.assert_close((share * torch.stack([one[0] for one in parts])).sum(0), whole[0])
            if sides == "mask":
                assert (whole[1][:, :, 5] == -torch.inf).all()


@every_backend
def test_two_parts_of_the_keys_add_up_for_a_sigmoid(backend):
    q, k, v = _inputs()
    given = {"normalizer": Sigmoid(shift=-2.0)}
    whole = _run(backend, q, k, v, **given)
    if whole is None:
        assert backend.name in ("sdpa", "native")
        return
    parts = [_run(backend, q, k[:, :, part], v[:, :, part], **given) for part in (slice(0, 130), slice(130, KEYS))]
    torch.testing.assert_close(parts[0] + parts[1], whole)


@every_backend
def test_nothing_leaks_past_a_mask(backend):
    """Whatever is hidden may be anything, infinite too for the values' gradients, and is not learned from."""
    for case in sweep(itertools.product(["mask", "bias", "documents"], [torch.float64, torch.float32, torch.bfloat16])):
        with case as (hidden, dtype):
            q, k, v = (x.requires_grad_() for x in _inputs(dtype=dtype))
            ids = torch.arange(KEYS) // 70
            given = {
                "mask": {"mask": masks.Prefix(131)},
                "bias": {"bias": torch.where(torch.arange(KEYS) < 131, 0.5, -torch.inf)[None].to(dtype)},
                "documents": {"mask": masks.Document(torch.where(torch.arange(KEYS) < 131, ids, -1))},
            }[hidden]
            ours = _run(backend, q, k, v, **given)
            grads = torch.autograd.grad(ours.double().square().sum(), (k, v))
            for grad in grads:
                assert (grad[:, :, 131:] == 0).all()
                assert (grad[:, :, :131] != 0).any()
            with torch.no_grad():
                k[:, :, 131:], v[:, :, 131:] = 1e3 * k[:, :, 131:], -7.0
            assert torch.equal(_run(backend, q, k, v, **given), ours)


@every_backend
def test_a_row_that_sees_nothing_gives_nothing_and_learns_nothing(backend):
    ways, dtypes = ("plain", "sink", "softcap", "sigmoid", "value term", "dropout"), (torch.float64, *NARROW)
    for case in sweep(itertools.product(ways, dtypes)):
        with case as (how, dtype):
            q, k, v = (x.requires_grad_() for x in _inputs(dtype=dtype))
            table = _randn(5, 6, seed=7, dtype=dtype)
            given = {
                "sink": {"normalizer": Softmax(torch.zeros(HEADS, dtype=dtype))},
                "softcap": {"score": ScaledDot(softcap=1.0)},
                "sigmoid": {"normalizer": Sigmoid()},
                "value term": {"score": Shaw(table, table)},
                "dropout": {"dropout": 0.2},
            }.get(how, {})
            rows = torch.tensor([0, 127, 128, 199])
            seen = torch.ones(KEYS, KEYS, dtype=torch.bool)
            seen[rows] = False
            ours = _run(backend, q, k, v, mask=seen, **given)
            if ours is None:
                continue
            assert (ours[:, :, rows] == 0).all()
            assert (ours[:, :, 1] != 0).any()
            grads = torch.autograd.grad(ours[:, :, rows].sum(), (q, k, v), retain_graph=True)
            assert all(bool((one == 0).all()) for one in grads)
            assert all(
                bool(one.isfinite().all()) for one in torch.autograd.grad(ours.double().square().sum(), (q, k, v))
            )


@every_backend
def test_a_call_in_which_nobody_sees_anything_is_all_zeros(backend):
    q, k, v = (x.requires_grad_() for x in _inputs())
    ours = _run(backend, q, k, v, mask=masks.MaskMod(lambda b, h, i, j: (i < 0) & (j >= 0)))
    assert (ours == 0).all()
    assert all(bool((one == 0).all()) for one in torch.autograd.grad(ours.sum(), (q, k, v)))


@every_backend
def test_rows_do_not_depend_on_what_else_is_in_the_batch(backend):
    q, k, v = _inputs()
    seen = masks.Causal() & masks.Window(50)
    both = _run(backend, q, k, v, mask=seen)
    for at in range(2):
        alone = _run(backend, q[at : at + 1], k[at : at + 1], v[at : at + 1], mask=seen)
        torch.testing.assert_close(alone, both[at : at + 1])
