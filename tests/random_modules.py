"""Random modules with attention in them: drawn by number, for compilers and exporters.

    one = drawn(17)                        module 17, in its type, with its parameters
    output = one.module(*one.inputs(9))    its inputs for a text of 9 tokens: one module takes every length
    exact = one.exact                      the same in float64; with `regard.use_backend("reference")` the formula

A module is a bare call of `regard.attention`, or a module of `regard.nn`. Values of a bare call are where users have
them: in a `ValueModule`, in a plain attribute, or made within `forward` of parameters, arguments and sizes. Every
combination computes something: what the package refuses is not drawn.
"""

import copy
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import regard
from regard import masks, normalizers, positions, scores
from regard.cache import KVCache
from regard.nn import EncoderBlock, MultiHeadAttention, ValueModule

__all__ = ["Drawn", "drawn"]

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}
WIDTH = 8
LEAST = 4  # tokens of the shortest text


class Sizes(NamedTuple):
    """The sizes of a call, which are symbols where it is traced."""

    batch: int
    heads: int
    queries: int
    keys: int


def _nothing(at: Sizes, rng: np.random.Generator) -> tuple[Tensor, ...]:
    return ()


@dataclass(frozen=True)
class Piece:
    """A kind of value.

    Args:
        make: Makes it of the sizes of the call (of which only the heads are known outside of a call), its parameters
            and its arguments.
        parameters: The shapes of its parameters, given the heads.
        arguments: Draws the tensors that each call brings.
        of_sizes: Whether it is made of sizes, so that only a call can make it.
        in_python: Whether it has a function of the user, which no operator takes.
    """

    make: Callable[..., Any]
    parameters: Callable[[int], dict[str, tuple[int, ...]]] = lambda heads: {}
    arguments: Callable[[Sizes, np.random.Generator], tuple[Tensor, ...]] = _nothing
    of_sizes: bool = False
    in_python: bool = False


def _real(at: Sizes, rng: np.random.Generator) -> tuple[Tensor, ...]:
    lengths = torch.tensor(rng.integers(1, at.keys + 1, at.batch))
    return (torch.arange(at.keys) < lengths[:, None],)


def _ids(at: Sizes, rng: np.random.Generator) -> tuple[Tensor, ...]:
    return (torch.tensor(rng.integers(0, 2, (at.batch, at.keys)).cumsum(1)),)


def _pairs(at: Sizes, rng: np.random.Generator) -> tuple[Tensor, ...]:
    return (torch.tensor(rng.random((at.batch, at.heads, at.queries, at.keys)) < 0.6),)


def _pairs_of_all(at: Sizes, rng: np.random.Generator) -> tuple[Tensor, ...]:
    return (torch.tensor(rng.random((at.queries, at.keys)) < 0.6),)


def _prefixes(at: Sizes, rng: np.random.Generator) -> tuple[Tensor, ...]:
    return (torch.tensor(rng.integers(0, at.keys, at.batch)),)


def _centers(at: Sizes, rng: np.random.Generator) -> tuple[Tensor, ...]:
    return (torch.tensor(rng.random((at.batch, at.queries)) * (at.keys - 1)),)


def _numbers(*dims: str) -> Callable[[Sizes, np.random.Generator], tuple[Tensor, ...]]:
    def arguments(at: Sizes, rng: np.random.Generator) -> tuple[Tensor, ...]:
        return (torch.tensor(rng.standard_normal([1 if dim == "1" else getattr(at, dim) for dim in dims])),)

    return arguments


def _lower(at: Sizes) -> Tensor:
    return torch.ones(at.queries, at.keys, dtype=torch.bool).tril(at.keys - at.queries)


def _of_positions(at: Sizes) -> Tensor:
    return (torch.arange(at.queries)[:, None] + torch.arange(at.keys)) % 3 > 0


