"""Blocks one after another: an encoder, a decoder, and both."""

import copy
from collections.abc import Callable, Iterable
from typing import Any, Self

from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import InputError
from regard.masks import BoundMask, Mask
from regard.nn.blocks import DecoderBlock, EncoderBlock, parts_of
from regard.nn.checks import public_module
from regard.nn.convertible import check_convertible, check_untied, copy_training

__all__ = ["Decoder", "Encoder", "EncoderDecoder"]

_LIST = "give the blocks: Encoder([EncoderBlock(...) for _ in range(num_layers)], norm)"


def _blocks(layers: Any) -> nn.ModuleList:
    found = list(layers) if isinstance(layers, Iterable) else []
    if not found or not all(isinstance(one, nn.Module) for one in found):
        raise InputError(
            f"`layers` must be a list of blocks, one at least, got {type(layers).__name__}: write "
            "[EncoderBlock(...) for _ in range(6)], each of which has weights of its own"
        )
    return nn.ModuleList(found)


@public_module(num_layers=_LIST, encoder_layer=_LIST)
class Encoder(nn.Module):
    """Run encoder blocks one after another, and the norm after the last if there is one.

    What nn.TransformerEncoder computes: `from_torch` copies one.

    Args:
        layers: The blocks, such as EncoderBlock.
        norm: A module after the last block, which pre-norm blocks need; None for none.

    Raises:
        InputError: There are no blocks.

    >>> import torch
    >>> encoder = Encoder([EncoderBlock(8, 2, 32) for _ in range(3)])
    >>> output, weights = encoder(torch.zeros(2, 5, 8), need_weights=True)
    >>> output.shape, len(weights), weights[0].shape
    (torch.Size([2, 5, 8]), 3, torch.Size([2, 2, 5, 5]))
    """

    def __init__(self, layers: Iterable[nn.Module], norm: nn.Module | None = None) -> None:
        super().__init__()
        self.layers, self.norm = _blocks(layers), norm

    def forward(
        self, x: Float[Tensor, "*batch n embed_dim"], *, need_weights: bool = False, **options: Any
    ) -> Tensor | tuple[Tensor, tuple[Tensor, ...]]:
        """Give x after the last block and its norm and, on request, the weights of each block.

        `options` are those of each block's call: `mask`, `key_padding_mask`, `is_causal`, `backend`, ...
        """
        weights = []
        for block in self.layers:
            x, *seen = parts_of(block(x, need_weights=need_weights, **options))
            weights += seen
        x = x if self.norm is None else self.norm(x)
        return (x, tuple(weights)) if need_weights else x

    @classmethod
    def from_torch(cls, module: nn.TransformerEncoder) -> Self:
        """Copy an nn.TransformerEncoder; ours is batch first, whatever theirs was."""
        check_convertible("module", module, nn.TransformerEncoder)
        stack = cls(*_converted(module, EncoderBlock.from_torch))
        copy_training([(module, stack), (module.layers, stack.layers)])
        return stack

    def to_torch(self) -> nn.TransformerEncoder:
        """Copy into an nn.TransformerEncoder, batch first; refused where that could not compute the same."""
        check_convertible("self", self, Encoder)
        for layer in self.layers:
            _check("layers", layer, EncoderBlock)
        layers, norm = _converted(self, EncoderBlock.to_torch)
        module = nn.TransformerEncoder(layers[0], 1, norm, enable_nested_tensor=False)
        module.layers, module.num_layers = nn.ModuleList(layers), len(layers)
        copy_training([(self, module), (self.layers, module.layers)])
        return module


