"""One Transformer, configured: encoder, decoder or both, and a head."""

from collections.abc import Sequence
from typing import Any

from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from regard.cache import Cache
from regard.checks import check_flag
from regard.errors import InputError
from regard.models.checkpoint_files import Checkpoint
from regard.models.config import KINDS, TransformerConfig
from regard.models.continuation import Prompts, TransformerContinuation, continue_texts
from regard.models.families import family_of
from regard.models.families.base import read, read_config
from regard.models.generation import GenerationMixin
from regard.models.inputs_outputs import (
    Output,
    SpecialTokens,
    check_documents,
    check_input_ids,
    check_logits_to_keep,
    token_mask,
    token_positions,
)
from regard.models.labels import decoder_inputs, labels_of_texts, loss_of
from regard.models.pretrained_mixin import PretrainedMixin
from regard.models.stack import Stack
from regard.models.standard_names import FORWARD
from regard.nn.checks import refuse_unknown

__all__ = ["Output", "Transformer"]


class Transformer(GenerationMixin, PretrainedMixin):
    """Vaswani et al. (2017, arXiv:1706.03762) and what became of it, by a configuration.

    Modules: `embedding`, `decoder_embedding` if the decoder has its own, `encoder`, `decoder`, `output_head`.

    Args:
        config: What it is made of.

    >>> import torch
    >>> config = TransformerConfig(vocab_size=10, hidden_size=8, num_attention_heads=2, intermediate_size=16,
    ...                            encoder_layers=1, decoder_layers=2)
    >>> model = Transformer(config).eval()
    >>> output = model(input_ids=torch.tensor([[1, 2, 3]]), decoder_input_ids=torch.tensor([[4, 5]]))
    >>> output.last_hidden_state.shape
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

    @refuse_unknown("Transformer.forward", FORWARD)
    def forward(
        self,
        input_ids: Int[Tensor, "batch n"],
        *,
        decoder_input_ids: Int[Tensor, "batch target"] | None = None,
        attention_mask: Shaped[Tensor, "batch all"] | None = None,
        decoder_attention_mask: Shaped[Tensor, "batch target"] | None = None,
        token_type_ids: Int[Tensor, "batch n"] | None = None,
        documents: Int[Tensor, "batch n"] | None = None,
        labels: Shaped[Tensor, "batch *n"] | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool = False,
        output_hidden_states: bool = False,
        logits_to_keep: int = 0,
    ) -> Output:
        """Run on a batch of texts; the arguments are those of transformers' models.

        Args:
            input_ids: The tokens; of an encoder–decoder those of the source.
            decoder_input_ids: An encoder–decoder's own tokens, from the start token on; by default the labels, shifted.
            attention_mask: 1 (or True) for tokens, 0 for padding, which is at one end of a text. Positions count the
                tokens, so that padding changes nothing. With `past_key_values`, of all tokens: those before too.
            decoder_attention_mask: The same for decoder_input_ids.
            token_type_ids: BERT's segments; all 0 by default.
            documents: For rows of several texts one after the other: the number of each token's text, negative for
                padding. No text attends to another, and each has positions of its own. (No word of transformers'.)
            labels: What the loss is computed from: a decoder's input ids, which the loss shifts; an encoder–decoder's
                target; a masked language model's tokens; a classifier's label of each token or text. −100 is ignored
                (at the end of a target it is padding), with `documents` also padding, and where the loss shifts a first
                token behind padding or another text.
            past_key_values: Of a decoder without an encoder: the cache of the tokens before, which is added to. An
                encoder–decoder is continued by `encode` and `decode`.
            use_cache: Return a cache, a new one if none is given.
            output_hidden_states: Return the states of every layer too.
            logits_to_keep: Compute the logits of so many last tokens only; 0 for all.

        Raises:
            InputError: Tokens, shapes, masks, types or lengths do not fit this model.
        """
        use_cache = check_flag("use_cache", use_cache) or past_key_values is not None
        hidden = check_flag("output_hidden_states", output_hidden_states)
        if self.decoder is None or self.encoder is None:
            stack = self.encoder if self.decoder is None else self.decoder
            assert stack is not None
            if decoder_input_ids is not None or decoder_attention_mask is not None:
                raise InputError(
                    f"`decoder_input_ids` are for an encoder–decoder, and this model is a {self.config.kind}"
                )
            if use_cache and self.decoder is None:
                raise InputError(
                    "`past_key_values` are a decoder's, and this model is an encoder: it runs on whole texts"
                )
            cache = self.cache() if use_cache and past_key_values is None else past_key_values
            if documents is not None:
                check_documents(documents, input_ids, attention_mask, cache, self.config.output_head)
            states, kept, mask = self._run(
                stack, self.embedding, "input_ids", input_ids, attention_mask, types=token_type_ids, cache=cache,
                output_hidden_states=hidden, documents=documents,
            )  # fmt: skip
            logits, loss = self._logits_and_loss(states, mask, logits_to_keep, labels, documents)
            return Output(loss, logits, states, cache, kept)
        if documents is not None:
            raise InputError("`documents` are for an encoder or a decoder alone: an encoder–decoder runs on pairs")
        if decoder_input_ids is None:
            if labels is None:
                raise InputError(
                    "`decoder_input_ids` are missing: this encoder–decoder needs them from the start token on, or "
                    "labels=; model.encode(input_ids) returns the encoder's states, and model.generate(...) generates"
                )
            decoder_input_ids, decoder_attention_mask = decoder_inputs(labels, decoder_attention_mask, self.config)
        if use_cache:
            raise InputError(
                "`past_key_values` of an encoder–decoder go to decode: states = model.encode(input_ids), then "
                "model.decode(decoder_input_ids, states, past_key_values=cache) with cache = model.cache()"
            )
        memory, memory_states, mask = self._run(
            self.encoder, self.embedding, "input_ids", input_ids, attention_mask, types=token_type_ids,
            output_hidden_states=hidden,
        )  # fmt: skip
        states, kept, target_mask = self._decode(decoder_input_ids, memory, mask, decoder_attention_mask, None, hidden)
        logits, loss = self._logits_and_loss(states, target_mask, logits_to_keep, labels)
        return Output(loss, logits, states, None, kept, memory, memory_states)

    def encode(
        self,
        input_ids: Int[Tensor, "batch n"],
        *,
        attention_mask: Shaped[Tensor, "batch n"] | None = None,
        token_type_ids: Int[Tensor, "batch n"] | None = None,
    ) -> Float[Tensor, "batch n hidden_size"]:
        """Return the encoder's last hidden state."""
        if self.encoder is None:
            raise InputError("this model is a decoder and has no encoder: call it with its tokens")
        return self._run(
            self.encoder, self.embedding, "input_ids", input_ids, attention_mask, types=token_type_ids
        )[0]  # fmt: skip

    def decode(
        self,
        decoder_input_ids: Int[Tensor, "batch target"],
        encoder_last_hidden_state: Float[Tensor, "batch n hidden_size"],
        *,
        encoder_attention_mask: Shaped[Tensor, "batch n"] | None = None,
        decoder_attention_mask: Shaped[Tensor, "batch all"] | None = None,
        past_key_values: Cache | None = None,
        logits_to_keep: int = 0,
    ) -> Output:
        """Run the decoder of an encoder–decoder on tokens, after those in the cache.

        `encoder_last_hidden_state` is what `encode` has returned, `encoder_attention_mask` the source's mask. With a
        cache each layer projects it once, at the first call.
        """
        if self.decoder is None or self.encoder is None:
            raise InputError(f"only an encoder–decoder decodes, and this model is a {self.config.kind}: call it")
        mask = token_mask("encoder_attention_mask", encoder_attention_mask, encoder_last_hidden_state.shape[:2])
        states, kept, target_mask = self._decode(
            decoder_input_ids, encoder_last_hidden_state, mask, decoder_attention_mask, past_key_values, False
        )
        logits, _ = self._logits_and_loss(states, target_mask, logits_to_keep, None)
        return Output(None, logits, states, past_key_values, kept, encoder_last_hidden_state)

    def cache(self) -> Cache:
        """An empty cache for one batch; a layer with a window keeps no more than that."""
        if self.decoder is None:
            raise InputError("this model is an encoder: it reads a text at once and needs no cache")
        return self.decoder.cache()

    def continuation(
        self,
        input_ids: Prompts,
        *,
        attention_mask: Tensor | None = None,
        use_cache: bool = True,
        decoder_start_token_id: int | None = None,
        pad_token_id: int | None = None,
        eos_token_id: Sequence[int] | None = None,
    ) -> tuple[TransformerContinuation, Tensor, Tensor | None]:
        """Prompts as decoding needs them: the text to continue, its first tokens, and which of them are no padding."""
        start, pad, ends = decoder_start_token_id, pad_token_id, eos_token_id
        return continue_texts(self, input_ids, attention_mask, use_cache, start, pad, ends)

    def _tokens(self) -> SpecialTokens:
        return self.config.special_tokens  # type: ignore[no-any-return]

    def _room(self, first: int) -> int | None:
        return None if self.config.max_position_embeddings is None else self.config.max_position_embeddings - first

    def logits(self, states: Float[Tensor, "batch n width"]) -> Float[Tensor, "batch n labels"]:
        """What the output head computes from states, such as those of the last token."""
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

    @classmethod
    def _their_config(cls, raw: dict[str, Any], checkpoint: Checkpoint) -> TransformerConfig:
        return read_config(family_of(raw), raw, name=checkpoint.name)

    def _logits_and_loss(
        self, states: Tensor, mask: Tensor | None, keep: int, labels: Tensor | None, documents: Tensor | None = None
    ) -> tuple[Tensor | None, Tensor | None]:
        check_logits_to_keep(keep, labels, self.config.output_head)
        logits, kind = self._head(states, mask, keep), self.config.kind
        own = None if labels is None else labels_of_texts(labels, mask, documents, shifted=kind == "decoder")
        return logits, None if own is None else loss_of(self.config.output_head, kind, logits, own)

    def _head(self, states: Tensor, mask: Tensor | None, logits_to_keep: int = 0) -> Tensor | None:
        if self.output_head is None:
            return None
        states = states[:, -logits_to_keep:]
        embedding = self.embedding if self.decoder_embedding is None else self.decoder_embedding
        return self.output_head(states, mask, embedding.weight)  # type: ignore[no-any-return]

    def _decode(
        self, ids: Tensor, memory: Tensor, mask: Tensor | None, own: Tensor | None, cache: Cache | None, hidden: bool
    ) -> tuple[Tensor, tuple[Tensor, ...] | None, Tensor | None]:
        assert self.decoder is not None
        if ids.shape[0] != memory.shape[0]:  # `len` would fix it in an exported program
            raise InputError(
                f"`decoder_input_ids` must have as many texts as the source, got {ids.shape[0]} and {memory.shape[0]}"
            )
        embedding = self.embedding if self.decoder_embedding is None else self.decoder_embedding
        given: dict[str, Any] = {"memory": memory, "encoder_attention_mask": mask, "cache": cache}
        given["output_hidden_states"] = hidden
        return self._run(self.decoder, embedding, "decoder_input_ids", ids, own, **given)

    def _run(
        self, stack: Stack, embedding: nn.Embedding, name: str, ids: Tensor, mask: Tensor | None, **given: object
    ) -> tuple[Tensor, tuple[Tensor, ...] | None, Tensor | None]:
        """Embed tokens at their positions and send them through a stack; also which of them are no padding."""
        cache = given.get("cache")
        assert cache is None or isinstance(cache, Cache)
        ids = check_input_ids(name, ids, embedding.num_embeddings)
        before = 0 if cache is None else cache.length
        which = "decoder_attention_mask" if name == "decoder_input_ids" else "attention_mask"
        seen = token_mask(which, mask, (ids.shape[0], before + ids.shape[1]), before)
        if cache is not None:
            cached = cache.extend_mask(None, *ids.shape, device=ids.device)
            seen = cached if seen is None else seen
        documents: Any = given.get("documents")
        limit = self.config.max_position_embeddings
        positions = token_positions(which, ids, seen, documents, before, limit)
        x = embedding(ids)
        if self.config.scale_embedding:
            x = x * self.config.hidden_size**0.5
        if cache is not None:
            cache.attention_mask = seen
        states, kept = stack(x, positions, attention_mask=seen, **given)
        return states, kept, None if seen is None else seen[:, before:]
