"""Let runs of `regard train` die at random moments, and compare what becomes of them with runs that nothing disturbed.

    python benchmarks/random_kills.py [--tasks synthetic clm] [--moments 60] [--seed 0] [--folder FOLDER] [--out FILE]

Deaths, in turn: SIGKILL, SIGTERM, a full disk, and folders that turn read-only. Each comes at a random moment between
the start of the command and its end, that of reading the data and of saving the model included. Afterwards the same
command is run again, and so on; a run that comes to its end is compared to the bit, and the next one begins.

After each death it is checked that no file is half-written; that SIGTERM leaves a checkpoint of the last step that was
logged; and that a command that could not write ends in one sentence, which names the last complete checkpoint.

Disks are full by the limit of a process on the size of its files, or, with --folder on a small file system of its own
(mount -t tmpfs -o size=20m tmpfs FOLDER), by a file that fills it. Root gives up its right to write everywhere. Needs
Linux. The libraries are read once; each command is a fork.
"""

import argparse
import ctypes
import json
import os
import random
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import suppress
from pathlib import Path

import accelerate  # noqa: F401 - read before the forks, as what follows
import matplotlib.backends.backend_svg  # noqa: F401
import torch
import torch.distributed.checkpoint.state_dict
from safetensors.torch import load_file

import regard.cli.app
import regard.render.alignment_figure  # noqa: F401
from regard.cli import main as regard_command
from regard.train import read_log
from regard.train.checkpoints import Checkpoints

DEATHS = ("SIGKILL", "SIGTERM", "full disk", "read-only")
WORDS = "the a small big red old cat dog house tree sees finds likes leaves and or".split()
TASKS = {
    "translation": 'type = "translation"\ntarget_lang = "de"\nmax_predict_samples = 4\nnum_completions_to_print = 1\n'
    'src_tokenizer = {model_type = "bpe", vocab_size = 60}\ntgt_tokenizer = "char"',
    "synthetic": 'type = "synthetic"\ntask_name = "sort"\nnum_symbols = 8\nmax_length = 6\nnum_examples = 300',
    "clm": 'type = "clm"\nblock_size = 16\npacking = true\ntokenizer = {model_type = "bpe", vocab_size = 60}',
    "mlm": 'type = "mlm"\nblock_size = 16\ntokenizer = {model_type = "unigram", vocab_size = 60}',
    "classification": 'type = "classification"\nmax_length = 16\ntokenizer = {model_type = "char", vocab_size = 40}',
}


def write_files(folder: Path, task: str) -> None:
    """Write the data and the configuration of a run."""
    draw = random.Random(5)
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(3, 9))) for _ in range(160)]
    lines = {
        "translation": [f"{text}\t{text[::-1]}" for text in dict.fromkeys(texts)],
        "classification": [f"{text}\t{'cat' in text}" for text in dict.fromkeys(texts)],
    }.get(task, texts)
    (folder / "data").write_text("\n".join(lines) + "\n", "utf-8")
    data = "" if task == "synthetic" else f'train_file = "{folder / "data"}"\n'
    (folder / "run.toml").write_text(
        f"[task]\nvalidation_size = 12\n{data}{TASKS[task]}\n"
        "[model]\nhidden_size = 16\nnum_attention_heads = 2\nintermediate_size = 16\nnum_hidden_layers = 1\n"
        "[training]\nmax_steps = 24\nlearning_rate = 3e-3\nwarmup_steps = 5\nmax_tokens_per_batch = 120\n"
        'lr_scheduler_type = "cosine"\neval_steps = 8\nsave_steps = 3\nsave_total_limit = 3\n'
        "num_averaged_checkpoints = 2\nnum_threads = 1\n",
        "utf-8",
    )


def obey_modes() -> None:
    """Give up root's right to write where no mode lets it."""
    libc, header = ctypes.CDLL(None, use_errno=True), struct.pack("Ii", 0x20080522, 0)
    sets = ctypes.create_string_buffer(24)  # effective, permitted and inheritable, twice 32 bits
    if libc.capget(header, sets) == 0:
        numbers = list(struct.unpack("6I", sets.raw))
        numbers[0] &= ~2  # CAP_DAC_OVERRIDE
        numbers[1] &= ~2
        libc.capset(header, struct.pack("6I", *numbers))


class Command:
    """`regard train` in a process of its own."""

    def __init__(self, config: Path, out: Path) -> None:
        self._reads, writes = os.pipe()  # not a file: its size would be limited too
        self.process = os.fork()
        if self.process:
            os.close(writes)
            return
        code = 70
        try:
            os.dup2(writes, 1)
            os.dup2(writes, 2)
            sys.stdout, sys.stderr = (open(number, "w", encoding="utf-8") for number in (1, 2))  # noqa: SIM115
            obey_modes()
            sys.argv = ["regard", "train", str(config), "--output-dir", str(out)]
            regard_command()
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            with suppress(BaseException):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def end(self) -> tuple[int, str]:
        """Return the exit code and what was printed."""
        with os.fdopen(self._reads, "rb") as pipe:
            printed = pipe.read().decode()
        return os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1]), printed


def run(config: Path, out: Path) -> None:
    """Run the command to its end."""
    code, printed = Command(config, out).end()
    assert code == 0, printed


