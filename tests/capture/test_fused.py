"""The fused kernels give what dense float64 weights give; they run under Triton's interpreter, in a process of its own.

Triton reads TRITON_INTERPRET where it is imported, and another test may have imported it without: so this file, run as
a program, computes all cases and writes what was found, and the tests compare.
"""

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

import regard
from interpreter import mend, run
from oracles import Largest, dense, entropy, f64, pooled, window
from regard.capture import fused
from regard.capture.fused.sweep import Bins, Blocks
from regard.capture.statistics import Distance, Entropy, Extent, HeatMap, Received, Top
from regard.capture.weights_from_qk import CallFromQK, CallFromWeights
from regard.masks import Causal, Dense, Window
from regard.masks.causal_and_window import band_of
from regard.normalizers import Sigmoid, Softmax
from regard.problem import Problem
from regard.scores import ScaledDot
from sweeps import sweep

FAR = 10**6
ONE_BY_ONE = Bins(1, 1)
HERE = Path(__file__).resolve()


@dataclass(frozen=True)
class Case:
    """One call: sizes, the band that a query sees, and what is asked for."""

    queries: int = 70
    keys: int = 70
    before: int | None = None
    after: int | None = 0
    start: int | None = None  # the position of the first query; the last ones unless given
    batch: int = 1
    heads: int = 1
    kv_heads: int = 1
    dim: int = 16
    dtype: torch.dtype = torch.float32
    sharp: float = 1.0  # on the queries
    count: int = 8
    bins: Bins = ONE_BY_ONE
    blocks: tuple[int, int] = (32, 32)
    given: bool = False  # log-sum-exps are given, and only the second sweep is asked for

    @property
    def relative(self):
        """The rounding of a weight is that of its score, which is as large as the queries are sharp."""
        return RELATIVE * max(1.0, self.sharp / 10)

    def tensors(self):
        draw = torch.Generator().manual_seed(0)
        q = torch.randn(self.batch, self.queries, self.heads, self.dim, generator=draw).transpose(1, 2)
        k = torch.randn(self.batch, self.kv_heads, self.keys, self.dim, generator=draw)
        return (self.sharp * q).to(self.dtype), k.to(self.dtype)

    def weights(self):
        """Dense weights and log-sum-exps in float64, of the inputs as they were rounded."""
        q, k = self.tensors()
        start = self.keys - self.queries if self.start is None else self.start
        distance = (np.arange(self.queries) + start)[:, None] - np.arange(self.keys)
        sides = (FAR if side is None else side for side in (self.before, self.after))
        before, after = sides
        found = dense(q, k, k, visible=(distance <= before) & (-distance <= after))
        return found.weights, found.lse

    def run(self):
        q, k = self.tensors()
        sizes = Blocks(*self.blocks)
        lse = torch.tensor(self.weights()[1], dtype=torch.float32) if self.given else None
        return fused.observe(
            q,
            k,
            scale=self.dim**-0.5,
            band=fused.Band(self.before, self.after),
            q_offset=self.start,
            lse=lse,
            count=0 if self.given else self.count,
            bins=self.bins,
            blocks=(sizes, sizes),
        )


