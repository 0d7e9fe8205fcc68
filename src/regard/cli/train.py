"""`regard train`: train a model in a run that can be killed and resumed."""

import json
import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from regard.cli.console import TextConsole, rules_not_obeyed
from regard.errors import MissingExtraError

if TYPE_CHECKING:
    from regard.train.callbacks import Ended, Evaluated, Event, JsonlLog, Started, Stepped

__all__ = ["train"]

_RECENT = 0.9  # weight of the earlier steps in the speed that is shown


def train(
    context: typer.Context,
    config: Annotated[Path, typer.Argument(help="A TOML file with the tables task, model and training.")],
    *,
    output_dir: Annotated[str | None, typer.Option(help="Folder of the run, instead of the file's.")] = None,
    threads: Annotated[int | None, typer.Option(help="Number of processor threads.")] = None,
    check: Annotated[
        bool, typer.Option("--check", metavar="", help="Print the whole configuration with its defaults, and exit.")
    ] = False,
) -> None:
    """Train a model, or resume a run that was stopped or killed: the same command continues it.

    Every key of the file can be given as an option: --training.max_steps 300
    --task.max_length 64. Keys of the table training need no prefix:
    --learning_rate 3e-4 --num_train_epochs 3.

    Ctrl-C, SIGTERM and SIGHUP save a checkpoint after the current step and
    exit; a second one interrupts at once, and the last checkpoint stays.

    On several processes: torchrun --nproc-per-node 2 -m regard train FILE, or accelerate launch -m
    regard train FILE. With --context_parallel_size 2, two of them share the tokens of each row.
    """
    from regard.train.config import read_config

    options = list(context.args)
    options += [] if output_dir is None else ["--training.output_dir", json.dumps(output_dir, ensure_ascii=False)]
    options += [] if threads is None else ["--training.num_threads", str(threads)]
    settings = read_config(config, options)
    console = TextConsole(stderr=True)
    console.quiet = os.environ.get("RANK", "0") != "0"  # of several processes the first shows the progress
    if check:
        import torch

        from regard.train.machine_memory import check_size
        from regard.train.unreached import unreached_settings

        check_size(settings, on_cpu=not torch.cuda.is_available())
        print(json.dumps(settings.to_dict(), indent=2, ensure_ascii=False))
        if unset := settings.unset_keys():
            console.print(f"not set: {', '.join(unset)}", soft_wrap=True)
        if (steps := settings.training.max_steps) is not None:  # else the data say how many there are
            for note in unreached_settings(settings.training, steps):
                console.print(note, soft_wrap=True)
        return
    with console.status("loading the libraries and the data") as status:
        try:
            import accelerate  # noqa: F401 - slow, and reported as missing before the data is read
        except ImportError as missing:
            raise MissingExtraError(missing.name or "accelerate", "train") from missing
        from regard.train import Curves, JsonlLog
        from regard.train import train as run

        folder = Path(settings.training.output_dir)
        log = JsonlLog(folder / "log.jsonl")
        screen = _Screen(console, status.stop, log)
        with _Signals() as signals, screen, rules_not_obeyed(screen.show):
            callbacks = (signals.receive_event, log, Curves(log.path, folder / "curves.svg"), screen)
            ended = run(settings, callbacks, should_stop=signals)
    screen.warn(ended.warnings)
    if ended.reason == "should_stop":
        console.print(f"stopped after step {ended.step:,}; the same command resumes from there")
        raise typer.Exit(signals.exit_code)


class _Screen:
    """A callback that shows the progress of the run."""

    def __init__(self, console: TextConsole, ready: object, log: "JsonlLog") -> None:
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
        self._warned: set[str] = set()

    def __enter__(self) -> "_Screen":
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def __call__(self, event: "Event") -> None:
        """Show one event."""
        kind = type(event).__name__.lower()
        if shown := getattr(self, f"_{kind}", None):
            shown(event)

    def show(self, text: str, style: str = "") -> None:
        self.console.print(text, style=style, soft_wrap=True)

    def warn(self, warnings: Iterable[str]) -> None:
        """Show each warning once."""
        for text in warnings:
            if text not in self._warned:
                self.show(f"warning: {text}")
                self._warned.add(text)

    def _started(self, event: "Started") -> None:
        if callable(self._ready):
            self._ready()
        for note in (*event.notes, *filter(None, [self._log.note])):
            self.show(note)
        steps = f"{event.max_steps:,} steps"
        steps = f"resumed after step {event.step:,} of {event.max_steps:,}" if event.step else steps
        self.show(f"{event.num_parameters:,} parameters, {steps}, in {event.out}")
        self.bar.start()
        self.bar.update(self.task, total=event.max_steps, completed=event.step, visible=True)

    def _stepped(self, event: "Stepped") -> None:
        now = event.num_tokens / event.seconds
        self._speed = now if not self._speed else _RECENT * self._speed + (1 - _RECENT) * now
        text = f"loss {event.loss:.3f}  {self._speed:,.0f} tokens/s"
        self.bar.update(self.task, completed=event.step, total=max(event.step, self.bar.tasks[0].total or 0))
        self.bar.update(self.task, description=text)

    def _evaluated(self, event: "Evaluated") -> None:
        scores = "  ".join(f"{name} {value:.3f}" for name, value in event.scores.items())
        self.show(f"step {event.step:>6,}  epoch {event.epoch}  held out: {scores}{'  best' if event.is_best else ''}")
        for one in event.samples:
            self.show(f"  {one.source} → {one.prediction}   ({one.reference})", style="dim")
        self.warn(event.warnings)

    def _ended(self, event: "Ended") -> None:
        self.bar.stop()
        if event.model is None:
            return
        minutes = (time.perf_counter() - self._began) / 60
        reason = "no improvement" if event.reason == "early_stopping" else "all steps are done"
        self.show(f"{reason}, {minutes:.1f} minutes; the model is in {event.model}")
        self.show("  ".join(f"{name} {value:.3f}" for name, value in event.scores.items()))
        for signature in event.notes:
            self.show(signature, style="dim")


class _Signals:
    """Ctrl-C, SIGTERM and SIGHUP of a run: the first one asks it to stop after its step, a second one ends it at once.

    Before training starts there is nothing to lose, and the first one ends it.
    """

    def __init__(self) -> None:
        self.number = 0  # of the signal that asked
        self.trains = False
        names = ("SIGINT", "SIGTERM", "SIGHUP")  # Windows has no SIGHUP
        self._numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]

    def __enter__(self) -> "_Signals":
        # One that is ignored, as nohup does with SIGHUP, stays ignored.
        numbers = [number for number in self._numbers if signal.getsignal(number) != signal.SIG_IGN]
        self._before = {number: signal.signal(number, self._receive_signal) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def __call__(self) -> bool:
        """Return whether the run should stop."""
        self.trains = True  # of several processes, only the first has events
        return bool(self.number)

    def receive_event(self, _: "Event") -> None:
        """Note that training has started."""
        self.trains = True

    @property
    def exit_code(self) -> int:
        """The exit code of a process that the signal ends: 130 for Ctrl-C, 143 for SIGTERM."""
        return 128 + self.number

    def _receive_signal(self, number: int, _: object) -> None:
        ends = self.number or not self.trains
        self.number = number
        if ends and number == signal.SIGINT:
            raise KeyboardInterrupt
        if ends:
            print("regard: interrupted; no file was left half-written", file=sys.stderr)
            sys.exit(self.exit_code)
