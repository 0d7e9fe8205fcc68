"""Which of 120 small faults do the tests find? Mutants of src, each run against the tests that reach its line.

    python benchmarks/mutants.py [--again FILE:LINE …] [--results benchmarks/results/mutants.json]

First every test runs once under coverage (`out/mutants/reach`, half an hour on two cores; kept until it is removed),
which gives the lines that each test executes. Then 120 mutants are drawn with a fixed seed, from each folder as many as
its share of lines, and each one is run in a copy of the checkout: first against the tests of `make test` that reach its
line, then, where these find nothing, against the others that do, the most specific tests first, 60 seconds of processor
time a mutant and tier, so that a busy machine finds what an idle one does. A line that coverage cannot see (run in
another process, executed by the import) is tested by the tests that reach its file. The results
are written after each mutant; a run that was stopped resumes. The draw is that of the checkout as it is: a changed file
changes it.

    python benchmarks/mutants.py --before RESULTS --checkout FOLDER --results AFTER

plants the mutants of an earlier run again, so that two states of the tests are compared without covering both. FOLDER
is the checkout of the earlier run, RESULTS what it found. A mutant whose line is no longer there is drawn anew among
the lines of its file, or of its folder, that both checkouts have; its row has "instead of", and no earlier verdict.
Each is run against the test that found it before, then its file, then the files of the other tests that reached its
line, with a tier's marker.

    python benchmarks/mutants.py --of src/regard/backends/native native --count 60 --tests FILE … --results RESULTS

draws from some folders or files alone, each with the same chance, and runs each mutant against the named files of tests
in their order, tier by tier; nothing is covered. C++ is taken too: its operators, numbers and calls for an effect are
changed in the text, and the libraries of the copy are built again.

Needs `coverage` and `pytest-xdist` (`pip install -e '.[dev]'`).
"""

import argparse
import ast
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any

SEED, MUTANTS, SECONDS = 15, 120, 60
FILES = 8  # of tests, against which a mutant of an earlier run is run in a tier, its finder first
WAITS = 5  # times as much on the clock: what hangs without working ends too
ROOT = Path(__file__).resolve().parent.parent
REACH = ROOT / "out" / "mutants" / "reach"
# Code that runs in processes of its own is not seen by coverage: how the names of its tests begin, by file or folder.
UNSEEN = {"src/regard/backends/native/": "tests/backends/test_native"}
COMPARED = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
COMPARED |= {ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In}
COMPUTED = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult}
# Tests that fail in a copy without any mutant, as they need what a copy lacks: found once, and left out from then on.
BROKEN: set[str] = set()
COMPUTED |= {ast.Mod: ast.FloorDiv, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd}


@dataclass(frozen=True)
class Mutant:
    """One expression of one file, and what replaces it: byte offsets into the file's text."""

    file: str
    line: int
    start: int
    end: int
    before: str
    after: str

    @property
    def name(self) -> str:
        """The place and the change, as the results name them."""
        return f"{self.file}:{self.line} {self.before} → {self.after}"


def changed(node: ast.AST) -> ast.AST | None:
    """The node that takes this one's place in a mutant; None where there is none."""
    match node:
        case ast.Compare(ops=[one]) if type(one) in COMPARED:
            return ast.Compare(node.left, [COMPARED[type(one)]()], node.comparators)
        case ast.BinOp() if type(node.op) in COMPUTED and not isinstance(node.left, ast.Constant | ast.JoinedStr):
            return ast.BinOp(node.left, COMPUTED[type(node.op)](), node.right)
        case ast.BoolOp():
            return ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
        case ast.UnaryOp(op=ast.Not()):
            return node.operand
        case ast.IfExp():
            return ast.IfExp(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
        case ast.Constant(value=bool()):
            return ast.Constant(not node.value)
        case ast.Constant(value=int()):
            return ast.Constant(node.value + 1)
        case ast.Constant(value=float()):
            return ast.Constant(node.value * 2 + 1)
    return without(node)


def without(node: ast.AST) -> ast.AST | None:
    """A statement that gives or does nothing, for one that returns a value or calls for an effect."""
    match node:
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            return ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call()):
            return ast.Expr(ast.Constant(None))
    return None


def executed(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of code that runs: no annotations, no decorators, no overloads, no `__all__`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef) and any("overload" in ast.unparse(one) for one in node.decorator_list):
            continue
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.arg):
            continue
        if isinstance(node, ast.AnnAssign):
            yield from ([node.value, *executed(node.value)] if node.value is not None else [])
            continue
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            inner = ast.Module([*getattr(getattr(node, "args", None), "defaults", []), *node.body], [])
            yield from executed(inner)
            continue
        yield node
        yield from executed(node)


