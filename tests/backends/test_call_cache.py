"""Calls of sizes that were seen before skip the checks: they give what the checked call gives, or do not skip."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
import torch.utils.checkpoint

import regard
from regard import masks
from regard.backends import call_cache
from regard.backends.native import choice
from regard.errors import InputError
from regard.problem import Problem
from sweeps import sweep
from tiers import slow_but


def tensors(heads=4, kv_heads=4, queries=6, keys=6, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(2, h, n, 16, generator=generator, dtype=torch.float64).to(dtype)
        for h, n in ((heads, queries), (kv_heads, keys), (kv_heads, keys))
    ]


def by_hand(q, k, v, visible, scale, bias=0.0):
    """The formula in numpy, float64."""
    q, k, v = (one.double().numpy() for one in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    scores = np.where(visible, scale * q @ k.swapaxes(-1, -2) + bias, -np.inf)
    peak = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(peak), peak, 0.0))  # a row that sees nothing gives 0
    return (weights / np.maximum(weights.sum(-1, keepdims=True), 1e-300)) @ v


MASKS = {
    "all": (lambda n, m: None, lambda i, j, n, m: np.ones_like(i * j, bool)),
    "causal": (lambda n, m: masks.Causal(), lambda i, j, n, m: j <= i + m - n),
    "causal from the start": (lambda n, m: masks.Causal(align="start"), lambda i, j, n, m: j <= i),
    "causal, bound": (lambda n, m: masks.Causal().bind(n, m), lambda i, j, n, m: j <= i + m - n),
    "window": (
        lambda n, m: masks.Causal() & masks.Window(3),
        lambda i, j, n, m: (j <= i + m - n) & (i + m - n - j < 3),
    ),
    "wider window": (lambda n, m: masks.Window(5), lambda i, j, n, m: (j <= i + m - n) & (i + m - n - j < 5)),
    "window, bound": (
        lambda n, m: masks.Window(left=1, right=1).bind(n, m, 2),
        lambda i, j, n, m: abs(i + 2 - j) <= 1,
    ),
    "hidden window": (lambda n, m: ~masks.Window(2), lambda i, j, n, m: (j > i + m - n) | (i + m - n - j >= 2)),
    "padding": (lambda n, m: masks.Padding(torch.arange(m)[None].expand(2, -1) < 4), lambda i, j, n, m: j < 4),
    "causal, bound elsewhere": (lambda n, m: masks.Causal().bind(n, m, 1), lambda i, j, n, m: j <= i + 1),
}


def test_calls_of_one_size_that_differ_otherwise_are_never_taken_for_one_another():
    call_cache._KEPT.clear()
    sizes = [(6, 6), (3, 6), (1, 6)]
    for _, (n, m), scale, kv_heads, name in itertools.product(range(2), sizes, (None, 0.5, 2.0), (4, 2), MASKS):
        q, k, v = tensors(queries=n, keys=m, kv_heads=kv_heads)
        mask, visible = MASKS[name]
        expected = by_hand(q, k, v, visible(np.arange(n)[:, None], np.arange(m), n, m), scale or 16**-0.5)
        found = regard.attention(q, k, v, mask=mask(n, m), scale=scale)
        np.testing.assert_allclose(found.numpy(), expected, atol=2e-6)
    assert len(call_cache._KEPT) > 20


def test_a_mask_that_is_a_value_is_checked_planned_and_chosen_for_once(monkeypatch):
    monkeypatch.setattr(choice, "_loaded", lambda: "")  # training of the native kernels is prepared anew each time
    generator = torch.Generator().manual_seed(1)
    short, long = (torch.randn(3, 1, 2, n, 16, generator=generator) for n in (6, 1100))
    of = Problem.of
    monkeypatch.setattr(Problem, "of", classmethod(lambda _, *given, **named: made.append(1) or of(*given, **named)))
    for q, mask in (
        (short, lambda: masks.Causal() & masks.Window(40)),
        (short, lambda: masks.Window(7)),
        (long, lambda: masks.Causal()),
    ):
        call_cache._KEPT.clear()
        made: list[int] = []
        leaves = [one.clone().requires_grad_() for one in q]
        first = regard.attention(*leaves, mask=mask())
        gradients = torch.autograd.grad(first.square().sum(), leaves)
        again = regard.attention(*leaves, mask=mask())
        assert len(made) == 1
        assert torch.equal(first, again)
        for one, other in zip(gradients, torch.autograd.grad(again.square().sum(), leaves), strict=True):
            assert torch.equal(one, other)


def test_a_mask_of_tensors_is_known_by_itself_and_refused_once_it_is_changed():
    q, k, v = tensors()
    flags = torch.ones(2, 6, dtype=torch.bool)
    for hidden in range(1, 5):  # each at the address of the one before, perhaps
        flags[:, hidden] = False
        mask = masks.Padding(flags)
        for _ in range(2):
            expected = by_hand(q, k, v, flags[0].numpy()[None], 16**-0.5)
            np.testing.assert_allclose(regard.attention(q, k, v, mask=mask).numpy(), expected, atol=2e-6)
        del mask
    mask = masks.Padding(flags)
    regard.attention(q, k, v, mask=mask)
    mask.attention_mask[:, 0] = False
    with pytest.raises(InputError, match="changed in place"):
        regard.attention(q, k, v, mask=mask)


def test_a_mask_that_may_change_without_a_trace_is_asked_each_time():
    q, k, v = tensors()
    seen = [torch.eye(6, dtype=torch.bool), torch.ones(6, 6, dtype=torch.bool)]
    mask = masks.MaskMod(lambda batch, head, i, j: seen[0][i, j])
    torch.testing.assert_close(regard.attention(q, k, v, mask=mask), v)
    seen[0] = seen[1]
    torch.testing.assert_close(regard.attention(q, k, v, mask=mask), regard.attention(q, k, v))


@pytest.mark.parametrize(
    ("learns", "dtype"),
    slow_but(
        [(True, torch.float32)],
        [(learns, dtype) for learns in (False, True) for dtype in (torch.float32, torch.bfloat16)],
    ),
)
def test_calls_with_a_bias_of_the_distance_are_known_by_it(learns, dtype):
    call_cache._KEPT.clear()
    own = torch.tensor([0.125, 0.0625, 0.25, 0.5])
    makes = {
        "none": (lambda: None, [0.0] * 4),
        "ALiBi": (
            lambda: regard.positions.ALiBi(4),
            [2**-2.0, 2**-4.0, 2**-6.0, 2**-8.0],
        ),  # of four heads, as in the paper
        "both sides": (lambda: regard.positions.ALiBi(4, bidirectional=True), [2**-2.0, 2**-4.0, 2**-6.0, 2**-8.0]),
        "slopes of their own": (lambda: regard.positions.ALiBi(4, own), own.tolist()),
    }
    for _, (n, m), scale, name in itertools.product(range(2), [(6, 6), (1, 6), (1, 300)], (None, 0.5), MASKS):
        q, k, v = tensors(queries=n, keys=m, dtype=dtype)
        mask, visible = MASKS[name]
        i, j = np.arange(n)[:, None] + m - n, np.arange(m)
        if "bound" in name:
            i = i - (m - n) + {"causal, bound": m - n, "window, bound": 2, "causal, bound elsewhere": 1}[name]
        for kind, (make, slopes) in makes.items():
            far = np.abs(i - j) if kind == "both sides" else i - j
            added = -np.array(slopes)[:, None, None] * far
            bias = make()
            expected = by_hand(q, k, v, visible(np.arange(n)[:, None], j, n, m), scale or 16**-0.5, added)
            leaf = q.clone().requires_grad_(learns)
            found = regard.attention(leaf, k, v, mask=mask(n, m), bias=bias, scale=scale)
            np.testing.assert_allclose(
                found.detach().double().numpy(),
                expected,
                atol=2e-5 if dtype == torch.float32 else 2e-2,  # scores of -150 are rounded by 8e-6
            )


def test_a_bias_that_holds_tensors_is_read_in_each_call():
    q, k, v = tensors()
    bias = regard.positions.T5Bias(torch.zeros(32, 4), bidirectional=True)
    mask = masks.Causal()
    plain = regard.attention(q, k, v, mask=mask)
    torch.testing.assert_close(regard.attention(q, k, v, mask=mask, bias=bias), plain)
    bias.table.data[0] = 50.0  # each query's own place; PyTorch does not count the change
    torch.testing.assert_close(regard.attention(q, k, v, mask=mask, bias=bias), v)


def test_a_bias_written_in_python_is_asked_each_time():
    @dataclasses.dataclass(frozen=True)
    class Own(regard.positions.Bias):
        def __call__(self, batch, head, i, j):
            return torch.where(i == j, here[0], 0.0)

    here = [0.0]
    q, k, v = tensors()
    torch.testing.assert_close(regard.attention(q, k, v, bias=Own()), regard.attention(q, k, v))
    here[0] = 1e4
    torch.testing.assert_close(regard.attention(q, k, v, bias=Own()), v)


@pytest.mark.parametrize("mask", ["Window(40)", "Causal() & Window(40)", "Sinks(2) | Window(40)", "~Window(40)"])
def test_a_decoding_call_over_some_of_the_keys_is_known(mask, monkeypatch):
    mask = eval(mask, vars(masks))
    made: list[int] = []
    of = Problem.of
    monkeypatch.setattr(Problem, "of", classmethod(lambda _, *given, **named: made.append(1) or of(*given, **named)))
    call_cache._KEPT.clear()
    for seed in range(3):
        q, k, v = tensors(queries=1, keys=3000, seed=seed)
        visible = mask.bind(1, 3000).dense()[0, 0].numpy()
        expected = by_hand(q, k, v, visible, 0.25)
        blocks = np.pad(visible[0], (0, -3000 % 16)).reshape(-1, 16)
        hidden = torch.from_numpy(~blocks.any(1).repeat(16)[:3000])
        k[:, :, hidden], v[:, :, hidden] = torch.nan, torch.nan  # keys of blocks that are hidden are not read
        found = regard.attention(q, k, v, mask=mask)
        np.testing.assert_allclose(found.numpy(), expected, atol=2e-6)
    assert len(made) == 1


def test_a_kernel_that_somebody_has_put_in_its_place_is_called_and_not_kept(monkeypatch):
    q, k, v = tensors()
    call_cache._KEPT.clear()
    own = torch.nn.functional.scaled_dot_product_attention
    for _ in range(2):
        for calls in ([], None):
            with monkeypatch.context() as patching:
                if calls is not None:
                    patching.setattr(
                        torch.nn.functional,
                        "scaled_dot_product_attention",
                        lambda *given, calls=calls, **named: calls.append(1) or own(*given, **named),
                    )
                regard.attention(q, k, v, mask=masks.Causal())
            assert calls is None or calls == [1]


def test_the_second_call_is_the_first_to_the_bit():
    q, k, v = tensors()
    call_cache._KEPT.clear()
    for mask in (None, masks.Causal()):
        first, second = (regard.attention(q, k, v, mask=mask) for _ in range(2))
        assert torch.equal(first, second)


def test_what_is_wrong_is_refused_behind_a_right_call_too():
    q, k, v = tensors()
    regard.attention(q, k, v)
    with pytest.raises(InputError, match="`v` must have a value"):
        regard.attention(q, k, v[:, :, :-1])
    with pytest.raises(InputError, match="one dtype"):
        regard.attention(q, k, v.double())
    with pytest.raises(InputError, match="`scale` must be"):
        regard.attention(q, k, v, scale=float("nan"))
    with pytest.raises(InputError, match="bound to"):
        regard.attention(q, k, v, mask=masks.Causal().bind(5, 6))
    with pytest.raises(InputError, match="`dropout`"):
        regard.attention(q, k, v, dropout=1.5)


def test_a_call_that_asks_for_more_is_not_taken_for_the_usual_one():
    q, k, v = tensors()
    plain = regard.attention(q, k, v)
    assert isinstance(regard.attention(q, k, v, return_weights=True), tuple)
    assert isinstance(regard.attention(q, k, v, return_lse=True), tuple)
    capped = regard.attention(q, k, v, score=regard.scores.ScaledDot(softcap=0.1))
    assert not torch.allclose(plain, capped)


def test_a_watched_call_is_seen_though_it_was_made_before():
    q, k, v = tensors()
    plain = regard.attention(q, k, v)

    class Model(torch.nn.Module):
        def forward(self, q, k, v):
            return regard.attention(q, k, v)

    model = Model()
    with regard.watch(model) as seen:
        again = model(q, k, v)
    assert torch.equal(plain, again)
    assert seen.weights(layer=0, head=0).shape == (2, 6, 6)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # PyTorch's, of its own kernel under vmap
def test_gradients_and_vmap_go_through_as_before():
    q, k, v = tensors()
    for _ in range(2):
        leaf = q.clone().requires_grad_()
        regard.attention(leaf, k, v, mask=masks.Causal()).sum().backward()
        assert leaf.grad is not None
    many = torch.func.vmap(lambda one: regard.attention(one, k, v))(torch.stack([q, 2 * q]))
    torch.testing.assert_close(many[1], regard.attention(2 * q, k, v))


def test_other_devices_are_not_asked_for_what_they_do_not_know():
    q = torch.empty(1, 2, 4, 8, device="meta")
    assert regard.attention(q, q, q).shape == q.shape


def test_what_is_remembered_has_an_end(monkeypatch):
    monkeypatch.setattr(call_cache, "_MOST", 3)
    call_cache._KEPT.clear()
    for n in range(1, 12):
        q, k, v = tensors(queries=n, keys=n)
        regard.attention(q, k, v)
        assert len(call_cache._KEPT) <= 3


def test_a_first_call_can_be_checkpointed():
    """Activation checkpointing computes again, by then as a known call, and refuses if that saves other tensors."""
    for case in sweep(itertools.product(MASKS, [1, 3, 6])):
        with case as (name, queries):
            call_cache._KEPT.clear()
            mask = MASKS[name][0](queries, 6)
            q, k, v = (one.requires_grad_() for one in tensors(queries=queries))
            found = torch.utils.checkpoint.checkpoint(
                lambda *given, mask=mask: regard.attention(*given, mask=mask), q, k, v, use_reentrant=False
            )
            (gradient,) = torch.autograd.grad(found.sum(), q)
            (expected,) = torch.autograd.grad(regard.attention(q, k, v, mask=mask, backend="reference").sum(), q)
            torch.testing.assert_close(gradient, expected)


def flags_of(seed, *shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) > 0.4


NEW_EACH_TIME = {
    "padding": lambda seed: (masks.Padding(flags_of(seed, 2, 6)), flags_of(seed, 2, 6)[:, None, None]),
    "causal padding": lambda seed: (
        masks.Causal() & masks.Padding(flags_of(seed, 2, 6)),
        flags_of(seed, 2, 6)[:, None, None] & torch.ones(6, 6).tril().bool(),
    ),
    "tensor": lambda seed: (flags_of(seed, 2, 1, 6, 6),) * 2,
    "matrix": lambda seed: (flags_of(seed, 6, 6),) * 2,
    "dense": lambda seed: (masks.Dense(flags_of(seed, 2, 4, 6, 6)), flags_of(seed, 2, 4, 6, 6)),
    "keys": lambda seed: (flags_of(seed, 2, 1, 1, 6),) * 2,
    "queries": lambda seed: (flags_of(seed, 2, 1, 6, 1),) * 2,
    "bound": lambda seed: (
        (masks.Causal() & masks.Padding(flags_of(seed, 2, 6))).bind(6, 6),
        flags_of(seed, 2, 6)[:, None, None] & torch.ones(6, 6).tril().bool(),
    ),
    "nothing": lambda seed: (masks.Padding(torch.zeros(2, 6).bool()), torch.zeros(2, 1, 1, 6).bool()),
}


def test_new_masks_of_the_same_sizes_are_computed_with_their_own_numbers():
    """Each mask is seen once, then twice, then a third time, in any order with others."""
    for case in sweep(itertools.product(NEW_EACH_TIME, [torch.float32, torch.bfloat16], [False, True])):
        with case as (name, dtype, learns):
            call_cache._KEPT.clear()
            made = {seed: NEW_EACH_TIME[name](seed) for seed in range(4)}
            for seed in (0, 1, 0, 0, 2, 2, 2, 1, 3, 0):
                mask, visible = made[seed]
                q, k, v = tensors(seed=seed, dtype=dtype)
                q.requires_grad_(learns)
                output = regard.attention(q, k, v, mask=mask)
                expected = by_hand(q.detach(), k, v, visible.numpy(), 16**-0.5)
                tolerance = 2e-6 if dtype == torch.float32 else 3e-2
                np.testing.assert_allclose(output.detach().double().numpy(), expected, atol=tolerance)


def test_masks_that_are_gone_are_not_taken_for_new_ones_at_their_addresses():
    for case in sweep(NEW_EACH_TIME):
        with case as name:
            call_cache._KEPT.clear()
            q, k, v = tensors()
            for seed in range(40):
                mask, visible = NEW_EACH_TIME[name](seed)
                for _ in range(1 + seed % 3):
                    output = regard.attention(q, k, v, mask=mask)
                np.testing.assert_allclose(output.numpy(), by_hand(q, k, v, visible.numpy(), 16**-0.5), atol=2e-6)
                del mask


def test_a_mask_with_tensors_that_is_used_again_is_prepared_and_one_that_is_new_is_not_planned(monkeypatch):
    q, k, v = tensors()
    call_cache._KEPT.clear()
    regard.attention(q, k, v, mask=masks.Padding(flags_of(0, 2, 6)))
    made = []
    monkeypatch.setattr(Problem, "of", lambda *_, **__: made.append(1) or pytest.fail("checked again"))
    for seed in range(1, 4):
        regard.attention(q, k, v, mask=masks.Padding(flags_of(seed, 2, 6)))
    monkeypatch.undo()
    padding = masks.Padding(flags_of(9, 2, 6))
    for _ in range(3):
        expected = regard.attention(q, k, v, mask=padding)
    monkeypatch.setattr(masks.Padding, "rectangle", lambda *_: pytest.fail("evaluated again"))
    assert torch.equal(regard.attention(q, k, v, mask=padding), expected)


def test_a_known_size_does_not_hide_what_is_wrong_with_a_new_mask():
    q, k, v = tensors()
    call_cache._KEPT.clear()
    for _ in range(2):
        regard.attention(q, k, v, mask=flags_of(0, 2, 1, 6, 6))
        regard.attention(q, k, v, mask=masks.Padding(flags_of(0, 2, 6)))
    for wrong in (
        flags_of(0, 2, 6),
        flags_of(0, 3, 1, 6, 6),
        flags_of(0, 2, 1, 6, 6).float(),
        masks.Padding(flags_of(0, 2, 5)),
    ):
        for _ in range(2):
            with pytest.raises(InputError):
                regard.attention(q, k, v, mask=wrong)
    mask = masks.Padding(flags_of(1, 2, 6))
    regard.attention(q, k, v, mask=mask)
    mask.attention_mask[:, 0] = False
    with pytest.raises(InputError, match="changed in place"):
        regard.attention(q, k, v, mask=mask)


def test_the_mask_of_a_call_may_be_checkpointed_when_it_is_new_and_when_it_is_known():
    for case in sweep(NEW_EACH_TIME):
        with case as name:
            call_cache._KEPT.clear()
            for seed in (0, 0, 1, 1, 0):
                mask, _ = NEW_EACH_TIME[name](seed)
                q, k, v = (x.requires_grad_() for x in tensors())
                again = torch.utils.checkpoint.checkpoint(
                    lambda *given, mask=mask: regard.attention(*given, mask=mask), q, k, v, use_reentrant=False
                )
                (gradient,) = torch.autograd.grad(again.sum(), q)
                (expected,) = torch.autograd.grad(regard.attention(q, k, v, mask=mask, backend="reference").sum(), q)
                torch.testing.assert_close(gradient, expected)
