"""`regard generate`: a model goes on with a text, shown as it is written."""

import logging
import math
import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.status import Status

from regard.cli.console import TextConsole
from regard.cli.detokenizer import Detokenizer
from regard.cli.model_option import model_option
from regard.cli.text_argument import read_prompt
from regard.cli.text_stream import Screen
from regard.errors import InputError, MissingExtraError

__all__ = ["generate"]


@dataclass(frozen=True)
class _Asked:
    """What the options say of the writing."""

    tokens: int
    temperature: float | None
    top_k: int | None
    top_p: float | None
    seed: int | None
    beams: int | None
    length_penalty: float | None

    def __post_init__(self) -> None:
        for name in ("tokens", "top_k", "beams"):
            _count("--" + name.replace("_", "-"), getattr(self, name))
        if self.temperature is not None and not 0 < self.temperature < math.inf:
            raise InputError(
                f"`--temperature` must be a number above 0, got {self.temperature}: for the likeliest token at each "
                "step leave it out"
            )
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise InputError(f"`--top-p` must be above 0 and at most 1, got {self.top_p}: leave it out to keep all")
        if self.seed is not None and not 0 <= self.seed < 2**63:
            raise InputError(f"`--seed` must be from 0 to 2⁶³ − 1, got {self.seed}")
        if self.length_penalty is not None and not math.isfinite(self.length_penalty):
            raise InputError(f"`--length-penalty` must be a finite number, got {self.length_penalty}: 1 is usual")
        if self.beams is not None and self.sampling:
            raise InputError(
                f"`--beams` looks for the likeliest text and `{self.sampling[0]}` draws one: leave one of them out"
            )
        if self.beams is None and self.length_penalty is not None:
            raise InputError("`--length-penalty` is for `--beams`: give `--beams 4` too, or leave it out")

    @property
    def sampling(self) -> list[str]:
        """The options given that ask for drawn tokens."""
        names = ("temperature", "top_k", "top_p", "seed")
        return ["--" + name.replace("_", "-") for name in names if getattr(self, name) is not None]

    def write(self, model: Any, prompt: list[int], seed: int, room: float) -> Iterable[int]:
        """Let the model write: all at once with beams, else token by token."""
        import torch

        from regard.models import decoding

        most = int(min(self.tokens, room))
        if self.beams is not None:
            beam = decoding.Beam(self.beams, 1.0 if self.length_penalty is None else self.length_penalty)
            found: list[int] = model.generate([prompt], decoding=beam, most=most)[0]
            return found
        chosen: decoding.Greedy | decoding.Sampling = decoding.Greedy()
        if self.sampling:
            generator = torch.Generator().manual_seed(seed)
            chosen = decoding.Sampling(self.temperature or 1.0, self.top_k, self.top_p, generator)
        stream: Iterable[int] = model.stream(prompt, decoding=chosen, most=most)
        return stream


