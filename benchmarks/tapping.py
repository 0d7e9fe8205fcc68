"""What a tap costs: decoding steps and prefill of SmolLM2, 8 heads in 5 layers over all keys, rows to a callback.

    python benchmarks/tapping.py [--tokens 512 4096] [--rounds 5] [--steps 200] [--prefills 9] [--threads 2]
                                 [--compiled] [--results benchmarks/results/tapping-2-cores.json]

A step with a tap and one without are timed in turn, each after the other as often as before it. The plain one is of a
copy of the model, outside any tap, with the same tensors and the same cache, which is cut back after each step, so that
both compute the same. A ratio is the median over all pairs, with a 95 % interval (`regard_bench.timing.Ratio`); each
round opens another tap. Prefill is timed with the tap's first call in it, which reads layers as a watch does. Seconds
of the wall's clock and of the processor are both kept, as other processes disturb the first more.

With `--compiled` both models are compiled, `torch.compile(model.forward, fullgraph=True)`, with one static cache, and
steps alone are timed; graph breaks and what was compiled again after the first five steps are counted too.
"""

import argparse
import copy
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

import regard
from regard.interpret.model_loading import load_model
from regard_bench.cases.inputs import real_tokens
from regard_bench.timing import Ratio

HEADS = ["10.0", "10.4", "12.1", "15.2", "17.3", "17.4", "17.5", "18.6"]
STEP, STEP_UPPER, PREFILL = 1.03, 1.04, 1.02  # what a tap may cost: medians, and the upper end of a step's interval
CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}


def timed(call: Callable[[], Any]) -> tuple[dict[str, float], Any]:
    """Seconds by clock, and what the call returns."""
    begin = {name: clock() for name, clock in CLOCKS.items()}
    result = call()
    return {name: clock() - begin[name] for name, clock in CLOCKS.items()}, result


def in_turn(sides: list[Callable[[], Any]], count: int) -> tuple[list[tuple[dict[str, float], ...]], bool]:
    """Seconds of both sides, `count` pairs, and whether all their results are equal to the bit."""
    found, same = [], True
    for at in range(count):
        order = sides if at % 2 else sides[::-1]
        (one, first), (other, second) = (timed(call) for call in order)
        found.append((one, other) if at % 2 else (other, one))
        same = same and torch.equal(first, second)
    return found, same


def summary(pairs: list[tuple[dict[str, float], ...]]) -> dict[str, Any]:
    """Ratios tapped / plain, and medians in milliseconds, by clock."""
    found: dict[str, Any] = {"pairs": len(pairs)}
    for clock in CLOCKS:
        ratio = Ratio.of([tapped[clock] / plain[clock] for tapped, plain in pairs])
        found[clock] = {
            "ratio": ratio.median,
            "interval": [ratio.low, ratio.high],
            "plain_ms": 1e3 * statistics.median(plain[clock] for _, plain in pairs),
            "difference_ms": 1e3 * statistics.median(tapped[clock] - plain[clock] for tapped, plain in pairs),
        }
    return found


def measure(model: Any, ids: torch.Tensor, rounds: int, steps: int, prefills: int) -> dict[str, Any]:
    """Measure steps behind a prompt, and its prefill."""
    shared = {id(one): one for one in (*model.parameters(), *model.buffers())}
    twin = copy.deepcopy(model, shared)
    cache = transformers.DynamicCache(config=model.config)
    token = ids[:, -1:]
    rows: list[Any] = []

    def prefill(one: Any) -> torch.Tensor:
        return one(ids, use_cache=True, logits_to_keep=1).logits

    def tapped_prefill() -> torch.Tensor:
        with regard.tap(model, heads=HEADS, on_row=rows.append):
            return prefill(model)

    def step(one: Any) -> torch.Tensor:
        return one(token, past_key_values=cache, use_cache=True, logits_to_keep=1).logits

    def step_and_cut(one: Any) -> Callable[[], torch.Tensor]:
        def call() -> torch.Tensor:
            logits = step(one)
            cache.crop(-1)
            return logits

        return call

    twin(ids, past_key_values=cache, logits_to_keep=1)
    pairs, same = [], True
    for _ in range(rounds):
        with regard.tap(model, heads=HEADS, on_row=rows.append):
            for _ in range(5):
                step_and_cut(model)()
            found, equal = in_turn([step_and_cut(model), step_and_cut(twin)], steps)
        pairs, same = pairs + found, same and equal
    result = {"tokens": ids.shape[1], "step": summary(pairs)}
    if prefills:
        found, equal = in_turn([tapped_prefill, lambda: prefill(twin)], prefills)
        result["prefill"], same = summary(found), same and equal
    return result | {"equal_to_the_bit": same, "rows": len(rows)}


