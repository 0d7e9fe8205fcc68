"""Random calls of `generate`: tiny checkpoints of the families that load, options as arguments or in their files.

The oracle is transformers' own `generate` on each row alone, without padding: what a row gives never depends on the
rows beside it. Where tokens are drawn, both libraries draw by rank from what they keep, so that every cut-off shows.
"""

import copy
import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as hf

import checkpoints
from regard.errors import InputError
from regard.models import Transformer, UnsupportedGenerationWarning

__all__ = ["Call", "DisagreementError", "Pool", "drawn"]

VOCABULARY = 50
_LLAMA = checkpoints.GROUPED | {"max_position_embeddings": 64}
_ROPE = {"rope_theta": 10000.0, "factor": 3.0}
_SCALED = {
    "linear": {},
    "dynamic": {},
    "yarn": {"original_max_position_embeddings": 8},
    "llama3": {"original_max_position_embeddings": 8, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "longrope": {
        "original_max_position_embeddings": 8, "short_factor": [1.0] * 4, "long_factor": [1.0, 2.0, 3.0, 5.0],
    },
}  # fmt: skip
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    name: (name, {})
    for name in ("gpt2", "llama", "mistral", "qwen2", "qwen2 with windows", "t5", "t5 1.1", "bart", "marian")
} | {
    f"llama, {kind}": (
        "llama",
        {
            "rope_parameters": {"rope_type": kind} | _ROPE | more,
            "max_position_embeddings": 8 if kind == "dynamic" else 64,
        },
    )
    for kind, more in _SCALED.items()
}
PAIRED = ("t5", "t5 1.1", "bart", "marian")
# As arguments these are refused by their names, in a file they are named once.
UNSUPPORTED: dict[str, Any] = {
    "typical_p": 0.7, "epsilon_cutoff": 0.02, "eta_cutoff": 0.02, "encoder_no_repeat_ngram_size": 2,
    "encoder_repetition_penalty": 1.4, "renormalize_logits": True, "exponential_decay_length_penalty": [2, 1.5],
    "sequence_bias": [[[5], 2.0]], "remove_invalid_values": True,
}  # fmt: skip


class DisagreementError(AssertionError):
    """The two libraries differ, or something is refused without its name."""


@dataclass(frozen=True)
class Call:
    """A call of `generate`.

    Args:
        number: It draws everything.
        model: One of MODELS.
        dtype: Of its weights.
        rows: The tokens of each row.
        arguments: What the caller gives.
        file: What stands in generation_config.json.
    """

    number: int
    model: str
    dtype: torch.dtype
    rows: list[list[int]]
    arguments: dict[str, Any] = field(default_factory=dict)
    file: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"call {self.number}: {self.model} {self.dtype} {self.rows} {self.arguments} file {self.file}"


def drawn(number: int) -> Call:
    """Return the call of a number."""
    rng = np.random.default_rng([51, number])
    model = str(rng.choice(list(MODELS)))
    options = _options(rng, model)
    file = {"pad_token_id": 0, "eos_token_id": options.pop("eos_token_id"), "bos_token_id": 1}
    if model in PAIRED:
        file["decoder_start_token_id"] = int(rng.choice([0, 3]))
    arguments: dict[str, Any] = {}
    together = bool(rng.random() < 0.5)  # a file whose number of sequences has no beams is none of transformers
    for name, value in options.items():
        in_file = together if name in ("num_beams", "do_sample", "num_return_sequences") else rng.random() < 0.5
        (file if in_file else arguments)[name] = value
    if rng.random() < 0.1 and isinstance(file["eos_token_id"], list):
        arguments["eos_token_id"] = [int(rng.integers(2, VOCABULARY))]
    if rng.random() < 0.1:
        arguments["use_cache"] = False
    if rng.random() < 0.1:
        name = str(rng.choice(list(UNSUPPORTED)))
        (file if rng.random() < 0.5 else arguments)[name] = UNSUPPORTED[name]
    draws = arguments.get("do_sample", file.get("do_sample"))
    count = 1 if draws else int(rng.integers(1, 4))
    rows = [rng.integers(3, 44, rng.integers(1, 9)).tolist() for _ in range(count)]
    dtype = torch.float64 if rng.random() < 0.3 else torch.float32
    return Call(number, model, dtype, rows, arguments, file)


