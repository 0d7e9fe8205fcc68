"""The contract of `make layers`: layers of imports, in which an import by a string is an import like any other.

import-linter reads import statements. A module that calls `import_module("regard.train.open_run")` depends on that
module just as much, so the calls are read from the source and added to the graph before the layers are checked. The
package's own `__init__`, which imports each public name when it is first used, is left out: it is above all layers.
"""

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import grimp
from importlinter import ContractCheck
from importlinter.contracts.layers import LayersContract

__all__ = ["LayersWithDynamicImports", "dynamic_imports"]


class LayersWithDynamicImports(LayersContract):
    """`layers` of import-linter, with the imports by a string of each container's modules."""

    type_name = "layers_with_dynamic_imports"

    def check(self, graph: grimp.ImportGraph, verbose: bool) -> ContractCheck:
        """Add the dynamic imports to the graph, and check the layers of all."""
        for package in self.session_options["root_packages"]:
            for importer, imported, line, text in imports_of_package(package):
                if importer != package and imported != importer and imported in graph.modules:
                    graph.add_import(importer=importer, imported=imported, line_number=line, line_contents=text)
        return super().check(graph, verbose)


def imports_of_package(package: str) -> Iterator[tuple[str, str, int, str]]:
    """Yield (importer, imported, line, text) of each import by a string in a package's modules."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return
    root = Path(spec.origin).parent
    for path in sorted(root.rglob("*.py")):
        parts = [package, *path.relative_to(root).with_suffix("").parts]
        importer = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text(encoding="utf-8")
        for imported, line in dynamic_imports(text, package):
            yield importer, imported, line, text.splitlines()[line - 1].strip()


def dynamic_imports(source: str, package: str) -> Iterator[tuple[str, int]]:
    """Yield (module, line) of each `import_module` and `__import__` of a package's own modules.

    Of an f-string the part before the first variable counts: f"regard.masks.{name}" imports `regard.masks`.

    >>> list(dynamic_imports('import_module("regard.masks")\\nimport_module("json")', "regard"))
    [('regard.masks', 1)]
    >>> list(dynamic_imports('importlib.import_module(f"regard.masks.{name}")', "regard"))
    [('regard.masks', 1)]
    """
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if function not in ("import_module", "__import__"):
            continue
        name = node.args[0].values[0] if isinstance(node.args[0], ast.JoinedStr) else node.args[0]
        if not isinstance(name, ast.Constant) or not isinstance(name.value, str):
            continue
        module = name.value if name is node.args[0] else name.value.rpartition(".")[0]
        if module.partition(".")[0] == package:
            yield module, node.lineno
