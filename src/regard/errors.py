"""The errors that regard raises: each names the rule that was broken, the value, and the way out."""

__all__ = [
    "AtlasError",
    "InputError",
    "MissingExtraError",
    "NonFiniteLossError",
    "ObservationError",
    "RankError",
    "RegardError",
]


class RegardError(Exception):
    """Any error that regard raises on purpose; its text is one sentence for people, without a traceback on the CLI."""


class InputError(RegardError, ValueError):
    """What was passed in breaks a rule: a shape, a dtype, a text, a path."""


class ObservationError(RegardError, RuntimeError):
    """Something cannot be observed, or was not: nothing was seen, the layer does not exist, `max_bytes` too small."""


class AtlasError(RegardError, ValueError):
    """A file is not a readable atlas."""


class NonFiniteLossError(RegardError, FloatingPointError):
    """The loss of a training step, or the norm of its gradient, is NaN or infinite; the step is not taken."""


class RankError(RegardError, RuntimeError):
    """Another process of the group was killed or stopped, and this one cannot continue without it."""


class MissingExtraError(RegardError, ImportError):
    """A package that an extra of regard installs is missing or, where its cause is another import error, broken."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"this needs the package `{package}`: pip install 'regard[{extra}]'")
        self.package, self.extra = package, extra

    def __str__(self) -> str:
        cause = self.__cause__
        missing = isinstance(cause, ModuleNotFoundError) and cause.name is not None and "." not in cause.name
        if missing or not isinstance(cause, ImportError):
            return super().__str__()
        package, reason = self.package.partition(".")[0], " ".join(str(cause).split())
        return (
            f"this needs the package `{package}`, which is installed and cannot be imported ({reason}): install it "
            f"again, pip install --force-reinstall 'regard[{self.extra}]'"
        )
