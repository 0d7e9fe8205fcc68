"""Whole models against the same models in transformers, watched, and compiled."""

import os
import random
import shutil
from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import torch
from torch.nn import functional

import regard
from regard.errors import MissingExtraError
from regard.models import Transformer, TransformerConfig, output_heads
from regard.models.embedding import embed
from regard_bench.cases.inputs import real_tokens, without_gradients
from regard_bench.comparing import Pair, compare, compare_all
from regard_bench.rows import Case, Effort, Row, at_least, at_most
from regard_bench.timing import Call

__all__ = ["MODELS"]

NO_SLOWER, NO_SLOWER_COMPILED, WATCHED = at_least(1.0), at_most(1.0), at_most(1.5)
_AGAINST = {"transformers' time / time": Pair(("transformers", "regard"), NO_SLOWER)}
_VOCABULARY, _ROWS, _LENGTH = 4000, 64, 16
_WRITTEN, _SENTENCES, _READ = 64, 1000, 4096
_GPT_LAYERS, _GPT_TEXTS, _GPT_TOKENS = 4, 8, 512


def _rows(effort: Effort) -> Iterator[Row]:
    """Steps of the translator and a compiled GPT; SmolLM2 writing, watched, reading; MiniLM over 1,000 sentences."""
    try:
        import transformers
    except ImportError as missing:
        raise MissingExtraError("transformers", "models") from missing
    sides = {"regard": _translator(), "transformers": _marian(transformers)}
    yield compare(
        effort, "translation, 3 + 3 layers of 256", f"{_ROWS} × {_LENGTH} + {_LENGTH} tokens",
        "transformers' step / step", sides, over=("transformers", "regard"), target=NO_SLOWER,
    )  # fmt: skip
    if effort.max_tokens < _READ:
        return
    yield from _writing(effort)
    yield from _embedding(effort)
    yield from _watching(effort)
    yield from _reading(effort)
    if effort.max_tokens > _READ:
        yield _compiled(effort)


def _translator() -> Call:
    """Forward and backward of regard's model."""
    torch.manual_seed(0)
    config = TransformerConfig(
        vocab_size=_VOCABULARY, hidden_size=256, num_attention_heads=4, intermediate_size=1024, encoder_layers=3,
        decoder_layers=3, dropout=0.1, attention_dropout=0.0, activation_dropout=0.0,
        output_head=output_heads.LanguageModel(tie_word_embeddings=True),
    )  # fmt: skip
    model = Transformer(config).train()
    source, target, labels = _pairs()

    def step() -> None:
        model.zero_grad()
        logits = model(input_ids=source, decoder_input_ids=target).logits
        functional.cross_entropy(logits.flatten(0, 1), labels.flatten()).backward()

    return step


def _marian(transformers: Any) -> Call:
    """Forward and backward of transformers' Marian in the same sizes."""
    torch.manual_seed(0)
    config = transformers.MarianConfig(
        vocab_size=_VOCABULARY, d_model=256, encoder_layers=3, decoder_layers=3, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=1024, decoder_ffn_dim=1024, activation_function="relu",
        dropout=0.1, attention_dropout=0.0, activation_dropout=0.0, pad_token_id=0, eos_token_id=1,
        decoder_start_token_id=0, attn_implementation="sdpa",
    )  # fmt: skip
    model = transformers.MarianMTModel(config).train()
    source, target, labels = _pairs()

    def step() -> None:
        model.zero_grad()
        logits = model(input_ids=source, decoder_input_ids=target, use_cache=False).logits
        functional.cross_entropy(logits.flatten(0, 1), labels.flatten()).backward()

    return step


def _pairs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    source, target, labels = torch.randint(2, _VOCABULARY, (3, _ROWS, _LENGTH), generator=generator)
    return source, target, labels


def _compiled(effort: Effort) -> Row:
    """Steps of two equal GPTs, one of which Inductor has compiled, for half a minute to a minute."""
    case, at, what = "a GPT's training step, compiled", f"{_GPT_TEXTS} × {_GPT_TOKENS} tokens", "compiled / eager"
    if shutil.which(os.environ.get("CXX", "g++")) is None:  # the one that Inductor calls
        return Row(case, at, what, target=NO_SLOWER_COMPILED, why="there is no C++ compiler: apt-get install g++")
    sides: dict[str, Call] = {"eager": _gpt(compiled=False), "compiled": _gpt(compiled=True)}
    return compare(effort, case, at, what, sides, over=("compiled", "eager"), target=NO_SLOWER_COMPILED)


