"""`regard generate`: continue a text with a model, shown as it is generated."""

import logging
import math
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.status import Status

from regard.cli.arguments import check_threads, model_option, read_prompt
from regard.cli.console import TextConsole, rules_not_obeyed
from regard.cli.text_stream import Detokenizer, Screen
from regard.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from regard.models.generation_config import GenerationConfig

__all__ = ["generate"]


@dataclass(frozen=True)
class _Options:
    """The options of generation, checked."""

    max_new_tokens: int
    temperature: float | None
    top_k: int | None
    top_p: float | None
    seed: int | None
    num_beams: int | None
    length_penalty: float | None
    greedy: bool

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "top_k", "num_beams"):
            _count("--" + name.replace("_", "-"), getattr(self, name))
        if self.temperature is not None and not 0 < self.temperature < math.inf:
            raise InputError(
                f"`--temperature` must be a number above 0, got {self.temperature}: leave it out to "
                "take the most likely token at each step"
            )
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise InputError(f"`--top-p` must be above 0 and at most 1, got {self.top_p}: leave it out to keep all")
        if self.seed is not None and not 0 <= self.seed < 2**63:
            raise InputError(f"`--seed` must be from 0 to 2⁶³ − 1, got {self.seed}")
        if self.length_penalty is not None and not math.isfinite(self.length_penalty):
            raise InputError(f"`--length-penalty` must be a finite number, got {self.length_penalty}: 1 is usual")
        if self.num_beams is not None and self.sampling:
            raise InputError(
                f"`--num-beams` searches for the most likely text and `{self.sampling[0]}` samples: leave one of "
                "them out"
            )
        if self.greedy and (others := [*self.sampling, *(["--num-beams"] if self.num_beams is not None else [])]):
            raise InputError(f"`--greedy` takes the most likely token at each step: leave it or `{others[0]}` out")
        if self.num_beams in (None, 1) and self.length_penalty is not None:
            raise InputError("`--length-penalty` is for `--num-beams`: give `--num-beams 4` too, or leave it out")

    @property
    def sampling(self) -> list[str]:
        """The given options that need sampling."""
        names = ("temperature", "top_k", "top_p", "seed")
        return ["--" + name.replace("_", "-") for name in names if getattr(self, name) is not None]

    @property
    def asked(self) -> dict[str, Any]:
        """The arguments of `generate`; what they leave open is the checkpoint's, then transformers' default."""
        given = {name: getattr(self, name) for name in ("temperature", "top_k", "top_p", "length_penalty")}
        if self.sampling:
            given |= {"do_sample": True, "num_beams": 1}
        elif self.greedy or self.num_beams is not None:
            given |= {"do_sample": False, "num_beams": self.num_beams or 1}
        return {name: value for name, value in given.items() if value is not None} | {"num_return_sequences": 1}

    def holds(self, model: Any, name: str) -> "GenerationConfig":
        """Return how tokens are chosen, by the options and by the checkpoint of this name."""
        found: GenerationConfig = model.config.generation_config.with_arguments(**self.asked)
        if found.do_sample and found.num_beams not in (None, 1):
            raise InputError(
                f"the generation_config.json of {name!r} asks for `do_sample` with `num_beams` {found.num_beams}, "
                f"which is not here: give `--greedy`, `--num-beams {found.num_beams}` or `--seed 1`"
            )
        return found


def _tokens(model: Any, prompt: list[int], options: dict[str, Any], searches: bool) -> Iterable[int]:
    """Return the generated tokens: all at once with beam search, else one by one."""
    if searches:
        found: list[int] = model.generate([prompt], **options, return_dict_in_generate=True).new_tokens[0]
        return found
    del options["num_return_sequences"]
    stream: Iterable[int] = model.stream(prompt, **options)
    return stream


def generate(
    text: Annotated[str, typer.Argument(help="A text, the name of a text file, or - for standard input.")],
    *,
    model: Annotated[str, model_option("smollm2, or a folder or id (Hugging Face, regard train).")] = "smollm2",
    max_new_tokens: Annotated[int, typer.Option(help="Largest number of tokens to generate.")] = 128,
    temperature: Annotated[float | None, typer.Option(help="Sample tokens; below 1 sharper, above 1 flatter.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Sample from the k most likely tokens; else from 50.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Sample from the most likely tokens with this total probability.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Sample with this seed: the same tokens each time.")] = None,
    num_beams: Annotated[int | None, typer.Option(help="Beam search of this width for the most likely text.")] = None,
    length_penalty: Annotated[
        float | None, typer.Option(help="With --num-beams: above 0 favours longer texts; 1 by default.")
    ] = None,
    greedy: Annotated[
        bool,
        typer.Option("--greedy", metavar="", help="Take the most likely token each time, whatever the model says."),
    ] = False,
    chat: Annotated[bool, typer.Option("--chat", metavar="", help="Answer the text as a chat message.")] = False,
    threads: Annotated[int | None, typer.Option(help="Number of processor threads.")] = None,
) -> None:
    """Continue a text, shown as it is generated; an encoder–decoder translates or answers it.

    Each token is the most likely one, unless an option or the model's generation_config.json samples or searches.

    The other rules of that file hold too; --max-new-tokens takes the place of its largest lengths and cuts its least.
    In a pipe only new text is printed.
    """
    options = _Options(max_new_tokens, temperature, top_k, top_p, seed, num_beams, length_penalty, greedy)
    check_threads(threads)
    words = read_prompt(text)
    progress = TextConsole(stderr=True)
    with progress.status("loading the libraries") as status:
        writer, tokenizer = _load(model, threads, status)
        import torch

        settings = options.holds(writer, model)
        draws, searches = bool(settings.do_sample), settings.num_beams not in (None, 1)
        prompt = _prompt(tokenizer, words, chat, model)
        last = writer.config.max_position_embeddings or _trained_positions(writer.config, model)
        before = 1 if writer.config.kind == "encoder-decoder" else len(prompt)
        if last is not None and before >= last:
            raise InputError(
                f"the text has {before:,} tokens, and {model} has positions for {last:,}, which leaves none to "
                "generate: shorten it"
            )
        room = math.inf if last is None else last - before
        status.update(f"{model} searches for the most likely text" if searches else f"{model} encodes the text")
        continues = not chat and writer.config.kind == "decoder"
        screen = Screen(status, words if continues else "", Detokenizer(tokenizer, prompt if continues else ()))
        seed = secrets.randbelow(2**32) if seed is None else seed
        asked: dict[str, Any] = options.asked | {"max_new_tokens": int(min(max_new_tokens, room))}
        asked |= {"generator": torch.Generator().manual_seed(seed)} if draws else {}
        begun, notes = time.perf_counter(), list[str]()
        with rules_not_obeyed(notes.append):
            tokens = _tokens(writer, prompt, asked, searches)
        written = screen.show(tokens, writer.config.special_tokens.eos_token_ids)
        seconds = time.perf_counter() - begun
    again = f", --seed {seed} repeats it" if draws else ""
    count = f"{len(written)} token{'s' if len(written) > 1 else ''}"
    summary = f"{count} in {seconds:.1f} s ({len(written) / seconds:.1f}/s)"
    why = _why(writer.config, last, room, written, max_new_tokens)
    progress.print(f"{summary}, {why}{again}", style="dim", soft_wrap=True)
    for note in notes:
        progress.print(note, soft_wrap=True)