def mutants_of(path: Path, root: Path = ROOT) -> list[Mutant]:
    """Every mutant of a file, in the order of its text."""
    text = path.read_bytes()
    starts = [0]
    for row in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(row))
    found = []
    for node in executed(ast.parse(text)):
        if (new := changed(node)) is None:
            continue
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        after = ast.unparse(ast.fix_missing_locations(new))
        if isinstance(new, ast.expr):
            after = f"({after})"
        found.append(Mutant(str(path.relative_to(root)), node.lineno, start, end, text[start:end].decode(), after))
    return sorted(found, key=lambda one: (one.start, one.end))


_CPP_TOKENS = re.compile(
    r"(?P<comment>//.*)|(?P<text>\"[^\"]*\"|'[^']*')|(?P<directive>^\s*(?:#|static|template|constexpr|using|namespace).*)|"
    r"(?P<float>\b\d+\.\d*(?:e-?\d+)?f?\b)|(?P<int>(?<![\w.])\d+(?![\w.]))|"
    r"(?P<operator> (?:<=|>=|==|!=|\+=|-=|&&|\|\||<<|>>|[-+*/%<>]) )|"
    r"(?P<call>^\s+(?:memset|memcpy|store|add)\(.*\);$)",
    re.MULTILINE,
)
_CPP_OPERATORS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||", "||": "&&", "+": "-"}
_CPP_OPERATORS |= {
    "-": "+",
    "*": "+",
    "/": "*",
    "%": "/",
    "+=": "-=",
    "-=": "+=",
    "<<": ">>",
    ">>": "<<",
}


def mutants_of_cpp(path: Path, root: Path = ROOT) -> list[Mutant]:
    """Every mutant of a file of C++, in the order of its text."""
    text, found = path.read_text(encoding="utf-8"), []
    for token in _CPP_TOKENS.finditer(text):
        before = token.group().strip()
        after = {
            "operator": _CPP_OPERATORS.get(before, ""),
            "int": f"{int(before) + 1}" if token.lastgroup == "int" else "",
            "float": f"(2 * {before} + 1)",
            "call": ";",
        }.get(token.lastgroup or "", "")
        if not after:
            continue
        start = len(text[: token.start() + token.group().index(before)].encode())
        line = text.count("\n", 0, token.start() + token.group().index(before)) + 1
        found.append(Mutant(str(path.relative_to(root)), line, start, start + len(before.encode()), before, after))
    return found


def draw_within(places: list[Path], count: int) -> list[Mutant]:
    """Mutants of some files and folders alone."""
    files = [path for place in places for path in (sorted(place.rglob("*")) if place.is_dir() else [place])]
    possible = [mutant for path in files if path.suffix == ".py" for mutant in mutants_of(path.resolve())]
    possible += [mutant for path in files if path.suffix in (".h", ".cpp") for mutant in mutants_of_cpp(path.resolve())]
    return random.Random(SEED).sample(possible, min(count, len(possible)))


def judge_by_files(mutant: Mutant, tests: list[str], copy: Path) -> dict[str, Any]:
    """Run one mutant against files of tests, tier by tier; what does not compile is found by the build."""
    row: dict[str, Any] = {"file": mutant.file, "line": mutant.line, "before": mutant.before, "after": mutant.after}
    started = time.perf_counter()
    for tier, slow in (("make test", False), ("make test-all", True)):
        row["tier"] = tier
        row["verdict"], row["by"] = verdict(mutant, tests, copy, slow=slow)
        if row["verdict"] == "killed":
            return row | {"seconds": round(time.perf_counter() - started, 1)}
    return row | {"tier": "", "seconds": round(time.perf_counter() - started, 1)}


def draw() -> list[Mutant]:
    """120 mutants, from each folder of the package as many as its share of lines."""
    folders: dict[str, list[Path]] = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        parts = path.relative_to(ROOT / "src").parts
        folders.setdefault(parts[1] if parts[0] == "regard" and len(parts) > 2 else parts[0], []).append(path)
    lines = {name: sum(path.read_text().count("\n") for path in paths) for name, paths in folders.items()}
    shares = {name: MUTANTS * count / sum(lines.values()) for name, count in lines.items()}
    numbers = {name: int(share) for name, share in shares.items()}
    for name in sorted(shares, key=lambda one: numbers[one] - shares[one])[: MUTANTS - sum(numbers.values())]:
        numbers[name] += 1
    chance = random.Random(SEED)
    drawn = []
    for name, paths in folders.items():
        possible = [mutant for path in paths for mutant in mutants_of(path)]
        drawn += chance.sample(possible, min(numbers[name], len(possible)))
    return drawn


