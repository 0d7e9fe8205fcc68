"""Has a change of the code made anything slower? Two checkouts, measured in turn, with the change of each row.

    git worktree add /tmp/before COMMIT
    python benchmarks/two_checkouts.py /tmp/before . [--cases dense bf16 …] [--quick] [--rounds 20] [--threads 2]

In each round both checkouts run once, in fresh processes and in alternating order: first the calls below, of which a
process gives the median time, then `regard bench` of the checkout with the named cases (those of `make bench-check` by
default, which take four minutes, or one with `--quick`). A checkout that has a `.venv` runs with its Python; what it
compiles for a machine should be compiled before. The figures of `regard bench` are ratios to other calls of the same
process, and are matched by their key; where more is better they are inverted, so that a change (after ÷ before) above 1
is slower in every row. The change is the median over the rounds, with a 95 % interval by bootstrap over rounds. A row
whose interval is wholly above 1.05 counts as slower, and the script then ends with 1. `--results`
(out/two_checkouts.json) is saved after each round.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

SLOWER = 1.05
CASES = ("dense", "bf16", "window", "sparse", "beyond", "decoding")  # those of `make bench-check`
PROBE = """
import json, statistics, sys, time
import torch
import regard
from regard import masks, positions
from regard.models import Transformer, TransformerConfig, output_heads

if len(sys.argv) > 1:
    torch.set_num_threads(int(sys.argv[1]))
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
print(json.dumps({name: timed(call) for name, call in rows.items()}))
"""


class Figure(NamedTuple):
    """What one process has measured, and whether more is better."""

    number: float
    unit: str
    is_speed: bool = False


Round = Mapping[str, Mapping[str, Figure]]  # the figures of "before" and "after" by row


def run(checkout: Path, *arguments: str) -> str:
    """Run the Python of a checkout with its sources, and return what it prints.

    Raises:
        SystemExit: It has failed.
    """
    own = checkout.resolve() / ".venv" / "bin" / "python"
    command = [str(own) if own.exists() else sys.executable, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(checkout.resolve() / "src")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{checkout}: {done.stderr}")
    return done.stdout


def figures(checkout: Path, cases: Sequence[str], threads: int | None, *, quick: bool) -> dict[str, Figure]:
    """Measure every row of one checkout in fresh processes."""
    printed = run(checkout, "-c", PROBE, *([] if threads is None else [str(threads)]))
    seconds: dict[str, float] = json.loads(printed.splitlines()[-1])
    found = {name: Figure(1e3 * one, "ms") for name, one in seconds.items()}
    if not cases:
        return found
    options = ["--quick"] * quick + ([] if threads is None else ["--threads", str(threads)])
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "bench.json"
        run(checkout, "-m", "regard", "bench", *cases, *options, "--out", str(out))
        rows: list[dict[str, Any]] = json.loads(out.read_text(encoding="utf-8"))["rows"]
    measured = [row for row in rows if (row["median"] or 0.0) > 0]
    return found | {row["key"]: Figure(row["median"], row["unit"], is_speed(row)) for row in measured}


def is_speed(row: Mapping[str, Any]) -> bool:
    """Return whether more is better in a row of `regard bench`: by its target, or because it is divided by our own."""
    return (row["target"] or "").startswith("≥") or row["what"].endswith(("/ time", "/ bytes"))


def change(before: Figure, after: Figure) -> float:
    """Return how many times as slow a figure has become."""
    return before.number / after.number if after.is_speed else after.number / before.number


def interval(changes: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the median, by 2,000 draws with a fixed seed."""
    chance = random.Random(0)
    medians = sorted(median(chance.choices(changes, k=len(changes))) for _ in range(2000))
    return medians[50], medians[1949]


def compared(rounds: Sequence[Round]) -> dict[str, dict[str, Any]]:
    """Return the rows that every process has measured, with their change."""
    sides = [one[side] for one in rounds for side in ("before", "after")]
    rows = {}
    for name in (name for name in sides[0] if all(name in side for side in sides)):
        changes = [change(one["before"][name], one["after"][name]) for one in rounds]
        low, high = interval(changes)
        numbers = {side: median(one[side][name].number for one in rounds) for side in ("before", "after")}
        unit = sides[0][name].unit
        rows[name] = {**numbers, "unit": unit, "change": median(changes), "low": low, "high": high, "changes": changes}
    return rows


def main() -> None:
    """Measure both checkouts in turn, save the rows after each round, and print them at the end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--cases", nargs="*", default=CASES, help=f"of regard bench; default: {' '.join(CASES)}")
    parser.add_argument("--quick", action="store_true", help="as of regard bench")
    parser.add_argument("--threads", type=int, help="of PyTorch")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--results", type=Path, default=Path("out") / "two_checkouts.json")
    options = parser.parse_args()
    checkouts = {"before": options.before, "after": options.after}
    options.results.parent.mkdir(parents=True, exist_ok=True)
    rounds: list[Round] = []
    for number in range(options.rounds):
        order = list(checkouts) if number % 2 == 0 else list(checkouts)[::-1]
        rounds.append(
            {side: figures(checkouts[side], options.cases, options.threads, quick=options.quick) for side in order}
        )
        rows = compared(rounds)
        text = json.dumps({"rounds": len(rounds), "rows": rows}, indent=1, ensure_ascii=False)
        options.results.write_text(f"{text}\n", encoding="utf-8")
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
    for name, row in rows.items():
        numbers = f"{row['before']:9.3f} → {row['after']:9.3f} {row['unit']:2}"
        print(f"{name:64} {numbers}  {row['change']:5.2f} ({row['low']:.2f} – {row['high']:.2f})")
    everything = {name for one in rounds for side in one.values() for name in side}
    if rest := sorted(everything - set(rows)):
        print(f"not measured in every process: {'; '.join(rest)}")
    if slower := [name for name, row in rows.items() if row["low"] > SLOWER]:
        raise SystemExit(f"slower: {'; '.join(slower)}")


if __name__ == "__main__":
    main()