class Disk:
    """What can be done to the file system under a run, and undone."""

    def __init__(self, folder: Path, *, small: bool) -> None:
        self.folder, self.small, self.filler = folder, small, folder / "filler"

    def fill(self, child: int) -> None:
        """Let nothing more be written."""
        if not self.small:
            with suppress(ProcessLookupError):
                resource.prlimit(child, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
            return
        with suppress(OSError), self.filler.open("ab", buffering=0) as file:
            while True:
                file.write(bytes(4096 if file.tell() > 2**20 else 2**16))

    def lock(self, out: Path, *, writable: bool) -> None:
        """Take the right to write in the folders of a run, or give it back."""
        for path in [out.parent, out, *out.rglob("*")]:
            with suppress(FileNotFoundError):  # it is gone or renamed meanwhile
                path.chmod((0o755 if path.is_dir() else 0o644) if writable else (0o555 if path.is_dir() else 0o444))

    def mend(self, out: Path) -> None:
        """Undo both."""
        self.filler.unlink(missing_ok=True)
        self.lock(out, writable=True)


def check_files(out: Path) -> None:
    """Fail where a file that has its name is not whole."""
    checkpoints = Checkpoints(out / "checkpoints")
    for step in checkpoints.steps():
        checkpoints.weights(step)  # which compares all checksums
    for name in ("run.json", "checkpoints/config.json", "model/config.json", "model/scores.json"):
        if (out / name).exists():
            json.loads((out / name).read_text("utf-8"))
    if (out / "model").exists():
        load_file(out / "model" / "model.safetensors")
    if (out / "log.jsonl").exists():
        read_log(out / "log.jsonl")  # a last line may be cut


def check_end(death: str, code: int, said: str, out: Path) -> str:
    """Return how a command that a death met has ended; fail where it lost something or said nothing."""
    steps = Checkpoints(out / "checkpoints").steps()
    if death == "SIGKILL":
        assert code == -signal.SIGKILL, (code, said)
        return "killed"
    assert "Traceback" not in said, said
    if death == "SIGTERM":
        if code == -signal.SIGTERM:
            return "stopped before the command began"
        assert code == 128 + signal.SIGTERM, (code, said)
        if "the same command resumes" not in said:
            return "stopped before training"
        logged = [event["step"] for event in read_log(out / "log.jsonl") if event["event"] == "stepped"]
        assert steps[-1] == logged[-1], (steps, logged, said)
        return "stopped, and the step is saved"
    assert code == 2, (code, said)
    (sentence,) = [line for line in said.splitlines() if line.startswith("regard:")]
    last = f"the last good checkpoint is that of step {steps[-1]}" if steps else "there is no checkpoint yet"
    assert last in sentence, (steps, sentence)
    return "refused in one sentence"


def outcome(out: Path) -> tuple[object, ...]:
    """Return what two runs of one configuration must have in common: weights, log and scores."""
    events = [
        {key: value for key, value in event.items() if key != "seconds"}
        for event in read_log(out / "log.jsonl")
        if event["event"] in ("stepped", "evaluated")
    ]
    weights = {
        name: tensor.numpy().tobytes() for name, tensor in load_file(out / "model" / "model.safetensors").items()
    }
    names = sorted(path.name for path in (*out.iterdir(), *(out / "checkpoints").glob("[!s]*")))  # nothing is left over
    return weights, events, json.loads((out / "model" / "scores.json").read_text("utf-8")), names


def let_die(task: str, folder: Path, moments: int, seed: int, *, small: bool) -> Counter[str]:
    """Let runs of a task die at so many moments; return how the commands ended."""
    folder.mkdir()
    disk, config, whole = Disk(folder.parent, small=small), folder / "run.toml", folder / "whole" / "run"
    write_files(folder, task)
    began = time.monotonic()
    run(config, whole)
    takes, expected = time.monotonic() - began, outcome(whole)
    moment, found, done, number = random.Random(f"{seed} {task}"), Counter[str](), 0, 0

    def finish(out: Path) -> None:
        """Run it to the end, and compare it."""
        run(config, out)
        assert outcome(out) == expected, f"the run in {out} differs from the one that nothing disturbed"
        found["ended with the same bits"] += 1
        shutil.rmtree(out.parent)

    while done < moments:
        out = folder / str(number) / "run"
        out.parent.mkdir(exist_ok=True)
        death, command = DEATHS[done % len(DEATHS)], Command(config, out)
        time.sleep(moment.random() * takes)
        if death in ("SIGKILL", "SIGTERM"):
            os.kill(command.process, getattr(signal, death))
        elif death == "full disk":
            disk.fill(command.process)
        else:
            disk.lock(out, writable=False)
        code, printed = command.end()
        disk.mend(out)
        check_files(out)
        if code == 0:  # nothing was left to do at that moment, or only decorations
            found["had ended before" if "left out" not in printed else "ended without a decoration"] += 1
            finish(out)
            number += 1
            continue
        found[f"{death}: {check_end(death, code, printed, out)}"] += 1
        done += 1
    finish(out)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--moments", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="a small file system of its own; else a temporary folder")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    folder = asked.folder or Path(tempfile.mkdtemp(prefix="random-kills-"))
    results = {}
    for task in asked.tasks:
        results[task] = dict(
            sorted(let_die(task, folder / task, asked.moments, asked.seed, small=bool(asked.folder)).items())
        )
        print(task, json.dumps(results[task]), flush=True)
        shutil.rmtree(folder / task)
    if asked.out:
        asked.out.write_text(json.dumps(results, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
