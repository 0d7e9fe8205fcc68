"""The errors regard raises: each says which rule was broken, by what value, and the way out."""

__all__ = ["AtlasError", "InputError", "MissingExtraError", "ObservationError", "RegardError"]


class RegardError(Exception):
    """Any error that regard raises on purpose; its text is one sentence for people, without a traceback on the CLI."""


class InputError(RegardError, ValueError):
    """What was passed in breaks a rule: a shape, a dtype, a text, a path."""


class ObservationError(RegardError, RuntimeError):
    """Something cannot be observed, or was not: nothing was seen, the layer does not exist, the budget is too small."""


class AtlasError(RegardError, ValueError):
    """A file is not a readable atlas."""


class MissingExtraError(RegardError, ImportError):
    """A package is missing that an extra of regard installs."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"this needs the package `{package}`: pip install 'regard[{extra}]'")
        self.package, self.extra = package, extra
