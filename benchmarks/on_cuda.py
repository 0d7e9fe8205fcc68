"""Whether regard computes on a CUDA device what it computes on the processor: no timing, only differences.

    python benchmarks/on_cuda.py [--device cuda] [--only masks parts ...] [--minutes 6] [--out results.json]

Masks are those that the tests draw (tests/drawn_masks.py, with rules in numpy), parts those of tests/families.py. Each
section counts its comparisons and lists what was wrong; the exit status is 1 if anything was. `--device cpu` tries the
script itself. Random models of transformers stand for their families.
"""

import argparse
import contextlib
import itertools
import json
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parent))

import regard
from drawn_masks import FAMILIES, Place, combined
from families import BIASES, FACTORS, MASKS, NORMALIZERS, SCORES, WIDTH, Leaves, Shape
from oracles import dense
from regard import masks, positions, scores
from regard.errors import RegardError

EAGER = ("auto", "sdpa", "strips", "reference")
TOLERANCE = {torch.float32: 3e-5, torch.float16: 1e-2, torch.bfloat16: 6e-2}
Section = Callable[["Report", str], None]
SECTIONS: dict[str, Section] = {}


class Report:
    """Comparisons of one section, and those that failed."""

    def __init__(self, until: float) -> None:
        self.until, self.compared, self.refused = until, 0, 0
        self.wrong: list[str] = []
        self.reasons: dict[str, int] = {}

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self.until

    def near(self, what: str, found: Tensor | np.ndarray, expected: Tensor | np.ndarray, most: float) -> None:
        """Compare with what is expected, relative to the greatest number, at least 1."""
        self.compared += 1
        found, expected = (
            (one.detach().cpu() if isinstance(one, Tensor) else torch.tensor(one)).double() for one in (found, expected)
        )
        if found.shape != expected.shape:
            self.wrong.append(f"{what}: shape {tuple(found.shape)}, expected {tuple(expected.shape)}")
            return
        error = float((found - expected).abs().max()) if found.numel() else 0.0
        if not error <= most * max(1.0, float(expected.abs().max()) if expected.numel() else 0.0):
            self.wrong.append(f"{what}: off by {error:.2e}")

    def same(self, what: str, found: Tensor, expected: Tensor) -> None:
        """Compare to the bit."""
        self.compared += 1
        if not torch.equal(found, expected):
            self.wrong.append(f"{what}: not the same to the bit, {float((found - expected).abs().max()):.2e}")

    @contextlib.contextmanager
    def trying(self, what: str) -> Iterator[None]:
        """A refusal in a sentence counts as such; any other error is wrong."""
        try:
            yield
        except RegardError as error:
            self.refused += 1
            reason = str(error).split(", and ")[0][:160]
            self.reasons[reason] = self.reasons.get(reason, 0) + 1
        except Exception as error:  # the run goes on with what comes next
            last = traceback.extract_tb(error.__traceback__)[-1]
            self.wrong.append(f"{what}: {type(error).__name__}: {error} ({last.filename}:{last.lineno})"[:600])


def section(run: Section) -> Section:
    SECTIONS[run.__name__.strip("_")] = run
    return run


def moved(value: Any, device: str) -> Any:
    return value.to(device) if hasattr(value, "to") else value


