"""One Transformer, configured: encoder, decoder or both, and a head."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from regard.cache import Cache
from regard.errors import InputError
from regard.models.checkpoint_files import Checkpoint
from regard.models.config import KINDS, SpecialTokens, TransformerConfig
from regard.models.families import family_of
from regard.models.families.convert_checkpoint import read
from regard.models.generation import Prompts, Reading, Writes, batch_of
from regard.models.output_heads import LanguageModel
from regard.models.pretrained_mixin import Saved
from regard.models.stack import Stack

__all__ = ["Output", "Transformer"]


class Output(NamedTuple):
    """What a forward pass gives.

    `states` are the last ones, the decoder's where there is one; `logits` what the head makes of them, None without a
    head; `memory` the encoder's last states, where a decoder looks at them; `layers`, on request, the states that go
    into the first block and those that come out of each, before a final norm, and `memory_layers` the same of the
    encoder of an encoder–decoder.
    """

    states: Float[Tensor, "batch n width"]
    logits: Float[Tensor, "batch *n labels"] | None = None
    memory: Float[Tensor, "batch source width"] | None = None
    layers: tuple[Float[Tensor, "batch n width"], ...] = ()
    memory_layers: tuple[Float[Tensor, "batch source width"], ...] = ()


class Transformer(Writes, Saved):
    """Vaswani et al. (2017, arXiv:1706.03762) and what became of it, by a configuration.

    Modules: `embedding`, `decoder_embedding` if the decoder has its own, `encoder`, `decoder`, `output_head`.

    Args:
        config: What it is made of.

    >>> config = TransformerConfig(
    ...     vocab_size=10, hidden_size=8, num_attention_heads=2, intermediate_size=16,
    ...     encoder_layers=1, decoder_layers=2,
    ... )
    >>> model = Transformer(config).eval()
    >>> model(torch.tensor([[1, 2, 3]]), torch.tensor([[4, 5]])).states.shape
    torch.Size([1, 2, 8])
    """

    config_kinds = KINDS

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        if not isinstance(config, TransformerConfig):
            raise InputError(f"`config` must be a TransformerConfig, got {type(config).__name__}")
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        own = config.decoder_vocab_size is not None
        self.decoder_embedding = nn.Embedding(config.decoder_vocab_size or 1, config.hidden_size) if own else None
        self.encoder = Stack(config, "encoder") if config.encoder_layers else None
        self.decoder = Stack(config, "decoder") if config.decoder_layers else None
        vocabulary = config.decoder_vocab_size or config.vocab_size
        head = config.output_head
        self.output_head = (
            None if head is None else head.build(config.hidden_size, vocabulary, config.layer_norm_eps, config.dropout)
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw embeddings anew (std 1/√hidden_size where they are scaled, else 0.02), and projections (Glorot)."""
        std = self.config.hidden_size**-0.5 if self.config.scale_embedding else 0.02
        for module in self.modules():
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=std)
            elif isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(
        self,
        ids: Int[Tensor, "batch n"],
        target: Int[Tensor, "batch target"] | None = None,
        *,
        real: Bool[Tensor, "batch n"] | None = None,
        target_real: Bool[Tensor, "batch target"] | None = None,
        types: Int[Tensor, "batch n"] | None = None,
        documents: Int[Tensor, "batch n"] | None = None,
        cache: Cache | None = None,
        layers: bool = False,
        last: bool = False,
    ) -> Output:
        """Read a batch of texts.

        Args:
            ids: The tokens; of an encoder–decoder those of the source.
            target: An encoder–decoder's own tokens: what it has written, from the start token on.
            real: True for tokens, False for padding, at either end of a text. Positions count the real tokens before
                each, so that padding changes nothing.
            target_real: The same for the target.
            types: BERT's segments; all 0 by default.
            documents: Of an encoder's or a decoder's rows that hold several texts one behind the other: the number of
                each token's text, negative for padding. Each is read as if it stood alone.
            cache: Of a decoder without an encoder: what it has read before (`model.cache()`); it is added to. An
                encoder–decoder goes on with `encode` and `decode`.
            layers: Give the states of every layer too.
            last: Give the logits of the last place alone, (batch, 1, vocabulary): all that writing needs.

        Raises:
            InputError: Tokens, shapes, types or lengths do not fit this model.
        """
        if self.decoder is None or self.encoder is None:
            if target is not None:
                raise InputError(f"`target` is for an encoder–decoder, and this model is a {self.config.kind}")
            if cache is not None and self.decoder is None:
                raise InputError("`cache` is for a decoder, and this model is an encoder: it reads a text at once")
            stack = self.encoder if self.decoder is None else self.decoder
            assert stack is not None
            if documents is not None:
                self._check_documents(documents, ids, real, cache)
            states, kept, real = self._run(
                stack, self.embedding, "ids", ids, real, types=types, cache=cache, layers=layers, documents=documents
            )
            return Output(states, self._head(states, real, last), layers=kept)
        if documents is not None:
            raise InputError("`documents` are for an encoder or a decoder alone: an encoder–decoder reads pairs")
        if target is None:
            raise InputError(
                "`target` is missing: this encoder–decoder reads what it has written so far too, from the start token "
                "on; model.encode(ids) gives the encoder's states alone, and model.generate(...) writes"
            )
        if cache is not None:
            raise InputError(
                "`cache` goes to model.decode(target, memory, cache=cache), with memory = model.encode(ids)"
            )
        memory, memory_layers, real = self._run(
            self.encoder, self.embedding, "ids", ids, real, types=types, layers=layers
        )
        states, kept, target_real = self._decode(target, memory, real, target_real, None, layers)
        return Output(states, self._head(states, target_real, last), memory, kept, memory_layers)

    def encode(
        self, ids: Int[Tensor, "batch n"], *, real: Bool[Tensor, "batch n"] | None = None
    ) -> Float[Tensor, "batch n width"]:
        """The encoder's last states."""
        if self.encoder is None:
            raise InputError("this model is a decoder and has no encoder: call it with its tokens")
        return self._run(self.encoder, self.embedding, "ids", ids, real)[0]

    def decode(
        self,
        target: Int[Tensor, "batch target"],
        memory: Float[Tensor, "batch n width"],
        *,
        real: Bool[Tensor, "batch n"] | None = None,
        target_real: Bool[Tensor, "batch target"] | None = None,
        cache: Cache | None = None,
        last: bool = False,
    ) -> Output:
        """Read the tokens of an encoder–decoder's own text, behind those in the cache.

        `memory` is what `encode` gave and `real` says which of it is no padding; with a cache each layer projects it
        once, at the first call.
        """
        if self.decoder is None or self.encoder is None:
            raise InputError(f"only an encoder–decoder decodes, and this model is a {self.config.kind}: call it")
        states, kept, target_real = self._decode(target, memory, real, target_real, cache, False)
        return Output(states, self._head(states, target_real, last), memory, kept)

    def cache(self) -> Cache:
        """An empty cache for one batch; a layer with a window keeps no more than that."""
        if self.decoder is None:
            raise InputError("this model is an encoder: it reads a text at once and needs no cache")
        return self.decoder.cache()

    def continuation(
        self, prompts: Prompts, *, real: Tensor | None = None, cached: bool = True
    ) -> tuple[Reading, Tensor, Tensor | None]:
        """Prompts as decoding wants them: the text that goes on, what it reads first, and what of that is real."""
        if self.decoder is None:
            raise InputError("this model is an encoder, which writes nothing: take a decoder or an encoder–decoder")
        device, pad = self.embedding.weight.device, self.config.special_tokens.pad_token_id
        cache = self.cache() if cached else None
        if self.encoder is None:
            ids, real = batch_of(prompts, pad, left=True, device=device, real=real)
            return Reading(self, cache), ids, real
        start = self.config.start_token_id
        if start is None:
            raise InputError(
                "the configuration has no start token: give it special_tokens=SpecialTokens(decoder_start_token_id=...)"
            )
        ids, real = batch_of(prompts, pad, left=False, device=device, real=real)
        with torch.no_grad():
            memory = self.encode(ids, real=real)
        return Reading(self, cache, memory, real), ids.new_full((len(ids), 1), start), None

    def _tokens(self) -> SpecialTokens:
        known: SpecialTokens = self.config.special_tokens
        return known

    def _room(self, first: int) -> int | None:
        return None if self.config.max_position_embeddings is None else self.config.max_position_embeddings - first

    def logits(self, states: Float[Tensor, "batch n width"]) -> Float[Tensor, "batch n labels"]:
        """What the head makes of states, such as those of the last token alone."""
        found = self._head(states, None)
        if found is None:
            raise InputError(
                "this model has no head: Transformer.from_pretrained(..., output_head=output_heads.LanguageModel())"
            )
        return found

    @classmethod
    def _theirs(
        cls, raw: dict[str, Any], checkpoint: Checkpoint, head: Any
    ) -> tuple[TransformerConfig, dict[str, Tensor]]:
        """A Hugging Face checkpoint under our names."""
        wanted = None if head is None else type(head)
        return read(family_of(raw), raw, checkpoint.tensors(), name=checkpoint.name, wanted=wanted)

    def _head(self, states: Tensor, real: Tensor | None, last: bool = False) -> Tensor | None:
        if self.output_head is None:
            return None
        if last and not isinstance(self.config.output_head, LanguageModel):
            raise InputError(
                f"`last` is for a model that writes, and this one has {self.config.output_head}: leave it out"
            )
        states = states[:, -1:] if last else states
        embedding = self.embedding if self.decoder_embedding is None else self.decoder_embedding
        logits: Tensor = self.output_head(states, real, embedding.weight)
        return logits

    def _decode(
        self,
        target: Tensor,
        memory: Tensor,
        real: Tensor | None,
        target_real: Tensor | None,
        cache: Cache | None,
        layers: bool,
    ) -> tuple[Tensor, tuple[Tensor, ...], Tensor | None]:
        assert self.decoder is not None
        if len(target) != len(memory):
            raise InputError(f"`target` must have as many texts as the source, got {len(target)} and {len(memory)}")
        embedding = self.embedding if self.decoder_embedding is None else self.decoder_embedding
        given = {"memory": memory, "memory_real": real, "cache": cache, "layers": layers}
        return self._run(self.decoder, embedding, "target", target, target_real, **given)

    def _run(
        self, stack: Stack, embedding: nn.Embedding, name: str, ids: Tensor, real: Tensor | None, **given: object
    ) -> tuple[Tensor, tuple[Tensor, ...], Tensor | None]:
        """Embed tokens at their positions and send them through a stack; also which of them are real."""
        cache = given.get("cache")
        assert cache is None or isinstance(cache, Cache)
        ids = _check_ids(name, ids, real, embedding.num_embeddings)
        before = 0 if cache is None else cache.length
        read = real if cache is None else cache.read(real, *ids.shape, device=ids.device)
        documents = given.get("documents")
        if isinstance(documents, Tensor):
            positions = _places(documents)
        elif read is None:
            positions = torch.arange(before, before + ids.shape[1], device=ids.device)
        else:
            _check_gaps(read)
            positions = (read.cumsum(1) - 1).clamp_min(0)[:, before:]
        told = read is not None or documents is not None
        self._check_length(positions if told else before + ids.shape[1])
        x = embedding(ids)
        if self.config.scale_embedding:
            x = x * self.config.hidden_size**0.5
        if cache is not None:
            cache.real = read
        states, kept = stack(x, positions, real=read, **given)
        return states, kept, real

    def _check_documents(self, documents: Tensor, ids: Tensor, real: Tensor | None, cache: Cache | None) -> None:
        if real is not None or cache is not None:
            raise InputError("`documents` say what is padding (−1) and are read at once: leave `real` and `cache` out")
        if documents.shape != ids.shape or documents.is_floating_point() or documents.dtype == torch.bool:
            raise InputError(
                f"`documents` must be integers of the shape of `ids`, {tuple(ids.shape)}, got {documents.dtype} of "
                f"shape {tuple(documents.shape)}"
            )
        if self.config.output_head is not None and not self.config.output_head.each:
            raise InputError(f"`documents` share rows, and {self.config.output_head} pools a row: give real=")

    def _check_length(self, length: int | Tensor) -> None:
        limit = self.config.max_position_embeddings
        if limit is None or torch.compiler.is_compiling():
            return
        length = int(length.max()) + 1 if isinstance(length, Tensor) else length
        if length > limit:
            raise InputError(f"the text has {length} tokens, and this model has positions for {limit}: shorten it")