CASES = {
    "causal, grouped heads, two sequences": Case(queries=40, keys=40, batch=2, heads=4, kv_heads=2),
    "all keys": Case(after=None, heads=2),
    "a length of whole blocks": Case(queries=64, keys=64),
    "blocks of two sizes": Case(blocks=(16, 64)),
    "one token": Case(queries=1, keys=1),
    "one query of decoding": Case(queries=1, keys=83),
    "queries are the last positions": Case(queries=33, keys=90),
    "cross-attention, few keys": Case(keys=3, after=None),
    "cross-attention, few queries": Case(queries=5, after=None),
    "a causal window": Case(before=19, blocks=(16, 16)),
    "a window narrower than a block": Case(before=2, queries=90, keys=90),
    "a window to both sides": Case(before=5, after=21, blocks=(16, 16)),
    "rows before the first key see nothing": Case(queries=50, keys=20, blocks=(16, 32)),
    "rows behind a window see nothing": Case(queries=60, keys=30, before=7, start=0),
    "no query reaches the first keys": Case(queries=40, keys=90, before=5),
    "a causal mask aligned at the start": Case(queries=50, after=-20),
    "float16": Case(dtype=torch.float16, dim=32),
    "bfloat16": Case(dtype=torch.bfloat16, dim=32),
    "a width that is no power of two": Case(dim=20),
    "sharp rows": Case(sharp=30.0),
    "equal scores": Case(sharp=0.0, queries=40, keys=40),
    "one strongest key": Case(count=1),
    "sixteen strongest keys": Case(count=16),
    "five strongest keys": Case(count=5),
    "bins within a block": Case(bins=Bins(4, 8)),
    "bins as large as a block": Case(bins=Bins(32, 32)),
    "bins larger than a block": Case(queries=150, keys=150, bins=Bins(128, 64)),
    "bins tall and narrow": Case(queries=100, keys=60, after=None, bins=Bins(64, 2)),
    "bins low and broad": Case(queries=60, keys=100, after=None, bins=Bins(2, 64)),
    "bins of a window": Case(queries=150, keys=150, before=20, bins=Bins(64, 128)),
    "a call that begins within a bin": Case(queries=40, keys=75, bins=Bins(8, 4, row_shift=5, column_shift=3)),
    "a call that begins within a large bin": Case(
        queries=60, keys=90, bins=Bins(64, 64, row_shift=37, column_shift=50)
    ),
    "log-sum-exps that are given": Case(queries=50, keys=40, bins=Bins(8, 8), given=True),
}
# What `make test` computes: grouped heads, and bins taller than a block in a call that begins within one.
SHORT = {
    "grouped heads": Case(queries=18, keys=20, batch=2, heads=2, blocks=(16, 16), count=2),
    "tall bins": Case(queries=50, keys=20, blocks=(16, 16), count=1, bins=Bins(32, 4, row_shift=5, column_shift=3)),
}
RELATIVE, ABSOLUTE = 1e-5, 2e-7  # float32, whatever the inputs were rounded to


def calls():
    """Two calls of decoding, the second of which appends to the first, as a site sees them."""
    draw = torch.Generator().manual_seed(1)
    q, k = (torch.randn(2, heads, 45, 16, generator=draw) for heads in (4, 2))
    for begin, end in ((0, 38), (38, 45)):
        yield begin, CallFromQK(Problem.of(q[:, :, begin:end], k[:, :, :end], k[:, :, :end], mask=Causal()))


class _Seen(torch.nn.Module):
    """Grouped causal attention by PyTorch's own function."""

    def forward(self, x):
        k = x[:, :2]
        return torch.nn.functional.scaled_dot_product_attention(x, k, k, is_causal=True, enable_gqa=True)


def _seen_text():
    return torch.randn(1, 4, 40, 16, generator=torch.Generator().manual_seed(7))