@section
def _masks(report: Report, device: str) -> None:
    """Every kind of mask, alone and combined, on every eager backend, with gradients."""
    for seed, family in itertools.product(range(40), FAMILIES):
        if report.is_over:
            return
        rng = np.random.default_rng(seed * 100 + len(family))
        heads, kv = ((4, 4), (4, 2), (4, 1))[seed % 3]
        queries, keys = ((33, 75), (70, 70), (200, 333), (1, 300), (512, 512), (3, 90))[seed % 6]
        dtype = (torch.float32, torch.bfloat16, torch.float16)[seed % 3]
        place = Place(rng, 2, heads, queries, keys, keys - queries)
        mask, seen = combined(place, [family, "Causal"][: 1 + seed % 2])
        drawn = [torch.tensor(rng.standard_normal(size)).to(dtype) for size in (
            (2, heads, queries, 16), (2, kv, keys, 16), (2, kv, keys, 8), (2, heads, queries, 8))]  # fmt: skip
        expected = dense(*drawn[:3], visible=seen, cotangent=drawn[3])
        for backend, where in (*((one, device) for one in EAGER), ("auto", "cpu")):
            what = f"{family} {seed} {backend} {dtype} {queries}×{keys}, mask on {where}"
            with report.trying(what):
                q, k, v = (one.to(device).clone().requires_grad_() for one in drawn[:3])
                bound = (mask if where == "cpu" else moved(mask, where)).bind(queries, keys, q_offset=place.start)
                output = regard.attention(q, k, v, mask=bound, backend=backend)
                output.backward(drawn[3].to(device))
                report.near(f"{what}: output", output, expected.output, TOLERANCE[dtype])
                for name, one in (("q", q), ("k", k), ("v", v)):
                    report.near(f"{what}: gradient of {name}", one.grad, getattr(expected, name), TOLERANCE[dtype])


class LeavesOn(Leaves):
    """Leaves on a device."""

    def __init__(self, device: str, dtype: torch.dtype) -> None:
        super().__init__(dtype, dtype, True)
        self.device = device

    def __call__(self, name: str, *shape: int) -> Tensor:
        if name not in self:
            self[name] = super().__call__(name, *shape).detach().to(self.device).requires_grad_()
        return self[name]


@section
def _parts(report: Report, device: str) -> None:
    """Scores, biases, factors and normalizers, each with several masks, against the processor in float64."""
    shapes = (Shape(2, 4, 4, 75, 75, WIDTH), Shape(2, 4, 2, 45, 102, 5), Shape(1, 2, 1, 300, 300, WIDTH))
    asked: list[tuple[str, str, str, str]] = [
        *((name, "none", "none", "softmax") for name in SCORES),
        *(("scaled dot", name, "none", "softmax") for name in BIASES),
        *(("scaled dot", "none", name, "softmax") for name in FACTORS),
        *(("scaled dot", "none", "none", name) for name in NORMALIZERS),
        ("shaw", "t5", "gaussian", "sink"), ("additive", "alibi", "none", "sigmoid"),
    ]  # fmt: skip
    for shape, mask, one in itertools.product(
        shapes, ("none", "causal", "padded causal", "documents", "bigbird"), asked
    ):
        if report.is_over:
            return

        def run(
            leaves: Leaves, where: str, backend: str, *, shape: Shape = shape, one: Any = one, mask: str = mask
        ) -> Any:
            score, bias, factor, normalizer = one
            q = leaves("q", shape.batch, shape.heads, shape.queries, WIDTH)
            k = leaves("k", shape.batch, shape.kv_heads, shape.keys, WIDTH)
            v = leaves("v", shape.batch, shape.kv_heads, shape.keys, shape.value_width)
            output = regard.attention(
                q, k, v, mask=moved(MASKS[mask](shape), where), score=SCORES[score](shape, leaves, None),
                bias=BIASES[bias](shape, leaves), weight_factor=FACTORS[factor](shape, leaves),
                normalizer=NORMALIZERS[normalizer](shape, leaves), backend=backend,
            )  # fmt: skip
            output.square().sum().backward()
            return output

        exact = Leaves(torch.float32, torch.float64, True)
        expected = run(exact, "cpu", "reference")
        for backend in ("auto", "strips", "reference"):
            what = f"{one} {mask} {shape.queries}×{shape.keys} {backend}"
            with report.trying(what):
                leaves = LeavesOn(device, torch.float32)
                report.near(f"{what}: output", run(leaves, device, backend), expected, 2e-4)
                for name, leaf in leaves.items():
                    if exact[name].grad is not None and leaf.grad is not None:
                        report.near(f"{what}: gradient of {name}", leaf.grad, exact[name].grad, 2e-3)