def _gpt(*, compiled: bool) -> Call:
    """Forward, backward and AdamW of a decoder of regard's; nothing is compiled before its first step."""
    torch.manual_seed(0)
    config = TransformerConfig(
        vocab_size=_VOCABULARY, hidden_size=256, num_attention_heads=4, intermediate_size=1024, encoder_layers=0,
        decoder_layers=_GPT_LAYERS, output_head=output_heads.LanguageModel(),
    )  # fmt: skip
    model = Transformer(config).train()
    run = torch.compile(model, fullgraph=True) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters())
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(2, _VOCABULARY, (_GPT_TEXTS, _GPT_TOKENS), generator=generator)

    def step() -> None:
        optimizer.zero_grad()
        run(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()

    return step


def _writing(effort: Effort) -> Iterator[Row]:
    loaded, model = regard.load_model("smollm2"), Transformer.from_pretrained("smollm2")
    prompt = loaded.tokenizer("Once upon a time, in a small")["input_ids"]
    ids = torch.tensor([prompt])
    options = {"max_new_tokens": _WRITTEN, "do_sample": False, "eos_token_id": None, "pad_token_id": 2}
    generate, theirs = cast(Any, model).generate, cast(Any, loaded.model).generate

    sides: dict[str, Call] = {
        "regard": lambda: generate([prompt], max_new_tokens=_WRITTEN, eos_token_id=()),
        "transformers": lambda: theirs(ids, attention_mask=torch.ones_like(ids), **options),
    }
    yield from compare_all(effort, "SmolLM2 writes", f"{_WRITTEN} tokens", _AGAINST, sides)


def _embedding(effort: Effort) -> Iterator[Row]:
    """Texts of 4 to 60 tokens, as sentences have; transformers gets them sorted, 32 a batch, padded."""
    loaded = regard.load_model("minilm")
    model = Transformer.from_pretrained("minilm", output_head=output_heads.SentenceEmbedding())
    generator = random.Random(0)
    lengths = [min(60, max(4, round(generator.lognormvariate(2.8, 0.5)))) for _ in range(_SENTENCES)]
    texts = [[101, *(generator.randrange(1000, 30000) for _ in range(n - 2)), 102] for n in lengths]

    def theirs() -> None:
        order = sorted(range(len(texts)), key=lambda at: -len(texts[at]))
        for first in range(0, len(order), 32):
            some = [texts[at] for at in order[first : first + 32]]
            longest = max(map(len, some))
            ids = torch.tensor([one + [0] * (longest - len(one)) for one in some])
            real = torch.tensor([[1] * len(one) + [0] * (longest - len(one)) for one in some])
            states = loaded.model(input_ids=ids, attention_mask=real).last_hidden_state
            means = (states * real[..., None]).sum(1) / real.sum(1, keepdim=True)
            functional.normalize(means, dim=-1)

    sides = {"regard": without_gradients(partial(embed, model, texts)), "transformers": without_gradients(theirs)}
    yield from compare_all(effort, "MiniLM embeds", f"{_SENTENCES:,} sentences", _AGAINST, sides)


def _watching(effort: Effort) -> Iterator[Row]:
    """SmolLM2 over real text: watched, with all heads and the standard statistics."""
    loaded = regard.load_model("smollm2")
    ids = real_tokens(loaded.tokenizer, _READ)

    def plain() -> None:
        loaded.model(input_ids=ids, use_cache=False, logits_to_keep=1)

    def watched() -> None:
        with regard.watch(loaded.model, statistics=["distance"]):
            plain()

    sides = {"plain": without_gradients(plain), "watched": without_gradients(watched)}
    pairs = {"watched / plain": Pair(("watched", "plain"), WATCHED)}
    yield from compare_all(effort, "SmolLM2 watched, all heads", f"{_READ:,} tokens", pairs, sides)


def _reading(effort: Effort) -> Iterator[Row]:
    """The same model of transformers on each attention: its own two, and regard's."""
    regard.register_with_transformers()
    n = 2048 if effort.max_tokens > _READ else 512
    sides: dict[str, Call] = {}
    for name in ("eager", "sdpa", "regard"):
        loaded = regard.load_model("smollm2", attn_implementation=name)
        ids = real_tokens(loaded.tokenizer, n)
        sides[name] = without_gradients(partial(loaded.model, input_ids=ids, use_cache=False, logits_to_keep=1))
    pairs = {f"{name}'s time / time": Pair((name, "regard")) for name in ("eager", "sdpa")}
    yield from compare_all(effort, "transformers' SmolLM2 on regard's attention reads", f"{n:,} tokens", pairs, sides)


MODELS = Case("models", "whole models, against transformers", _rows)
