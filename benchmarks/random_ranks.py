"""Whether several ranks compute and observe what one process does, for calls drawn at random: no timing.

    python benchmarks/random_ranks.py [--ranks 2 3 4] [--first 0] [--count 2000] [--results out/random_ranks.json]
    python benchmarks/random_ranks.py --only 17 --ranks 3

Calls are those of tests/sharded/random_rank_calls.py: masks, scores, biases, factors, normalizers, options, types,
lengths down to none, DTensors on meshes of one and two axes, the orders of shard_sequence, caches over ranks, models
inside sequence_parallel, and what regard.watch records of them. Each number of ranks is started once, with gloo, and
once more where a call was wrong; results are compared with backend="reference" on one process, in float64.

Each call is right, refused (with a sentence that is counted), or wrong: another result, an error, ranks that do not
agree, or no answer within --limit seconds. What is wrong is printed with the smallest call that is wrong, too. The exit
status is 1 if something was wrong, or a call was refused that need not be. 2,000 calls on 2, 3 and 4 ranks take ten
minutes on two cores.
"""

import argparse
import json
import re
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "sharded"))

import random_rank_calls
from random_rank_calls import (
    RankCall,
    Sharding,
    check,
    described,
    drawn,
    drawn_sharding,
    may_be_refused,
    simpler,
    simpler_sharding,
)
from rank_pool import Answer, RankPool

from random_calls import DisagreementError
from regard.errors import InputError

EACH = 200  # calls, after which it says where it is
ALIKE = 2  # mistakes that say the same, but for numbers, of which the smallest is looked for
NUMBER = re.compile(r"[-+]?\d[\d.,]*(?:e[-+]?\d+)?")


def judged(call: RankCall, sharding: Sharding, answer: Answer) -> tuple[str, str, float]:
    """Whether a call is "right", "refused", "needlessly refused" or "wrong", why, and its error by what is allowed."""
    if answer.kind == "refused":
        return ("refused" if may_be_refused(call, sharding) else "needlessly refused"), answer.said, 0.0
    if answer.kind == "wrong":
        return "wrong", answer.said, 0.0
    try:
        return "right", "", check(call, sharding, answer.found)
    except DisagreementError as disagreement:
        return "wrong", str(disagreement), 0.0
    except InputError as refusal:
        return "wrong", f"one process refuses it: {refusal}", 0.0


def smallest(
    pool: RankPool, call: RankCall, sharding: Sharding, verdict: str, attempts: int
) -> tuple[RankCall, Sharding]:
    """Simplify a call as long as the verdict stays."""
    tried = {(call, sharding)}
    is_simpler = True
    while is_simpler and len(tried) < attempts:
        is_simpler = False
        others = [(call, other) for other in simpler_sharding(sharding)]
        for other in (*others, *((other, sharding) for other in simpler(call))):
            if other in tried or len(tried) >= attempts:
                continue
            tried.add(other)
            if _verdict(pool, *other) == verdict:
                (call, sharding), is_simpler = other, True
                break
    return call, sharding


def _verdict(pool: RankPool, call: RankCall, sharding: Sharding) -> str:
    try:
        random_rank_calls.expected(call)  # one process refuses it, too
    except Exception:
        return "impossible"
    return judged(call, sharding, pool.answer(call, sharding))[0]