def _options(rng: np.random.Generator, model: str) -> dict[str, Any]:
    """Options for this model, drawn: each with its share of calls, from its values."""
    drawn_tokens = {
        most: sorted({int(token) for token in rng.integers(3, VOCABULARY, rng.integers(1, most + 1))})
        for most in (4, 8, 12)
    }
    words = [rng.integers(3, VOCABULARY, rng.integers(1, 4)).tolist() for _ in range(int(rng.integers(1, 30)))]
    token, paired = int(rng.integers(3, VOCABULARY)), model in PAIRED
    strategy = str(rng.choice(["greedy", "beams", "drawn", "odd"], p=[0.3, 0.35, 0.3, 0.05]))
    beams, draws = strategy in ("beams", "odd"), strategy in ("drawn", "odd")
    count = int(rng.integers(2, 6))
    shares: dict[str, tuple[float, list[Any]]] = {
        "eos_token_id": (1.0, [drawn_tokens[4], drawn_tokens[4], drawn_tokens[4], 2]),
        "min_new_tokens": (0.15, list(range(6))),
        "min_length": (0.15, list(range(6))),
        "num_beams": (beams, [count]),
        "length_penalty": (beams * 0.5, [-1.0, 0.0, 0.6, 2.0]),
        "early_stopping": (beams * 0.5, [True, False, "never"]),
        "num_return_sequences": (beams * 0.3, [1, 2, count]),
        "do_sample": (draws, [True]),
        "temperature": (draws * 0.6, [0.1, 0.5, 0.7, 1.5, 5.0]),
        "top_k": (draws * 0.5, [0, 1, 3, 10, 49, 50, 51, 1000]),
        "top_p": (draws * 0.5, [0.01, 0.3, 0.8, 0.95, 1.0]),
        "min_p": (draws * 0.3, [0.0, 0.05, 0.3, 1.0]),
        "repetition_penalty": (0.35, [0.5, 1.0, 1.1, 1.3, 3.0]),
        "no_repeat_ngram_size": (0.3, [0, 1, 2, 3]),
        "bad_words_ids": (0.25, [words]),
        "suppress_tokens": (0.2, [drawn_tokens[8]]),
        "begin_suppress_tokens": (0.2, [drawn_tokens[12]]),
        "forced_bos_token_id": (0.2 if paired else 0.03, [token]),
        "forced_eos_token_id": (0.15, [token, 3]),
    }
    options = {
        name: values[int(rng.integers(len(values)))] for name, (share, values) in shares.items() if rng.random() < share
    }
    if "min_length" in options:
        options.pop("min_new_tokens", None)
    limit = str(rng.choice(["max_new_tokens", "max_length", "none"], p=[0.6, 0.3, 0.1]))
    if "dynamic" in model and limit == "none":  # whose default length transformers cuts at the length of training
        limit = "max_new_tokens"
    lengths = {"max_new_tokens": (1, 15), "max_length": (10, 20)}
    return options | ({} if limit == "none" else {limit: int(rng.integers(*lengths[limit]))})


