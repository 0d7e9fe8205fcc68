"""Additive scores in Triton: values and gradients are those of the formula in float64, written out here.

The kernels run under Triton's interpreter, in a process of their own (`interpreter`): this file, run as a program,
computes all cases and writes what was found.
"""

import itertools
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

import regard
from interpreter import mend, run
from oracles import Largest, window
from regard.backends.triton_additive import AdditiveTriton
from regard.backends.triton_additive.backend import HiddenLayer
from regard.errors import InputError
from regard.masks import Causal, Dense, Mask, Window
from regard.normalizers import Sigmoid, Softmax
from regard.problem import Problem
from regard.scores import Additive, ScaledDot
from sweeps import sweep

FAR = 10**6
HERE = Path(__file__).resolve()
NAMES = "q k v w_query w_key vector bias".split()


@dataclass(frozen=True)
class Case:
    """One call: sizes, what a query sees, and how large the hidden layer's parts are."""

    queries: int = 33
    keys: int = 47
    mask: Callable[[], Mask] | None = None
    seen: tuple[int, int] = (FAR, FAR)  # keys before and after the query that it sees
    start: int | None = None  # the position of the first query; the last ones unless given
    batch: int = 1
    heads: int = 1
    kv_heads: int = 1
    hidden: int = 3
    value_dim: int = 9
    dtype: torch.dtype = torch.float32
    maps: bool = True  # else q and k are the parts themselves
    each: bool = False  # a vector for each head
    bias: bool = False
    moved: tuple[float, float] = (0.0, 0.0)  # added to q and k
    scale: float = 1.0
    tolerance: float = 1e-5  # of the largest number

    def tensors(self) -> list[torch.Tensor | None]:
        draw = torch.Generator().manual_seed(0)
        randn = lambda *shape: torch.randn(*shape, generator=draw)  # noqa: E731
        dims = (7, 5) if self.maps else (self.hidden, self.hidden)
        q = randn(self.batch, self.queries, self.heads, dims[0]).transpose(1, 2) + self.moved[0]
        k = randn(self.batch, self.kv_heads, self.keys, dims[1]) + self.moved[1]
        v = randn(self.batch, self.keys, self.kv_heads, self.value_dim).transpose(1, 2)
        w_query, w_key = (0.5 * randn(self.hidden, dim) if self.maps else None for dim in dims)
        vector = randn(*((self.heads,) if self.each else ()), self.hidden)
        bias = randn(self.hidden) if self.bias else None
        return [None if x is None else x.to(self.dtype) for x in (q, k, v, w_query, w_key, vector, bias)]

    def cotangents(self) -> tuple[torch.Tensor, torch.Tensor]:
        draw = torch.Generator().manual_seed(1)
        shape = self.batch, self.heads, self.queries
        return torch.randn(*shape, self.value_dim, generator=draw), torch.randn(*shape, generator=draw)

    def visible(self) -> torch.Tensor:
        if self.start is None:
            return torch.tensor(window(self.queries, self.keys, *self.seen))
        distance = self.start + torch.arange(self.queries)[:, None] - torch.arange(self.keys)
        return (distance <= self.seen[0]) & (-distance <= self.seen[1])

    def wanted(self) -> dict[str, np.ndarray]:
        """The formula with all weights at hand, in float64, differentiated by autograd."""
        leaves = [None if x is None else x.double().requires_grad_() for x in self.tensors()]
        q, k, v, w_query, w_key, vector, bias = leaves
        a = q if w_query is None else torch.einsum("bhid,md->bhim", q, w_query)
        b = k if w_key is None else torch.einsum("bhjd,md->bhjm", k, w_key)
        a = a if bias is None else a + bias
        group, visible = self.heads // self.kv_heads, self.visible()
        b, values = b.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        hidden = torch.tanh(a[:, :, :, None] + b[:, :, None])
        scores = self.scale * torch.einsum("bhijm,hm->bhij", hidden, vector.expand(self.heads, -1))
        scores = torch.where(visible, scores, -1e9)
        sees = visible.any(-1)
        output = (scores.softmax(-1) * visible) @ values
        lse = scores.logsumexp(-1)
        up, up_lse = self.cotangents()
        ((output * up).sum() + (lse * up_lse)[..., sees].sum()).backward()
        return _arrays(output, lse.masked_fill(~sees, -torch.inf), leaves)

    def found(self, backend: str, dtype: torch.dtype | None = None) -> dict[str, np.ndarray]:
        """What a backend gives."""
        leaves = [None if x is None else x.detach().clone().to(dtype or self.dtype) for x in self.tensors()]
        for one in leaves:
            if one is not None:
                one.requires_grad_()
        q, k, v, *held = leaves
        mask = None if self.mask is None else self.mask()
        if mask is not None and self.start is not None:
            mask = mask.bind(self.queries, self.keys, self.start)
        options = {"mask": mask, "scale": self.scale, "return_lse": True, "backend": backend}
        output, lse = regard.attention(q, k, v, score=Additive(*held), **options)
        up, up_lse = self.cotangents()
        sees = self.visible().any(-1)
        ((output * up).sum() + (lse * up_lse)[..., sees].sum()).backward()
        return _arrays(output, lse, leaves)