def _count(name: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise InputError(f"`{name}` must be at least 1, got {value}")


def _load(name: str, threads: int | None, status: Status) -> tuple[Any, Any]:
    """Return the model, in our modules, and its tokenizer."""
    from regard.hub import BUNDLED
    from regard.hub.names import resolve

    named = resolve(name)
    if named.kind == "bundled" and BUNDLED[name].kind == "encoder":
        raise _reads_only(name)
    try:
        import huggingface_hub
        import torch
        import transformers  # noqa: F401
    except ImportError as missing:
        raise MissingExtraError(missing.name or "transformers", "models") from missing
    from regard.models import output_heads

    if threads is not None:
        torch.set_num_threads(threads)
    # One sentence in the end, not a line for each attempt.
    logging.getLogger(huggingface_hub.__name__).setLevel(logging.ERROR)
    status.update(f"loading {name}")
    model, tokenizer = (_saved if named.kind == "saved" else _of_family)(name)
    if model.config.kind == "encoder":
        raise _reads_only(name)
    if not isinstance(model.config.output_head, output_heads.LanguageModel):
        raise InputError(f"`--model` {name!r} has no language-modeling head: take smollm2, or a checkpoint with one")
    return model, tokenizer()


def _saved(name: str) -> tuple[Any, Callable[[], Any]]:
    """Return a model that regard saved, and its tokenizer, which adds the tokens that training added."""
    from regard.models import RecurrentSeq2Seq
    from regard.models.loading import load_saved

    loaded = load_saved(name)
    if loaded.target_tokenizer is not None or isinstance(loaded.model.model, RecurrentSeq2Seq):
        raise InputError(f"`--model` {name!r} was trained to translate: regard translate TEXT --model {name}")
    return loaded.model.model, lambda: loaded.tokenizer


def _of_family(name: str) -> tuple[Any, Callable[[], Any]]:
    """Return a checkpoint of a family that is read, and what loads its tokenizer."""
    from regard.models import Transformer
    from regard.models.loading import load_tokenizer

    return Transformer.from_pretrained(name), partial(load_tokenizer, name)


def _reads_only(name: str) -> InputError:
    return InputError(
        f"`--model` must be one that generates, and {name!r} is an encoder: take smollm2, or see its attention with "
        f"regard look --model {name}"
    )


def _prompt(tokenizer: Any, text: str, chat: bool, name: str) -> list[int]:
    """Return the text as token ids, on request as a user's message in the chat template."""
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
        raise InputError(f"the tokenizer of {name!r} makes no token of this text: give it some words")
    return found


def _trained_positions(config: Any, name: str) -> int | None:
    """Return the number of positions that a decoder with RoPE was trained on or stretched to: beyond them it generates
    nonsense.
    """
    from regard.models.checkpoint_files import Checkpoint
    from regard.positions import DynamicNTK, LinearScaling

    if config.kind != "decoder":
        return None
    found = Checkpoint(name, local_files_only=True).config().get("max_position_embeddings")
    if not isinstance(found, int) or found < 1:
        return None
    scaling = getattr(config.positions, "scaling", None)
    if isinstance(scaling, DynamicNTK):  # which is stretched as the text grows
        return None
    factor, original = getattr(scaling, "factor", 1.0), getattr(scaling, "original_max_position_embeddings", found)
    return max(found, int(factor * (found if isinstance(scaling, LinearScaling) else original)))


def _why(config: Any, last: int | None, room: float, written: Sequence[int], most: int) -> str:
    """Return what ended the text."""
    forced = config.special_tokens.forced_eos_token_id is not None and len(written) >= min(most, room)
    if written[-1] in config.special_tokens.eos_token_ids and not forced:
        return "ended by the model"
    return f"cut at --max-new-tokens {most}" if len(written) == most else f"cut at the model's last position, {last}"