@public_module(num_layers=_LIST.replace("En", "De"), decoder_layer=_LIST.replace("En", "De"))
class Decoder(nn.Module):
    """Run decoder blocks one after another over the same memory, and the norm after the last if there is one.

    What nn.TransformerDecoder computes: `from_torch` copies one, which sees later positions unless `is_causal=True`.

    Args:
        layers: The blocks, such as DecoderBlock.
        norm: A module after the last block, which pre-norm blocks need; None for none.

    Raises:
        InputError: There are no blocks.

    >>> import torch
    >>> decoder = Decoder([DecoderBlock(8, 2, 32) for _ in range(3)])
    >>> decoder(torch.zeros(2, 5, 8), torch.zeros(2, 7, 8)).shape
    torch.Size([2, 5, 8])
    """

    def __init__(self, layers: Iterable[nn.Module], norm: nn.Module | None = None) -> None:
        super().__init__()
        self.layers, self.norm = _blocks(layers), norm

    def forward(
        self,
        x: Float[Tensor, "*batch queries embed_dim"],
        memory: Float[Tensor, "*batch keys memory_dim"],
        *,
        need_weights: bool = False,
        **options: Any,
    ) -> Tensor | tuple[Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Give x after the last block and its norm and, on request, the weights of x on x and of x on the memory.

        `options` are those of each block's call: `mask`, `key_padding_mask`, `is_causal`, `cross_attn_mask`,
        `memory_key_padding_mask`, `backend`, ...
        """
        own: list[Tensor] = []
        cross: list[Tensor] = []
        for block in self.layers:
            x, *seen = parts_of(block(x, memory, need_weights=need_weights, **options))
            own, cross = own + seen[:1], cross + seen[1:]
        x = x if self.norm is None else self.norm(x)
        return (x, tuple(own), tuple(cross)) if need_weights else x

    @classmethod
    def from_torch(cls, module: nn.TransformerDecoder) -> Self:
        """Copy an nn.TransformerDecoder; like theirs, it sees later positions unless told otherwise at each call."""
        check_convertible("module", module, nn.TransformerDecoder)
        stack = cls(*_converted(module, DecoderBlock.from_torch))
        copy_training([(module, stack), (module.layers, stack.layers)])
        return stack

    def to_torch(self) -> nn.TransformerDecoder:
        """Copy into an nn.TransformerDecoder, batch first; refused where that could not compute the same."""
        check_convertible("self", self, Decoder)
        for layer in self.layers:
            _check("layers", layer, DecoderBlock)
        layers, norm = _converted(self, DecoderBlock.to_torch)
        module = nn.TransformerDecoder(layers[0], 1, norm)
        module.layers, module.num_layers = nn.ModuleList(layers), len(layers)
        copy_training([(self, module), (self.layers, module.layers)])
        return module


@public_module()
class EncoderDecoder(nn.Module):
    """Encode a source, and decode a target that looks at it: what nn.Transformer computes (`from_torch` copies one).

    Args:
        encoder: A module over the source, such as Encoder.
        decoder: A module over the target and what the encoder gives, such as Decoder.

    >>> import torch
    >>> model = EncoderDecoder(Encoder([EncoderBlock(8, 2, 32)]), Decoder([DecoderBlock(8, 2, 32)]))
    >>> model(torch.zeros(2, 7, 8), torch.zeros(2, 5, 8)).shape
    torch.Size([2, 5, 8])
    """

    def __init__(self, encoder: nn.Module, decoder: nn.Module) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def forward(
        self,
        src: Float[Tensor, "*batch keys embed_dim"],
        tgt: Float[Tensor, "*batch queries embed_dim"],
        *,
        encoder_mask: Mask | BoundMask | Tensor | None = None,
        decoder_mask: Mask | BoundMask | Tensor | None = None,
        cross_attn_mask: Mask | BoundMask | Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool | None = None,
    ) -> Float[Tensor, "*batch queries embed_dim"]:
        """Give the target's states.

        Masks have regard's meaning (True = may see), and padding masks have PyTorch's meaning (True hides). As in
        PyTorch, only `memory_key_padding_mask` hides the padding of the source from the decoder.
        """
        padding = {} if src_key_padding_mask is None else {"key_padding_mask": src_key_padding_mask}
        output: Tensor = self.decoder(
            tgt,
            self.encoder(src, mask=encoder_mask, **padding),
            mask=decoder_mask,
            cross_attn_mask=cross_attn_mask,
            key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=memory_key_padding_mask,
            is_causal=tgt_is_causal,
        )
        return output

    @classmethod
    def from_torch(cls, module: nn.Transformer) -> Self:
        """Copy an nn.Transformer; ours is batch first, whatever theirs was."""
        check_convertible("module", module, nn.Transformer)
        check_untied({"encoder": module.encoder, "decoder": module.decoder}, inside=False)
        model = cls(Encoder.from_torch(module.encoder), Decoder.from_torch(module.decoder))
        copy_training([(module, model)])
        return model

    def to_torch(self) -> nn.Transformer:
        """Copy into an nn.Transformer, batch first; refused where that could not compute the same."""
        check_convertible("self", self, EncoderDecoder)
        for name, one, kind in (("encoder", self.encoder, Encoder), ("decoder", self.decoder, Decoder)):
            _check(name, one, kind)
        check_untied({"encoder": self.encoder, "decoder": self.decoder}, inside=False)
        parts = {"encoder": self.encoder.to_torch(), "decoder": self.decoder.to_torch()}  # type: ignore[operator]
        attention: Any = parts["encoder"].layers[0].self_attn
        # nn.Transformer draws the weights of all that it is given anew.
        module = nn.Transformer(
            attention.embed_dim,
            attention.num_heads,
            custom_encoder=nn.Identity(),
            custom_decoder=nn.Identity(),
            batch_first=True,
        )
        module.encoder, module.decoder = parts["encoder"], parts["decoder"]
        copy_training([(self, module)])
        return module


def _check(name: str, module: object, kind: type[nn.Module]) -> None:
    if not isinstance(module, kind):
        raise InputError(f"`{name}` must be an {kind.__name__}, got {type(module).__name__}")


def _converted(stack: Any, convert: Callable[[Any], nn.Module]) -> tuple[list[Any], nn.Module | None]:
    """Convert the layers of a stack, each once however often it is there, and copy the norm."""
    layers: dict[str, nn.Module] = {f"layers.{index}": layer for index, layer in enumerate(stack.layers)}
    check_untied(layers if stack.norm is None else {**layers, "norm": stack.norm})
    copies = {layer: convert(layer) for layer in layers.values()}
    return [copies[layer] for layer in layers.values()], copy.deepcopy(stack.norm)
