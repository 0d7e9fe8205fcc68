"""List every public name of regard, and where the field uses the same word: `python docs/surface.py` writes the list.

The names are the arguments of all that the public packages export, the keys of a training file and the options of the
command line. Each is looked up, by machine, in the signatures of PyTorch and transformers that are installed here; then
in `docs/words.toml`, which lists the words of libraries that are not installed and the terms of papers, each with its
source. What is found in neither is a word of our own. The result, `docs/surface.json`, is compared with the code by
`tests/test_surface.py`, so that no argument gets a new name unnoticed.

`python docs/surface.py release` lists the stable ones (docs/stability.md) in `docs/released.json` for a release.
"""

import contextlib
import dataclasses
import functools
import importlib
import inspect
import json
import re
import sys
import tomllib
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
LIST, WORDS, RELEASED = DOCS / "surface.json", DOCS / "words.toml", DOCS / "released.json"
PACKAGES = (
    "", "masks", "positions", "scores", "normalizers", "nn", "approximations", "models", "models.decoding",
    "models.output_heads", "models.recurrent", "train", "data", "cache", "statistics",
)  # fmt: skip
# What somebody meets in the first hour, by the beginning of the place: no word here is one of our own.
FIRST_HOUR = (
    "attention(", "explain(", "watch(", "look(", "LookResult(", "summary(", "nn.MultiHeadAttention", "nn.Encoder",
    "nn.Decoder", "nn.FeedForward", "nn.AdditiveAttention", "nn.AttentionPooling", "nn.AxialAttention",
    "nn.BigBirdAttention", "nn.BilinearAttention", "nn.LocalAttention", "nn.LongformerAttention",
    "nn.NeighborhoodAttention", "nn.SlidingWindowAttention", "nn.AttentionDecoderCell", "models.Transformer",
    "models.RecurrentSeq2Seq", "models.embed(", "regard.toml", "regard look",
    "regard generate",
)  # fmt: skip

TRANSFORMERS = (
    "GenerationConfig", "TrainingArguments", "Seq2SeqTrainingArguments", "DataCollatorForLanguageModeling",
    "DataCollatorForSeq2Seq", "Trainer", "PretrainedConfig", "DynamicCache", "PreTrainedTokenizerBase.__call__",
    "PreTrainedTokenizerBase.from_pretrained", "PreTrainedTokenizerBase.save_pretrained",
    "PreTrainedTokenizerBase.decode", "PreTrainedTokenizerBase.pad", "PreTrainedTokenizerBase.convert_ids_to_tokens",
    "PreTrainedTokenizerBase.apply_chat_template", "PreTrainedModel.from_pretrained",
    "PreTrainedModel.save_pretrained", "PreTrainedModel.push_to_hub", "DynamicCache.update",
    "DynamicCache.reorder_cache", "DynamicCache.crop", "GenerationMixin.generate", "TextStreamer", "BertModel.forward",
    "BertForMaskedLM.forward", "GPT2LMHeadModel.forward", "LlamaForCausalLM.forward",
    "T5ForConditionalGeneration.forward", "BartForConditionalGeneration.forward", "LongformerModel.forward",
    "BertForSequenceClassification.forward", "ViTModel.forward", "BigBirdModel.forward", "DebertaV2Model.forward",
    "EncoderDecoderModel.forward",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, order=True)
class Entry:
    """One public name: the word, where it is (`attention(mask)`), and the kinds of values that it is annotated with."""

    word: str
    place: str
    kind: str