def _arrays(output, lse, leaves):
    found = {"output": output, "lse": lse}
    found |= {f"d {name}": x.grad for name, x in zip(NAMES, leaves, strict=True) if x is not None}
    return {name: x.detach().double().numpy() for name, x in found.items()}


CASES = {
    "all keys, grouped heads, a vector for each head": Case(heads=4, kv_heads=2, each=True, bias=True),
    "causal, grouped heads, one vector": Case(mask=Causal, seen=(FAR, 0), heads=2, batch=2, queries=20, keys=20),
    "rows before the first key see nothing": Case(queries=70, keys=30, mask=Causal, seen=(FAR, 0)),
    "rows behind a window see nothing": Case(queries=60, keys=30, mask=lambda: Window(8), seen=(7, 0), start=0),
    "causal, aligned at the start": Case(mask=lambda: Causal(align="start"), seen=(FAR, 0), start=0),
    "a window to both sides": Case(mask=lambda: Window(left=5, right=3), seen=(5, 3), queries=80, keys=80),
    "a window that ends one beyond a block": Case(  # of 32 and of 64, to all sides
        mask=lambda: Window(left=33, right=33), seen=(33, 33), queries=100, keys=100
    ),
    "a causal window, many blocks": Case(mask=lambda: Causal() & Window(20), seen=(19, 0), queries=150, keys=170),
    "whole blocks": Case(queries=64, keys=64, hidden=8, value_dim=16),
    "one query of decoding": Case(queries=1, heads=2),
    "a hidden layer of 18": Case(hidden=18, queries=20, keys=20, mask=Causal, seen=(FAR, 0)),
    "one key": Case(queries=5, keys=1),
    "one of everything": Case(queries=1, keys=1, hidden=1, value_dim=1),
    "no maps": Case(maps=False, each=True),
    "a scale below zero": Case(scale=-0.3),
    "float16": Case(dtype=torch.float16, mask=Causal, seen=(FAR, 0), tolerance=3e-3),
    "bfloat16": Case(dtype=torch.bfloat16, mask=Causal, seen=(FAR, 0), tolerance=2.5e-2),
    "parts that cancel, as powers": Case(maps=False, moved=(30.0, -30.0), tolerance=1e-4),
    "parts that cancel, too large for powers": Case(maps=False, moved=(-3000.0, 3000.0), tolerance=1e-3),
    "parts that add up far beyond tanh's ends": Case(maps=False, queries=9, moved=(500.0, 500.0)),
}

SMALL = Case(queries=5, keys=6, heads=2, each=True, bias=True)
# What `make test` computes: a second block of queries, rows that see nothing, a fifth unit, tanh without powers.
SHORT = {
    "a second block of queries": Case(queries=34, keys=6, hidden=5, mask=Causal, seen=(FAR, 0)),
    "too large for powers": Case(queries=3, keys=2, hidden=5, maps=False, moved=(-3000.0, 3000.0), tolerance=1e-3),
}


