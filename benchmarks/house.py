"""How large is the house, and how long are the ways through it? Counts of src/regard, and files that one call executes.

    python benchmarks/house.py [--files] [--results benchmarks/results/house.json]

Four calls are followed, each in a fresh process with empty caches: `regard.attention` with `Causal() & Window(512)`
forward and backward over 4,096 tokens in float32 by the default backend; `regard.watch` around a BERT of transformers
(random, small) up to `seen.weights`; from there to the page; and `regard train` up to its first checkpoint, of a
language model of characters and of examples/translate.toml. A file counts where one of its functions runs; what runs
because a module is being imported does not count. `--files` lists the files in the order in which they are entered.
Lines of code are counted without blank lines, comments and docstrings; a function's are those from `def` to its end.
"""

import argparse
import ast
import io
import json
import os
import subprocess
import sys
import tempfile
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
KERNELS = ("numba_loops", "triton_additive/kernels", "triton_additive/tiles", "capture/fused/kernels")

FOLLOW = """
import os, sys
inside, files, on = [0], {}, [False]
root = os.path.join(SOURCE, "")

def follow(frame, event, _):
    code = frame.f_code
    if event not in ("call", "return"):
        return
    if code.co_name == "<module>":
        inside[0] += 1 if event == "call" else -1
    elif event == "call" and on[0] and inside[0] <= 0 and code.co_filename.startswith(root):
        files.setdefault(code.co_filename[len(root):], code.co_qualname)

def start():
    inside[0], on[0] = 0, True
    sys.setprofile(follow)

def stop():
    sys.setprofile(None)
    on[0] = False
"""

ATTENTION = """
import torch, regard
from regard import masks
q, k, v = (torch.randn(1, 8, 4096, 64, requires_grad=True) for _ in range(3))
start()
regard.attention(q, k, v, mask=masks.Causal() & masks.Window(512)).sum().backward()
stop()
"""

WATCH = """
import torch, regard, transformers
config = transformers.BertConfig(vocab_size=99, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
                                 intermediate_size=128)
model = transformers.BertModel(config).eval()
words = "the animal did not cross the street because it was too tired today".split()
ids = torch.arange(len(words))[None]
start()
with regard.watch(model, tokens=words) as seen, torch.no_grad():
    model(input_ids=ids)
seen.weights(layer=0)
stop()
"""

PAGE = """
files.clear()
start()
seen.to_html("page.html")
stop()
"""

TRAIN = """
import json
from pathlib import Path
replace = os.replace
def replaced(source, target, *rest, **named):
    replace(source, target, *rest, **named)
    if Path(target).name.startswith("step-"):
        stop()
        print("\\n" + json.dumps(list(files)), flush=True)
        os._exit(0)
os.replace = replaced
sys.argv = ["regard", "train", *prepare(Path)]
from regard.__main__ import main
start()
main()
"""

LANGUAGE = """
def prepare(Path):
    Path("text.txt").write_text("\\n".join(f"line {i} of a text" for i in range(200)), encoding="utf-8")
    Path("run.toml").write_text(RUN, encoding="utf-8")
    return ["run.toml"]
"""

RUN = """
[task]
type = "clm"
train_file = "text.txt"
block_size = 64
validation_size = 20
tokenizer = {model_type = "char", vocab_size = 60}

[model]
type = "transformer"
hidden_size = 32
num_attention_heads = 2
num_hidden_layers = 2

[training]
output_dir = "run"
learning_rate = 1e-3
max_steps = 1
save_steps = 1
eval_steps = 1
"""

TRANSLATION = """
def prepare(Path):
    lines = [f"it is {a} {b}.\\t这是{a}{b}。" for a in "abcdefghij" for b in "klmnopqrst"]
    Path("pairs.tsv").write_text("\\n".join(lines), encoding="utf-8")
    return [TOML, "--task.train_file", "pairs.tsv", "--output-dir", "run", "--training.save_steps", "1",
            "--training.eval_steps", "1", "--task.validation_size", "20"]
"""


