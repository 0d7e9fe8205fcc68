"""What writing costs: SmolLM2 and 256 greedy tokens through the cache, against transformers' own generate.

    python benchmarks/decoding.py [--tokens 256] [--repeats 5] [--batch 1] [--out results.json]

Both models hold the same numbers and write in turn, in one process; the ratio is that of neighbours in time. The tokens
must be equal.
"""

import argparse
import json
import platform
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
import transformers

import regard
from regard.models import Transformer

PROMPTS = [
    "The history of the city begins",
    "Once upon a time, in a small",
    "To bake bread at home you",
    "Attention is",
]


def ours(model: Transformer, prompts: list[list[int]], tokens: int) -> tuple[float, list[list[int]]]:
    """Seconds, and what was written."""
    begin = time.perf_counter()
    options = {"max_new_tokens": tokens, "eos_token_id": (), "return_dict_in_generate": True}
    written = model.generate(prompts, **options).new_tokens
    return time.perf_counter() - begin, written


def theirs(model: Any, prompts: list[list[int]], tokens: int, pad: int) -> tuple[float, list[list[int]]]:
    """Seconds, and what transformers writes; its prompts are padded on the left too."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[pad] * (longest - len(one)) + one for one in prompts])
    mask = torch.tensor([[0] * (longest - len(one)) + [1] * len(one) for one in prompts])
    options = {"max_new_tokens": tokens, "do_sample": False, "eos_token_id": None, "pad_token_id": pad}
    begin = time.perf_counter()
    found = model.generate(ids, attention_mask=mask, **options)[:, longest:].tolist()
    return time.perf_counter() - begin, found


def main() -> None:
    """Measure and print; write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--batch", type=int, default=1, choices=range(1, len(PROMPTS) + 1))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    loaded = regard.load_model("smollm2")
    model = Transformer.from_pretrained("smollm2")
    prompts = [loaded.tokenizer(one)["input_ids"] for one in PROMPTS[: arguments.batch]]
    ours(model, prompts, 8), theirs(loaded.model, prompts, 8, 2)  # warm-up
    times: dict[str, list[float]] = {"regard": [], "transformers": []}
    same = True
    for repeat in range(arguments.repeats):
        runs = {
            "regard": lambda: ours(model, prompts, arguments.tokens),
            "transformers": lambda: theirs(loaded.model, prompts, arguments.tokens, 2),
        }
        written = {}
        for name in sorted(runs, reverse=bool(repeat % 2)):  # who goes first changes
            seconds, written[name] = runs[name]()
            times[name].append(seconds)
        same &= written["regard"] == written["transformers"]
    ratios = [other / one for one, other in zip(times["regard"], times["transformers"], strict=True)]
    result = {
        "tokens": arguments.tokens,
        "batch": arguments.batch,
        "seconds": times,
        "speed_median": statistics.median(ratios),
        "speed_range": [min(ratios), max(ratios)],
        "same_tokens": same,
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "date": time.strftime("%Y-%m-%d"),
    }
    count = arguments.tokens * arguments.batch
    for name, seconds in times.items():
        print(
            f"{name:<13}{statistics.median(seconds):7.2f} s   {count / statistics.median(seconds):6.1f} tokens a second"
        )
    print(f"regard is {result['speed_median']:.2f} times as fast (from {min(ratios):.2f} to {max(ratios):.2f})")
    print(f"the tokens are the same: {same}; asked for: at least 1.00 times as fast")
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if result["speed_median"] < 1 or not same:
        sys.exit(1)


if __name__ == "__main__":
    main()