@section
def _few_queries(report: Report, device: str) -> None:
    """One to three queries over many keys, bound anywhere; hidden keys hold numbers that would drown the others."""
    for seed, family, queries in itertools.product(range(3), FAMILIES, (1, 3)):
        if report.is_over:
            return
        rng, keys = np.random.default_rng(seed), 16_500
        place = Place(rng, 1, 4, queries, keys, int(rng.integers(0, keys - queries + 1)))
        mask, seen = FAMILIES[family](place)
        q, k, v = (torch.tensor(rng.standard_normal((1, h, n, 8)), dtype=torch.float32)
                   for h, n in ((4, queries), (2, keys), (2, keys)))  # fmt: skip
        whole = np.broadcast_to(seen, (1, 4, queries, keys)).any(2)
        hidden = ~torch.tensor(whole.reshape(1, 2, -1, keys).any(2))[..., None]
        k, v = k.masked_fill(hidden, 1e4), v.masked_fill(hidden, 1e4)
        expected = dense(q, k, v, visible=seen)
        for backend in ("auto", "strips", "sdpa"):
            what = f"{family} {seed} {queries} queries {backend}"
            with report.trying(what):
                given = [one.to(device) for one in (q, k, v)]
                bound = moved(mask, device).bind(queries, keys, q_offset=place.start)
                found = regard.attention(*given, mask=bound, backend=backend)
                report.near(what, found, expected.output, 3e-5)


@section
def _flex(report: Report, device: str) -> None:
    """FlexAttention with our block masks: forward and backward, calls that are known, decoding as keys grow."""
    names = ("none", "causal", "window", "documents")
    for seed, (queries, keys), mask in itertools.product(range(2), ((64, 64), (100, 300), (513, 513)), names):
        if report.is_over:
            return
        shape = Shape(2, 4, 2, queries, keys, WIDTH)
        generator = torch.Generator().manual_seed(seed)
        wide = [torch.randn(*size, generator=generator) for size in (
            (2, 4, queries, 32), (2, 2, keys, 32), (2, 2, keys, 32), (2, 4, queries, 32))]  # fmt: skip
        what = f"{mask} {queries}×{keys} {seed}"

        def run(backend: str, where: str, dtype: torch.dtype, *, wide: Any = wide, mask: str = mask,
                shape: Shape = shape) -> list[Tensor]:  # fmt: skip
            q, k, v, up = (one.to(where, dtype, copy=True).requires_grad_() for one in wide)
            output = regard.attention(q, k, v, mask=moved(MASKS[mask](shape), where), backend=backend)
            return [output, *torch.autograd.grad(output, [q, k, v], up.detach())]

        with report.trying(what):
            expected = run("reference", "cpu", torch.float64)
            for at, (found, exact) in enumerate(zip(run("flex", device, torch.float32), expected, strict=True)):
                report.near(f"{what}: {at}", found, exact, 5e-3)
    for mask, keys in itertools.product(names, range(290, 296)):
        if report.is_over:
            return
        with report.trying(f"{mask}, decoding {keys} keys"), torch.no_grad():
            generator = torch.Generator().manual_seed(keys)
            drawn = [torch.randn(2, heads, n, 32, generator=generator) for heads, n in ((4, 1), (2, keys), (2, keys))]
            given = MASKS[mask](Shape(2, 4, 2, 1, keys, WIDTH))
            found, known = (
                regard.attention(*(x.to(device) for x in drawn), mask=moved(given, device), backend="flex")
                for _ in range(2)
            )
            expected = regard.attention(*(x.double() for x in drawn), mask=given, backend="reference")
            report.near(f"{mask}, decoding {keys} keys", found, expected, 5e-3)
            report.same(f"{mask}, decoding {keys} keys again", known, found)


def tiny(name: str, **options: Any) -> nn.Module:
    """A random model of a family, by SDPA where the family has it."""
    from transformers import AutoModel

    from tiny_models import tiny_config

    torch.manual_seed(0)
    return AutoModel.from_config(tiny_config(name), **options).eval()


