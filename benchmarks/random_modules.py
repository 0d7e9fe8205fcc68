"""Whether compiled modules compute what the formula gives, and how often they are compiled: no timing.

    python benchmarks/random_modules.py [--first 0] [--count 300] [--inductor 10]

Modules are those of tests/random_modules.py: bare calls and modules of regard.nn, drawn by number. Each is compiled by
`aot_eager`, and every so many by Inductor, with fullgraph=True where no value is a function of the user. It runs on
texts of 20 lengths; of the first seven, outputs and gradients are compared with backend="reference" in float64, eager.
After the first graph there may be two more: one for any length, and one where a choice depends on the length.

What is wrong is printed with its number, which `--first NUMBER --count 1` repeats. The exit status is 1 if something
was wrong. 300 modules take about half an hour of one core.
"""

import argparse
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from compiled_modules import LENGTHS, check
from random_calls import DisagreementError
from random_modules import drawn


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--first", type=int, default=0, help="the number of the first module")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--inductor", type=int, default=0, metavar="N", help="compile every Nth by Inductor")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    begun, wrong, worst = time.monotonic(), [], (0.0, 0)
    graphs: Counter[int] = Counter()
    breaks: Counter[str] = Counter()
    for number in range(options.first, options.first + options.count):
        module = drawn(number)
        backend = "inductor" if options.inductor and number % options.inductor == 0 else "aot_eager"
        try:
            found = check(module, backend=backend)
        except DisagreementError as disagreement:
            wrong.append(number)
            print(f"{module.description}\n    {disagreement}", flush=True)
            continue
        worst = max(worst, (found.worst, number))
        graphs[found.graphs] += 1
        breaks.update(reason.partition("\n")[0] for reason in found.breaks)
    print(f"graphs for {len(LENGTHS)} lengths: {', '.join(f'{n} in {c} modules' for n, c in sorted(graphs.items()))}")
    print(f"broken graphs: {', '.join(f'{reason} ({count})' for reason, count in breaks.items()) or 'none'}")
    print(f"the largest error, by what is allowed: {worst[0]:.0%} (module {worst[1]})")
    print(f"{options.count} modules, {len(wrong)} wrong{': ' * bool(wrong)}{', '.join(map(str, wrong))}", end=", ")
    print(f"{time.monotonic() - begun:.0f} s")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
