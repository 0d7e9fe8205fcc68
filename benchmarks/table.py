"""Write the results of `regard bench` into README.md, README.zh.md and docs/performance.md, between their marks.

    python benchmarks/table.py benchmarks/results/speed-2-cores*.json [--check]

Each file is a machine, which has a column; a figure that does not reach its target says so. The README has the chosen
cases, docs/performance.md has all, with the shares of the machines' limits. `--check` writes nothing, and exits with 1
where a page says anything else than the results.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.files import write_atomically
from regard_bench.report import limits_table, read, share_of, table

ROOT = Path(__file__).resolve().parent.parent
MARKS = re.compile(r"(<!-- speed: [^>]*-->\n).*?(<!-- end of speed -->)", re.DOTALL)
CHOSEN = (  # what the README shows: case, at, what
    ("causal, float32", "512 tokens", "time / SDPA's"),
    ("causal, float32", "4,096 tokens", "time / SDPA's"),
    ("causal, float32", "8,192 tokens", "time / SDPA's"),
    ("full, float32", "512 tokens", "time / SDPA's"),
    ("full, float32", "4,096 tokens", "time / SDPA's"),
    ("full, bfloat16", "4,096 tokens", "SDPA's time / time"),
    ("causal, bfloat16", "512 tokens", "SDPA's time / time"),
    ("window 512, float32", "8,192 tokens", "time / limit"),
    ("window 512, float32", "8,192 tokens", "dense time / time"),
    ("window 512, bfloat16", "8,192 tokens", "dense time / time"),
    ("causal training, float32", "512 tokens", "time / SDPA's"),
    ("causal training, float32", "4,096 tokens", "time / SDPA's"),
    ("causal training, float32", "4,096 tokens", "time / limit"),
    ("window 512, training", "4,096 tokens", "time / limit"),
    ("window 512, training", "4,096 tokens", "dense time / time"),
    ("Longformer, training", "4,096 to 16,384 tokens", "power of n"),
    ("decoding, 9 heads on 3", "4,096 keys", "SDPA's time / time"),
    ("decoding, 9 heads on 3", "65,536 keys", "SDPA's time / time"),
    ("small calls, causal", "16 tokens", "above SDPA"),
    ("SmolLM2 watched, all heads", "4,096 tokens", "watched / plain"),
    ("one layer's weights of SmolLM2, against attnread", "2,048 tokens, one call", "its time / time"),
    ("MiniLM embeds", "1,000 sentences", "transformers' time / time"),
)
CHINESE = {
    "case": "情形", "at": "规模", "what": "比较", "measured": "测得", "target": "目标", "outcome": "结论",
    "reached": "达到", "missed": "未达到", "inconclusive": "误差大于差距", "measured ": "测得",
    "causal, float32": "因果，float32", "window 512, float32": "窗口 512，float32",
    "Longformer, training": "Longformer，训练", "decoding, 9 heads on 3": "解码，9 个头共用 3 个",
    "small calls, causal": "小调用，因果", "SmolLM2 watched, all heads": "观察 SmolLM2，全部头",
    "MiniLM embeds": "MiniLM 句向量", "time / SDPA's": "时间 / SDPA 的时间", "time / limit": "时间 / 极限",
    "dense time / time": "稠密时间 / 时间", "power of n": "n 的幂", "SDPA's time / time": "SDPA 的时间 / 时间",
    "full, bfloat16": "无掩码，bfloat16", "window 512, bfloat16": "窗口 512，bfloat16",
    "full, float32": "无掩码，float32", "causal, bfloat16": "因果，bfloat16",
    "causal training, float32": "因果，训练，float32", "window 512, training": "窗口 512，训练",
    "above SDPA": "比 SDPA 多出", "watched / plain": "观察 / 不观察",
    "its time / time": "它的时间 / 时间",
    "one layer's weights of SmolLM2, against attnread": "SmolLM2 一层的权重，与 attnread 相比",
    "2,048 tokens, one call": "2,048 个词元，只调用一次",
    "transformers' time / time": "transformers 的时间 / 时间", "512 tokens": "512 个词元",
    "4,096 tokens": "4,096 个词元", "8,192 tokens": "8,192 个词元", "16 tokens": "16 个词元",
    "4,096 to 16,384 tokens": "4,096 到 16,384 个词元", "4,096 keys": "4,096 个键",
    "65,536 keys": "65,536 个键", "1,000 sentences": "1,000 句",
}  # fmt: skip


def pages(machines: Sequence[dict[str, Any]]) -> dict[Path, str]:
    """What stands between the marks of each page."""
    return {
        ROOT / "README.md": table(machines, CHOSEN),
        ROOT / "README.zh.md": table(machines, CHOSEN, CHINESE),
        ROOT / "docs" / "performance.md": "\n\n".join(
            part for part in (table(machines, more=share_of), limits_table(machines)) if part
        ),
    }


def main() -> None:
    """Write the tables, or check them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    stale = []
    for path, text in pages([read(one) for one in arguments.results]).items():
        before = path.read_text("utf-8")
        if not MARKS.search(before):
            sys.exit(f"{path} has no marks <!-- speed: … --> and <!-- end of speed -->")
        after = MARKS.sub(lambda found, text=text: f"{found[1]}{text}\n{found[2]}", before)
        if after != before:
            stale.append(path)
            if not arguments.check:
                write_atomically(path, after.encode())
    if arguments.check and stale:
        files = " ".join(map(str, arguments.results))
        sys.exit(f"{', '.join(str(path) for path in stale)}: not the table of {files}; run {__file__}")


if __name__ == "__main__":
    main()
