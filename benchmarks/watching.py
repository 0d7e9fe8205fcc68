"""What watching costs: SmolLM2 over 8,192 real tokens, every layer and head, against the plain forward pass.

    python benchmarks/watching.py [--model smollm2] [--tokens 8192] [--repeats 3] [--backend native | sdpa]
                                  [--out results.json] [--files folder]

Folded are maps, the 8 strongest keys, entropy, received and distance. Times are of one process, plain and watched
passes in turn, as ratios of neighbours; extra time is the ratio less 1. Memory is the peak resident set of a process of
its own for each, from after the model has been loaded to the end of one pass (Linux). The atlas (without q and k) and
the page are written to `--files`, or to a folder that is removed. `--backend sdpa` has PyTorch compute the second pass.
"""

import argparse
import gc
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import regard
from regard.interpret.model_loading import load_model
from regard.record.atlas import save_atlas
from regard.record.highlight import choose_focus
from regard.record.records import Record
from regard.record.tokens_from_tokenizer import tokens_of
from regard.render.page import write_page
from regard.tensors import human_bytes
from regard_bench.cases.inputs import real_tokens

EXTRA, MEMORY, ATLAS, PAGE = 1.0, 2**30, 120e6, 12e6  # what 8,192 tokens may cost: plain passes, and bytes
STATISTICS = ["distance"]  # beside maps, top-8, entropy and received


def run(model: Any, ids: torch.Tensor, *, watched: bool, backend: str = "auto") -> tuple[float, Any]:
    """Seconds of one pass, and what was seen."""
    begin = time.perf_counter()
    with torch.inference_mode():
        if watched:
            with regard.use_backend(backend), regard.watch(model, statistics=STATISTICS) as seen:
                output = model(input_ids=ids, use_cache=False, logits_to_keep=1).logits
        else:
            seen, output = None, model(input_ids=ids, use_cache=False, logits_to_keep=1).logits
    return time.perf_counter() - begin, (seen, output)


def peak(arguments: argparse.Namespace, mode: str) -> int:
    """Peak memory in bytes of a process that runs one pass."""
    command = [sys.executable, __file__, "--model", arguments.model, "--tokens", str(arguments.tokens), "--alone", mode]
    command += ["--backend", arguments.backend]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(done.stdout.strip().splitlines()[-1])


def write_files(record: Record, tokenizer: Any, ids: torch.Tensor, folder: Path | None) -> tuple[int, int]:
    """Sizes of the atlas and of the page."""
    record = replace(record, tokens={"text": (tokens_of(tokenizer, ids[0].tolist()),)})
    with tempfile.TemporaryDirectory() as removed:
        target = folder or Path(removed)
        target.mkdir(parents=True, exist_ok=True)
        save_atlas((record,), target / "it.atlas")
        write_page(record, choose_focus(record), target / "it.html")
        return (target / "it.atlas").stat().st_size, (target / "it.html").stat().st_size


def main() -> None:
    """Measure and print; write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--backend", choices=["auto", "native", "sdpa"], default="auto")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--files", type=Path)
    parser.add_argument("--alone", choices=["load", "plain", "watched"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    loaded = load_model(arguments.model)
    ids = real_tokens(loaded.tokenizer, arguments.tokens)
    if arguments.alone:
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak of loading (proc(5))
        if arguments.alone != "load":
            run(loaded.model, ids, watched=arguments.alone == "watched", backend=arguments.backend)
        status = Path("/proc/self/status").read_text().splitlines()
        print(1024 * int(next(line for line in status if line.startswith("VmHWM")).split()[1]))
        return
    run(loaded.model, ids, watched=False)  # warm-up
    plain, watched, same = [], [], []
    for _ in range(arguments.repeats):
        seconds, (_, output) = run(loaded.model, ids, watched=False)
        plain.append(seconds)
        seconds, (seen, again) = run(loaded.model, ids, watched=True, backend=arguments.backend)
        watched.append(seconds)
        if seen.fallback_reasons:
            sys.exit(f"{arguments.backend} was not used: {next(iter(seen.fallback_reasons.values()))}")
        same.append(torch.equal(output, again))
        print(f"plain {plain[-1]:.2f} s, watched {watched[-1]:.2f} s: {watched[-1] / plain[-1]:.2f}", flush=True)
    ratios = [one / other for one, other in zip(watched, plain, strict=True)]
    sizes = write_files(seen.record, loaded.tokenizer, ids, arguments.files)
    print("memory, each in a process of its own", flush=True)
    memory = {mode: peak(arguments, mode) for mode in ("load", "plain", "watched")}
    layers, heads = len(seen.record), seen.layers[0].heads
    result = {
        "model": arguments.model,
        "tokens": arguments.tokens,
        "backend": arguments.backend,
        "layers": layers,
        "heads": heads,
        "plain_seconds": plain,
        "watched_seconds": watched,
        "ratio_median": statistics.median(ratios),
        "ratio_range": [min(ratios), max(ratios)],
        "output_equal_to_the_bit": all(same),
        "peak_bytes": memory,
        "extra_bytes": memory["watched"] - memory["plain"],
        "atlas_bytes": sizes[0],
        "page_bytes": sizes[1],
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads",
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
        "date": time.strftime("%Y-%m-%d"),
    }
    print(f"{arguments.model}, {arguments.tokens:,} tokens, {layers} layers × {heads} heads, {result['machine']}")
    print(f"plain    {statistics.median(plain):6.2f} s   peak {human_bytes(memory['plain'])}")
    print(f"watched  {statistics.median(watched):6.2f} s   peak {human_bytes(memory['watched'])}")
    print(f"ratio    {result['ratio_median']:6.2f}     (from {min(ratios):.2f} to {max(ratios):.2f})")
    print(f"memory on top {human_bytes(result['extra_bytes'])}; output equal to the bit: {all(same)}")
    print(f"atlas {sizes[0] / 1e6:.1f} MB, page {sizes[1] / 1e6:.1f} MB")
    print(f"dense weights alone would be {human_bytes(layers * heads * arguments.tokens**2 * 4)}")
    asked = {
        f"extra time {result['ratio_median'] - 1:.2f} × the plain pass, at most {EXTRA}": (
            result["ratio_median"] - 1 <= EXTRA
        ),
        f"memory on top at most {human_bytes(MEMORY)}": result["extra_bytes"] <= MEMORY,
        f"atlas at most {ATLAS / 1e6:.0f} MB": sizes[0] <= ATLAS,
        f"page at most {PAGE / 1e6:.0f} MB": sizes[1] <= PAGE,
    }
    for what, met in asked.items():
        print(f"asked for: {what}: {'met' if met else 'NOT met'}")
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if not all(asked.values()) or not all(same):
        sys.exit(1)


if __name__ == "__main__":
    main()