def compare(ranks: int, numbers: list[int], limit: float, attempts: int, *, seconds: float) -> dict[str, Any]:
    """Compare calls on so many ranks; return what was found."""
    begun, verdicts, worst = time.monotonic(), Counter[str](), dict[str, tuple[float, int]]()
    refusals: dict[str, list[int]] = {}
    wrong: list[dict[str, Any]] = []
    kinds: Counter[str] = Counter()
    ways: Counter[str] = Counter()
    jobs = [(call := drawn(number), drawn_sharding(call, ranks)) for number in numbers]
    with RankPool(ranks, limit) as pool, RankPool(ranks, min(limit, 8.0)) as spare:
        for at, answer in enumerate(pool.answers(jobs)):
            call, sharding = jobs[at]
            verdict, said, error = judged(call, sharding, answer)
            verdicts[verdict] += 1
            ways[call.way] += 1
            ways["watched"] += call.watch != "" and verdict == "right"
            if verdict == "right":
                worst[call.dtype] = max(worst.get(call.dtype, (0.0, 0)), (error, call.seed))
            elif "refused" in verdict:
                refusals.setdefault(NUMBER.sub("#", said), []).append(call.seed)
            if verdict in ("wrong", "needlessly refused"):
                row = {
                    "number": call.seed,
                    "verdict": verdict,
                    "said": said,
                    "call": described(call),
                    "sharding": repr(sharding),
                }
                print(
                    f"{ranks} ranks, {call.seed}: {verdict}: {said}\n    {row['call']}\n    {row['sharding']}",
                    flush=True,
                )
                kinds[kind := NUMBER.sub("#", said)[:80]] += 1
                if kinds[kind] <= ALIKE and attempts:
                    least = smallest(spare, call, sharding, verdict, attempts)
                    _, row["smallest said"], _ = judged(*least, spare.answer(*least))
                    row["smallest"] = f"{described(least[0])}, {least[1]!r}"
                    print(f"    smallest: {row['smallest']}: {row['smallest said']}", flush=True)
                wrong.append(row)
            if (at + 1) % EACH == 0:
                told = ", ".join(f"{count:,} {name}" for name, count in sorted(verdicts.items()))
                print(
                    f"{ranks} ranks: {at + 1:,} of {len(jobs):,} calls, {told}, {time.monotonic() - begun:.0f} s",
                    flush=True,
                )
            if time.monotonic() - begun > seconds:
                break
    return {
        "ranks": ranks, "calls": sum(verdicts.values()), **verdicts, "ways": dict(ways),
        "seconds": round(time.monotonic() - begun, 1),
        "largest errors by what is allowed": {name: f"{error:.2g}, call {at}" for name, (error, at) in worst.items()},
        "refusals": refusals, "wrong calls": wrong,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3, 4], choices=(2, 3, 4))
    parser.add_argument("--first", type=int, default=0, help="the number of the first call")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--only", type=int, help="the number of the only call")
    parser.add_argument("--call", help='a call and its sharding, as they are printed: "RankCall(…), Sharding(…)"')
    parser.add_argument("--limit", type=float, default=30.0, help="seconds within which all ranks must have answered")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop a number of ranks after so long")
    parser.add_argument("--attempts", type=int, default=60, help="to make a wrong call smaller; 0 for none")
    parser.add_argument("--results", type=Path, help="a file for what was found, as JSON")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.call is not None:
        call, sharding = eval(asked.call, vars(random_rank_calls))
        with RankPool(sharding.ranks, asked.limit) as pool:
            verdict, said, error = judged(call, sharding, pool.answer(call, sharding))
        print(f"{verdict}, {error:.0%} of the error that is allowed {said}")
        return verdict == "wrong"
    numbers = [asked.only] if asked.only is not None else list(range(asked.first, asked.first + asked.count))
    rows = []
    try:
        for ranks in asked.ranks:
            rows.append(compare(ranks, numbers, asked.limit, asked.attempts, seconds=asked.seconds))
            if asked.results is not None:
                asked.results.write_text(json.dumps(rows, indent=1))
            summary = {name: value for name, value in rows[-1].items() if name not in ("wrong calls", "refusals")}
            print(json.dumps(summary))
            for sentence, at in sorted(rows[-1]["refusals"].items(), key=lambda one: -len(one[1])):
                print(f"    refused {len(at)} times ({', '.join(map(str, at[:4]))}): {sentence}")
    except KeyboardInterrupt:
        print("stopped")
        return 130
    return any(row["wrong calls"] for row in rows)


if __name__ == "__main__":
    sys.exit(main())
