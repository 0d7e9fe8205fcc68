"""The option `--model` of every command: names completed by the shell, slips of the pen refused at once."""

from typing import Any

import typer

__all__ = ["complete_model", "model_option"]


def model_option(description: str) -> Any:
    """Return the option with its help."""
    return typer.Option(help=description, autocompletion=complete_model, callback=_checked)


def complete_model(incomplete: str) -> list[str]:
    """Complete the name of a bundled model."""
    from regard.interpret.bundled.catalogue import BUNDLED

    return [name for name in BUNDLED if name.startswith(incomplete)]


def _checked(context: typer.Context, given: Any) -> Any:
    """Refuse a name that is nowhere before PyTorch is imported."""
    from regard.interpret.model_loading import is_offline

    if given is not None and not context.resilient_parsing:
        for name in (given,) if isinstance(given, str) else given:
            is_offline(name)
    return given