def followed(script: str) -> list[str]:
    """Return the files of ours that a script executes between `start` and `stop`, in the order they are entered."""
    head = f"SOURCE = {str(SOURCE)!r}\nTOML = {str(ROOT / 'examples' / 'translate.toml')!r}\nRUN = {RUN!r}\n"
    tail = "\nimport json; print('\\n' + json.dumps(list(files)))"
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPATH": str(SOURCE), "XDG_CACHE_HOME": folder}
        ran = subprocess.run(
            [sys.executable, "-c", head + FOLLOW + script + tail],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    if ran.returncode:
        raise SystemExit(ran.stderr)
    return [str(one) for one in json.loads(ran.stdout.splitlines()[-1])]


def docstrings(tree: ast.AST) -> set[int]:
    """Return the lines that docstrings take."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if ast.get_docstring(node) is not None:
            lines |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return lines


def code_lines(text: str) -> set[int]:
    """Return the numbers of the lines that hold code: no blank line, no comment, no docstring."""
    lines: set[int] = set()
    ignored = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in ignored:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return lines - docstrings(ast.parse(text))


def modules() -> dict[str, str]:
    """Return every module's text by its path below src."""
    return {str(path.relative_to(SOURCE)): path.read_text("utf-8") for path in sorted(SOURCE.rglob("*.py"))}


def long_functions(texts: dict[str, str], most: int = 60) -> list[str]:
    """Return the functions of more than `most` lines of code, outside kernels."""
    found = []
    for name, text in texts.items():
        if any(kernel in name for kernel in KERNELS):
            continue
        lines = code_lines(text)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                count = len([n for n in lines if node.lineno <= n <= (node.end_lineno or node.lineno)])
                if count > most:
                    found.append(f"{name}:{node.lineno} {node.name} {count}")
    return found


def classes(texts: dict[str, str]) -> dict[str, list[str]]:
    """Return the names of classes that are defined more than once: public ones anywhere, private ones by package."""
    places: dict[str, list[str]] = defaultdict(list)
    for name, text in texts.items():
        if "/tutorials/" in name:
            continue
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef):
                key = node.name if not node.name.startswith("_") else f"{Path(name).parent}: {node.name}"
                places[key].append(name)
    return {key: found for key, found in places.items() if len(found) > 1}


def imported(text: str, known: set[str]) -> Iterator[str]:
    """Yield the modules of ours that a module imports anywhere outside TYPE_CHECKING."""
    tree = ast.parse(text)
    typing: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            typing |= {one for each in node.body for one in ast.walk(each)}
    for node in ast.walk(tree):
        if node in typing:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                if whole in known:
                    yield whole
                elif node.module in known:
                    yield node.module


def circles(texts: dict[str, str]) -> list[list[str]]:
    """Return the groups of modules that import each other, at once or later: each reaches the others."""
    named = {name.removesuffix(".py").removesuffix("/__init__").replace("/", "."): text for name, text in texts.items()}
    graph = {name: set(imported(text, set(named))) - {name} for name, text in named.items()}

    def reached(start: str) -> set[str]:
        found: set[str] = set()
        left = [start]
        while left:
            for other in graph[left.pop()] - found:
                found.add(other)
                left.append(other)
        return found

    reach = {name: reached(name) for name in graph}
    groups = {tuple(sorted(other for other in reach[name] if name in reach[other])) for name in graph}
    return [list(group) for group in sorted(groups) if len(group) > 1]


def main() -> None:
    """Count, print, and keep the counts where a file is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", action="store_true", help="list the files of each way")
    parser.add_argument("--no-ways", action="store_true", help="count modules and lines alone (two seconds)")
    parser.add_argument("--results", type=Path, help="where the counts are kept as JSON")
    options = parser.parse_args()
    texts = modules()
    counts: dict[str, Any] = {
        "modules": len(texts),
        "lines of code": sum(len(code_lines(text)) for text in texts.values()),
        "functions above 60 lines": long_functions(texts),
        "class names defined more than once": classes(texts),
        "import circles": circles(texts),
    }
    if not options.no_ways:
        page = followed(WATCH + PAGE)
        watch = followed(WATCH)
        ways = {
            "attention, Causal() & Window(512), forward and backward": followed(ATTENTION),
            "watch around BERT to seen.weights": watch,
            "to the page": [one for one in page if one not in watch],
            "regard train to the first checkpoint, characters": followed(LANGUAGE + TRAIN),
            "regard train to the first checkpoint, examples/translate.toml": followed(TRANSLATION + TRAIN),
        }
        long = {name: len(text.splitlines()) for name, text in texts.items()}
        passed = {one for files in ways.values() for one in files}
        counts["files above 300 lines on a way"] = [f"{one} {long[one]}" for one in sorted(passed) if long[one] > 300]
        counts |= {name: files if options.files else len(files) for name, files in ways.items()}
    for name, value in counts.items():
        print(f"{name}: {len(value) if isinstance(value, list | dict) else value}")
        for one in value if isinstance(value, list) else value.items() if isinstance(value, dict) else ():
            print("   ", one if isinstance(one, str) else " ".join(map(str, one)))
    if options.results:
        options.results.write_text(json.dumps(counts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
