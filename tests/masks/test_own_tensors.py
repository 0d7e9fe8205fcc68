"""A mask is a value: what becomes of the tensor that it was made of changes nothing, on any backend."""

import copy
import gc
import weakref
from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
import torch

import regard
from oracles import dense, f64
from regard import masks, positions, scores
from regard.backends.flex import Flex
from regard.backends.native import Native
from regard.backends.reference import Reference
from regard.backends.sdpa import Sdpa
from regard.backends.strips import Strips
from regard.errors import InputError
from regard.nn import ValueModule
from regard.problem import Problem
from sweeps import sweep

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without:UserWarning")
N = 140
AT = np.arange(N)
BACKENDS = {one.name: one for one in (Reference(), Sdpa(), Strips(), Native(), Flex(compiles=False))}
Q, K, V = (torch.randn(2, 1, N, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(3))
FLAGS = (AT < 100)[None].repeat(2, 0)
IDS = (AT // 50)[None].repeat(2, 0)

# For every mask that holds a tensor: the array that it is made of, the mask, and what may be seen, written in numpy.
HOLDING = {
    "Dense": (np.tri(N, dtype=bool), masks.Dense, np.tri(N, dtype=bool)),
    "Dense of one row for all": (
        np.broadcast_to(FLAGS[0], (N, N)).copy(), masks.Dense, np.broadcast_to(FLAGS[0], (N, N))
    ),
    "Padding": (FLAGS.copy(), masks.Padding, FLAGS[:, None, None] & np.ones((N, 1), bool)),
    "Global": (FLAGS.copy(), masks.Global, FLAGS[:, None, None] | FLAGS[:, None, :, None]),
    "Document": (IDS.copy(), masks.Document, IDS[:, None, None] == IDS[:, None, :, None]),
    "Document of queries": (
        IDS.copy(), lambda ids: masks.Document(torch.tensor(IDS), query_ids=ids),
        IDS[:, None, None] == IDS[:, None, :, None],
    ),
    "Document.from_lengths": (np.array([60, 80]), masks.Document.from_lengths, (AT < 60) == (AT < 60)[:, None]),
    "Document.from_lengths, within": (
        np.array([60, 80]), lambda lengths: masks.Document.from_lengths(lengths, within=masks.Causal()),
        ((AT < 60) == (AT < 60)[:, None]) & np.tri(N, dtype=bool),
    ),
    "Prefix": (
        np.array([30, 70]), masks.Prefix, (np.array([[30], [70]]) > AT)[:, None, None] & np.ones((N, 1), bool)
    ),
    "LocalPredictive": (
        AT[None] + 0.5, lambda center: masks.LocalPredictive(center, radius=9), abs(AT[:, None] - AT) <= 9
    ),
    "from_mha_attn_mask": (~np.tri(N, dtype=bool), masks.from_mha_attn_mask, np.tri(N, dtype=bool)),
    "both together": (FLAGS.copy(), lambda real: masks.Causal() & ~~masks.Padding(real),
                      FLAGS[:, None, None] & np.tri(N, dtype=bool)),
}  # fmt: skip
CHANGES = {
    "in place": lambda source, array: source.copy_(source.flip(-1) if source.is_floating_point() else 1 - source.int()),
    ".data": lambda source, array: source.data.zero_(),
    "numpy": lambda source, array: np.copyto(array, np.zeros_like(array)),
}


def close(output, expected):
    np.testing.assert_allclose(f64(output), expected, rtol=1e-4, atol=1e-5)


def _ask(backend, mask):
    return BACKENDS[backend](Problem.of(Q, K, V, mask=mask)).output


def assert_a_change_has_no_effect(name, backend, changes):
    array, make, seen = HOLDING[name]
    expected = dense(Q, K, V, visible=seen).output
    for change in changes:
        source = torch.from_numpy(mine := array.copy())
        asked, fresh = make(source), make(source)
        bound = asked.bind(N, N)
        close(_ask(backend, asked), expected)
        change(source, mine)
        for mask in (asked, bound, fresh):
            close(_ask(backend, mask), expected)


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "flex"])
def test_a_change_of_the_source_has_no_effect(backend):
    for case in sweep(HOLDING):
        with case as name:
            assert_a_change_has_no_effect(name, backend, CHANGES.values())


FLEX_SOON = ("Padding", "Document")  # uncompiled it takes a quarter of a second for each


@pytest.mark.parametrize(
    "names",
    [FLEX_SOON, pytest.param([name for name in HOLDING if name not in FLEX_SOON], marks=pytest.mark.slow)],
    ids=["soon", "others"],
)
def test_a_change_of_the_source_has_no_effect_on_flex_attention(names):
    for case in sweep(names):
        with case as name:
            assert_a_change_has_no_effect(name, "flex", [CHANGES["numpy"]])


def test_a_mask_that_a_module_holds_or_that_is_copied_keeps_what_it_had():
    for case in sweep(HOLDING):
        with case as name:
            array, make, seen = HOLDING[name]
            source = torch.from_numpy(array.copy())
            mask, held = make(source), ValueModule(make(source))
            source.zero_()
            for one in (held.to("cpu")(), copy.deepcopy(mask)):
                close(_ask("strips", one), dense(Q, K, V, visible=seen).output)


def test_a_boolean_tensor_is_read_at_each_call():
    for case in sweep(product(CHANGES, [name for name in BACKENDS if name != "flex"])):
        with case as (change, backend):
            array = np.tri(N, dtype=bool)
            source = torch.from_numpy(array)
            for _ in range(2):
                output = regard.attention(Q, K, V, mask=source, backend=backend)
                close(output, dense(Q, K, V, visible=array).output)
                CHANGES[change](source, array)