def interpret(path: str) -> None:
    """Compute everything under the interpreter."""
    torch.set_num_threads(1)
    mend()
    arrays = {f"{name}/{what}": x for name, case in CASES.items() for what, x in case.found("triton").items()}
    again = CASES["a causal window, many blocks"].found("triton")
    arrays |= {f"again/{what}": x for what, x in again.items()}
    arrays |= {f"alone/{name}": x for name, x in _alone().items()}
    arrays |= _odd_values()
    x = torch.randn(1, 1, 300, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    with Largest() as largest:
        regard.attention(x, x, x, score=Additive(None, None, torch.ones(4)), backend="triton").sum().backward()
    arrays["largest"] = np.array(largest.bytes)
    arrays["refusal"] = np.array([str(AdditiveTriton().refuses(make())) for make in REFUSED.values()])
    arrays["twice"] = np.array(_twice())
    np.savez(path, **arrays)


def interpret_short(path: str) -> None:
    """Compute `SHORT` under the interpreter."""
    torch.set_num_threads(1)
    mend()
    np.savez(path, **{f"{name}/{what}": x for name, case in SHORT.items() for what, x in case.found("triton").items()})


def _alone() -> dict[str, np.ndarray]:
    """The gradient of each tensor where no other is wanted."""
    found = {}
    for at, name in enumerate(NAMES):
        leaves = SMALL.tensors()
        leaves[at].requires_grad_()
        output = regard.attention(*leaves[:3], score=Additive(*leaves[3:]), backend="triton")
        output.square().sum().backward()
        found[name] = leaves[at].grad.numpy()
    return found


def _odd_values() -> dict[str, np.ndarray]:
    """A query of NaN, and keys far outside a window of NaN."""
    draw = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(1, 1, 200, 4, generator=draw) for _ in "qkv")
    score, options = Additive(None, None, torch.ones(4)), {"mask": Causal() & Window(8), "backend": "triton"}
    whole = regard.attention(q, k, v, score=score, **options)
    broken = q.clone()
    broken[:, :, 70] = torch.nan
    found = {"odd/query": regard.attention(broken, k, v, score=score, **options).numpy()}
    k[:, :, :10], v[:, :, :10] = torch.nan, torch.nan
    return found | {"odd/keys": regard.attention(q, k, v, score=score, **options).numpy(), "odd/none": whole.numpy()}


def _twice() -> str:
    """What is said where the gradient is differentiated again."""
    x = torch.ones(1, 1, 2, 4, requires_grad=True)
    output = regard.attention(x, x, x, score=Additive(None, None, torch.ones(4)), backend="triton")
    try:
        torch.autograd.grad(output.sum(), x, create_graph=True)
    except InputError as trouble:
        return str(trouble)
    return "nothing"


def _problem(dtype=torch.float32, value_dim=4, score=None, **options):
    q = torch.ones(1, 2, 6, 4, dtype=dtype)
    v = torch.ones(1, 2, 6, value_dim, dtype=dtype)
    return Problem.of(q, q, v, score=score or Additive(None, None, torch.ones(4)), **options)


REFUSED = {
    "additive scores alone, not ScaledDot": lambda: _problem(score=ScaledDot()),
    "no softcap": lambda: _problem(score=Additive(None, None, torch.ones(4), softcap=5.0)),
    "softmax alone, not Sigmoid": lambda: _problem(normalizer=Sigmoid()),
    "no sink": lambda: _problem(normalizer=Softmax(sink=torch.zeros(2))),
    "no bias": lambda: _problem(bias=torch.full((6, 6), 0.5)),
    "no weight_factor": lambda: _problem(weight_factor=torch.full((6, 6), 0.5)),
    "no dropout": lambda: _problem(dropout=0.5),
    "not Dense": lambda: _problem(mask=Dense(torch.ones(6, 6, dtype=torch.bool))),
    "never holds all weights": lambda: _problem(return_weights=True),
    "300 wide": lambda: _problem(value_dim=300),
    "float64": lambda: _problem(torch.float64, score=Additive(None, None, torch.ones(4, dtype=torch.float64))),
}