def given(model: nn.Module, device: str, n: int = 24) -> dict[str, Tensor]:
    ids = torch.randint(3, 60, (2, n), generator=torch.Generator().manual_seed(1)).to(device)
    padding = torch.ones_like(ids)
    padding[1, -5:] = 0
    more = {"decoder_input_ids": ids[:, :9]} if model.config.is_encoder_decoder else {}
    return {"input_ids": ids, "attention_mask": padding, **more}


FAMILIES_OF_MODELS = (
    "gpt2",
    "llama",
    "bert",
    "t5",
    "qwen2",
    "mistral",
    "gemma2",
    "opt",
    "bart",
    "roberta",
    "deberta-v2",
    "gpt_neox",
)


@section
def _watching(report: Report, device: str) -> None:
    """Models of transformers: outputs to the bit, weights those of eager attention."""
    for name, dtype in itertools.product(FAMILIES_OF_MODELS, (torch.float32, torch.bfloat16)):
        if report.is_over:
            return
        with report.trying(f"{name} {dtype}"), torch.no_grad():
            _watched(report, device, name, dtype)


def _watched(report: Report, device: str, name: str, dtype: torch.dtype) -> None:
    what = f"{name} {dtype}"
    model = tiny(name).to(device, dtype)
    inputs = given(model, device)
    plain = model(**inputs)
    with regard.watch(model, keep="weights") as seen:
        watched = model(**inputs)
    report.same(f"{what}: output", watched.last_hidden_state, plain.last_hidden_state)
    eager = tiny(name, attn_implementation="eager").to(device, dtype)
    eager.load_state_dict(model.state_dict())
    answer = eager(**inputs, output_attentions=True)
    theirs = answer.decoder_attentions if model.config.is_encoder_decoder else answer.attentions
    layers = [one for one in seen.record.layers if one.kind == "self" and one.query_tokens != "source"]
    for at, (layer, exact) in enumerate(zip(layers, theirs, strict=True)):
        for b, h in itertools.product(range(2), range(layer.heads)):
            real = 9 if model.config.is_encoder_decoder else int(inputs["attention_mask"][b].sum())
            found = np.array(layer.weights[b, h, :real, :real])
            most = 2e-5 if dtype == torch.float32 else 3e-2
            report.near(f"{what}: {at}.{h}", found, exact[b, h, :real, :real].float(), most)


MODELS: dict[str, dict[str, Any]] = {
    "sinusoidal": {}, "rotary": {"positions": positions.RoPE(8)}, "T5": {"position_bias": "t5"},
    "ALiBi": {"position_bias": "alibi"}, "Shaw": {"position_bias": "shaw", "max_relative_position": 4},
    "window": {"positions": positions.RoPE(8), "sliding_window": 7},
    "DynamicNTK": {"positions": positions.RoPE(8, scaling=positions.DynamicNTK(4.0, 8))},
    "grouped": {"num_key_value_heads": 2},
}  # fmt: skip


def ours(name: str, dropout: float) -> nn.Module:
    """A small decoder of regard.models."""
    from regard.models import Transformer, TransformerConfig, output_heads

    torch.manual_seed(0)
    return Transformer(TransformerConfig(
        vocab_size=60, hidden_size=32, num_attention_heads=4, intermediate_size=64, decoder_layers=2, dropout=dropout,
        output_head=output_heads.LanguageModel(), **MODELS[name],
    ))  # fmt: skip


def texts() -> tuple[Tensor, dict[str, Tensor]]:
    """Rows of three texts, padded, with what a model is given beside them."""
    ids = torch.randint(1, 60, (3, 40), generator=torch.Generator().manual_seed(1))
    real = torch.arange(40) < torch.tensor([[40], [31], [12]])
    return ids, {"attention_mask": real, "labels": ids.masked_fill(~real, -100)}


