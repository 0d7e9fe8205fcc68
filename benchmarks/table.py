"""Write the results of `regard bench` into docs/performance.md, between its marks.

    python benchmarks/table.py benchmarks/results/speed-2-cores*.json [--check]

Each file is a run with one library of native kernels, and has a column, headed by its processor. A file whose name ends
with `-avx2` is a run that was limited to AVX2, and comes after the others. A table is between `<!-- speed: NAME -->`
and `<!-- end of speed -->`; what is to be read from it is written above it by hand. `--check` writes nothing, and exits
with 1 where the page differs from the results.

Short sequences have two runs of their own, `short-2-cores-*.json` of `benchmarks/results`, which are read as well:

    regard bench short small --out out/bench.json
    mv out/bench.json benchmarks/results/short-2-cores-amd-1.json
"""

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from regard.files import write_atomically
from regard_bench.report import limits_table, processor, read, table, targets_table

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "performance.md"
SHORT_RUNS = sorted((ROOT / "benchmarks" / "results").glob("short-2-cores-*.json"))
LIMITED = "-avx2"  # how the name of a run ends in which regard, PyTorch and MKL were limited to AVX2
MARKS = re.compile(r"(<!-- speed: ([^>]*) -->\n).*?(<!-- end of speed -->)", re.DOTALL)
CASES = {  # table: its cases
    "full and causal, float32": ("causal, float32", "full, float32"),
    "full and causal, bfloat16": ("causal, bfloat16", "full, bfloat16"),
    "windows": ("window 512, float32", "window 512, bfloat16"),
    "training": ("causal training, float32", "full training, float32"),
    "training with sparse masks": (
        "window 512, training",
        "Longformer, training",
        "BigBird, training",
        "documents of 512, training",
    ),
    "decoding": ("decoding, 9 heads on 3",),
    "options of training": ("causal, dropout 0.1", "causal, a T5 table that learns", "causal, values of 128"),
    "small calls": (
        "small calls, full",
        "small calls, causal",
        "small calls, causal & window",
        "small calls, ALiBi",
        "small calls, dropout 0.1",
    ),
    "short sequences": (
        "16 tokens, boolean mask",
        "16 tokens, new padding",
        "a layer over 16 tokens, training",
        "a layer over 16 tokens, inference",
        "windows of 49, a bias that learns",
        "windows of 49, a bias that learns, training",
    ),
    "models": (
        "translation, 3 + 3 layers of 256",
        "a GPT's training step, compiled",
        "SmolLM2 writes",
        "MiniLM embeds",
        "transformers' SmolLM2 on regard's attention reads",
    ),
    "watching": (
        "SmolLM2 watched, all heads",
        "one layer's weights of SmolLM2, against attnread",
        "a page of MiniLM, against bertviz",
    ),
    "other libraries": (
        "a layer, against nn.MultiheadAttention",
        "causal, against x-transformers",
        "window 513, against local-attention",
        "window 512, against FlexAttention, compiled",
        "window 512, against natten (FlexAttention, not compiled)",
    ),
    "a busy machine": (
        "window 512, float32, beside a busy process",
        "causal training, dropout 0.1, beside a busy process",
    ),
}


def columns_of(paths: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """Return the runs by the headings of their columns, those of whole processors first.

    Raises:
        SystemExit: Two runs have the same heading.
    """
    columns: dict[str, dict[str, Any]] = {}
    for path in sorted(paths, key=lambda path: (path.stem.endswith(LIMITED), path)):
        run = read(path)
        heading = f"{processor(run)}, AVX2" if path.stem.endswith(LIMITED) else processor(run)
        if heading in columns:
            sys.exit(f"{path} and a file before it are both of {heading}: leave one out")
        columns[heading] = run
    return columns


def tables(columns: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the tables by the names of their marks.

    Raises:
        SystemExit: A case has no table.
    """
    cases = [case for many in CASES.values() for case in many]
    if missing := sorted({row["case"] for run in columns.values() for row in run["rows"]} - set(cases)):
        sys.exit(f"no table of {Path(__file__).name} has {', '.join(missing)}")
    named = {name: table(columns, many) for name, many in CASES.items()}
    named["short sequences"] = short_table(columns, [read(path) for path in SHORT_RUNS])
    return named | {"targets": targets_table(columns, cases), "limits": limits_table(columns)}


def short_table(columns: Mapping[str, Mapping[str, Any]], runs: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of short sequences: of the runs that have any, and of those of their own, which also have small
    calls.
    """
    cases = CASES["short sequences"]
    short = {name: run for name, run in columns.items() if any(row["case"] in cases for row in run["rows"])}
    short |= {f"{processor(run)}, run {at}": run for at, run in enumerate(runs, 1)}
    return table(short, [*cases, *CASES["small calls"]], with_targets=True)


def main() -> None:
    """Write the tables, or check them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    texts = tables(columns_of(arguments.results))
    before = PAGE.read_text("utf-8")
    marks = [name for _, name, _ in MARKS.findall(before)]
    if sorted(marks) != sorted(texts):
        sys.exit(
            f"{PAGE} needs the marks <!-- speed: … --> of {', '.join(texts)}, each once; it has {', '.join(marks)}"
        )
    after = MARKS.sub(lambda mark: f"{mark[1]}{texts[mark[2]]}\n{mark[3]}", before)
    if after == before:
        return
    if arguments.check:
        sys.exit(f"{PAGE}: not the tables of {' '.join(map(str, arguments.results))}; run {__file__}")
    write_atomically(PAGE, after.encode())


if __name__ == "__main__":
    main()
