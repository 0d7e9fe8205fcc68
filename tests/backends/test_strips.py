"""Strips: the formula to the last digits, with its derivatives, and what they cover."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

import regard
from drawn_masks import FAMILIES, Place, combined
from regard import masks, normalizers, positions, scores
from regard.backends import strips
from regard.backends.formula import formula
from regard.errors import InputError
from regard.masks.block_plan import BLOCK
from regard.normalizers.softmax import Sums
from regard.part import Part
from regard.problem import Problem, held_by
from sweeps import sweep

BATCH, HEADS, KV_HEADS, QUERIES, KEYS, DIM, WIDTH = 2, 4, 2, 37, 45, 4, 3
SMALL = 16  # rows and columns of a block


@pytest.fixture
def cut(monkeypatch):
    """Have strips of few scores and small blocks."""

    def cut(room: int) -> None:
        monkeypatch.setattr(strips, "_SCORES", room)
        monkeypatch.setattr(strips, "BLOCK", SMALL)

    return cut


class Leaves(list):
    """Draws numbers, and keeps the tensors."""

    def __init__(self, seed: int = 0, dtype: torch.dtype = torch.float64) -> None:
        self.generator, self.dtype = torch.Generator().manual_seed(seed), dtype

    def __call__(self, *shape: int) -> Tensor:
        self.append(torch.randn(*shape, generator=self.generator, dtype=self.dtype).requires_grad_())
        return self[-1]


@dataclass(frozen=True, eq=False)
class Slopes(positions.Bias):
    slope: Tensor  # (batch, heads)

    def __call__(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (self.slope[batch, head] * (i - j) / 8).sin()


@dataclass(frozen=True, eq=False)
class Gained(scores.Score):
    gain: Tensor  # (batch, heads)

    def tile(self, q, k, i, j, batch, head):
        return self.gain[batch[:, None], head][..., None, None] * (q @ k.mT) / (1 + (i[:, None] - j).abs())


@dataclass(frozen=True, eq=False)
class Held(scores.Score):
    """Holds a number for each head, and is not told which are asked about."""

    gain: Tensor  # (heads, 1, 1)

    def tile(self, q, k, i, j):
        return self.gain * (q @ k.mT)


@dataclass(frozen=True, eq=False)
class Gentle(normalizers.Normalizer):
    power: Tensor  # (heads,)

    def weights(self, scores, visible):
        positive = torch.nn.functional.softplus(scores * self.power[:, None, None])
        positive = positive if visible is None else positive.masked_fill(~visible, 0.0)
        return positive / (1 + positive.sum(-1, keepdim=True)), None

    def of_heads(self, heads):
        return Gentle(self.power[heads])


def _some() -> Tensor:
    seen = torch.rand(BATCH, HEADS, QUERIES, KEYS, generator=torch.Generator().manual_seed(5)) < 0.4
    seen[1, 2, 7] = seen[:, :, 20] = False
    seen[:, :, 16:32, :16] = True
    return seen


SEEN = _some()
MASKS = {
    "none": None,
    "causal and window": masks.Causal() & masks.Window(9),
    "padding": masks.Padding(torch.arange(KEYS) < torch.tensor([[40], [12]])),
    "two spans": masks.Causal() & (masks.Sinks(2) | masks.Window(left=3, right=0)),
    "of sequences and heads": masks.Dense(SEEN),
}
SCORES = {
    "softcap": lambda draw: scores.ScaledDot(softcap=2.0),
    "Shaw": lambda draw: scores.Shaw(draw(HEADS, 7, DIM), draw(7, WIDTH)),
    "Additive": lambda draw: scores.Additive(draw(3, DIM), draw(3, DIM), draw(HEADS, 3)),
    "batch and head": lambda draw: Gained(draw(BATCH, HEADS)),
    "holds by head": lambda draw: Held(draw(HEADS, 1, 1)),
}
NORMALIZERS = {
    "softmax": lambda draw: normalizers.Softmax(),
    "sink": lambda draw: normalizers.Softmax(draw(HEADS)),
    "sigmoid": lambda draw: normalizers.Sigmoid(),
    "shifted sigmoid": lambda draw: normalizers.Sigmoid(-1.0),
    "one's own": lambda draw: Gentle(draw(HEADS)),
}
BIASES = {
    "none": lambda draw: {},
    "ALiBi": lambda draw: {"bias": positions.ALiBi(HEADS, draw(HEADS))},
    "T5": lambda draw: {"bias": positions.T5Bias(draw(8, HEADS), bidirectional=True, max_distance=20)},
    "one's own": lambda draw: {"bias": Slopes(draw(BATCH, HEADS))},
    "tensors": lambda draw: {
        "bias": draw(BATCH, 1, QUERIES, KEYS),
        "weight_factor": positions.DenseBias(draw(1, HEADS, 1, KEYS)),
    },
}
ROOMS = (2**8, 2**9, 2**10, 2**12, 2**14)
DROPPED = (0.0, 0.3, 0.0, 0.4, 0.0)
CHOICES = [list(options) for options in (MASKS, SCORES, NORMALIZERS, BIASES, ROOMS, DROPPED)]


def cases(x: int) -> list[tuple]:
    """Those of a mask; of all 25 cases, each two of the choices meet in one."""
    chosen = [(x, y, *((x + times * y) % 5 for times in (1, 2, 3, 4))) for y in range(5)]
    return [tuple(options[at] for options, at in zip(CHOICES, one, strict=True)) for one in chosen]


def derivatives(backend: str, leaves: list[Tensor], returns_lse: bool, **options: object) -> list[Tensor]:
    """Output, log-sum-exp, gradients, the same where a graph of them is made, and their gradients."""
    if options.get("dropout"):
        options["generator"] = torch.Generator().manual_seed(3)
    *qkv, up = leaves[:4]
    results = regard.attention(*qkv, backend=backend, return_lse=returns_lse, **options)
    results = results if returns_lse else (results,)
    loss = (results[0].sin() * up).sum()
    if returns_lse:
        loss = loss + torch.where(results[1].isfinite(), results[1], 0.0).square().sum()
    plain = torch.autograd.grad(loss, leaves, retain_graph=True)
    first = torch.autograd.grad(loss, leaves, create_graph=True)
    mixed = sum((g * torch.linspace(-1, 1, g.numel(), dtype=g.dtype).view_as(g)).sum() for g in first)
    return [*results, *plain, *first, *torch.autograd.grad(mixed, leaves, materialize_grads=True)]


def drawn(seed: int = 0, dtype: torch.dtype = torch.float64) -> Leaves:
    """Queries, keys, values and the gradient of the output."""
    draw = Leaves(seed, dtype)
    draw(BATCH, HEADS, QUERIES, DIM), draw(BATCH, KV_HEADS, KEYS, DIM)
    draw(BATCH, KV_HEADS, KEYS, WIDTH), draw(BATCH, HEADS, QUERIES, WIDTH)
    return draw


def close(found: list[Tensor], expected: list[Tensor], tolerance: float = 1e-13) -> None:
    for one, other in zip(found, expected, strict=True):
        finite = other.detach()[other.isfinite()]
        most = float(finite.abs().max()) if finite.numel() else 0.0
        torch.testing.assert_close(one, other, rtol=0, atol=tolerance * max(1.0, most))


@pytest.mark.parametrize("first", range(5), ids=list(MASKS))
def test_results_and_two_derivatives_are_those_of_the_formula_at_once(first, cut):
    for case in sweep(cases(first)):
        with case as (mask, score, normalizer, bias, room, dropout):
            draw = drawn()
            options = {
                "mask": MASKS[mask],
                "score": SCORES[score](draw),
                "normalizer": NORMALIZERS[normalizer](draw),
                "dropout": dropout,
                **BIASES[bias](draw),
            }
            returns_lse = normalizer in ("softmax", "sink")
            expected = derivatives("reference", draw, returns_lse, **options)
            cut(room)
            close(derivatives("strips", draw, returns_lse, **options), expected)


def visible_of(name: str, seed: int, heads: int) -> tuple[masks.BoundMask, np.ndarray]:
    at = Place(np.random.default_rng(seed), BATCH, heads, QUERIES, KEYS, KEYS - QUERIES)
    names = name.split("+")
    mask, seen = FAMILIES[name](at) if len(names) == 1 else combined(at, names)
    return mask.bind(QUERIES, KEYS, q_offset=at.start), np.broadcast_to(seen, (BATCH, heads, QUERIES, KEYS))


@pytest.mark.parametrize("room", [1, 200, 2**9, 2**12])
def test_strips_cover_each_visible_pair_once_and_have_no_more_scores_than_there_is_room_for(room, cut):
    heads, group = 6, 3
    cut(room)
    q, k, v = (torch.zeros(BATCH, count, n, 4) for count, n in ((6, QUERIES), (2, KEYS), (2, KEYS)))
    shaw = scores.Shaw(torch.zeros(3, 4))  # of which a pair needs more than one float
    for case in sweep((*FAMILIES, "Causal+Padding", "MaskMod+Window", "Document+Global", "Dense+Sinks")):
        with case as name:
            for seed, score in enumerate((scores.ScaledDot(), shaw)):
                bound, visible = visible_of(name, seed, heads)
                call = Problem.of(q, k, v, mask=bound, score=score)
                slab = replace(
                    call.everything,
                    batch=slice(1, 2),
                    heads=slice(3, 6),
                    rows=slice(5, 30),
                    spans=(slice(7, 40),),
                )
                for area in (call.everything, slab):
                    check_strips(call, area, visible, room, group)


def check_strips(call: Problem, area: Part, visible: np.ndarray, room: int, group: int) -> None:
    counts = np.zeros(visible.shape, int)
    for strip in strips.strips_of(call, area):
        sides = strip.batch, strip.heads, strip.rows
        batch, heads, rows = (one.stop - one.start for one in sides)
        pairs = batch * heads * rows * strip.columns * call.score.floats_per_pair
        within_group = strip.heads.start // group == (strip.heads.stop - 1) // group
        assert pairs <= room or (batch == rows == 1 and within_group)
        assert within_group or strip.heads.start % group == strip.heads.stop % group == 0
        for span in strip.spans:
            assert strip.is_masked or visible[*sides, span].all()
            counts[*sides, span] += 1
    inside = np.zeros_like(visible)
    inside[area.batch, area.heads, area.rows, area.spans[0]] = True
    assert counts.max() <= 1
    assert (counts[visible & inside] == 1).all()
    assert not counts[~inside].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("create_graph", [False, True])
def test_a_row_that_sees_nothing_has_zeros_whatever_hidden_keys_hold(dtype, create_graph, cut):
    cut(2**9)
    hidden = torch.tensor([3, 17, 18, *range(32, KEYS)])
    kept = torch.ones(KEYS).bool().index_fill(0, hidden, False)
    bias = torch.randn(1, HEADS, QUERIES, KEYS, dtype=dtype, requires_grad=True)
    seen = torch.rand(BATCH, HEADS, QUERIES, KEYS, generator=torch.Generator().manual_seed(1)) < 0.7
    seen[:, 1, 5] = seen[:, :, 16:33] = False
    seen = seen & kept
    q, k, v, up = (x.detach() for x in drawn(dtype=dtype))
    k[:, :, hidden] = v[:, :, hidden] = 1e30
    given = [x.requires_grad_() for x in (q, k, v)]
    output, lse = regard.attention(*given, bias=bias, mask=seen, backend="strips", return_lse=True)
    grads = torch.autograd.grad((output * up).sum(), (*given, bias), create_graph=create_graph)
    blind = ~seen.any(-1)
    assert not output[blind].any()
    assert (lse[blind] == -torch.inf).all()
    assert not grads[0][blind].any()
    assert not grads[1][:, :, hidden].any()
    assert not grads[2][:, :, hidden].any()
    exact = [x.detach().double().requires_grad_() for x in (q, k[:, :, kept], v[:, :, kept], bias[..., kept])]
    expected = regard.attention(*exact[:3], bias=exact[3], mask=seen[..., kept], backend="reference")
    expected = expected, *torch.autograd.grad((expected * up.double()).sum(), exact)
    found = output, grads[0], grads[1][:, :, kept], grads[2][:, :, kept], grads[3][..., kept]
    close([x.double() for x in found], list(expected), 1e-13 if dtype == torch.float64 else 1e-5)
    assert not grads[3][..., hidden].any()


@pytest.mark.parametrize("room", [2**9, 2**20])
def test_where_nobody_sees_anything_two_derivatives_are_zeros(room, cut):
    cut(room)
    draw = drawn()
    options = {"mask": masks.Dense(torch.zeros(QUERIES, KEYS).bool()), "bias": draw(1, HEADS, QUERIES, KEYS)}
    output, lse, *grads = derivatives("strips", draw, True, **options)
    assert (lse == -torch.inf).all()
    assert not any(one.any() for one in (output, *grads))


def test_gradients_without_any_strip_are_zeros_that_can_be_differentiated(cut):
    cut(2**9)
    qkv = drawn()[:3]
    output = regard.attention(*qkv, mask=torch.zeros(QUERIES, KEYS).bool(), backend="strips")
    first = torch.autograd.grad(output.sum(), qkv, create_graph=True)
    second = torch.autograd.grad(sum(x.sum() for x in first), qkv)
    assert not any(x.any() for x in (*first, *second))


@dataclass(frozen=True)
class Distance(scores.Score):
    def tile(self, q, k, i, j):
        return -(i[:, None] - j).abs().to(q.dtype).expand(*q.shape[:2], -1, -1)


@pytest.mark.parametrize("create_graph", [False, True])
def test_what_nothing_depends_on_has_gradients_of_zeros(create_graph, cut):
    cut(2**9)
    q, k, v, up = drawn()
    output = regard.attention(q, k, v.detach(), score=Distance(), backend="strips")
    for grad in torch.autograd.grad(output, (q, k), up.detach(), create_graph=create_graph):
        assert not grad.any()


def test_gradients_of_some_are_those_of_all(cut):
    draw = drawn()
    *qkv, up = draw
    bias, gain = draw(1, HEADS, QUERIES, KEYS), draw(BATCH, HEADS)
    leaves = [*qkv, bias, gain]

    def gradients(learning: set[int]) -> tuple[Tensor, ...]:
        q, k, v, bias, gain = (x if at in learning else x.detach() for at, x in enumerate(leaves))
        output = regard.attention(q, k, v, bias=bias, score=Gained(gain), mask=MASKS["two spans"], backend="strips")
        return torch.autograd.grad(output, [leaves[at] for at in sorted(learning)], up)

    cut(2**9)
    whole = gradients({0, 1, 2, 3, 4})
    for case in sweep([{0}, {1}, {2}, {3}, {4}, {1, 2}, {0, 3}, {2, 4}]):
        with case as learning:
            close(list(gradients(learning)), [whole[at] for at in sorted(learning)])


def known_call(sink: bool) -> tuple[Problem, Leaves, Tensor]:
    draw = drawn()
    q, k, v, up = draw
    problem = Problem.of(
        q,
        k,
        v,
        score=scores.Shaw(draw(HEADS, 7, DIM), draw(7, WIDTH)),
        mask=MASKS["of sequences and heads"],
        bias=draw(BATCH, HEADS, QUERIES, KEYS),
        weight_factor=Slopes(draw(BATCH, HEADS)),
        normalizer=normalizers.Softmax(torch.randn(HEADS, dtype=torch.float64) if sink else None),
        dropout=0.3,
        generator=torch.Generator().manual_seed(3),
        return_lse=True,
    )
    return problem, draw, up


def halves(call: Problem) -> list[Part]:
    return [replace(call.everything, spans=(slice(*one),)) for one in ((0, 21), (21, KEYS))]


@pytest.mark.parametrize("sink", [False, True])
def test_halves_of_rows_whose_sums_are_known_add_up_to_the_whole(sink):
    call, _, _ = known_call(sink)
    whole = formula(call, call.everything, call.q, call.k, call.v)
    found = [formula(call, half, call.q, half.cut(call.k), half.cut(call.v), known=whole.sums) for half in halves(call)]
    close([found[0].output + found[1].output], [whole.output])
    close([torch.cat([one.weights for one in found], -1)], [whole.weights])
    assert whole.sums is not None
    shares = found[0].sums.total + found[1].sums.total  # of their rows' weight
    own = 1 - (call.sink[:, None] - whole.sums.logarithm).exp() if sink else torch.ones_like(shares)
    blind = ~SEEN.any(-1)
    close([shares], [torch.where(blind, 0.0, own)])


@pytest.mark.parametrize("sink", [False, True])
def test_gradients_of_halves_whose_sums_are_known_add_up_to_those_of_the_whole(sink, cut):
    call, leaves, up = known_call(sink)
    whole = formula(call, call.everything, call.q, call.k, call.v)
    others = [x for x in leaves if x is not up]
    expected = torch.autograd.grad(whole.output, others, up)
    cut(2**9)
    held = held_by(call)
    wanted = [True] * 3 + [any(x is one for one in leaves) for x in held]
    output, sums = whole.output.detach(), Sums(*(x.detach() for x in whole.sums))
    mean = (up * output).sum(-1)
    with torch.no_grad():
        first, second = (
            strips.differentiate(call, half, (call.q, half.cut(call.k), half.cut(call.v)), up, -mean, wanted, sums)
            for half in halves(call)
        )
    keys = [torch.cat([one, other], 2) for one, other in zip(first[1:3], second[1:3], strict=True)]
    rest = [one + other for one, other in zip(first[3:], second[3:], strict=True) if one is not None]
    close([first[0] + second[0], *keys], list(expected[:3]))
    of_held = {id(x): grad for x, grad in zip(others, expected, strict=True)}
    close(rest, [of_held[id(x)] for x, want in zip(held, wanted[3:], strict=True) if want])


@pytest.mark.parametrize("create_graph", [False, True])
def test_a_tensor_that_is_given_twice_has_the_sum_of_both_gradients(create_graph, cut):
    def given(kind, *copies):
        """A call with one tensor, or with two equal ones, in two places."""
        draw = drawn()
        q, k, v = draw[:3]
        one, other = copies
        return {
            "k and v": lambda: ((q, one(k), other(k)), {}),
            "q and k": lambda: ((one(k), other(k), v), {}),
            "tensor of pairs": lambda: _twice(draw, one, other, positions.DenseBias, (1, HEADS, QUERIES, KEYS)),
            "one's own": lambda: _twice(draw, one, other, Slopes, (BATCH, HEADS)),
        }[kind]()

    for case in sweep(("k and v", "q and k", "tensor of pairs", "one's own")):
        with case as kind:
            shared: list[Tensor] = []

            def same(x, shared=shared):
                shared[:] = shared or [x]
                return shared[0]

            apart: list[Tensor] = []

            def copy(x, apart=apart):
                apart.append(x.detach().clone().requires_grad_())
                return apart[-1]

            qkv, options = given(kind, copy, copy)
            output = regard.attention(*qkv, backend="reference", **options)
            expected = sum(torch.autograd.grad(output.sin().sum(), apart))
            cut(2**9)
            qkv, options = given(kind, same, same)
            output = regard.attention(*qkv, backend="strips", **options)
            close(list(torch.autograd.grad(output.sin().sum(), shared, create_graph=create_graph)), [expected])


def _twice(draw, one, other, kind, shape):
    x = draw(*shape)
    return tuple(draw[:3]), {"bias": kind(one(x)), "weight_factor": kind(other(x))}


LEARNERS = {
    "q": lambda q, k, v, after: q,
    "v": lambda q, k, v, after: v,
    "what follows the output": lambda q, k, v, after: after,
}


@pytest.mark.parametrize("backend", ["native", "sdpa"])
def test_kernels_without_second_derivatives_say_which_backend_has_them(backend):
    for case in sweep(LEARNERS):
        with case as learner:
            draw = Leaves(dtype=torch.float32)
            q, k, v, after = (draw(*shape) for shape in [(1, 2, 9, 8)] * 3 + [(8, 1)])
            if learner == "what follows the output":
                k, v = k.detach(), v.detach()
            output = regard.attention(q, k, v, backend=backend)
            (grad,) = torch.autograd.grad((output @ after).sin().sum(), q, create_graph=True)
            with pytest.raises(InputError, match=f'"{backend}".*backend="strips"'):
                torch.autograd.grad(grad.square().sum(), LEARNERS[learner](q, k, v, after))


def test_a_linear_map_after_the_attention_learns_by_second_derivatives_of_strips_and_the_formula():
    found = []
    for backend in ("strips", "reference"):
        draw = Leaves()
        q, k, v, after = (draw(*shape) for shape in [(1, 2, 9, 8)] * 3 + [(8, 1)])
        output = regard.attention(q, k.detach(), v.detach(), backend=backend)
        (grad,) = torch.autograd.grad((output @ after).sum(), q, create_graph=True)
        found.append(torch.autograd.grad(grad.square().sum(), after))
    close(list(found[0]), list(found[1]))


def test_blocks_of_a_causal_call_that_nobody_sees_are_in_no_strip():
    n = 3 * BLOCK
    x = torch.zeros(1, 64, n, 4)
    call = Problem.of(x, x, x, mask=masks.Causal())
    sizes = [
        (strip.heads.stop - strip.heads.start) * (strip.rows.stop - strip.rows.start) * strip.columns
        for strip in strips.strips_of(call, call.everything)
    ]
    assert max(sizes) <= 2**20
    assert sum(sizes) == 64 * math.comb(4, 2) * BLOCK**2  # six of nine blocks
