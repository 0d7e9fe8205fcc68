"""`regard doctor`: what can run here, what cannot, and why."""

import platform
from importlib import util
from typing import Annotated

import typer
from rich.table import Table

from regard.cli.console import TextConsole

__all__ = ["doctor"]

_PACKAGES = {
    "models": ("transformers", "tokenizers", "safetensors", "huggingface_hub", "gguf", "sentencex"),
    "figures": ("matplotlib",),
    "web": ("starlette", "uvicorn"),
    "cli": ("rich", "typer"),
    "train": ("accelerate", "sacrebleu", "opencc", "pydantic_settings"),
}
_BY_NAME = "it is opt-in: backend= or regard.use_backend"
_SCRIPTS = {"Chinese, simplified": "体头", "Chinese, traditional": "體頭", "Japanese": "あア", "Korean": "한"}


def doctor(
    *,
    compiles: Annotated[bool, typer.Option("--compile", hidden=True, metavar="")] = False,  # of 0.2
) -> None:
    """Show which backends run which calls here and why not, and the kernels, extras, models and fonts there are."""
    screen = TextConsole()
    if compiles:
        terminal = TextConsole(stderr=True)
        terminal.print(
            "regard: leave out --compile: nothing has to be compiled, regard carries its kernels", markup=False
        )
        raise typer.Exit(2)
    with TextConsole(stderr=True).status("loading the libraries"):
        import torch

        import regard

    screen.print(f"regard {regard.__version__} on Python {platform.python_version()}, torch {torch.__version__}")
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    screen.print(f"{torch.get_num_threads()} threads, CUDA device: {device}")
    for line in _kernels():
        screen.print(line)
    screen.print()
    tables = [*_backends(), _extras(), _extensions(), _models(), _fonts()]
    for number, table in enumerate(tables):
        if number > 0:
            screen.print()
        screen.print(table)


def _kernels() -> list[str]:
    """Return which native kernels run here, or why there are none, and which cannot be loaded."""
    from regard.backends.native import library

    if (reason := library.refuses()) is not None:
        return [f"native kernels: none, because {reason}"]
    broken = [f"native kernels not loaded: {failure}" for failure in library.failures()]
    return [f"native kernels: {library.library().name}", *broken]


def _backends() -> tuple[Table, ...]:
    """Every kind of call against every backend, why not, and which are experimental, from what they declare."""
    import torch

    from regard.backends.selection import BACKENDS, BY_NAME
    from regard.masks import Causal, Window
    from regard.normalizers import Sigmoid, Softmax
    from regard.problem import Problem
    from regard.scores import Additive, ScaledDot

    def problem(length: int = 512, **asked: object) -> Problem:
        x = torch.empty(1, 8, length, 64, device="meta")
        return Problem.of(x, x, x, **asked)  # type: ignore[arg-type]

    calls = {
        "dense": problem(),
        "causal": problem(mask=Causal()),
        "window 128": problem(mask=Window(128)),
        "bias": problem(bias=torch.empty(512, 512, device="meta")),
        "softcap": problem(score=ScaledDot(softcap=50.0)),
        "sink": problem(normalizer=Softmax(torch.empty(8, device="meta"))),
        "dropout": problem(dropout=0.1),
        "additive score": problem(score=Additive(None, None, torch.empty(64, device="meta"))),
        "sigmoid": problem(normalizer=Sigmoid()),
        "weights": problem(return_weights=True),
        "log-sum-exp": problem(return_lse=True),
        "window, 100k tokens": problem(100_000, mask=Window(128)),
    }
    everyone = (*BACKENDS, *BY_NAME)
    table = Table("call", *(backend.name for backend in everyone), box=None, pad_edge=False, padding=(0, 2, 0, 0))
    reasons = {(one.name, _BY_NAME): ["all"] for one in BY_NAME}
    for name, call in calls.items():
        said = {backend.name: backend.refuses(call) for backend in everyone}
        table.add_row(name, *("runs" if reason is None else "no" for reason in said.values()))
        for backend, reason in said.items():
            if reason is not None:
                reasons.setdefault((backend, reason), []).append(name)
    order = [one.name for one in everyone]
    why = Table("backend", "calls", "does not run them because", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for (backend, reason), names in sorted(reasons.items(), key=lambda one: order.index(one[0][0])):
        why.add_row(backend, ", ".join(names), reason)
    tried = Table("experimental", "what is not as it should be yet", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for one in everyone:
        if one.experimental:
            tried.add_row(one.name, one.experimental)
    return table, why, tried


def _extras() -> Table:
    table = Table("extra", "", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for extra, packages in _PACKAGES.items():
        missing = [one for one in packages if util.find_spec(one) is None]
        said = f"missing {', '.join(missing)}: pip install 'regard[{extra}]'" if missing else "installed"
        table.add_row(extra, said)
    return table


def _extensions() -> Table:
    from regard.extensions import GROUPS, extension_names

    table = Table("extension", "", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for group in GROUPS:
        table.add_row(group, ", ".join(extension_names(group)) or "none installed")
    return table


def _models() -> Table:
    from regard.hub import BUNDLED, is_installed

    table = Table("model", "", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in BUNDLED:
        table.add_row(name, "installed" if is_installed(name) else f"missing: regard models get {name}")
    return table


def _fonts() -> Table:
    """The font that a figure takes for each script, found as a figure finds it."""
    from regard.errors import ObservationError
    from regard.render.fonts import fonts_for

    table = Table("figures in", "font", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(overflow="fold")  # of a path the end counts too
    for script, letters in _SCRIPTS.items():
        try:
            found = fonts_for([letters])
        except ImportError:
            table.add_row(script, "no figures without matplotlib")
        except ObservationError as lacking:
            table.add_row(script, f"missing: {str(lacking).partition(': ')[2]}")
        else:
            table.add_row(script, *(", ".join(each[1:]) for each in (found.families, found.files)))
    return table