def _parameters(function: Any, place: str) -> Iterator[Entry]:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    for parameter in signature.parameters.values():
        # Nobody types the name of a parameter that is positional only, of *args or of **kwargs.
        nameless = (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if parameter.kind in nameless or parameter.name in ("self", "cls"):
            continue
        if not parameter.name.startswith("_"):
            yield Entry(parameter.name, f"{place}({parameter.name})", _kind(parameter.annotation))


def _kind(annotation: Any) -> str:
    """The kinds of values that an annotation admits, sorted: "bool", "bytes", "flag | tensor" and so on."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    names = {
        "tensor": r"\b(Tensor|Float|Int|Bool|Shaped|NDArray|ndarray)\b", "flag": r"\bbool\b", "count": r"\bint\b",
        "number": r"\bfloat\b", "text": r"\bstr\b|Literal", "path": r"\bPath\b|PathLike", "function": r"Callable",
    }  # fmt: skip
    return " | ".join(sorted(kind for kind, pattern in names.items() if re.search(pattern, text))) or "value"


def _of_regard(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).split(".")[0] == "regard"


def _of_class(kind: type, place: str, seen: set[Any]) -> Iterator[Entry]:
    if not (issubclass(kind, BaseException) or getattr(kind, "_is_protocol", False)):
        yield from _parameters(kind, place)
    for base in kind.__mro__:
        if not _of_regard(base):
            continue
        for name, member in vars(base).items():
            function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
            function = inspect.unwrap(function) if callable(function) else function
            # A method that many classes inherit is one method; an override with the same words is the same too.
            once = (
                base.__module__.rpartition(".")[0],
                name,
                str(getattr(function, "__code__", None) and inspect.signature(function)),
            )
            if isinstance(function, types.FunctionType) and not name.startswith("_") and once not in seen:
                seen.add(once)
                yield from _parameters(function, f"{place}.{name}")


def module_of(package: str) -> types.ModuleType:
    """Import a public package by the name that a user types after `regard.`."""
    home = "capture.statistics" if package == "statistics" else package
    return importlib.import_module(f"regard.{home}".rstrip("."))


def exports() -> dict[str, Any]:
    """Everything that the public packages export, by the name that a user types after `regard.`."""
    found = {}
    for package in PACKAGES:
        module = module_of(package)
        for name in module.__all__:
            found[f"{package}.{name}".lstrip(".")] = getattr(module, name)
    return found


def keys() -> Iterator[Entry]:
    """The keys of a training file."""
    from regard.train.config import Config
    from regard.train.model_types import MODEL_TYPES
    from regard.train.tasks import TASKS

    def fields(kind: Any, place: str) -> Iterator[Entry]:
        hints = typing.get_type_hints(kind)
        for field in dataclasses.fields(kind):
            hint = hints[field.name]
            yield Entry(field.name, f"regard.toml {place}{field.name}", _kind(hint))
            for one in (hint, *typing.get_args(hint)):
                if dataclasses.is_dataclass(one) and _of_regard(one):
                    yield from fields(one, f"{place}{field.name}.")

    for table in ("task", "model"):  # which of several types of table it is
        yield Entry("type", f"regard.toml {table}.type", "text")
    yield from fields(Config, "")
    for table, kinds in (("task", [one.settings for one in TASKS]), ("model", MODEL_TYPES)):
        for one in kinds:
            yield from fields(one, f"{table}.")


def options() -> Iterator[Entry]:
    """The options and arguments of the command line."""
    import typer.main

    from regard.cli.app import app

    def walk(command: Any, place: str) -> Iterator[Entry]:
        for name, below in getattr(command, "commands", {}).items():
            yield from walk(below, f"{place} {name}")
        for parameter in command.params:
            for option in parameter.opts:
                if option.startswith("--"):
                    kind = "flag" if getattr(parameter, "is_flag", False) else "value"
                    yield Entry(option.removeprefix("--").replace("-", "_"), f"{place} {option}", kind)

    yield from walk(typer.main.get_command(app), "regard")


@functools.cache
def surface() -> list[Entry]:
    """Every public argument, key and option, once."""
    found: set[Entry] = set()
    seen: set[Any] = set()
    for place, value in exports().items():
        if isinstance(value, types.ModuleType) or not callable(value) or value in seen:
            continue
        seen.add(value)
        found.update(_of_class(value, place, seen) if isinstance(value, type) else _parameters(value, place))
    return sorted({*found, *keys(), *options()})


def _of_torch() -> Iterator[tuple[str, Any]]:
    """What of PyTorch is compared: a name, and a function or class whose parameters count."""
    import torch
    from torch.nn.attention import flex_attention
    from torch.utils import data

    for name in ("flex_attention", "create_block_mask", "create_mask", "and_masks"):
        yield f"torch.nn.attention.flex_attention.{name}", getattr(flex_attention, name)
    yield "torch.nn.attention.flex_attention.BlockMask.from_kv_blocks", flex_attention.BlockMask.from_kv_blocks
    for name, value in vars(torch.nn).items():
        if isinstance(value, type) and issubclass(value, torch.nn.Module):
            yield f"torch.nn.{name}", value
            yield f"torch.nn.{name}.forward", value.forward
    for name, value in vars(torch.nn.functional).items():
        if isinstance(value, types.FunctionType) and not name.startswith("_"):
            yield f"torch.nn.functional.{name}", value
    for name in ("AdamW", "SGD", "Adam"):
        yield f"torch.optim.{name}", getattr(torch.optim, name)
    for name in ("DataLoader", "random_split", "TensorDataset", "RandomSampler"):
        yield f"torch.utils.data.{name}", getattr(data, name)
    yield "torch.nn.Module.state_dict", torch.nn.Module.state_dict
    yield "torch.nn.Module.load_state_dict", torch.nn.Module.load_state_dict
    yield "torch.nn.Module.load_state_dict's result", type(torch.nn.Identity().load_state_dict({}))


def _of_transformers() -> Iterator[tuple[str, Any]]:
    """What of transformers is compared: configurations, forward, generate, training, tokenizers, outputs."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    for name in TRANSFORMERS:
        value: Any = transformers
        for part in name.split("."):
            value = getattr(value, part)
        yield f"transformers.{name}", value
    for name, value in vars(transformers.modeling_outputs).items():
        if isinstance(value, type) and dataclasses.is_dataclass(value):
            yield f"transformers.modeling_outputs.{name}", value
    tokens = tuple(transformers.PreTrainedTokenizerBase.SPECIAL_TOKENS_ATTRIBUTES)
    yield (
        "transformers.PreTrainedTokenizerBase",
        types.SimpleNamespace(words={*tokens, *(f"{one}_id" for one in tokens)}),
    )
    for kind in sorted(CONFIG_MAPPING.keys()):
        with contextlib.suppress(Exception):  # a configuration that needs a package which is not here has no words
            config = CONFIG_MAPPING[kind]
            yield f"transformers.{config.__name__}", config


def _names(value: Any) -> set[str]:
    names: set[str] = set(getattr(value, "words", ()))
    with contextlib.suppress(TypeError, ValueError):
        names |= set(inspect.signature(value).parameters)
    if isinstance(value, type):
        names |= {name for base in value.__mro__ for name in getattr(base, "__annotations__", {})}
        if value.__name__ == "GenerationConfig":
            names |= set(vars(value()))
        if value.__name__ == "_IncompatibleKeys":
            names |= set(value._fields)
    return {name for name in names if not name.startswith("_")} - {"self", "cls", "args", "kwargs"}


def field_words() -> dict[str, str]:
    """Each word of PyTorch and transformers that we use too, and the first signature that has it."""
    ours = {entry.word for entry in surface()}
    found: dict[str, str] = {}
    for place, value in (*_of_torch(), *_of_transformers()):
        for name in {name.lower() for name in _names(value)} & ours:  # FlexAttention has Q_LEN
            found.setdefault(name, place)
    return found


def listed_words() -> dict[str, str]:
    """The words of libraries that are not installed here and the terms of papers, each with its source."""
    tables = tomllib.loads(WORDS.read_text())
    return {
        word: f"{source}: {words[word]}" if isinstance(words, dict) else source
        for source, words in tables["sources"].items()
        for word in words
    }


def banned_words() -> dict[str, str]:
    """Words that are no argument's, each with the one to use (VOCABULARY)."""
    return dict(tomllib.loads(WORDS.read_text())["banned"])


def many_kinds() -> dict[str, set[str]]:
    """Words whose values are of unlike kinds in different places: a flag here, a tensor there."""
    kinds: dict[str, set[str]] = {}
    for entry in surface():
        kinds.setdefault(entry.word, set()).update(
            {"number" if kind == "count" else kind for kind in entry.kind.split(" | ")}
        )
    clash = ({"flag", "tensor"}, {"flag", "number"}, {"flag", "path"}, {"tensor", "text"})
    return {word: found for word, found in kinds.items() if any(pair <= found for pair in clash)}


def levels() -> dict[str, str]:
    """The level of each public package, as docs/stability.md promises it."""
    page = (DOCS / "stability.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `regard\.?([\w.]*)` \| (\w+) \|", page, flags=re.MULTILINE)
    return dict(rows)


def stable_places() -> list[str]:
    """The places of all names that are promised to stay: those of stable packages, options and keys."""
    level, exported = levels(), exports()

    def is_stable(place: str) -> bool:
        name = place.partition("(")[0]
        while name and name not in exported:
            name = name.rpartition(".")[0]
        return place.startswith(("regard ", "regard.")) or level[name.rpartition(".")[0]] == "stable"

    return sorted(entry.place for entry in surface() if is_stable(entry.place))


def release() -> None:
    """Write the stable names of a release, from which the next one may take none away without a warning."""
    version = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["project"]["version"]
    RELEASED.write_text(json.dumps({"version": version, "places": stable_places()}, indent=0) + "\n")


def written() -> dict[str, Any]:
    """What the list holds: each word, its source ("" where it is our own), its places."""
    field, listed = field_words(), listed_words()
    words: dict[str, Any] = {}
    for entry in surface():
        one = words.setdefault(
            entry.word, {"source": field.get(entry.word) or listed.get(entry.word, ""), "places": []}
        )
        one["places"].append(entry.place)
    return words


def main() -> None:
    """Write the list, and print which words are our own."""
    words = written()
    LIST.write_text(json.dumps(words, indent=1, ensure_ascii=False) + "\n")
    places = sum(len(one["places"]) for one in words.values())
    own = {word: one["places"] for word, one in words.items() if not one["source"]}
    count = sum(len(one) for one in own.values())
    early = sum(place.startswith(FIRST_HOUR) for one in own.values() for place in one)
    print(f"{places} public names, {count} of them ({count / places:.1%}) words of our own, {early} of the first hour:")
    for word, where in own.items():
        print(f"  {word}: {', '.join(where[:6])}{' …' if len(where) > 6 else ''}")


if __name__ == "__main__":
    sys.exit(release() if sys.argv[1:] == ["release"] else main())