def interpret(path: str) -> None:
    """Compute everything under the interpreter."""
    mend()
    arrays = {}
    for name, case in CASES.items():
        for field, value in case.run()._asdict().items():
            if value is not None:
                arrays[f"{name}/{field}"] = value.numpy()
    again = CASES["a causal window"].run()
    arrays.update({f"again/{field}": value.numpy() for field, value in again._asdict().items()})
    q = torch.randn(1, 1, 300, 16, generator=torch.Generator().manual_seed(0))
    with Largest() as largest:
        fused.observe(q, q, scale=0.25, bins=Bins(4, 4), blocks=(Blocks(64, 64), Blocks(64, 64)))
    arrays["largest"] = np.array(largest.bytes)
    statistics = Top(4), Entropy(), Received()
    for start, call in calls():
        extent = Extent(call.batch, call.heads, start + call.queries, call.keys, torch.float32, call.problem.q.device)
        assert fused.refuses(call, statistics) is None
        for one in statistics:
            one.start(extent)
        for portion in fused.portions(call, statistics, extent, start):
            for rows in portion():
                for one in statistics:
                    one.fold(rows)
    for one in statistics:
        arrays.update({f"appended/{field}": value for field, value in one.finish(extent).items()})
    arrays["refusal"] = np.array([str(fused.refuses(*refused)) for refused in REFUSED.values()])
    with torch.no_grad(), regard.use_backend("triton"), regard.watch(model := _Seen()) as seen:
        model(_seen_text())
    names = "mean", "max", "entropy", "received", "top_weights"
    arrays.update({f"watched/{name}": np.asarray(getattr(seen.record.layers[0], name)) for name in names})
    arrays["watched/unserved"] = np.array(len(seen.fallback_reasons))
    np.savez(path, **arrays)


def interpret_short(path: str) -> None:
    """Compute `SHORT` under the interpreter."""
    mend()
    ran = {name: case.run()._asdict() for name, case in SHORT.items()}
    np.savez(
        path, **{f"{name}/{field}": value.numpy() for name, found in ran.items() for field, value in found.items()}
    )


def compile_for_hopper(path: str) -> None:
    """Compile both kernels as for an H100, which needs none, and write what each asks of it."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from regard.capture.fused import kernels, sweep

    asked = {}
    for width in (64, 128, 256):
        along = sweep._blocks(torch.bfloat16, width)
        extra = {"count": 8, "hidden": -1e30}, {"tall": 512, "broad": 512}
        for kernel, blocks, more in zip((kernels.over_keys, kernels.over_queries), along, extra, strict=True):
            fixed = {"dim": width, "padded": width, "q_dim": 1, "k_dim": 1, **more}
            fixed |= {"block_q": blocks.queries, "block_k": blocks.keys}
            types = {name: "constexpr" if name in fixed else TYPES.get(name, "i32") for name in kernel.arg_names}
            aligned = [name for name in types if types[name][0] == "*" or name[2:] in ("batch", "head", "row")]
            places = {name: (place,) for place, name in enumerate(types)}
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
            name = f"{kernel.arg_names[-1]}/{len(asked)}"
            asked[f"{name}/shared"] = np.array(made.metadata.shared)
            asked[f"{name}/spilled"] = np.array([int(size) for size in re.findall(r"(\d+) bytes spill stores", said)])
            asked[f"{name}/tensor cores"] = np.array("wgmma.mma_async" in made.asm["ptx"])
            asked[f"{name}/loads ahead"] = np.array("cp.async" in made.asm["ptx"])
    np.savez(path, **asked)


TYPES = {"q": "*bf16", "k": "*bf16", "received": "*fp64", "top_keys": "*i32", "scale": "fp32"}
TYPES |= dict.fromkeys(("lse", "entropy", "top_scores", "sums", "maxima"), "*fp32")
TYPES |= dict.fromkeys(("q_batch", "k_batch"), "i64")


def _problem(dtype=torch.float32, width=16, **options):
    q = torch.ones(1, 2, 6, width, dtype=dtype)
    return CallFromQK(Problem.of(q, q, q, **options))


REFUSED = {
    "computed its weights itself": (CallFromWeights(torch.ones(1, 1, 2, 2) / 2), ()),
    "float64": (_problem(torch.float64), ()),
    "300 wide": (_problem(width=300), ()),
    "no plain scaled product": (_problem(score=ScaledDot(softcap=5.0)), ()),
    "no plain softmax": (_problem(normalizer=Sigmoid()), ()),
    "no plain softmax: a sink": (_problem(normalizer=Softmax(sink=torch.zeros(2))), ()),
    "have a bias": (_problem(bias=torch.full((6, 6), 0.5)), ()),
    "no band": (_problem(mask=Dense(torch.ones(6, 6, dtype=torch.bool))), ()),
    "'distance' reads whole rows": (_problem(), (HeatMap(), Distance())),
    "20 strongest keys": (_problem(), (Top(20),)),
}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What the kernels compute under the interpreter."""
    return run(HERE, "interpret", tmp_path_factory.mktemp("fused"), TRITON_INTERPRET="1")


