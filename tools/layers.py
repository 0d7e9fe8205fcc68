"""The contracts of `make layers` beside those of import-linter: no circles, and no imports by a string.

Both count every import: statements in functions and under TYPE_CHECKING too. Left out is a package's root, its
`__init__`, which is above all rooms: it imports each public name when the name is first used.
"""

import ast
import importlib.util
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import grimp
from importlinter import Contract, ContractCheck, output

__all__ = ["NoCircles", "NoImportsByString", "circles", "imports_by_string"]


class NoCircles(Contract):
    """No module imports itself by way of others."""

    type_name = "no_circles"

    def check(self, graph: grimp.ImportGraph, verbose: bool) -> ContractCheck:
        """Look for circles among the modules of the root packages."""
        roots = self.session_options["root_packages"]
        modules = {name for name in graph.modules if name.partition(".")[0] in roots and name not in roots}
        found = circles(modules, lambda name: graph.find_modules_directly_imported_by(name) & modules)
        lines = []
        for circle in found:
            lines.append(f"{len(circle)} modules import each other:")
            pairs = sorted((a, b) for a in circle for b in graph.find_modules_directly_imported_by(a) & circle)
            lines += [_import(graph, importer, imported) for importer, imported in pairs]
        return ContractCheck(kept=not found, metadata={"lines": lines})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print the modules of each circle, with the lines of their imports."""
        _print(check)


class NoImportsByString(Contract):
    """No module imports one of these packages by a string, which neither readers nor tools follow."""

    type_name = "no_imports_by_string"

    def check(self, graph: grimp.ImportGraph, verbose: bool) -> ContractCheck:
        """Read the calls in the source of the root packages."""
        lines = []
        roots = self.session_options["root_packages"]
        for package in roots:
            for importer, path in _modules(package):
                for imported, line in imports_by_string(path.read_text(encoding="utf-8"), roots):
                    lines.append(f"{importer} imports {imported} by a string (line {line}): write an import statement")
        return ContractCheck(kept=not lines, metadata={"lines": lines})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print the module and the line of each."""
        _print(check)


def circles(modules: Iterable[str], imported_by: Callable[[str], Iterable[str]]) -> list[set[str]]:
    """Return the largest sets of modules that all import each other, directly or by way of others (Tarjan 1972).

    >>> imports = {"a": ["b"], "b": ["c"], "c": ["b"], "d": ["a"]}
    >>> [sorted(circle) for circle in circles(imports, imports.__getitem__)]
    [['b', 'c']]
    """
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found: list[set[str]] = []
    done: set[str] = set()

    def visit(module: str) -> None:
        number[module] = lowest[module] = len(number)
        path.append(module)
        for imported in sorted(imported_by(module)):
            if imported not in number:
                visit(imported)
            if imported not in done:
                lowest[module] = min(lowest[module], lowest[imported])
        if lowest[module] == number[module]:
            circle = set(path[path.index(module) :])
            del path[path.index(module) :]
            done.update(circle)
            if len(circle) > 1:
                found.append(circle)

    for module in sorted(modules):
        if module not in number:
            visit(module)
    return found


def imports_by_string(source: str, packages: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Yield (name, line) of each `import_module`, `__import__` and `resolve_name` of modules of some packages.

    Of an f-string the part before the first variable counts.

    >>> list(imports_by_string('import_module("regard.masks")\\nimport_module("json")', ["regard"]))
    [('regard.masks', 1)]
    >>> list(imports_by_string('importlib.import_module(f"regard.masks.{name}")', ["regard"]))
    [('regard.masks.', 1)]
    """
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if function not in ("import_module", "__import__", "resolve_name"):
            continue
        name = node.args[0].values[0] if isinstance(node.args[0], ast.JoinedStr) else node.args[0]
        if isinstance(name, ast.Constant) and isinstance(name.value, str) and name.value.split(".")[0] in packages:
            yield name.value, node.lineno


def _modules(package: str) -> Iterator[tuple[str, Path]]:
    """Yield name and file of each module of a package but its root."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return
    root = Path(spec.origin).parent
    for path in sorted(root.rglob("*.py")):
        parts = [package, *path.relative_to(root).with_suffix("").parts]
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name != package:
            yield name, path


def _import(graph: grimp.ImportGraph, importer: str, imported: str) -> str:
    first = graph.get_import_details(importer=importer, imported=imported)[0]
    return f"  {importer} -> {imported} (line {first['line_number']}: {first['line_contents'].strip()})"


def _print(check: ContractCheck) -> None:
    for line in check.metadata["lines"]:
        output.print(line)