def measure_compiled(model: Any, ids: torch.Tensor, rounds: int, steps: int) -> dict[str, Any]:
    """Measure steps of compiled models behind a prompt."""
    from torch._dynamo.utils import counters

    tensors = (*model.parameters(), *model.buffers())
    model, twin = (copy.deepcopy(model, {id(one): one for one in tensors}) for _ in range(2))
    cache = transformers.StaticCache(config=model.config, max_cache_len=ids.shape[1] + 1)
    twin(ids, past_key_values=cache, logits_to_keep=1)
    lengths = [layer.cumulative_length for layer in cache.layers]
    token, rows = ids[:, -1:], []
    for one in (model, twin):
        one.forward = torch.compile(one.forward, fullgraph=True)

    def step(one: Any) -> Callable[[], torch.Tensor]:
        def call() -> torch.Tensor:
            logits = one(token, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
            for length in lengths:
                length.fill_(ids.shape[1])
            return logits

        return call

    pairs, same, again = [], True, 0
    for _ in range(rounds):
        with regard.tap(model, heads=HEADS, on_row=rows.append):
            for _ in range(5):
                step(model)(), step(twin)()
            before = counters["stats"]["unique_graphs"]
            found, equal = in_turn([step(model), step(twin)], steps)
            again += counters["stats"]["unique_graphs"] - before
        pairs, same = pairs + found, same and equal
    breaks = sum(counters["graph_break"].values())
    result = {"tokens": ids.shape[1], "step": summary(pairs), "equal_to_the_bit": same, "rows": len(rows)}
    return result | {"graph_breaks": breaks, "compiled_again": again, "compiled": counters["stats"]["unique_graphs"]}


def main() -> None:
    """Measure, print, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[512, 4096])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--prefills", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compiled", action="store_true", help="compiled models with a static cache; steps alone")
    parser.add_argument("--results", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    loaded = load_model("smollm2")
    found = []
    with torch.inference_mode():
        for tokens in arguments.tokens:
            ids = real_tokens(loaded.tokenizer, tokens)
            prefills = arguments.prefills if tokens <= 1024 else max(3, arguments.prefills // 3)
            if arguments.compiled:
                one = measure_compiled(loaded.model, ids, arguments.rounds, arguments.steps)
                print(f"{one['compiled']} graphs, {one['graph_breaks']} breaks, compiled again {one['compiled_again']}")
            else:
                one = measure(loaded.model, ids, arguments.rounds, arguments.steps, prefills)
            found.append(one)
            for what in ("step", "prefill"):
                for clock in CLOCKS if what in one else ():
                    at = one[what][clock]
                    low, high = at["interval"]
                    print(
                        f"{tokens:5} tokens, {what:7} ({clock}): {at['ratio']:.3f} × ({low:.3f} – {high:.3f}), plain "
                        f"{at['plain_ms']:.1f} ms, on top {at['difference_ms']:.2f} ms, {one[what]['pairs']} pairs",
                        flush=True,
                    )
    result = {
        "heads": HEADS,
        "compiled": arguments.compiled,
        "results": found,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads",
        "load_average": os.getloadavg()[0],
        "versions": {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "regard": regard.__version__,
        },
        "date": time.strftime("%Y-%m-%d"),
    }
    if arguments.results:
        arguments.results.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    met = all(one["equal_to_the_bit"] and not one.get("compiled_again") for one in found)
    for one in found:
        step = one["step"]["wall"]
        good = step["ratio"] <= STEP and step["interval"][1] <= STEP_UPPER
        good &= "prefill" not in one or one["prefill"]["wall"]["ratio"] <= PREFILL
        print(f"asked for at {one['tokens']} tokens: {'met' if good else 'NOT met'}")
        met &= good
    sys.exit(not met)


if __name__ == "__main__":
    main()