def compile_for_hopper(path: str) -> None:
    """Compile the three kernels as for an H100, which needs none, and write what each asks of it."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from regard.backends.triton_additive import backend, kernels

    asked = {}
    kinds = [("fp32", 64, True), ("bf16", 128, False)]
    for (dtype, width, product), which in itertools.product(kinds, backend.BLOCKS):
        kernel, blocks = getattr(kernels, which), backend.BLOCKS[which]
        fixed = {"hidden": 64, "product": product, "value_dim": width, "padded": width, "v_dim": 1}
        fixed |= {"block_q": blocks.queries, "block_k": blocks.keys}
        fixed |= {"forward": {"floor": -1e30}, "to_queries": {"for_vector": True}, "to_keys": {}}[which]
        narrow = dict.fromkeys(("v", "up", "output", "v_slopes"), f"*{dtype}") | {"fits": "*i32", "v_batch": "i64"}
        wide = dict.fromkeys("a b strength lse delta a_slopes half_sums b_slopes".split(), "*fp32")
        types = {name: (narrow | wide).get(name, "i32") for name in kernel.arg_names}
        types |= dict.fromkeys(fixed, "constexpr")
        places = {name: (place,) for place, name in enumerate(types)}
        aligned = [name for name in types if types[name][0] == "*" or name in ("v_batch", "v_head", "v_row")]
        source = ASTSource(
            *(kernel, types, {places[name]: value for name, value in fixed.items()}),
            {places[name]: [["tt.divisibility", 16]] for name in aligned},
        )
        options = {"num_warps": blocks.warps, "num_stages": blocks.stages}
        made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
        text = Path(path).with_suffix(".ptx")
        text.write_text(made.asm["ptx"])
        assembler = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
        command = [assembler, "-v", "-arch=sm_90a", text, "-o", Path(path).with_suffix(".cubin")]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        name = f"{which}, {dtype}, {width}"
        asked[f"{name}/minima keep NaN"] = np.array("min.NaN.f32" in made.asm["ptx"])  # the interpreter's always do
        asked[f"{name}/shared"] = np.array(made.metadata.shared)
        asked[f"{name}/spilled"] = np.array([int(size) for size in re.findall(r"(\d+) bytes spill stores", said)])
    np.savez(path, **asked)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What the kernels compute under the interpreter."""
    return run(HERE, "interpret", tmp_path_factory.mktemp("additive"), TRITON_INTERPRET="1")


def near(ours, wanted, tolerance):
    assert ours.shape == wanted.shape
    finite = np.isfinite(wanted)
    np.testing.assert_array_equal(ours[~finite], wanted[~finite])
    largest = np.abs(wanted[finite]).max(initial=0.0)
    np.testing.assert_allclose(ours[finite], wanted[finite], rtol=0, atol=tolerance * max(largest, 1e-3))


@pytest.mark.slow
def test_short_calls_are_those_of_the_formula_in_float64(tmp_path):
    found = run(HERE, "short", tmp_path, TRITON_INTERPRET="1")
    for name, case in SHORT.items():
        for what, wanted in case.wanted().items():
            near(found[f"{name}/{what}"], wanted, case.tolerance)


@pytest.mark.slow
def test_values_log_sum_exps_and_all_gradients_are_those_of_the_formula_in_float64(found):
    for case in sweep(CASES):
        with case as name:
            for what, wanted in CASES[name].wanted().items():
                near(found[f"{name}/{what}"], wanted, CASES[name].tolerance)


@pytest.mark.slow
def test_values_and_gradients_are_those_of_the_reference_backend(found):
    for case in sweep(["all keys, grouped heads, a vector for each head", "rows behind a window see nothing"]):
        with case as name:
            for what, wanted in CASES[name].found("reference", torch.float64).items():
                near(found[f"{name}/{what}"], wanted, CASES[name].tolerance)


@pytest.mark.slow
def test_a_row_that_sees_nothing_gives_zero_and_its_query_gets_no_gradient(found):
    name = "rows before the first key see nothing"
    blind = slice(0, 40)
    assert (found[f"{name}/output"][:, :, blind] == 0).all()
    assert (found[f"{name}/d q"][:, :, blind] == 0).all()
    assert all(np.isfinite(found[f"{name}/d {one}"]).all() for one in NAMES if f"{name}/d {one}" in found)


