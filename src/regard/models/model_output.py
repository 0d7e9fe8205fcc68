"""What a forward pass returns, as transformers' ModelOutput: by field, by key, or by position among what is there."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from jaxtyping import Float
from torch import Tensor
from torch.utils import _pytree

from regard.cache import Cache

__all__ = ["Output", "as_pytree"]

T = TypeVar("T")


def as_pytree(cls: type[T]) -> type[T]:
    """Let PyTorch look for tensors in the fields, as torch.export and fully_shard do."""

    def flatten(one: T) -> tuple[list[Any], None]:
        return [getattr(one, name.name) for name in fields(one)], None  # type: ignore[arg-type]

    def unflatten(values: Any, _: None) -> T:
        return cls(*values)

    name = f"{cls.__module__}.{cls.__qualname__}"
    _pytree.register_pytree_node(cls, flatten, unflatten, serialized_type_name=name)
    return cls


@as_pytree
@dataclass(frozen=True, eq=False)
class Output(Mapping[str, Any]):
    """What a forward pass returns; what was not computed is None.

    As in transformers, `output[0]` is the first field that is present: the loss; without labels, the logits; without an
    output head, the last hidden state. `output["logits"]` is a field, and iterating yields the names of the fields.

    Args:
        loss: Of the `labels`, a mean; a mapping of fields in its place is taken apart.
        logits: What the output head computes.
        last_hidden_state: The last states, the decoder's where there is one, after the final norm.
        past_key_values: The keys and values so far, with `use_cache` or where they were given.
        hidden_states: With `output_hidden_states` the embeddings and the states after each block, the last after the
            final norm: layers + 1 of them. Of an encoder–decoder the decoder's (`decoder_hidden_states`).
        encoder_last_hidden_state: The encoder's last states, of an encoder–decoder.
        encoder_hidden_states: The same of the encoder of an encoder–decoder.
    """

    loss: Float[Tensor, ""] | None = None
    logits: Float[Tensor, "batch *n labels"] | None = None
    last_hidden_state: Float[Tensor, "batch n hidden_size"] | None = None
    past_key_values: Cache | None = None
    hidden_states: tuple[Float[Tensor, "batch n hidden_size"], ...] | None = None
    encoder_last_hidden_state: Float[Tensor, "batch source hidden_size"] | None = None
    encoder_hidden_states: tuple[Float[Tensor, "batch source hidden_size"], ...] | None = None

    def __post_init__(self) -> None:
        # As transformers' ModelOutput: accelerate rebuilds a mapping by `type(output)(dict)` in mixed precision.
        first: Any = self.loss
        if isinstance(first, Mapping):
            values = dict(first)
            if unknown := values.keys() - {one.name for one in fields(self)}:
                raise TypeError(f"an Output has no field {sorted(unknown)[0]!r}")
            for one in fields(self):
                object.__setattr__(self, one.name, values.get(one.name))

    @property
    def decoder_hidden_states(self) -> tuple[Tensor, ...] | None:
        """The decoder's `hidden_states`, of an encoder–decoder."""
        return None if self.encoder_last_hidden_state is None else self.hidden_states

    def to_tuple(self) -> tuple[Any, ...]:
        """Return what is there, in order; the last hidden state only where nothing is computed from it."""
        return tuple(self[name] for name in self if name != "last_hidden_state" or self.logits is None)

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, str):
            return self.to_tuple()[key]
        if key not in iter(self):
            raise KeyError(key)
        return getattr(self, key)

    def __iter__(self) -> Iterator[str]:
        return (one.name for one in fields(self) if getattr(self, one.name) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)
