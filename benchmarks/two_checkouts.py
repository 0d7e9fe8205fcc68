"""Has a change of the code made anything slower? Calls of two checkouts, timed in turn, with the ratio of each row.

    git worktree add /tmp/before COMMIT
    python benchmarks/two_checkouts.py /tmp/before . [--rounds 20] [--results out/two_checkouts.json]

In each round both checkouts run once, in fresh processes and in alternating order; a process times each row over many
calls and gives their median. A row's ratio (after ÷ before) is the median over the rounds, with a 95 % interval by
bootstrap over rounds. A row whose interval lies wholly above 1.05 counts as slower, and the script then ends with 1.
"""

import argparse
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from statistics import median

SLOWER = 1.05
PROBE = """
import importlib.util, json, statistics, time
import torch
import regard
from regard import masks, positions
from regard.models import Transformer, TransformerConfig, output_heads

torch.manual_seed(0)
SECONDS = 0.2

def timed(call):
    call()
    call()
    taken, end = [], time.perf_counter() + SECONDS
    while time.perf_counter() < end or len(taken) < 5:
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)

def tensors(n, heads=8, kv=8, m=None, dim=64, grad=False):
    sizes = (1, heads, n, dim), (1, kv, m or n, dim), (1, kv, m or n, dim)
    return [torch.randn(*size, requires_grad=grad) for size in sizes]

def forward(n, mask, **more):
    q, k, v = tensors(n, **{name: more.pop(name) for name in ("heads", "kv", "m") if name in more})
    return lambda: regard.attention(q, k, v, mask=mask, **more)

def both(n, mask, **more):
    q, k, v = tensors(n, grad=True)
    return lambda: regard.attention(q, k, v, mask=mask, **more).sum().backward()

band = masks.Causal() & masks.Window(512)
documents = masks.Causal() & masks.Document.from_lengths(torch.tensor([700, 900, 1100, 1396]))
config = TransformerConfig(vocab_size=200, hidden_size=128, num_attention_heads=4, intermediate_size=256,
                           decoder_layers=3, output_head=output_heads.LanguageModel())
model = Transformer(config)
ids = torch.randint(0, 200, (4, 128))

def trained():
    model.train()
    model(ids, labels=ids).loss.backward()
    model.zero_grad()

def generated():
    model.eval()
    model.generate(ids[:1, :16], max_new_tokens=16, eos_token_id=())

def watched():
    model.eval()
    with torch.no_grad(), regard.watch(model) as seen:
        model(ids)
    seen.weights(layer=0, head=0)

rows = {
    "16 tokens, no mask": forward(16, None),
    "16 tokens, Causal": forward(16, masks.Causal()),
    "16 tokens, Causal & Window": forward(16, band),
    "1,024 tokens, Causal": forward(1024, masks.Causal()),
    "1,024 tokens, ALiBi": forward(1024, masks.Causal(), bias=positions.ALiBi(8)),
    "1,024 tokens, dropout": forward(1024, masks.Causal(), dropout=0.1),
    "4,096 tokens, Causal & Window(512)": forward(4096, band),
    "4,096 tokens, Causal & Window(512), with gradients": both(4096, band),
    "4,096 tokens, documents, with gradients": both(4096, documents),
    "one query on 16,384 keys": forward(1, masks.Causal(), heads=9, kv=3, m=16384),
    "a training step of a small decoder": trained,
    "16 tokens generated": generated,
    "a small decoder watched": watched,
}
if importlib.util.find_spec("numba"):
    rows["4,096 tokens, Causal & Window(512), numba"] = forward(4096, band, backend="numba")
print(json.dumps({name: timed(call) for name, call in rows.items()}))
"""


def seconds(checkout: Path) -> dict[str, float]:
    """Run every row of one checkout in a fresh process."""
    environment = {**os.environ, "PYTHONPATH": str(checkout.resolve() / "src")}
    ran = subprocess.run([sys.executable, "-c", PROBE], env=environment, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise SystemExit(f"{checkout}: {ran.stderr}")
    found: dict[str, float] = json.loads(ran.stdout.splitlines()[-1])
    return found


def interval(ratios: list[float]) -> tuple[float, float]:
    """Return the 95 % interval of the median, by 2,000 draws with a fixed seed."""
    chance = random.Random(0)
    medians = sorted(median(chance.choices(ratios, k=len(ratios))) for _ in range(2000))
    return medians[50], medians[1949]


def main() -> None:
    """Time both checkouts in turn, print a row at a time, and save the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--results", type=Path, default=Path("out") / "two_checkouts.json")
    options = parser.parse_args()
    rounds: list[dict[str, dict[str, float]]] = []
    for number in range(options.rounds):
        order = ["before", "after"] if number % 2 == 0 else ["after", "before"]
        rounds.append({name: seconds(getattr(options, name)) for name in order})
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
    rows = {}
    for name in rounds[0]["before"]:
        ratios = [one["after"][name] / one["before"][name] for one in rounds]
        low, high = interval(ratios)
        before = median(one["before"][name] for one in rounds)
        rows[name] = {"before, s": before, "ratio": median(ratios), "low": low, "high": high}
        print(f"{name:52} {before * 1e3:9.3f} ms  {median(ratios):5.2f} ({low:.2f}–{high:.2f})")
    options.results.parent.mkdir(parents=True, exist_ok=True)
    options.results.write_text(
        json.dumps({"rounds": options.rounds, "rows": rows}, indent=1, ensure_ascii=False) + "\n"
    )
    if slower := [name for name, row in rows.items() if row["low"] > SLOWER]:
        raise SystemExit(f"slower: {', '.join(slower)}")


if __name__ == "__main__":
    main()