class Reach:
    """Which lines each test executes: the plugin that records it, and the answer afterwards."""

    def __init__(self, folder: Path = REACH) -> None:
        self.tests: dict[str, dict[str, Any]] = {}
        for one in folder.glob("*.jsonl"):
            for row in map(json.loads, one.read_text().splitlines()):
                self.tests[row["test"]] = row
        self.lines: dict[str, dict[int, list[str]]] = {}
        self.size: Counter[str] = Counter()
        for name, row in self.tests.items():
            for file, numbers in row["lines"].items():
                self.size[name] += len(numbers)
                for number in numbers:
                    self.lines.setdefault(file, {}).setdefault(number, []).append(name)

    def of(self, mutant: Mutant, *, slow: bool) -> list[str]:
        """The tests of a tier that reach a mutant's line, or else its file: the most specific first."""
        file = self.lines.get(mutant.file, {})
        reaching = (
            set(file.get(mutant.line, ())) or self._blind(mutant) or {one for many in file.values() for one in many}
        )
        chosen = sorted((self.size[name], name) for name in reaching if self.tests[name]["slow"] == slow)
        seconds, kept = 0.0, []
        for _, name in chosen:
            seconds += self.tests[name]["seconds"]
            if kept and seconds > SECONDS / 2:
                break
            kept.append(name)
        return kept

    def _blind(self, mutant: Mutant) -> set[str]:
        """The tests of compiled code, which no test is seen to execute."""
        place = max((one for one in UNSEEN if mutant.file.startswith(one)), key=len, default=None)
        return {name for name in self.tests if place is not None and name.startswith(UNSEEN[place])}