@pytest.mark.slow
def test_each_gradient_is_the_same_where_no_other_is_wanted(found):
    leaves = [x.double().requires_grad_() for x in SMALL.tensors()]
    regard.attention(*leaves[:3], score=Additive(*leaves[3:]), backend="reference").square().sum().backward()
    for name, leaf in zip(NAMES, leaves, strict=True):
        near(found[f"alone/{name}"], leaf.grad.numpy(), 1e-5)


@pytest.mark.slow
def test_two_runs_agree_to_the_bit(found):
    for what in ("output", "lse", *(f"d {name}" for name in NAMES[:-1])):
        np.testing.assert_array_equal(found[f"again/{what}"], found[f"a causal window, many blocks/{what}"])


@pytest.mark.slow
def test_a_query_of_nan_gives_nan_and_spoils_no_other(found):
    broken = np.isnan(found["odd/query"]).any(-1)[0, 0]
    assert broken.tolist() == [at == 70 for at in range(200)]


@pytest.mark.slow
def test_blocks_of_keys_outside_the_band_are_not_read(found):
    """NaN in keys 0 to 9, and a window of 8: rows from the third block on see neither them nor their block."""
    assert np.isnan(found["odd/keys"]).any()
    near(found["odd/keys"][:, :, 96:], found["odd/none"][:, :, 96:], 1e-5)


@pytest.mark.slow
def test_no_tensor_is_as_large_as_the_weights(found):
    assert 0 < found["largest"] < 300 * 300 * 4 / 4


@pytest.mark.slow
def test_what_it_does_not_compute_is_refused_with_its_reason(found):
    for words, reason in zip(REFUSED, found["refusal"], strict=True):
        assert words in reason


@pytest.mark.slow
def test_a_second_derivative_is_refused(found):
    assert "has no second derivative" in str(found["twice"])


@pytest.mark.slow
def test_the_kernels_compile_for_an_h100_with_hardly_a_register_spilled(tmp_path):
    asked = run(HERE, "compile", tmp_path, TRITON_INTERPRET="0")
    assert len(asked) == 18
    for name, value in asked.items():
        if name.endswith("NaN"):
            assert value, name
        else:
            limit = 113 * 1024 if name.endswith("shared") else 128  # two programs share a multiprocessor
            assert (value <= limit).all(), name


def test_powers_are_taken_where_they_neither_overflow_nor_vanish():
    a, vector = torch.tensor([[[[0.0, 41.0]]]]), torch.ones(1, 2)
    layer = HiddenLayer.of(a, -a, vector, 1.0)
    assert layer.fits
    np.testing.assert_allclose(layer.a[0, 0, :, 0] * layer.b[0, 0, :, 0], [1, 1], rtol=1e-4)
    for odd in (42.0, -42.0, torch.inf, torch.nan):
        assert not HiddenLayer.of(a, torch.full_like(a, odd), vector, 1.0).fits


def test_on_a_cpu_it_is_refused_by_name_and_never_taken():
    pytest.importorskip("triton")
    x = torch.ones(1, 1, 4, 4)
    score = Additive(None, None, torch.ones(4))
    with pytest.raises(InputError, match="'triton' cannot run this call: it runs on CUDA, and the queries are on cpu"):
        regard.attention(x, x, x, score=score, backend="triton")
    assert "triton" not in str(regard.explain(x, x, x, score=score))


def test_torch_func_is_refused():
    x, score = torch.ones(3, 1, 1, 4, 4), Additive(None, None, torch.ones(4))
    with pytest.raises(InputError, match=r"it does not run under torch\.func"):
        torch.func.vmap(lambda q: regard.attention(q, q, q, score=score, backend="triton"))(x)


@pytest.mark.slow  # a process of its own
def test_importing_regard_does_not_import_triton():
    program = "import sys, regard; print([name for name in sys.modules if name.split('.')[0] == 'triton'])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


if __name__ == "__main__":
    {"interpret": interpret, "short": interpret_short, "compile": compile_for_hopper}[sys.argv[1]](sys.argv[2])