@section
def _training(report: Report, device: str) -> None:
    """A step of our models on the device is that of the processor in float64; so is decoding with a cache."""
    ids, rest = texts()
    for name in MODELS:
        with report.trying(name):
            model = ours(name, 0.0)
            exact = model.double()(ids, **rest)
            exact.loss.backward()
            gradients = {key: one.grad.clone() for key, one in model.named_parameters() if one.grad is not None}
            model.zero_grad()
            model.float().to(device)
            found = model(ids.to(device), **{key: one.to(device) for key, one in rest.items()})
            found.loss.backward()
            report.near(f"{name}: loss", found.loss, exact.loss, 1e-5)
            for key, one in model.named_parameters():
                if key in gradients:
                    report.near(f"{name}: gradient of {key}", one.grad, gradients[key], 1e-4)
            cache, text = model.cache(), ids[:1].to(device)
            with torch.no_grad():
                parts = [model(part, past_key_values=cache).logits for part in text.split([20, 1, 1, 3, 15], 1)]
                report.near(f"{name}: with a cache", torch.cat(parts, 1), model(text).logits, 1e-4)


@section
def _observed_training(report: Report, device: str) -> None:
    """Watching and tapping in training with dropout changes no gradient, in float32 and under autocast to bfloat16."""
    ids, rest = texts()
    given = {key: one.to(device) for key, one in rest.items()}
    for name, dtype in itertools.product(MODELS, (torch.float32, torch.bfloat16)):
        with report.trying(f"{name} {dtype}"):
            model, found = ours(name, 0.2).to(device), {}
            ways: dict[str, Any] = {
                "plain": contextlib.nullcontext,
                "again": contextlib.nullcontext,
                "watched": lambda model=model: regard.watch(model, statistics=["distance", "sink"]),
                "tapped": lambda model=model: regard.tap(model, heads=["1.0", "0.3"]),
            }
            for how, observed in ways.items():
                torch.manual_seed(3)
                model.zero_grad()
                with torch.autocast(device, dtype, enabled=dtype == torch.bfloat16), observed():
                    model(ids.to(device), **given).loss.backward()
                found[how] = [one.grad.clone() for one in model.parameters() if one.grad is not None]
            # Sums of a GPU's gradients have no order: where two plain runs are the same to the bit, so are the others.
            steady = [torch.equal(*pair) for pair in zip(found["plain"], found["again"], strict=True)]
            for how, at in itertools.product(("watched", "tapped"), range(len(steady))):
                what = f"{name} {dtype} {how}, gradient {at}"
                if steady[at]:
                    report.same(what, found[how][at], found["plain"][at])
                else:
                    report.near(what, found[how][at], found["plain"][at], 1e-6)


@section
def _compiled(report: Report, device: str) -> None:
    """torch.compile by Inductor, forward and backward, with masks and biases made outside and inside."""
    table = torch.randn(32, 4, generator=torch.Generator().manual_seed(0)).to(device)
    cases: dict[str, Callable[[Tensor], dict[str, Any]]] = {
        "plain": lambda _: {}, "causal": lambda _: {"mask": masks.Causal()},
        "window": lambda _: {"mask": masks.Causal() & masks.Window(50)},
        "t5": lambda t: {"bias": positions.T5Bias(t, bidirectional=False), "mask": masks.Causal()},
        "padding": lambda t: {"mask": masks.Padding(torch.arange(256, device=t.device)[None] < 200)},
        "softcap": lambda _: {"score": scores.ScaledDot(5.0)},
    }  # fmt: skip
    for name, made in cases.items():
        if report.is_over:
            return
        with report.trying(name):

            def call(q: Tensor, k: Tensor, v: Tensor, t: Tensor, *, made: Any = made) -> Tensor:
                return regard.attention(q, k, v, **made(t))

            given = [
                torch.randn(2, h, 256, 32, generator=torch.Generator().manual_seed(h)).to(device) for h in (4, 2, 2)
            ]
            results = []
            for run in (call, torch.compile(call, fullgraph=True)):
                leaves = [one.clone().requires_grad_() for one in (*given, table)]
                output = run(*leaves)
                grads = torch.autograd.grad(output.square().sum(), leaves, allow_unused=True)
                results.append([output, *(one for one in grads if one is not None)])
            for at, (one, other) in enumerate(zip(*results, strict=True)):
                report.near(f"{name}: {at}", other, one, 1e-3)