def near(ours, theirs, relative=RELATIVE):
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(ours, theirs, rtol=relative, atol=ABSOLUTE)


def check_rows(case, found):
    """Log-sum-exps, entropies and strongest keys of rows."""
    weights, lse = case.weights()
    sees = weights.any(-1)
    near(found["lse"][sees], lse[sees], case.relative)
    assert np.isposinf(found["lse"][~sees]).all()
    if case.given:
        return
    near(found["entropy"], entropy(weights), case.relative)
    assert (found["entropy"] >= 0).all()
    ours, keys = found["top_weights"], found["top_keys"]
    assert ours.shape[-1] == keys.shape[-1] == case.count
    wanted = -np.sort(-np.pad(weights, [(0, 0)] * 3 + [(0, case.count)]), -1)[..., : case.count]
    near(ours, wanted, case.relative)
    near(np.where(keys >= 0, np.take_along_axis(weights, np.maximum(keys, 0), -1), 0.0), wanted, case.relative)
    assert ((keys == -1) == (ours == 0)).all()
    for row in keys.reshape(-1, case.count):
        assert len(set(row[row >= 0])) == (row >= 0).sum()  # no key twice


def check_columns(case, found):
    """What keys received, and the bins of the heat map."""
    weights, bins = case.weights()[0], case.bins
    assert found["received"].dtype == np.float64
    near(found["received"], weights.sum(-2), case.relative)
    whole = np.pad(weights, [(0, 0), (0, 0), (bins.row_shift, 0), (bins.column_shift, 0)])
    near(found["maxima"], pooled(whole, bins.tall, bins.broad, np.max), case.relative)
    rows, columns = (-(-size // side) for size, side in zip(whole.shape[2:], (bins.tall, bins.broad), strict=True))
    sums = np.zeros((*whole.shape[:2], rows, columns))
    for row in range(rows):
        for column in range(columns):
            tops, lefts = row * bins.tall, column * bins.broad
            sums[..., row, column] = whole[..., tops : tops + bins.tall, lefts : lefts + bins.broad].sum((-1, -2))
    near(found["sums"], sums, case.relative)


def of_case(found, name):
    """The fields of one case."""
    return {key.removeprefix(f"{name}/"): value for key, value in found.items() if key.startswith(f"{name}/")}


@pytest.mark.slow
def test_short_calls_give_what_dense_weights_give(tmp_path):
    found = run(HERE, "short", tmp_path, TRITON_INTERPRET="1")
    for name, case in SHORT.items():
        check_rows(case, of_case(found, name))
        check_columns(case, of_case(found, name))


@pytest.mark.slow
def test_log_sum_exp_entropy_and_strongest_keys_are_those_of_dense_weights_and_blind_rows_have_none(found):
    for case in sweep(CASES):
        with case as name:
            check_rows(CASES[name], of_case(found, name))


@pytest.mark.slow
def test_keys_received_their_columns_and_bins_hold_the_sum_and_the_maximum_of_their_weights(found):
    for case in sweep(CASES):
        with case as name:
            check_columns(CASES[name], of_case(found, name))


@pytest.mark.slow
def test_two_runs_agree_to_the_bit(found):
    for field in ("lse", "entropy", "top_weights", "top_keys", "received", "sums", "maxima"):
        np.testing.assert_array_equal(found[f"again/{field}"], found[f"a causal window/{field}"])


@pytest.mark.slow
def test_no_tensor_is_as_large_as_the_weights(found):
    assert 0 < found["largest"] < 300 * 300 * 4 / 4


@pytest.mark.slow
def test_calls_that_append_rows_give_the_record_of_one_call(found):
    *_, (_, last) = calls()
    draw = torch.Generator().manual_seed(1)
    q, k = (torch.randn(2, heads, 45, 16, generator=draw) for heads in (4, 2))
    weights = dense(q, k, k, visible=window(45, 45, FAR, 0)).weights
    assert last.keys == 45
    near(found["appended/entropy"], entropy(weights))
    near(found["appended/received"], weights.sum(-2))
    near(found["appended/top_weights"], -np.sort(-weights, -1)[..., :4])


@pytest.mark.slow
def test_a_model_is_watched_through_the_kernels(found):
    """The same call by PyTorch, here; the subprocess watched it with use_backend("triton")."""
    with torch.no_grad(), regard.watch(model := _Seen()) as seen:
        model(_seen_text())
    layer = seen.record.layers[0]
    for name in ("mean", "max", "entropy", "received", "top_weights"):
        np.testing.assert_allclose(found[f"watched/{name}"], getattr(layer, name), rtol=2e-5, atol=1e-6)
    assert found["watched/unserved"] == 0


def test_where_the_kernels_cannot_serve_pytorch_does_and_the_reason_is_told():
    pytest.importorskip("triton")
    with torch.no_grad(), regard.use_backend("triton"), regard.watch(model := _Seen()) as seen:
        model(_seen_text())
    assert [words.split(",")[0] for words in seen.fallback_reasons.values()] == ["it runs on CUDA"]
    assert seen.record.layers[0].entropy.shape == (1, 4, 40)


@pytest.mark.slow
def test_what_the_kernels_do_not_compute_is_refused_with_its_reason(found):
    for case in sweep(list(enumerate(REFUSED))):
        with case as (at, words):
            assert words.split(":")[0] in found["refusal"][at]


def test_without_cuda_the_fused_pass_is_refused_and_never_taken():
    pytest.importorskip("triton")
    assert "it runs on CUDA" in fused.refuses(_problem(), (HeatMap(), Top(), Entropy(), Received()))
    with pytest.raises(ValueError, match="`q` must be on CUDA for the fused pass, got cpu"):
        fused.observe(torch.ones(1, 1, 2, 16), torch.ones(1, 1, 2, 16), scale=1.0)


@pytest.mark.slow
def test_both_kernels_compile_for_an_h100_without_spilling_and_within_its_shared_memory(tmp_path):
    asked = run(HERE, "compile", tmp_path, TRITON_INTERPRET="0")
    assert len(asked) == 24
    for name, value in asked.items():
        if name.endswith("shared"):
            assert 0 < value <= 227 * 1024, name
        else:
            assert (value == 0 if name.endswith("spilled") else value).all(), name


BANDS = [
    (Causal(), None, 0),
    (Causal(align="start"), None, -20),
    (Window(8), 7, 0),
    (Window(left=3, right=40), 3, 40),
    (Causal() & Window(left=9, right=9) & Window(left=4, right=12), 4, 0),
]


def test_a_band_sees_what_its_mask_sees():
    for case in sweep(BANDS):
        with case as (mask, before, after):
            band = band_of(mask.bind(30, 50).mask)
            assert (band.before, band.after) == (before, after)
            seen = window(30, 50, FAR if before is None else before, after)
            np.testing.assert_array_equal(f64(mask.bind(30, 50).dense()[0, 0]), seen)


def test_other_masks_are_no_band():
    for case in sweep([~Causal(), Causal() | Window(4), Dense(torch.ones(6, 6, dtype=torch.bool))]):
        with case as mask:
            assert band_of(mask) is None


if __name__ == "__main__":
    {"interpret": interpret, "short": interpret_short, "compile": compile_for_hopper}[sys.argv[1]](sys.argv[2])
