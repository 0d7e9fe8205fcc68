"""What a reviewer broke once: layouts, autocast, changed masks, lost gradients, plans under threads."""

import gc
import itertools
import operator
import threading
import weakref
from dataclasses import dataclass

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

import regard
from regard import masks, normalizers, positions, scores
from regard.backends.strips import strips_of
from regard.errors import InputError
from regard.problem import Problem
from sweeps import sweep
from tiers import slow_but

WINDOW = masks.Causal() & masks.Window(100)


def drawn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def dense(q, k, v, seen):
    return scaled_dot_product_attention(q.contiguous(), k.contiguous(), v.contiguous(), attn_mask=seen)


LAYOUTS = {
    "every second number": lambda: drawn(1, 2, 256, 16)[..., ::2],
    "transposed": lambda: drawn(1, 2, 8, 256).mT,
    "one of three": lambda: drawn(1, 256, 2, 8, 3)[..., 0].transpose(1, 2),
    "expanded": lambda: drawn(1, 1, 256, 8).expand(1, 2, 256, 8),
    "one vector": lambda: drawn(1, 1, 1, 8).expand(1, 2, 256, 8),
    "heads last": lambda: drawn(1, 256, 2, 8).transpose(1, 2),
}


def test_any_memory_layout_gives_the_same():
    for case in sweep(itertools.product(LAYOUTS, [0, 1, 2])):
        with case as (name, which):
            inputs = [drawn(1, 2, 256, 8, seed=seed) for seed in range(3)]
            inputs[which] = LAYOUTS[name]()
            inputs = [x.detach().requires_grad_() for x in inputs]
            seen = torch.ones(256, 256, dtype=torch.bool).tril().triu(-99)
            ours = regard.attention(*inputs, mask=WINDOW, backend="strips")
            theirs = dense(*inputs, seen)
            torch.testing.assert_close(ours, theirs)
            up = LAYOUTS["transposed"]()
            gradients = (torch.autograd.grad(output, inputs, up) for output in (ours, theirs))
            torch.testing.assert_close(*gradients)


def test_a_scale_may_be_negative_or_nothing():
    for case in sweep(itertools.product([-1.0, 0.0], ["auto", "sdpa", "strips", "reference"])):
        with case as (scale, backend):
            q = drawn(1, 2, 65, 8)
            weights = (scale * q @ q.mT).masked_fill(torch.ones(65, 65).triu(1).bool(), -torch.inf).softmax(-1)
            torch.testing.assert_close(
                regard.attention(q, q, q, scale=scale, mask=masks.Causal(), backend=backend), weights @ q
            )


@pytest.mark.parametrize("backend", ["auto", "sdpa", "strips", "native", "reference"])
def test_a_bias_that_lifts_all_scores_leaves_the_gradients(backend):
    """exp of it is beyond float32. The 290 rows fill no whole number of blocks."""
    for case in sweep(itertools.product([100.0, 300.0], [False, True])):
        with case as (lift, learned):
            inputs = [drawn(1, 2, 290, 8, seed=seed, dtype=torch.float32).requires_grad_() for seed in range(3)]
            table = drawn(579, 2, seed=3) + lift
            seen = torch.ones(290, 290, dtype=torch.bool).tril().triu(-216)
            distances = torch.arange(290)[:, None] - torch.arange(290)
            exact = [one.detach().double().requires_grad_() for one in inputs]
            full = table.float().double().T[None, :, distances + 289].masked_fill(~seen, -torch.inf)
            up = drawn(1, 2, 290, 8, seed=4)
            wanted = torch.autograd.grad(scaled_dot_product_attention(*exact, attn_mask=full), exact, up)
            ours = regard.attention(
                *inputs,
                mask=masks.Causal() & masks.Window(217),
                bias=positions.RelativePositionBias(table.float().requires_grad_(learned)),
                backend=backend,
            )
            for mine, other in zip(torch.autograd.grad(ours, inputs, up.float()), wanted, strict=True):
                torch.testing.assert_close(mine.double(), other, atol=3e-4, rtol=0)


def test_autocast_changes_nothing_inside():
    q = drawn(1, 2, 300, 8, dtype=torch.float32).requires_grad_()
    table = drawn(32, 2, dtype=torch.float32).requires_grad_()
    for options in (
        {"bias": positions.T5Bias(table, bidirectional=False)},
        {"score": scores.ScaledDot(softcap=5.0)},
        {"normalizer": normalizers.Sigmoid()},
        {"score": scores.Shaw(drawn(5, 8, dtype=torch.float32))},
    ):
        call = lambda: regard.attention(q, q, q, mask=WINDOW, backend="strips", **options)  # noqa: B023, E731
        plain = call()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inside = call()
            (gradient,) = torch.autograd.grad(inside.sum(), q)
        assert torch.equal(inside, plain.bfloat16())
        assert torch.equal(gradient, torch.autograd.grad(plain.sum(), q)[0])


@dataclass(frozen=True, eq=False)
class InLists(scores.Score):
    """A score with its tensors in a list and a dict."""

    some: list[torch.Tensor]
    named: dict[str, torch.Tensor]

    def tile(self, q, k, i, j):
        return (q * self.some[0]) @ k.mT * self.named["factor"]


