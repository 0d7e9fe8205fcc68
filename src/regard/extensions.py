"""Parts that other installed packages add to regard by entry points: a statistic, a renderer, a loader of models.

An entry point is imported when its name is requested, never before, and it cannot replace a part of regard. `regard
doctor` lists what is installed. docs/extensions.md has the contract of each group, and `examples/regard_extras` is a
package with one part of each.
"""

from typing import Any, Literal

from regard.errors import InputError

__all__ = ["GROUPS", "Group", "extension", "extension_names"]

Group = Literal["regard.statistics", "regard.renderers", "regard.model_loaders"]
GROUPS: tuple[Group, ...] = ("regard.statistics", "regard.renderers", "regard.model_loaders")


def extension_names(group: Group) -> tuple[str, ...]:
    """Return the names that installed packages add to a group, sorted; nothing is imported."""
    return tuple(sorted(_found(group)))


def extension(group: Group, name: str) -> Any:
    """Import the part that an installed package adds to a group under a name, or return None if no package does.

    Raises:
        InputError: Two packages add this name, it cannot be imported, or it is not callable.
    """
    ways = _found(group).get(name, {})
    if not ways:
        return None
    packages = " and ".join(sorted(str(one.dist and one.dist.name) for one in ways.values()))
    if len(ways) > 1:
        raise InputError(f"{name!r} of {group} must come from one package, got it from {packages}: uninstall one")
    ((where, entry),) = ways.items()
    try:
        part = entry.load()
    except Exception as problem:  # whatever the module of another package raises
        raise InputError(
            f"{name!r} of {group} must be importable, got {type(problem).__name__} ({problem}) from {where} of "
            f"{packages}: mend or uninstall this package"
        ) from problem
    if not callable(part):
        raise InputError(f"{name!r} of {group} must be callable, got {part!r} from {where} of {packages}: see its docs")
    return part


def _found(group: Group) -> dict[str, dict[str, Any]]:
    """The entry points of a group by name and by place; a package that is found twice on the path counts once."""
    from importlib.metadata import entry_points  # 20 ms, which a call without extensions does without

    found: dict[str, dict[str, Any]] = {}
    for one in entry_points(group=group):
        found.setdefault(one.name, {})[one.value] = one
    return found