@section
def _dropout(report: Report, device: str) -> None:
    """Dropout by a generator can be repeated, keeps the mean, and its gradient drops the same weights."""
    x = torch.randn(2, 4, 64, 16, generator=torch.Generator().manual_seed(0)).to(device)
    for backend in ("auto", "strips", "reference"):
        with report.trying(backend):
            run = lambda seed, backend=backend: regard.attention(  # noqa: E731
                x, x, x, dropout=0.3, generator=torch.Generator(device).manual_seed(seed), backend=backend
            )
            report.same(f"{backend}: repeated", run(1), run(1))
            report.near(
                f"{backend}: mean", torch.stack([run(s) for s in range(200)]).mean(0), regard.attention(x, x, x), 0.2
            )
            on_cpu = regard.attention(
                x.cpu(), x.cpu(), x.cpu(), dropout=0.3, generator=torch.Generator().manual_seed(1), backend="reference"
            )
            with contextlib.suppress(RegardError, RuntimeError):
                found = regard.attention(
                    x, x, x, dropout=0.3, generator=torch.Generator().manual_seed(1), backend=backend
                )
                report.near(f"{backend}: the processor's generator", found, on_cpu, 1e-4)


@section
def _tools(report: Report, device: str) -> None:
    """Taps while a model generates, heads left out, sources, records in files, from the device."""
    from transformers import AutoModelForCausalLM

    from tiny_models import tiny_config

    for name in ("gpt2", "llama"):
        with report.trying(name), torch.no_grad():
            torch.manual_seed(0)
            model = AutoModelForCausalLM.from_config(tiny_config(name), attn_implementation="sdpa").eval().to(device)
            ids = given(model, device)["input_ids"][:1]
            options = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
            plain = model.generate(ids, **options)
            with regard.tap(model, heads=["1.0"]) as tap:
                tapped = model.generate(ids, **options)
            report.same(f"{name}: tapped", tapped, plain)
            with regard.watch(model, keep="weights") as seen:
                watched = model.generate(ids, **options)
            report.same(f"{name}: watched", watched, plain)
            model.set_attn_implementation("eager")
            exact = model(plain[:, :-1], output_attentions=True).attentions[1][0, 0]
            report.near(f"{name}: weights of steps", seen.weights(layer=1, head=0)[0], exact, 1e-4)
            with tempfile.TemporaryDirectory() as folder:
                seen.save(Path(folder) / "x.atlas")
                report.near(
                    f"{name}: file",
                    regard.load_atlas(Path(folder) / "x.atlas").weights(layer=1, head=0)[0],
                    exact,
                    1e-4,
                )
            del tap


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", nargs="*", choices=SECTIONS)
    parser.add_argument("--minutes", type=float, default=6.0, help="time for all sections together")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    chosen = asked.only or list(SECTIONS)
    results: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if asked.device == "cuda" else asked.device,
        "versions": {"torch": torch.__version__, "python": sys.version.split()[0]},
        "date": time.strftime("%Y-%m-%d"),
    }
    end = time.monotonic() + asked.minutes * 60
    for at, name in enumerate(chosen):
        share = (end - time.monotonic()) / (len(chosen) - at)
        report, begun = Report(time.monotonic() + share), time.monotonic()
        with report.trying(name):
            SECTIONS[name](report, asked.device)
        took = time.monotonic() - begun
        print(
            f"{name}: {report.compared} compared, {len(report.wrong)} wrong, {report.refused} refused, {took:.0f} s",
            flush=True,
        )
        for one in report.wrong[:12]:
            print("   ", one)
        for reason, count in report.reasons.items():
            print(f"    refused {count}: {reason}")
        results[name] = {"compared": report.compared, "refused": report.reasons, "wrong": report.wrong[:200]}
        if asked.out is not None:
            asked.out.write_text(json.dumps(results, indent=1) + "\n")
    return any(isinstance(one, dict) and one.get("wrong") for one in results.values())


if __name__ == "__main__":
    sys.exit(main())