def test_tensors_in_lists_and_dicts_get_gradients():
    q, w, factor = drawn(1, 2, 200, 8), drawn(8, seed=1).requires_grad_(), drawn(1, seed=2).requires_grad_()
    gradients = []
    for backend in ("strips", "reference"):
        out = regard.attention(q, q, q, score=InLists([w], {"factor": factor}), backend=backend)
        gradients.append(torch.autograd.grad(out.square().sum(), (w, factor)))
    for mine, other in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, other)


def test_parts_whose_tensors_would_not_be_found_are_refused():
    class Plain(scores.Score):
        def __init__(self, w):
            self.w = w

        def tile(self, q, k, i, j):
            return q @ self.w @ k.mT

    class PlainBias(positions.Bias):
        def __call__(self, batch, head, i, j):
            return (i - j).double()

    q = drawn(1, 1, 5, 4)
    with pytest.raises(InputError, match=r"`score` must be a frozen dataclass.*Plain: write @dataclass"):
        regard.attention(q, q, q, score=Plain(torch.eye(4)))
    with pytest.raises(InputError, match=r"`bias` must be a frozen dataclass.*PlainBias"):
        regard.attention(q, q, q, bias=PlainBias())


def test_a_plan_does_not_keep_its_mask_alive():
    flags = torch.rand(1, 500, generator=torch.Generator().manual_seed(0)) < 0.5
    alive = weakref.ref(flags)
    q = drawn(1, 1, 500, 8)
    regard.attention(q, q, q, mask=masks.Padding(flags), backend="strips")
    del flags
    gc.collect()
    assert alive() is None


def test_a_drawn_mask_is_planned_once():
    q, mask = drawn(1, 1, 500, 8), masks.RandomBlocks(1, block=64)
    first, second = (Problem.of(q, q, q, mask=mask).plan() for _ in range(2))
    assert first is second


def test_plans_are_made_from_many_threads():
    q, troubles = drawn(1, 1, 200, 4), []

    def ask(first):
        try:
            for size in range(first, first + 40):
                share = Problem.of(q, q, q, mask=masks.Window(size % 50 + 1)).plan(16).share
                assert share == masks.Window(size % 50 + 1).bind(200, 200).share_visible(16)
        except Exception as trouble:
            troubles.append(trouble)

    threads = [threading.Thread(target=ask, args=(7 * n,)) for n in range(6)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert troubles == []


def test_many_short_sequences_are_not_visited_one_by_one():
    q = torch.zeros(2000, 1, 40, 8)
    real = masks.Padding.from_lengths(torch.full((2000,), 30), kv_len=40)
    problem = Problem.of(q, q, q, mask=real, score=scores.ScaledDot(softcap=5.0))
    assert len(list(strips_of(problem, problem.everything))) == 4
    assert regard.explain(q, q, q, mask=real).backend == "sdpa"


def test_explaining_uses_up_no_random_numbers():
    q, generator = torch.zeros(1, 1, 4, 4), torch.Generator()
    before = torch.get_rng_state(), generator.get_state()
    regard.explain(q, q, q, dropout=0.5, generator=generator)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert torch.equal(generator.get_state(), before[1])


def test_dropout_differs_between_members_where_vmap_is_told_so():
    q = drawn(3, 1, 200, 8, dtype=torch.float32)
    ones = torch.ones_like(q)
    call = lambda q, v: regard.attention(q, q, v, dropout=0.5)  # noqa: E731
    out = torch.func.vmap(call, randomness="different")(q[:1].expand(3, -1, -1, -1), ones)
    assert not torch.equal(out[0], out[1])
    out = torch.func.vmap(call, randomness="same")(q[:1].expand(3, -1, -1, -1), ones)
    assert torch.equal(out[0], out[1])


REFUSED = {
    "a rule of two arguments": ({"mask": masks.MaskMod(lambda i, j: i >= j)}, r"mask\(batch, head, i, j\)"),
    "a rule without a tensor": ({"mask": masks.MaskMod(lambda b, h, i, j: True)}, r"mask\(batch, head, i, j\)"),
    "bytes in words": ({"max_bytes": "2GB"}, "`max_bytes` .*number of bytes"),
}


def test_wrong_input_is_refused_with_the_way_out():
    q = drawn(1, 1, 5, 4)
    for case in sweep(REFUSED):
        with case as name:
            options, words = REFUSED[name]
            with pytest.raises(InputError, match=words):
                regard.attention(q, q, q, **options)


def test_masks_combine_with_masks_that_are_not_bound_yet_alone():
    tensor, bound, mask = torch.ones(4, 4, dtype=torch.bool), masks.Causal().bind(4, 4), masks.Window(2)
    with_others = [(mask, tensor, "Tensor"), (tensor, mask, "Tensor"), (True, mask, "bool")]
    with_bound = [(mask, bound), (bound, mask), (bound, bound), (tensor, bound), (bound, tensor)]
    rows = [*with_others, *((left, right, "BoundMask") for left, right in with_bound)]
    for case in sweep(itertools.product([operator.and_, operator.or_], rows)):
        with (
            case as (combine, (left, right, kind)),
            pytest.raises(InputError, match=f"not bound yet, got {kind}: write"),
        ):
            combine(left, right)
    with pytest.raises(InputError, match=r"not bound yet, got BoundMask: .* bind the whole at the end"):
        operator.invert(bound)


def test_the_last_block_of_a_window_hides_what_is_beyond_the_keys():
    q, k = drawn(1, 1, 1000, 8), drawn(1, 1, 1000, 8, seed=1)
    place = torch.arange(1000)[:, None] - torch.arange(1000)
    for before, after in ((0, 130), (130, 300), (5, 5)):
        window = masks.Window(left=before, right=after)
        ours = regard.attention(q, k, k, mask=window, backend="strips")
        torch.testing.assert_close(ours, dense(q, k, k, (place <= before) & (place >= -after)))


def test_a_boolean_tensor_is_a_mask_in_compiled_code_too():
    q, seen = drawn(1, 2, 40, 8), torch.arange(40)[None] < 35
    call = lambda q, seen: regard.attention(q, q, q, mask=seen)  # noqa: E731
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q, seen), call(q, seen))