def reach() -> Reach:
    """What each test executes, measured once: the whole suite, a process a core."""
    whole = REACH / "whole"
    if not whole.exists():
        print(f"running every test under coverage, into {REACH} (half an hour on two cores)", flush=True)
        REACH.mkdir(parents=True, exist_ok=True)
        paths = f"{ROOT / 'src'}:{ROOT / 'benchmarks'}"
        environment = os.environ | {"REACH": str(REACH), "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "mutants_reach", "-n", "logical", "--dist", "worksteal"]
        ran = subprocess.run(command, cwd=ROOT, env=environment, check=False)
        if ran.returncode not in (0, 1):  # tests may fail, but a run that was broken off has not reached all lines
            sys.exit(f"the run of coverage ended with status {ran.returncode}: the same command resumes it")
        whole.touch()
    return Reach()


def verdict(mutant: Mutant, tests: list[str], copy: Path, *, slow: bool | None = None) -> tuple[str, str]:
    """Run tests on a mutant: ("killed", by which), ("timeout", "") or ("survived", "").

    A test that fails without the mutant as well has found nothing, and the others are run without it. `tests` may be
    files, of which only the tests of a tier are run where `slow` names one.
    """
    source = (ROOT / mutant.file).read_bytes()
    target = copy / mutant.file
    while tests := [test for test in tests if test not in BROKEN]:
        target.write_bytes(source[: mutant.start] + mutant.after.encode() + source[mutant.end :])
        try:
            if mutant.file.startswith("native/") and not built(copy):
                return "killed", "the build"
            found, by = run(tests, copy, slow=slow)
        finally:
            target.write_bytes(source)
        name = by.partition(" ")[2].partition(" - ")[0]
        crashed = not by.startswith(("FAILED", "ERROR"))  # of the process, or of the build
        if found != "killed" or crashed or run([name], copy)[0] != "killed":
            return found, by
        BROKEN.add(name)
    return "survived", ""


def built(copy: Path) -> bool:
    """Build the libraries of a copy again; no where they do not compile."""
    build = [sys.executable, str(copy / "native" / "build.py")]
    made = subprocess.run(build, cwd=copy, capture_output=True, check=False)
    return made.returncode == 0 and not (copy / "src/regard/backends/native/lib/absent.txt").exists()


def run(tests: list[str], copy: Path, *, slow: bool | None = None) -> tuple[str, str]:
    """Run tests in a copy: ("killed", by which), ("timeout", "") or ("survived", "")."""
    tier = [] if slow is None else ["-m", "slow" if slow else "not slow"]
    seconds = SECONDS if slow is None else 3 * SECONDS  # whole files
    left_out = [f"--deselect={name}" for name in BROKEN]
    listed = copy / "tests-of-this-mutant"
    listed.write_text("\n".join(tests))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--tb=no", *tier, *left_out]
    command += [f"@{listed}"]
    try:
        ran = subprocess.run(
            command,
            cwd=copy,
            env=environment,
            capture_output=True,
            text=True,
            timeout=WAITS * seconds,
            preexec_fn=partial(resource.setrlimit, resource.RLIMIT_CPU, (seconds, seconds)),
        )
    except subprocess.TimeoutExpired:
        return "timeout", ""
    if ran.returncode in (0, 5):  # 5: no test of the tier
        return "survived", ""
    if ran.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return "timeout", ""
    failed = [row for row in ran.stdout.splitlines() if row.startswith(("FAILED", "ERROR"))]
    return "killed", failed[0] if failed else f"exit {ran.returncode}: {ran.stdout[-200:]}"


def judge(mutant: Mutant, known: Reach, copy: Path) -> dict[str, Any]:
    """Run one mutant against both tiers, the second only where the first finds nothing; out of time is not found."""
    row: dict[str, Any] = {"file": mutant.file, "line": mutant.line, "before": mutant.before, "after": mutant.after}
    for tier, slow in (("make test", False), ("make test-all", True)):
        tests = known.of(mutant, slow=slow)
        row[f"tests of {tier}"], row["tier"] = len(tests), tier
        if slow and not tests:
            break  # the verdict is that of `make test`
        started = time.perf_counter()
        row["verdict"], row["by"] = verdict(mutant, tests, copy)
        row["seconds"] = round(time.perf_counter() - started, 1)
        if row["verdict"] == "killed":
            return row
    return row | {"tier": ""}


def planted_again(before: dict[str, Any], checkout: Path) -> Iterator[tuple[Mutant, dict[str, Any]]]:
    """Yield each mutant of an earlier run with its row there; for one whose line is gone, another of both checkouts."""
    chance = random.Random(SEED)
    rows = before["rows"]
    taken = {(row["file"], row["line"], row["before"], row["after"]) for row in rows}
    for row in rows:
        text = (checkout / row["file"]).read_text(encoding="utf-8").splitlines()[row["line"] - 1]
        if mutant := same_mutant(row, text):
            yield mutant, row
            continue
        folder = Path(row["file"]).parent
        files = [row["file"], *(str(path.relative_to(checkout)) for path in sorted((checkout / folder).rglob("*.py")))]
        for file in files:
            possible = [one for one in mutants_of(checkout / file, checkout) if (ROOT / file).exists()]
            chance.shuffle(possible)
            for old in possible:
                line = (checkout / file).read_text(encoding="utf-8").splitlines()[old.line - 1]
                key = {"file": file, "line": old.line, "before": old.before, "after": old.after}
                if tuple(key.values()) not in taken and (mutant := same_mutant(key, line)):
                    taken.add(tuple(key.values()))
                    yield mutant, key | {"instead of": f"{row['file']}:{row['line']}"}
                    break
            else:
                continue
            break


def same_mutant(row: dict[str, Any], text: str) -> Mutant | None:
    """Return the mutant of this checkout on the same line of text, the nearest where there are several."""
    if not (ROOT / row["file"]).exists():
        return None
    lines = (ROOT / row["file"]).read_text(encoding="utf-8").splitlines()
    alike = [
        one
        for one in mutants_of(ROOT / row["file"])
        if (one.before, one.after) == (row["before"], row["after"]) and lines[one.line - 1] == text
    ]
    return min(alike, key=lambda one: abs(one.line - row["line"]), default=None)


def judge_again(mutant: Mutant, row: dict[str, Any], known: Reach, copy: Path) -> dict[str, Any]:
    """Run a mutant against the test files that found or reached it in the earlier run, tier by tier."""
    finder = row.get("by", "").partition(" ")[2].partition(" - ")[0].partition("[")[0]  # without parameters
    named = finder.partition("::")[0]
    if (
        "::" in finder
        and (copy / named).exists()
        and f"def {finder.split('::')[-1]}(" not in (copy / named).read_text()
    ):
        finder = named
    old = Mutant(row["file"], row["line"], 0, 0, row["before"], row["after"])
    result: dict[str, Any] = {"file": mutant.file, "line": mutant.line, "before": mutant.before, "after": mutant.after}
    result |= {"earlier": {key: row.get(key) for key in ("line", "tier", "verdict", "by", "instead of")}}
    for tier, slow in (("make test", False), ("make test-all", True)):
        reaching = [name.partition("::")[0] for name in known.of(old, slow=slow)]
        wanted = dict.fromkeys([finder, named, *reaching])
        files = [name for name in wanted if name and (copy / name.partition("::")[0]).exists()]
        started = time.perf_counter()
        result["tier"], result["verdict"], result["by"] = tier, "survived", ""
        for file in files[:FILES]:
            result["verdict"], result["by"] = verdict(mutant, [file], copy, slow=slow)
            if result["verdict"] == "killed":
                break
        result["seconds"] = round(time.perf_counter() - started, 1)
        if result["verdict"] == "killed":
            return result
    return result | {"tier": ""}


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Count what each tier found, and name the survivors."""
    found = Counter(row["tier"] for row in rows)
    whole = found["make test"] + found["make test-all"]
    survivors = [f"{row['file']}:{row['line']} {row['before']} → {row['after']}" for row in rows if not row["tier"]]
    share = found["make test"] / whole if whole else None
    return {"mutants": len(rows), "found by make test": found["make test"], "found by make test-all": whole} | {
        "share": share,
        "survivors": survivors,
    }


def main() -> None:
    """Plant the mutants that have no result yet: those drawn, or those of an earlier run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--again", nargs="*", default=[], help="FILE:LINE of mutants that are run once more")
    parser.add_argument("--jobs", type=int, default=1, help="mutants side by side")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results" / "mutants.json")
    parser.add_argument("--before", type=Path, help="results of an earlier run, whose mutants are planted again")
    parser.add_argument("--checkout", type=Path, help="the checkout of that run, with its out/mutants/reach")
    parser.add_argument("--of", type=Path, nargs="+", default=[], help="files and folders that mutants are drawn from")
    parser.add_argument("--tests", nargs="+", default=[], help="files of tests for the mutants of --of")
    parser.add_argument("--count", type=int, default=MUTANTS, help="number of mutants of --of")
    options = parser.parse_args()
    if bool(options.of) != bool(options.tests):
        parser.error("--of and --tests belong together")
    if (options.before is None) != (options.checkout is None):
        parser.error("--before and --checkout belong together")
    work: list[tuple[Mutant, Callable[[Path], dict[str, Any]]]]
    if options.of:
        drawn = draw_within(options.of, options.count)
        work = [(mutant, partial(judge_by_files, mutant, options.tests)) for mutant in drawn]
    elif options.before is not None:
        known = Reach(options.checkout / REACH.relative_to(ROOT))
        earlier = planted_again(json.loads(options.before.read_text()), options.checkout.resolve())
        work = [(mutant, partial(judge_again, mutant, row, known)) for mutant, row in earlier]
    else:
        known = reach()
        work = [(mutant, partial(judge, mutant, known)) for mutant in draw()]
    rows = json.loads(options.results.read_text())["rows"] if options.results.exists() else []
    rows = [row for row in rows if f"{row['file']}:{row['line']}" not in options.again]
    done = {(row["file"], row["line"], row["before"], row["after"]) for row in rows}
    left = [judged for one, judged in work if (one.file, one.line, one.before, one.after) not in done]
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(options.jobs) as pool:
        copies: Queue[Path] = Queue()
        ignored = shutil.ignore_patterns(".git", ".venv", "out", "__pycache__", ".*_cache", ".hypothesis")
        for number in range(options.jobs):
            copies.put(Path(shutil.copytree(ROOT, Path(folder) / str(number), ignore=ignored)))

        def in_a_copy(judged: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
            copy = copies.get()
            try:
                return judged(copy)
            finally:
                copies.put(copy)

        running = [pool.submit(in_a_copy, judged) for judged in left]
        for number, one in enumerate(as_completed(running), len(work) - len(left) + 1):
            row = one.result()
            rows.append(row)
            place = f"{row['file']}:{row['line']} {row['before']} → {row['after']}"
            print(f"{number} of {len(work)}: {row['verdict']:8} {place[:100]}", flush=True)
            temporary = options.results.with_suffix(".part")
            found = {"seed": SEED, **summary(rows), "rows": rows}
            temporary.write_text(json.dumps(found, indent=1, ensure_ascii=False))
            temporary.replace(options.results)
    print(json.dumps(summary(rows), indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
