"""`regard train`: a model learns a task, in a run that a kill cannot break."""

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from regard.cli.console import TextConsole
from regard.errors import MissingExtraError

if TYPE_CHECKING:
    from regard.train.events import Ended, Evaluated, Event, Started, Stepped
    from regard.train.jsonl_log import Journal

__all__ = ["train"]

_RECENT = 0.9  # how much of the last speed stays in the one shown


def train(
    context: typer.Context,
    config: Annotated[Path, typer.Argument(help="A TOML or YAML file that says what is trained on what.")],
    *,
    out: Annotated[str | None, typer.Option(help="The folder of the run, instead of the file's.")] = None,
    threads: Annotated[int | None, typer.Option(help="How many threads of the processor to use.")] = None,
    check: Annotated[
        bool, typer.Option("--check", metavar="", help="Read the configuration, print it whole, and stop.")
    ] = False,
) -> None:
    """Train a model, or go on with a run that was stopped or killed: the same command continues it.

    Every key of the file can be an option here: --run.epochs 3 --model.width 128.

    Ctrl-C stops after the next step, with a checkpoint.

    On several processes: accelerate launch -m regard train FILE.
    """
    from regard.train.config_file import read_config

    said = list(context.args)
    said += [] if out is None else ["--out", json.dumps(out, ensure_ascii=False)]
    said += [] if threads is None else ["--run.threads", str(threads)]
    asked = read_config(config, said)
    console = TextConsole(stderr=True)
    if check:
        import torch

        from regard.train.memory_check import check_size

        check_size(asked, on_cpu=not torch.cuda.is_available())
        _print_config(asked)
        return
    with console.status("reading the libraries and the data") as status:
        try:
            import accelerate  # noqa: F401 - slow, and said to be missing before the data is read
        except ImportError as missing:
            raise MissingExtraError(missing.name or "accelerate", "train") from missing
        from regard.train import Curves, Journal
        from regard.train import train as run

        folder = Path(asked.out)
        log = Journal(folder / "log.jsonl")
        screen = _Screen(console, status.stop, log)
        listeners = (log, Curves(log.path, folder / "curves.svg"), screen)
        with _asked_to_stop() as stops, screen:
            ended = run(asked, listeners, stops=stops)
    if ended.why == "stopped":
        console.print(f"stopped behind step {ended.step:,}; the same command goes on from there")
        raise typer.Exit(130)


class _Screen:
    """A listener that shows the run as it goes."""

    def __init__(self, console: TextConsole, ready: object, log: "Journal") -> None:
        self.console, self._ready, self._log = console, ready, log
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(None),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        self.bar = Progress(*columns, console=console, transient=True)
        self.task = self.bar.add_task("", visible=False)
        self._speed = 0.0
        self._began = time.perf_counter()

    def __enter__(self) -> "_Screen":
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def __call__(self, event: "Event") -> None:
        """Show one event."""
        kind = type(event).__name__.lower()
        if shown := getattr(self, f"_{kind}", None):
            shown(event)

    def say(self, text: str, style: str = "") -> None:
        self.console.print(text, style=style, soft_wrap=True)

    def _started(self, event: "Started") -> None:
        if callable(self._ready):
            self._ready()
        for note in (*event.notes, *filter(None, [self._log.note])):
            self.say(note)
        goes_on = f"goes on behind step {event.step:,} of {event.total:,}" if event.step else f"{event.total:,} steps"
        self.say(f"{event.parameters:,} parameters, {goes_on}, in {event.out}")
        self.bar.start()
        self.bar.update(self.task, total=event.total, completed=event.step, visible=True)

    def _stepped(self, event: "Stepped") -> None:
        now = event.tokens / event.seconds
        self._speed = now if not self._speed else _RECENT * self._speed + (1 - _RECENT) * now
        said = f"loss {event.loss:.3f}  {self._speed:,.0f} tokens/s"
        self.bar.update(self.task, completed=event.step, total=max(event.step, self.bar.tasks[0].total or 0))
        self.bar.update(self.task, description=said)

    def _evaluated(self, event: "Evaluated") -> None:
        scores = "  ".join(f"{name} {value:.3f}" for name, value in event.scores.items())
        self.say(f"step {event.step:>6,}  epoch {event.epoch}  held out: {scores}{'  best' if event.best else ''}")
        for one in event.samples:
            self.say(f"  {one.source} → {one.said}   ({one.expected})", style="dim")

    def _ended(self, event: "Ended") -> None:
        self.bar.stop()
        if event.model is None:
            return
        minutes = (time.perf_counter() - self._began) / 60
        why = "no evaluation was better for a while" if event.why == "patience" else "all steps are done"
        self.say(f"{why}, {minutes:.1f} minutes; the model is in {event.model}")
        self.say("  ".join(f"{name} {value:.3f}" for name, value in event.scores.items()))
        for signature in event.notes:
            self.say(signature, style="dim")


@contextmanager
def _asked_to_stop() -> Iterator[Callable[[], bool]]:
    """Ctrl-C is remembered and answered behind the step; a second one interrupts at once."""
    asked: list[int] = []
    before = signal.getsignal(signal.SIGINT)

    def remember(number: int, _: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    signal.signal(signal.SIGINT, remember)
    try:
        yield lambda: bool(asked)
    finally:
        signal.signal(signal.SIGINT, before)


def _print_config(asked: object) -> None:
    from regard.train.config_file import to_mapping

    print(json.dumps(to_mapping(asked), indent=2, ensure_ascii=False))
