"""Tiny random models of transformers, each as a continuation that recomputes everything at every step."""

import warnings

import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GPT2Config,
    GPT2LMHeadModel,
    MarianConfig,
    MarianMTModel,
    T5Config,
    T5ForConditionalGeneration,
)

VOCABULARY = 24


class Recomputing:
    """A model of transformers without a cache, and what its generate() is called with."""

    def __init__(self, model, prompt, real, source=None):
        self.model, self.prompt, self.prompt_real, self.source = model, prompt, real, source
        self.tokens = self.real = None
        self.reads = []
        if source is not None:
            with torch.no_grad():
                self.encoded = model.get_encoder()(source, attention_mask=real.long()).last_hidden_state
            self.seen = real

    def step(self, tokens, attention_mask=None):
        real = torch.ones_like(tokens, dtype=torch.bool) if attention_mask is None else attention_mask
        self.tokens = tokens if self.tokens is None else torch.cat([self.tokens, tokens], 1)
        self.real = real if self.real is None else torch.cat([self.real, real], 1)
        self.reads.append(tuple(tokens.shape))
        if self.source is None:
            places = (self.real.long().cumsum(1) - 1).clamp(min=0)
            inputs = {"input_ids": self.tokens, "attention_mask": self.real.long(), "position_ids": places}
        else:
            inputs = {"decoder_input_ids": self.tokens, "encoder_outputs": (self.encoded,)}
            inputs["attention_mask"] = self.seen.long()
        return self.model(**inputs, use_cache=False).logits[:, -1]

    def reorder(self, rows):
        self.tokens, self.real = self.tokens[rows], self.real[rows]
        if self.source is not None:
            self.encoded, self.seen = self.encoded[rows], self.seen[rows]

    def alone(self, row):
        """The text of one row, without its padding."""
        real = self.prompt_real[row : row + 1]
        kept = real[0]
        if self.source is None:
            return Recomputing(self.model, self.prompt[row : row + 1, kept], real[:, kept])
        return Recomputing(self.model, self.prompt[row : row + 1], real[:, kept], self.source[row : row + 1, kept])

    def arguments(self):
        """What Decoding.write takes."""
        again = Recomputing(self.model, self.prompt, self.prompt_real, self.source)
        return again, self.prompt, (self.prompt_real if self.source is None else None)

    def generate(self, stop, **options):
        """New tokens and scores of generate(), the filling behind their end cut off."""
        inputs = self.prompt if self.source is None else self.source
        start = {} if self.source is None else {"decoder_start_token_id": int(self.prompt[0, 0])}
        options = {"pad_token_id": 0, "eos_token_id": list(stop) or None, "do_sample": False, **start, **options}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            given = self.model.generate(
                inputs,
                attention_mask=self.prompt_real.long(),
                return_dict_in_generate=True,
                output_scores=True,
                **options,
            )
        new = given.sequences[:, self.prompt.shape[1] :].tolist()
        ends = [next((n for n, t in enumerate(row, 1) if t in stop), len(row)) for row in new]
        return [tuple(row[:n]) for row, n in zip(new, ends, strict=True)], getattr(given, "sequences_scores", None)


def prompts(rows, seed):
    """Rows of different lengths, the padding on the left."""
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randint(4, VOCABULARY, (rows, 6), generator=draw)
    real = torch.arange(6) >= torch.randint(0, 5, (rows, 1), generator=draw)
    return tokens.masked_fill(~real, 0), real


def lively(model, seed):
    """Larger weights, so that distributions are not flat, texts differ, and stop tokens come."""
    torch.manual_seed(seed)
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            table = any(word in name for word in ("embed", "shared", "wte", "wpe"))
            torch.nn.init.normal_(parameter, std=1.0 if table else 1.5 / parameter.shape[-1] ** 0.5)
    model.generation_config.forced_eos_token_id = model.generation_config.bad_words_ids = None
    return model.eval()


def gpt2(rows=5, seed=0):
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=64,
        n_embd=16,
        n_layer=2,
        n_head=2,
        bos_token_id=None,
        eos_token_id=None,
        tie_word_embeddings=False,
    )
    return Recomputing(lively(GPT2LMHeadModel(config), seed), *prompts(rows, seed))


def t5(rows=5, seed=0):
    config = T5Config(
        vocab_size=VOCABULARY, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, tie_word_embeddings=False
    )
    return _translating(lively(T5ForConditionalGeneration(config), seed), rows, seed)


def marian(rows=5, seed=0):
    return _translating(
        lively(
            MarianMTModel(
                _bart_like(MarianConfig, pad_token_id=0, bos_token_id=None, eos_token_id=2, decoder_start_token_id=3)
            ),
            seed,
        ),
        rows,
        seed,
    )


def bart(rows=5, seed=0):
    return _translating(lively(BartForConditionalGeneration(_bart_like(BartConfig)), seed), rows, seed)


def _bart_like(config, **options):
    sizes = {
        f"{part}_{size}": n
        for part in ("encoder", "decoder")
        for size, n in {"layers": 2, "attention_heads": 2, "ffn_dim": 32}.items()
    }
    return config(
        vocab_size=VOCABULARY, d_model=16, max_position_embeddings=64, tie_word_embeddings=False, **sizes, **options
    )


def _translating(model, rows, seed):
    source, real = prompts(rows, seed)
    return Recomputing(model, torch.full((rows, 1), 3), real.flip(1), source.flip(1))