MASKS = {
    "none": Piece(lambda at: None),
    "causal": Piece(lambda at: masks.Causal()),
    "causal from the start": Piece(lambda at: masks.Causal(align="start")),
    "window": Piece(lambda at: masks.Causal() & masks.Window(5)),
    "both sides": Piece(lambda at: masks.Window(left=3, right=2)),
    "all but a window": Piece(lambda at: ~masks.Window(3) | masks.Sinks(1)),
    "window of the text": Piece(lambda at: masks.Causal() & masks.Window(at.keys), of_sizes=True),
    "window of half the text": Piece(lambda at: masks.Window(left=at.keys // 2, right=at.keys // 2), of_sizes=True),
    "dilated": Piece(lambda at: masks.DilatedWindow(6, 2)),
    "strided": Piece(lambda at: masks.sparse_transformer(3)),
    "sinks and window": Piece(lambda at: masks.Causal() & (masks.Window(3) | masks.Sinks(2))),
    "prefix": Piece(lambda at: masks.prefix_lm(3)),
    "prefix of the text": Piece(lambda at: masks.Causal() | masks.Prefix(at.keys // 2), of_sizes=True),
    "prefix of each sequence": Piece(lambda at, lengths: masks.prefix_lm(lengths), arguments=_prefixes),
    "padding": Piece(lambda at, real: masks.Padding(real), arguments=_real),
    "padding, causal": Piece(lambda at, real: masks.Causal() & masks.Padding(real), arguments=_real),
    "attention mask": Piece(lambda at, real: masks.from_attention_mask(real.long()), arguments=_real),
    "documents": Piece(lambda at, ids: masks.Document(ids) & masks.Causal(), arguments=_ids),
    "global": Piece(lambda at: masks.Global((0, 2)) | masks.Window(2)),
    "longformer": Piece(lambda at: masks.longformer(4, (0,))),
    "bigbird": Piece(lambda at: masks.bigbird(3, 1, 1, seed=3, block=2)),
    "random blocks": Piece(lambda at: masks.RandomBlocks(2, block=2, seed=2) | masks.Sinks(1)),
    "block local": Piece(lambda at: masks.BlockLocal(4, look_backward=1)),
    "monotonic": Piece(lambda at: masks.LocalMonotonic(2)),
    "predictive": Piece(lambda at, center: masks.LocalPredictive(center, 2), arguments=_centers),
    "tensor": Piece(lambda at, seen: seen, arguments=_pairs),
    "tensor of all": Piece(lambda at, seen: seen, arguments=_pairs_of_all),
    "dense": Piece(lambda at, seen: masks.Dense(seen) & masks.Causal(), arguments=_pairs),
    "tensor made here": Piece(_lower, of_sizes=True),
    "dense made here": Piece(lambda at: masks.Dense(_of_positions(at)) | masks.Sinks(1), of_sizes=True),
    "rule": Piece(lambda at: masks.MaskMod(lambda batch, head, i, j: (i + 2 * j + head) % 3 > 0), in_python=True),
}
BIASES = {
    "none": Piece(lambda at: None),
    "alibi": Piece(lambda at: positions.ALiBi(at.heads)),
    "alibi, both sides": Piece(lambda at: positions.ALiBi(at.heads, bidirectional=True)),
    "alibi, learned": Piece(
        lambda at, slopes: positions.ALiBi(at.heads, slopes), parameters=lambda heads: {"slopes": (heads,)}
    ),
    "t5": Piece(
        lambda at, table: positions.T5Bias(table, bidirectional=True, max_distance=20),
        parameters=lambda heads: {"table": (8, heads)},
    ),
    "t5, decoder": Piece(
        lambda at, table: positions.T5Bias(table, bidirectional=False, max_distance=20),
        parameters=lambda heads: {"table": (8, heads)},
    ),
    "table": Piece(
        lambda at, table: positions.RelativePositionBias(table), parameters=lambda heads: {"table": (9, heads)}
    ),
    "matrix": Piece(lambda at, matrix: matrix, arguments=_numbers("queries", "keys")),
    "matrix of heads": Piece(
        lambda at, matrix: positions.DenseBias(matrix), arguments=_numbers("batch", "heads", "queries", "keys")
    ),
    "number of a key": Piece(lambda at, row: row, arguments=_numbers("batch", "1", "1", "keys")),
    "made here": Piece(
        lambda at: -0.1 * (torch.arange(at.queries)[:, None] - torch.arange(at.keys)).abs().float(), of_sizes=True
    ),
}
SCORES = {
    "none": Piece(lambda at: None),
    "softcap": Piece(lambda at: scores.ScaledDot(softcap=2.0)),
    "dot": Piece(lambda at: scores.Dot()),
    "bilinear": Piece(
        lambda at, weight: scores.Bilinear(weight), parameters=lambda heads: {"W": (heads, WIDTH, WIDTH)}
    ),
    "cosine": Piece(
        lambda at, temperature: scores.Cosine(temperature.abs() + 0.5),
        parameters=lambda heads: {"temperature": (heads,)},
    ),
    "additive": Piece(
        lambda at, w, u, vector: scores.Additive(w, u, vector),
        parameters=lambda heads: {"W": (5, WIDTH), "U": (5, WIDTH), "vector": (5,)},
    ),
    "concat": Piece(
        lambda at, w, vector: scores.Concat(w, vector),
        parameters=lambda heads: {"W": (5, 2 * WIDTH), "vector": (5,)},
    ),
    "shaw": Piece(lambda at, keys: scores.Shaw(keys), parameters=lambda heads: {"keys": (7, WIDTH)}),
    "shaw, values": Piece(
        lambda at, keys, values: scores.Shaw(keys, values),
        parameters=lambda heads: {"keys": (7, WIDTH), "values": (7, WIDTH)},
    ),
    "relative key query": Piece(
        lambda at, table: scores.RelativeKeyQuery(table), parameters=lambda heads: {"table": (7, WIDTH)}
    ),
    "deberta": Piece(
        lambda at, keys, queries: scores.DeBERTa(keys, queries, 4, 16),
        parameters=lambda heads: {"keys": (heads, 8, WIDTH), "queries": (heads, 8, WIDTH)},
    ),
    "transformer-xl": Piece(
        lambda at, content, place, r: scores.TransformerXL(content, place, r),
        parameters=lambda heads: {"content": (heads, WIDTH), "place": (heads, WIDTH), "R": (heads, WIDTH, 6)},
    ),
}
NORMALIZERS = {
    "none": Piece(lambda at: None),
    "sink": Piece(lambda at, sink: normalizers.Softmax(sink), parameters=lambda heads: {"sink": (heads,)}),
    "sigmoid": Piece(lambda at: normalizers.Sigmoid()),
    "sigmoid, shifted": Piece(lambda at: normalizers.Sigmoid(-1.5)),
}
FACTORS = {
    "none": Piece(lambda at: None),
    "gaussian": Piece(lambda at, center: positions.Gaussian(center, 3.0), arguments=_centers),
}
_SCALINGS: dict[str, positions.Scaling | None] = {
    "none": None,
    "linear": positions.LinearScaling(2.0),
    "ntk": positions.NTK(2.0),
    "dynamic ntk": positions.DynamicNTK(2.0, original_max_position_embeddings=10),
    "yarn": positions.YaRN(2.0, original_max_position_embeddings=10),
    "longrope": positions.LongRoPE(2.0, (1.0,) * 4, (1.0, 2.0, 3.0, 4.0), original_max_position_embeddings=10),
    "llama 3": positions.Llama3(2.0, 1.0, 4.0, 10),
    "proportional": positions.Proportional(0.5),
}
ROTARIES = {
    "none": Piece(lambda at: None),
    **{
        f"rope, {name}": Piece(lambda at, scaling=scaling: positions.RoPE(WIDTH, scaling=scaling))
        for name, scaling in _SCALINGS.items()
    },
    "rope, pairs": Piece(lambda at: positions.RoPE(WIDTH, interleaved=True, rotary_dim=4)),
}
SLOTS = {
    "mask": MASKS,
    "bias": BIASES,
    "score": SCORES,
    "normalizer": NORMALIZERS,
    "weight_factor": FACTORS,
    "rotary": ROTARIES,
}
PLACES = ("module", "attribute", "made in forward")


class _Holder:
    """What has a value and is no module, as a list or an object of the user's own."""

    def __init__(self, value: Any) -> None:
        self.value = value


class BareCall(nn.Module):
    """`regard.attention` with values held in several ways; `forward(q, k, v, *arguments)`."""

    def __init__(self, heads: int, pieces: dict[str, tuple[Piece, str]], options: dict[str, Any], seed: int) -> None:
        super().__init__()
        self.heads, self.options = heads, options
        self.pieces = {name: piece for name, (piece, _) in pieces.items()}
        self.values, self.held, self.counts = nn.ModuleDict(), {}, {}
        rng = np.random.default_rng([seed, zlib.crc32(b"parameters")])
        sizes = Sizes(0, heads, 0, 0)
        for name, (piece, place) in pieces.items():
            drawn_parameters = []
            for label, shape in piece.parameters(heads).items():
                numbers = rng.standard_normal(shape) / max(1, shape[-1]) ** 0.5
                drawn_parameters.append(nn.Parameter(torch.tensor(numbers)))
                if place != "module":
                    self.register_parameter(f"{name}_{label}", drawn_parameters[-1])
            if place == "module":
                value = piece.make(sizes, *drawn_parameters)
                if value is not None:
                    self.values[name] = ValueModule(value)
            elif place == "attribute":
                self.held[name] = [f"{name}_{label}" for label in piece.parameters(heads)]
            else:
                self.counts[name] = [f"{name}_{label}" for label in piece.parameters(heads)]
        self.hold()

    def hold(self) -> None:
        """Make the values of plain attributes of the parameters as they now are."""
        sizes = Sizes(0, self.heads, 0, 0)
        self.holders = {
            name: _Holder(self.pieces[name].make(sizes, *(getattr(self, label) for label in labels)))
            for name, labels in self.held.items()
        }

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *arguments: Tensor) -> Any:
        at = Sizes(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
        rest = iter(arguments)
        values = {name: module() for name, module in self.values.items()}
        values.update({name: holder.value for name, holder in self.holders.items()})
        for name, labels in self.counts.items():
            piece = self.pieces[name]
            own = [next(rest)] if piece.arguments is not _nothing else []
            values[name] = piece.make(at, *(getattr(self, label) for label in labels), *own)
        options = {name: option for name, option in self.options.items() if name != "dropout" or self.training}
        return regard.attention(q, k, v, **values, **options)


class WithCache(nn.Module):
    """The beginning of a text, and then the rest of it, with a cache."""

    def __init__(self, attention: MultiHeadAttention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, x: Tensor) -> Tensor:
        cache = KVCache()
        first = self.attention(x[:, :3], cache=cache)
        rest = self.attention(x[:, 3:], cache=cache)
        return torch.cat([first, rest], 1)


@dataclass(frozen=True, eq=False)
class Drawn:
    """One module.

    Args:
        number: The seed of all that is drawn of it.
        module: In its type, in training mode where gradients are wanted.
        description: What it is, in a line.
        wants_gradients: Of its floating-point inputs and its parameters.
        in_python: Whether it has a function of the user, by which a compiler may have to break its graph.
        draws: Whether it draws random numbers (dropout).
        dynamic: What `torch.compile` is to be given.
        dtype: Of its inputs.
    """

    number: int
    module: nn.Module
    description: str
    wants_gradients: bool
    in_python: bool
    draws: bool
    dynamic: bool | None
    dtype: torch.dtype
    draw_inputs: Callable[[int, int, np.random.Generator], tuple[Tensor, ...]] = field(repr=False)

    def inputs(self, length: int, batch: int = 2) -> tuple[Tensor, ...]:
        """Return inputs for a text of so many tokens (at least `LEAST`), the same ones each time."""
        rng = np.random.default_rng([self.number, length, batch])
        return tuple(
            one.to(self.dtype) if one.is_floating_point() else one for one in self.draw_inputs(length, batch, rng)
        )

    @cached_property
    def exact(self) -> nn.Module:
        """The same module with the same numbers in float64; take it with `regard.use_backend("reference")`."""
        exact = copy.deepcopy(self.module).double()
        for module in exact.modules():
            if isinstance(module, BareCall):
                module.hold()
        return exact


def drawn(number: int) -> Drawn:
    """Draw a module by its number."""
    rng = np.random.default_rng([number, 0])
    dtype = str(rng.choice(list(DTYPES), p=(0.55, 0.2, 0.15, 0.1)))
    learns = bool(rng.random() < 0.6)
    dynamic = None if rng.random() < 0.5 else True
    heads, kv_heads = ((2, 2), (4, 2), (4, 1), (1, 1))[rng.integers(4)]
    common: dict[str, Any] = {"wants_gradients": learns, "dynamic": dynamic, "dtype": DTYPES[dtype], "number": number}
    said = f"{number}: {heads} heads of {kv_heads} in {dtype}{', learns' * learns}, dynamic={dynamic}"
    made = _drawn_call if rng.random() < 0.7 else _drawn_layer
    module, what, in_python, draws, draw_inputs = made(number, rng, heads, kv_heads)
    module = module.to(DTYPES[dtype]).train(learns).requires_grad_(learns)
    if isinstance(module, BareCall):
        module.hold()
    return Drawn(
        module=module,
        description=f"{said}; {what}",
        in_python=in_python,
        draws=draws,
        draw_inputs=draw_inputs,
        **common,
    )


def _choice(rng: np.random.Generator, names: Any, none: float) -> str:
    """One of these names, with this chance "none"."""
    others = [name for name in names if name != "none"]
    return "none" if rng.random() < none else str(rng.choice(others))


_Made = tuple[nn.Module, str, bool, bool, Callable[[int, int, np.random.Generator], tuple[Tensor, ...]]]


def _drawn_call(number: int, rng: np.random.Generator, heads: int, kv_heads: int) -> _Made:
    chances = {"mask": 0.15, "bias": 0.6, "score": 0.7, "normalizer": 0.75, "weight_factor": 0.9, "rotary": 0.6}
    pieces: dict[str, tuple[Piece, str]] = {}
    words = []
    for slot, kinds in SLOTS.items():
        name = _choice(rng, kinds, chances[slot])
        if name == "none":
            continue
        piece = kinds[name]
        needs_call = piece.of_sizes or piece.arguments is not _nothing
        made_of_parameters = name == "cosine"  # a function of the parameter, which a value does not hold
        place = PLACES[2] if needs_call or made_of_parameters else str(rng.choice(PLACES))
        pieces[slot] = piece, place
        words.append(f"{slot} {name} ({place})")
    options: dict[str, Any] = {}
    if rng.random() < 0.15:
        options["return_weights"] = True
    if rng.random() < 0.15 and not _is_sigmoid(pieces):
        options["return_lse"] = True
    if rng.random() < 0.2:
        options["scale"] = 0.4
    if rng.random() < 0.1:
        options["dropout"] = 0.3
    queries = str(rng.choice(["all", "few", "half"], p=(0.6, 0.2, 0.2)))
    value_width = int(rng.choice([WIDTH, 5])) if not any("shaw" in word for word in words) else WIDTH
    words += [f"{name}={option}" for name, option in options.items()] + [f"{queries} queries", f"{value_width} wide"]
    module = BareCall(heads, pieces, options, number)

    def draw_inputs(length: int, batch: int, numbers: np.random.Generator) -> tuple[Tensor, ...]:
        rows = {"all": length, "few": 3, "half": length // 2 + 1}[queries]
        at = Sizes(batch, heads, rows, length)
        q = torch.tensor(numbers.standard_normal((batch, heads, rows, WIDTH)))
        k = torch.tensor(numbers.standard_normal((batch, kv_heads, length, WIDTH)))
        v = torch.tensor(numbers.standard_normal((batch, kv_heads, length, value_width)))
        return q, k, v, *(one for piece, _ in pieces.values() for one in piece.arguments(at, numbers))

    in_python = any(piece.in_python for piece, _ in pieces.values())
    return module, "; ".join(words), in_python, "dropout" in options, draw_inputs


def _is_sigmoid(pieces: dict[str, tuple[Piece, str]]) -> bool:
    """Whether the normalizer has no log-sum-exp."""
    return "normalizer" in pieces and not pieces["normalizer"][0].parameters(1)


def _value(kinds: dict[str, Piece], name: str, heads: int, rng: np.random.Generator) -> Any:
    piece = kinds[name]
    parameters = [
        nn.Parameter(torch.tensor(rng.standard_normal(shape) / max(1, shape[-1]) ** 0.5))
        for shape in piece.parameters(heads).values()
    ]
    return piece.make(Sizes(0, heads, 0, 0), *parameters)


def _held(kinds: dict[str, Piece]) -> list[str]:
    """Kinds that a module can hold: of parameters alone."""
    return [
        name
        for name, piece in kinds.items()
        if name != "cosine" and not piece.of_sizes and not piece.in_python and piece.arguments is _nothing
    ]


def _drawn_options(
    kind: str, rng: np.random.Generator, heads: int, numbers: np.random.Generator
) -> tuple[dict[str, Any], list[str]]:
    """Values for an attention, and what they are."""
    options, words = {}, []
    for slot, none in {"mask": 0.3, "attn_bias": 0.6, "score": 0.8, "normalizer": 0.8, "rotary": 0.5}.items():
        kinds = SLOTS["bias" if slot == "attn_bias" else slot]
        if kind == "cross" and slot == "rotary":
            continue
        names = _held(kinds)
        if kind == "cache":
            names = [name for name in names if name not in ("rope, dynamic ntk", "sigmoid")]
        name = _choice(rng, names, none)
        if name != "none":
            options[slot] = _value(kinds, name, heads, numbers)
            words.append(f"{slot} {name}")
    return options, words


def _drawn_layer(number: int, rng: np.random.Generator, heads: int, kv_heads: int) -> _Made:
    kind = str(rng.choice(["attention", "cross", "block", "cache"]))
    numbers = np.random.default_rng([number, 1])
    embed = heads * WIDTH
    options, values = _drawn_options(kind, rng, heads, numbers)
    words, options = [kind, *values], {"num_kv_heads": kv_heads, **options}
    drops = kind in ("attention", "block") and rng.random() < 0.1
    # A small block drops by PyTorch's own numbers in eager code, and by hashed places in compiled code.
    training_dropout = 0.2 if drops and kind == "attention" else 0.0
    pads = kind in ("attention", "cross") and rng.random() < 0.3
    generator = torch.Generator().manual_seed(number)
    module: nn.Module
    if kind == "block":
        norm, norm_first = str(rng.choice(["layer", "rms"])), bool(rng.random() < 0.5)
        module = EncoderBlock(
            embed, heads, 2 * embed, norm=norm, norm_first=norm_first, dropout=training_dropout, attention=options
        )
        words += [norm, "norm first" if norm_first else "norm last"]
    else:
        module = MultiHeadAttention(embed, heads, dropout=training_dropout, **options)
    for name, one in module.named_parameters():
        if one.ndim > 1 and ("proj" in name or "feed_forward" in name):
            with torch.no_grad():
                one.copy_(torch.randn(one.shape, generator=generator) / one.shape[-1] ** 0.5)
    if kind == "cache":
        module = WithCache(module)
    if pads:
        module = Padded(module)
        words.append("padded")

    def draw_inputs(length: int, batch: int, numbers: np.random.Generator) -> tuple[Tensor, ...]:
        rows = length // 2 + 1 if kind == "cross" else length
        x = torch.tensor(numbers.standard_normal((batch, rows, embed)))
        y = [torch.tensor(numbers.standard_normal((batch, length, embed)))] if kind == "cross" else []
        hidden = [~_real(Sizes(batch, heads, rows, length), numbers)[0]] if pads else []
        return x, *y, *hidden

    return module, "; ".join(words + ["dropout"] * bool(training_dropout)), False, bool(training_dropout), draw_inputs


class Padded(nn.Module):
    """An attention whose last argument is its `key_padding_mask`."""

    def __init__(self, attention: MultiHeadAttention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, *given: Tensor) -> Tensor:
        *x, hidden = given
        return self.attention(*x, key_padding_mask=hidden)