UNASKED = {
    "longformer": lambda: masks.longformer(8, global_positions=[0]),
    "aligned": lambda: masks.Causal("start") & ~masks.Window(8),
    "local": lambda: masks.LocalMonotonic(3),
    "bigbird": lambda: masks.bigbird(heads=2, block=16),
    "predicted": lambda: masks.LocalPredictive(torch.arange(64.0).flip(0)[None] - 0.5, radius=5),
    "documents": lambda: masks.Document.from_lengths(torch.tensor([20, 0, 44]), within=masks.Causal()),
    "not within documents": lambda: (
        ~masks.Document.from_lengths(torch.tensor([20, 44]), within=masks.Window(3)) | masks.Causal()
    ),
}


@pytest.mark.parametrize("name", slow_but(["bigbird", "predicted", "not within documents"], UNASKED))
def test_a_mask_that_nobody_has_asked_yet_compiles_in_one_graph(name):
    """What a mask computes once it computes in the graph then, where no lock can be entered."""
    torch._dynamo.reset()
    q = drawn(1, 2, 64, 8)
    mask = UNASKED[name]()
    found = torch.compile(lambda q: regard.attention(q, q, q, mask=mask), fullgraph=True, backend="eager")(q)
    torch.testing.assert_close(found, dense(q, q, q, UNASKED[name]().bind(64, 64).dense()))


@pytest.mark.slow  # 1 s of compiling
def test_lengths_may_be_symbols_where_weights_would_be_beyond_max_bytes():
    """The reason of a backend that refuses names bytes, of which nobody may ask the digits."""
    torch._dynamo.reset()
    call = lambda x: regard.attention(x, x, x, mask=WINDOW, max_bytes=1000)  # noqa: E731
    x = drawn(1, 2, 110, 8)
    found = torch.compile(call, dynamic=True, backend="eager")(x)
    torch.testing.assert_close(found, dense(x, x, x, WINDOW.bind(110, 110).dense()))


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["strips", "native"])
def test_a_checkpointed_call_is_computed_again(backend):
    x = drawn(1, 2, 150, 8, dtype=torch.float32).requires_grad_()

    def call(x):
        return regard.attention(x, x, x, mask=WINDOW, backend=backend)

    (expected,) = torch.autograd.grad(call(x).square().sum(), x)
    again = checkpoint(call, x, use_reentrant=False)
    torch.testing.assert_close(torch.autograd.grad(again.square().sum(), x)[0], expected)


def test_hidden_keys_may_hold_huge_numbers_where_a_row_sees_nothing():
    q = torch.randn(1, 1, 4, 2, generator=torch.Generator().manual_seed(0), requires_grad=True)
    k, v = (torch.full((1, 1, 12, width), 1e30, requires_grad=True) for width in (2, 8))
    for case in sweep(itertools.product(["auto", "sdpa", "reference", "strips", "native"], range(3))):
        with case as (backend, _):
            output = regard.attention(q, k, v, mask=torch.zeros(4, 12, dtype=torch.bool), backend=backend)
            assert not output.any()
            assert not any(grad.any() for grad in torch.autograd.grad(output.sum(), (q, k, v)))


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # PyTorch's, of its own kernel under vmap
def test_gradients_of_each_sample_may_have_masks_of_their_own():
    q, k, v = (torch.randn(2, 1, n, 16) for n in (375, 700, 700))
    mask = torch.rand(2, 1, 375, 700) < 0.9

    def loss(q, k, v, mask):
        return regard.attention(q[None], k[None], v[None], mask=mask[None]).sum()

    mapped = torch.func.vmap(torch.func.grad(loss))(q, k, v, mask)
    for sample in range(2):
        alone = torch.func.grad(loss)(q[sample], k[sample], v[sample], mask[sample])
        torch.testing.assert_close(mapped[sample], alone)
