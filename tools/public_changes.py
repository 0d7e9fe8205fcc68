"""What a release note must say: the public names that changed since the last release (`make changes`).

Public is what the packages of `[tool.regard] public` in pyproject.toml export in `__all__`; `last-release` there is the
commit that they are compared with. griffe reads both from their sources, so nothing is imported. This reports and
forbids nothing: before 1.0 a minor version may rename (docs/stability.md).
"""

import sys
import tomllib
from pathlib import Path

import griffe

ROOT = Path(__file__).resolve().parent.parent
Names = dict[str, griffe.Object | griffe.Alias]


def main() -> None:
    """Print the names that are gone, new and changed."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["regard"]
    release, packages = settings["last-release"], settings["public"]
    try:
        old = griffe.load_git("regard", ref=release, repo=ROOT, search_paths=["src"], resolve_aliases=True)
    except (griffe.GitError, OSError) as error:  # a clone without history
        sys.exit(f"the last release, commit {release}, cannot be read: {error} (git fetch --unshallow)")
    new = griffe.load("regard", search_paths=[ROOT / "src"], resolve_aliases=True)
    before, after = public_names(old, packages), public_names(new, packages)
    report("gone", sorted(before.keys() - after.keys()))
    report("new", sorted(after.keys() - before.keys()))
    report("changed", changes(before, after))


def public_names(package: griffe.Object | griffe.Alias, packages: list[str]) -> Names:
    """Return each exported name of the public packages with what it stands for."""
    names: Names = {}
    for path in packages:
        module = package if path == package.path else _member(package, path)
        for export in (module.exports or ()) if module is not None else ():
            name = export if isinstance(export, str) else export.name
            if name in module.members:
                names[f"{path}.{name}"] = module.members[name]
    return names


def _member(package: griffe.Object | griffe.Alias, path: str) -> griffe.Object | griffe.Alias | None:
    try:
        return package[path.partition(".")[2]]
    except KeyError:  # the package is newer than the release
        return None


def changes(before: Names, after: Names) -> list[str]:
    """Return a line for each change of a name that was there before and would break a call of it."""
    lines = set()
    for name in before.keys() & after.keys():
        old, new = resolved(before[name]), resolved(after[name])
        if old is None or new is None or old.is_module:
            continue
        for breakage in griffe.find_breaking_changes(old, new):
            inner = breakage.obj.path.removeprefix(old.path).removeprefix(new.path).removesuffix(".__init__")
            detail = breakage.as_dict()
            values = [text for text in map(str, (detail["old_value"], detail["new_value"])) if text != "None"]
            lines.add(f"{name}{inner}: {breakage.kind.value.lower()}: {' → '.join(values)}")
    return sorted(lines)


def resolved(name: griffe.Object | griffe.Alias) -> griffe.Object | None:
    """Return what an exported name stands for; None for what is not in this package's sources."""
    if not isinstance(name, griffe.Alias):
        return name
    try:
        return name.final_target
    except (griffe.AliasResolutionError, griffe.CyclicAliasError):
        return None


def report(title: str, lines: list[str]) -> None:
    """Print a list under its title."""
    print(f"{title}: {len(lines)}")
    for line in lines:
        print(f"  {line}")


if __name__ == "__main__":
    main()