@dataclass
class Pool:
    """The checkpoints, each made once in a folder."""

    folder: Path
    made: dict[tuple[str, torch.dtype], Any] = field(default_factory=dict)

    def check(self, call: Call) -> str:
        """Make a call by both libraries; return what came of it: "equal", "named" (as not obeyed), or "refused: …".

        Raises:
            DisagreementError: They differ, or something is refused or left out without its name.
        """
        theirs, folder = self._theirs(call), self._folder(call.model)
        (folder / "generation_config.json").write_text(json.dumps(call.file))
        try:
            theirs.generation_config = hf.GenerationConfig.from_pretrained(folder)
        except ValueError as problem:
            theirs = problem
        ours = Transformer.from_pretrained(folder, dtype=call.dtype)
        unsupported = [name for name in UNSUPPORTED if name in call.file]
        try:
            with _by_rank(), warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                found = ours.generate(call.rows, **call.arguments, return_dict_in_generate=True)
        except InputError as problem:
            return self._refused(call, str(problem))
        if isinstance(theirs, ValueError):
            raise DisagreementError(f"{call}\n    transformers refuses: {theirs}")
        named = [str(one.message) for one in caught if one.category is UnsupportedGenerationWarning]
        if bool(unsupported and _matters(call, unsupported[0])) != bool(named):
            raise DisagreementError(f"{call}\n    unsupported {unsupported}, named {named}")
        if named:
            return "named"
        expected = [self._alone(call, theirs, row) for row in call.rows]
        tokens = [one for row in expected for one in row[0]]
        if found.new_tokens != tokens:
            raise DisagreementError(f"{call}\n    found    {found.new_tokens}\n    expected {tokens}")
        scores = [score for row in expected for score in row[1] or ()]
        if scores and not np.allclose(found.sequences_scores, scores, rtol=1e-4, atol=1e-4):
            raise DisagreementError(f"{call}\n    scores {found.sequences_scores.tolist()}, expected {scores}")
        return "equal"

    def _folder(self, name: str) -> Path:
        return self.folder / name.replace(" ", "-").replace(",", "")

    def _theirs(self, call: Call) -> Any:
        key = call.model, call.dtype
        if key not in self.made:
            family, more = MODELS[call.model]
            model = checkpoints.checkpoint(family, self._folder(call.model), **more)
            with torch.no_grad():  # so that distributions are not flat
                head = model.get_output_embeddings().weight
                head.mul_(2.0 if family != "t5" else 8.0)
            model.save_pretrained(self._folder(call.model))
            self.made[key] = model.to(call.dtype).eval()
        return self.made[key]

    def _alone(self, call: Call, theirs: Any, row: list[int]) -> tuple[list[list[int]], list[float] | None]:
        """What transformers generates for a row, and the scores of beams."""
        if "dynamic" in call.model:  # which keeps the longest length that it has seen
            theirs.model.rotary_emb = type(theirs.model.rotary_emb)(theirs.config)
        ids = torch.tensor([row])
        with _by_rank(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            given = theirs.generate(
                ids, attention_mask=torch.ones_like(ids), **copy.deepcopy(call.arguments),
                return_dict_in_generate=True, output_scores=True,
            )  # fmt: skip
        first = 1 if call.model in PAIRED else len(row)
        ends = call.arguments.get("eos_token_id", call.file["eos_token_id"])
        ends = ends if isinstance(ends, list) else [ends]
        new = [_cut(sequence, ends) for sequence in given.sequences[:, first:].tolist()]
        scores = getattr(given, "sequences_scores", None)
        return new, None if scores is None else scores.tolist()

    def _refused(self, call: Call, problem: str) -> str:
        """Whether a refusal names an option that was given, and transformers' has the same or more meaning."""
        names = {*call.arguments, *call.file}
        if not any(f"`{name}`" in problem for name in names) and "leave nothing" not in problem:
            raise DisagreementError(f"{call}\n    refused without a name: {problem}")
        return f"refused: {problem}"


def _matters(call: Call, name: str) -> bool:
    """Whether an unsupported option changes what is generated."""
    draws = call.arguments.get("do_sample", call.file.get("do_sample", False))
    return draws or name not in ("typical_p", "epsilon_cutoff", "eta_cutoff")


def _cut(tokens: list[int], ends: list[int]) -> list[int]:
    length = next((n for n, token in enumerate(tokens, start=1) if token in ends), len(tokens))
    return tokens[:length]


@contextmanager
def _by_rank() -> Iterator[None]:
    """Let torch.multinomial take tokens by rank: the likeliest, the least likely that is kept, or one between."""
    shares, multinomial = iter(np.random.default_rng(0).choice([0.0, 0.3, 0.6, 1.0], 10_000)), torch.multinomial

    def ranked(chances: torch.Tensor, num_samples: int, **_: Any) -> torch.Tensor:
        share, order = float(next(shares)), chances.argsort(dim=1, descending=True, stable=True)
        kept = (chances > 1e-7).sum(1, keepdim=True)
        assert num_samples == 1
        return order.gather(1, (share * (kept - 1)).long())

    torch.multinomial = ranked
    try:
        yield
    finally:
        torch.multinomial = multinomial