def _places(documents: Tensor) -> Tensor:
    """Where in its text each token stands."""
    at = torch.arange(documents.shape[1], device=documents.device).expand(documents.shape)
    begins = functional.pad(documents[:, 1:] != documents[:, :-1], (1, 0), value=True)
    return at - torch.where(begins, at, 0).cummax(1).values


def _check_gaps(real: Tensor) -> None:
    """Distances count places, and so padding between two tokens would move them apart."""
    if torch.compiler.is_compiling():
        return
    begins = real[:, 1:] & ~real[:, :-1]
    if bool((begins.sum(1) + real[:, 0] > 1).any()):
        raise InputError(
            "`real` has padding between tokens, which would move them apart: pad at one end, and on the left where the "
            "text goes on behind a cache"
        )


def _check_ids(name: str, ids: Tensor, real: Tensor | None, vocabulary: int) -> Tensor:
    if ids.ndim != 2 or ids.is_floating_point() or ids.dtype == torch.bool:
        raise InputError(
            f"`{name}` must be integers (batch, n), got {ids.dtype} of shape {tuple(ids.shape)}"
            + (f": write {name}[None] for a single text" if ids.ndim == 1 else "")
        )
    if ids.device.type == "cpu" and ids.numel() and not torch.compiler.is_compiling():  # elsewhere it would wait
        least, most = int(ids.min()), int(ids.max())
        if least < 0 or most >= vocabulary:
            raise InputError(
                f"`{name}` must be tokens from 0 to {vocabulary - 1}, got {least if least < 0 else most}: is it the "
                "tokenizer of this model?"
            )
    if real is not None and (real.shape != ids.shape or real.dtype != torch.bool):
        raise InputError(
            f"`real` must be a boolean tensor of the shape of `{name}`, {tuple(ids.shape)}, True for tokens, got "
            f"{real.dtype} of shape {tuple(real.shape)}; attention_mask.bool() of a tokenizer is one"
        )
    return ids if ids.dtype in (torch.int64, torch.int32) else ids.long()