def generate(
    text: Annotated[str, typer.Argument(help="A text, the name of a text file, or - for standard input.")],
    *,
    model: Annotated[str, model_option("smollm2, or a Hugging Face folder or id.")] = "smollm2",
    tokens: Annotated[int, typer.Option(help="How many tokens to write at most.")] = 128,
    temperature: Annotated[
        float | None, typer.Option(help="Draw each token; below 1 sharper, above 1 flatter.")
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Draw from the k likeliest tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Draw from the likeliest that have this mass.")] = None,
    seed: Annotated[int | None, typer.Option(help="Draw, and the same tokens for the same number.")] = None,
    beams: Annotated[int | None, typer.Option(help="Look for the likeliest text, so many side by side.")] = None,
    length_penalty: Annotated[
        float | None, typer.Option(help="With --beams: above 0 longer texts gain; by default 1.")
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", metavar="", help="Let the model answer the text as a message.")
    ] = False,
    threads: Annotated[int | None, typer.Option(help="How many threads of the processor to use.")] = None,
) -> None:
    """Go on with a text, shown as it is written; an encoder–decoder translates or answers it.

    Each token is the likeliest one, unless an option draws or looks further. In a pipe only what is new is written.
    """
    asked = _Asked(tokens, temperature, top_k, top_p, seed, beams, length_penalty)
    _count("--threads", threads)
    words = read_prompt(text)
    progress = TextConsole(stderr=True)
    with progress.status("reading the libraries") as status:
        writer, tokenizer = _load(model, threads, status)
        prompt = _prompt(tokenizer, words, chat, model)
        last = writer.config.max_position_embeddings or _trained_positions(writer.config, model)
        before = 1 if writer.config.kind == "encoder-decoder" else len(prompt)
        if last is not None and before >= last:
            raise InputError(
                f"the text has {before:,} tokens, and {model} has positions for {last:,}, which leaves none to write: "
                "shorten it"
            )
        room = math.inf if last is None else last - before
        status.update(f"{model} reads the text" if beams is None else f"{model} looks for the likeliest text")
        goes_on = not chat and writer.config.kind == "decoder"
        screen = Screen(status, words if goes_on else "", Detokenizer(tokenizer, prompt if goes_on else ()))
        seed = secrets.randbelow(2**32) if seed is None else seed
        begun = time.perf_counter()
        written = screen.show(asked.write(writer, prompt, seed, room), writer.config.special_tokens.eos_token_ids)
        seconds = time.perf_counter() - begun
    again = f", --seed {seed} repeats it" if asked.sampling else ""
    count = f"{len(written)} token{'s' if len(written) > 1 else ''}"
    said = f"{count} in {seconds:.1f} s ({len(written) / seconds:.1f}/s)"
    why = _why(writer.config, last, room, written, tokens)
    progress.print(f"{said}, {why}{again}", style="dim", soft_wrap=True)


def _count(name: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise InputError(f"`{name}` must be at least 1, got {value}")


def _load(name: str, threads: int | None, status: Status) -> tuple[Any, Any]:
    """The model, in our modules, and its tokenizer."""
    if not name.strip():
        raise InputError("`--model` must not be empty: take smollm2, a folder or an id of the hub")
    from regard.interpret.bundled import BUNDLED, folder
    from regard.interpret.bundled.load import quiet

    own = Path(name).expanduser().is_dir()
    if not own and name in BUNDLED and BUNDLED[name].kind == "encoder":
        raise _reads_only(name)
    try:
        import huggingface_hub
        import torch
        import transformers
    except ImportError as missing:
        raise MissingExtraError(missing.name or "transformers", "models") from missing
    from regard.models import Transformer, output_heads

    if threads is not None:
        torch.set_num_threads(threads)
    # One sentence in the end, not a line for each attempt.
    logging.getLogger(huggingface_hub.__name__).setLevel(logging.ERROR)
    status.update(f"{name} is loaded")
    model = Transformer.from_pretrained(name)
    if model.config.kind == "encoder":
        raise _reads_only(name)
    if not isinstance(model.config.output_head, output_heads.LanguageModel):
        raise InputError(f"`--model` {name!r} has no head that writes words: take smollm2, or a checkpoint with one")
    where = str(Path(name).expanduser()) if own else str(folder(name)) if name in BUNDLED else name
    with quiet(transformers.utils.logging):
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(where, trust_remote_code=False)
        except Exception as problem:  # the library tokenizers raises nothing more special for a broken file
            reason = " ".join(str(problem).split())[:300] or type(problem).__name__
            raise _no_tokenizer(name, reason) from problem
    if len(tokenizer) - len(tokenizer.added_tokens_decoder) < 2:  # transformers makes up one without words
        raise _no_tokenizer(name, "there is none")
    return model, tokenizer


def _reads_only(name: str) -> InputError:
    return InputError(
        f"`--model` must be one that writes, and {name!r} is an encoder, which reads only: take smollm2, or see it "
        f"read with regard look --model {name}"
    )


def _no_tokenizer(name: str, reason: str) -> InputError:
    return InputError(
        f"cannot load the tokenizer of {name!r}: put it beside the weights with tokenizer.save_pretrained ({reason})"
    )


def _prompt(tokenizer: Any, text: str, chat: bool, name: str) -> list[int]:
    """The text as the model's tokens, on request as a user's message that waits for its answer."""
    if chat and not tokenizer.chat_template:
        raise InputError(f"`--chat` needs a chat template, and the tokenizer of {name!r} has none: leave `--chat` out")
    if chat:
        from jinja2 import TemplateError

        turn = [{"role": "user", "content": text}]
        try:
            text = tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=False)
        except (TemplateError, ValueError, TypeError) as problem:
            reason = " ".join(str(problem).split())[:300]
            raise InputError(
                f"`--chat` fails in the chat template of {name!r}: leave `--chat` out ({reason})"
            ) from None
    found: list[int] = tokenizer(text, add_special_tokens=not chat, verbose=False)["input_ids"]
    if not found:
        raise InputError(f"the tokenizer of {name!r} makes no token of this text: give it some words to go on with")
    return found


def _trained_positions(config: Any, name: str) -> int | None:
    """How many positions a decoder with rotary ones has seen: it would run beyond them, for minutes, into nonsense."""
    from regard.models.checkpoint_files import Checkpoint

    if config.kind != "decoder":
        return None
    found = Checkpoint(name, local_files_only=True).config().get("max_position_embeddings")
    return found if isinstance(found, int) and found > 0 else None


def _why(config: Any, last: int | None, room: float, written: Sequence[int], most: int) -> str:
    """What ended the text."""
    forced = config.special_tokens.forced_eos_token_id is not None and len(written) >= min(most, room)
    if written[-1] in config.special_tokens.eos_token_ids and not forced:
        return "ended by the model"
    return f"cut at --tokens {most}" if len(written) == most else f"cut at the model's last position, {last}"