def test_a_boolean_tensor_is_not_copied_where_nothing_is_learned():
    source = torch.ones(N, N, dtype=torch.bool)
    assert Problem.of(Q, K, V, mask=source).mask.mask.visible.data_ptr() == source.data_ptr()


def test_a_boolean_tensor_that_changes_before_the_backward_changes_no_gradient():
    for case in sweep(["reference", "sdpa", "strips", "native"]):
        with case as backend:
            seen = torch.ones(N, N).tril().bool()
            source, gradients = seen.clone(), []
            for change in (False, True):
                q = Q.clone().requires_grad_()
                output = regard.attention(q, K, V, mask=source, backend=backend)
                if change:
                    source.data.fill_(True)
                gradients += torch.autograd.grad(output.square().sum(), q)
            torch.testing.assert_close(*gradients)


def test_an_optimizer_step_on_a_bias_is_seen_by_plans_that_are_remembered():
    for case in sweep(["reference", "sdpa", "strips", "native"]):
        with case as backend:
            bias = positions.RelativePositionBias(torch.nn.Parameter(torch.randn(2 * N - 1, 1)))
            mask = masks.Padding(torch.tensor(FLAGS))
            for _ in range(2):
                with torch.no_grad():
                    output = regard.attention(Q, K, V, mask=mask, bias=bias, backend=backend)
                added = f64(bias.table)[AT[:, None] - AT + N - 1, 0]
                close(output, dense(Q, K, V, visible=FLAGS[:, None, None], bias=added).output)
                bias.table.data.mul_(-2.0)


def test_an_optimizer_step_on_a_score_is_seen_by_plans_that_are_remembered():
    for case in sweep(["reference", "sdpa", "strips", "native"]):
        with case as backend:
            score = scores.Bilinear(torch.nn.Parameter(torch.randn(8, 8)))
            mask = masks.Padding(torch.tensor(FLAGS))
            for _ in range(2):
                with torch.no_grad():
                    output = regard.attention(Q, K, V, mask=mask, score=score, backend=backend)
                close(output, dense(f64(Q) @ f64(score.weight), K, V, visible=FLAGS[:, None, None], scale=1.0).output)
                score.weight.data.mul_(-2.0)


def test_a_mask_that_is_changed_itself_is_refused():
    mask = masks.Padding(torch.tensor(FLAGS))
    bound = masks.Causal().bind(N, N), (masks.Causal() & mask).bind(N, N)
    regard.attention(Q, K, V, mask=mask)
    mask.attention_mask[:, 0] = False
    for changed in (mask, ~mask, bound[1]):
        with pytest.raises(InputError, match=r"attention_mask`.*changed in place.*make a new mask"):
            regard.attention(Q, K, V, mask=changed)
    regard.attention(Q, K, V, mask=bound[0])


@dataclass(frozen=True, eq=False)
class OneOfMyOwn(masks.Padding):
    """With a check of its own, which does not copy, an array, and a set."""

    array: np.ndarray = None
    names: frozenset | set = frozenset()

    def __post_init__(self):
        pass


def test_masks_of_ones_own_may_hold_what_they_like_and_are_planned_at_each_call():
    for case in sweep(["reference", "strips", "native"]):
        with case as backend:
            flags = torch.tensor(FLAGS)
            mask = OneOfMyOwn(flags, np.zeros(3), {"a"})
            for _ in range(2):
                for one in (mask, mask.bind(N, N)):
                    close(
                        regard.attention(Q, K, V, mask=one, backend=backend),
                        dense(Q, K, V, visible=flags[:, None, None].numpy()).output,
                    )
                flags.data[:, 40:60] = False


@dataclass(eq=False)
class Band(masks.Mask):
    """A mask whose writer forgot `frozen`, so that its number can be assigned."""

    width: int

    def __call__(self, batch, head, i, j):
        return abs(i - j) < self.width


def test_a_number_that_is_assigned_to_a_mask_of_ones_own_is_seen():
    for case in sweep(["auto", "strips", "native"]):
        with case as backend:
            band = Band(9)
            for mask, other in ((band, True), (band & masks.Causal(), np.tri(N, dtype=bool)), (band.bind(N, N), True)):
                for width in (9, 30):
                    band.width = width
                    seen = (abs(AT[:, None] - AT) < width) & other
                    close(regard.attention(Q, K, V, mask=mask, backend=backend), dense(Q, K, V, visible=seen).output)


def test_a_mask_at_another_place_is_another():
    causal = masks.Causal()
    assert causal.identity() == masks.Causal().identity()
    assert causal.with_place(shift=3).identity() != causal.identity()
    close(
        regard.attention(Q[:, :, :7], K, V, mask=causal & masks.Window(9), backend="strips"),
        dense(Q[:, :, :7], K, V, visible=np.tri(7, N, N - 7, dtype=bool) & ~np.tri(7, N, N - 16, dtype=bool)).output,
    )


def test_copies_are_as_large_as_what_is_told_apart():
    wide = torch.ones(1, 1, 1, N, dtype=torch.bool).expand(64, 8, N, N)
    assert masks.Dense(wide).visible.untyped_storage().nbytes() == N
    assert masks.Dense(wide).visible.shape == wide.shape


def test_no_plan_keeps_a_mask_alive():
    mask = masks.Padding(torch.tensor(FLAGS))
    alive = weakref.ref(mask)
    for backend in ("strips", "native", "flex"):
        BACKENDS[backend](Problem.of(Q, K, V, mask=mask))
    del mask
    gc.collect()
    assert alive() is None
