"""What a model does before attention to make queries, keys and values, measured while it runs: normalization of the
input, projection with or without a bias, normalization of each head, rotation, scaling.

The outputs of the projections are compared with the queries, keys and values of the call that follows. A rotation by
positions (RoPE, Su et al. 2021, arXiv:2104.09864) changes the direction of a vector and keeps its length, alike for all
heads at a position, and differently from position to position:

    q_i = R_i (x_i W_Q),   |q_i| = |x_i W_Q|,   q_i·q_0 ≠ (x_i W_Q)·(x_0 W_Q)

Modules are found by their names; what is noted of them is measured, and what could not be compared is left out.
"""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.observe.position_tables import PositionTable, bias_table, is_position_name
from regard.problem import Problem

__all__ = ["BeforeAttention"]

_PROJECTIONS = {
    "query": ("q_proj", "query", "query_proj", "q_lin", "q", "wq", "to_q"),
    "key": ("k_proj", "key", "key_proj", "k_lin", "k", "wk", "to_k"),
    "value": ("v_proj", "value", "value_proj", "v_lin", "v", "wv", "to_v"),
}
_FUSED = ("c_attn", "qkv", "Wqkv", "query_key_value", "qkv_proj")
_NORMS = {
    "query": ("q_norm", "q_layernorm", "query_norm", "q_layer_norm", "norm_q"),
    "key": ("k_norm", "k_layernorm", "key_norm", "k_layer_norm", "norm_k"),
    "value": (),
}
_PROJECTION_NAMES = frozenset((*_FUSED, *(leaf for names in _PROJECTIONS.values() for leaf in names)))
_HEAD_NORM_NAMES = frozenset(leaf for names in _NORMS.values() for leaf in names)
_OPAQUE = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)  # hooks end their fast paths
_CALLS = 4  # of a layer that are measured: the first position is rotated by an angle of 0, and a vector may be 0
_UNKNOWN = ["unknown"]  # where shapes could not be compared
_OWNERS = 4  # modules whose outputs are stored at a time, until the call that they are for

Heads = Float[Tensor, "batch heads positions width"]
_Pair = tuple[Heads, Heads]  # a projection's output and the vectors of a call


@dataclass(frozen=True, eq=False)
class _Output:
    """A copy of what a projection or a normalization of heads has returned, which no later step can change.

    `input`: of a normalization of heads, a copy of what it was applied to. `norm`: of a projection, the class of the
    normalization that its input came from.
    """

    module: nn.Module
    output: Tensor
    input: Tensor | None = None
    norm: str | None = None


_Outputs = dict[str, _Output]  # by the last part of a module's name


@dataclass(frozen=True, eq=False)
class _Norm:
    """What a normalization has returned, and a copy of its last row, which shows whether it was changed in place."""

    kind: str
    output: Tensor
    last: Tensor

    def is_input(self, x: Tensor) -> bool:
        """Return whether a tensor is this output, or a copy, as a dropout that is switched off returns it."""
        if self.output.shape != x.shape or self.output.dtype != x.dtype:
            return False
        is_same = self.output.data_ptr() == x.data_ptr() or torch.equal(self.output, x)
        return is_same and torch.equal(x[..., -1:, :], self.last)


class BeforeAttention(AbstractContextManager["BeforeAttention"]):
    """Listens to projections and normalizations of a model inside a `with` block, and compares them with q, k and v.

    `notes(names)` returns what was measured of these layers, as JSON: "positions", the tables whose rows were read one
    after the other ("sinusoidal" or "other"), and for each layer "input" (the class of the normalization that x came
    from), "bias_table" (the table whose numbers are the bias of the scores), "class" (of a module of PyTorch that
    projects by itself), and "query", "key" and "value": `bias` of the projection, and `then`, what followed: ["norm",
    class], "rotated", "turned" (another direction, of the same length, which was not seen to depend on the position)
    and "scaled"; None where it became something else. Where there is no `then`, it could not be compared.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._thread = threading.get_ident()
        self._hooks: dict[str, list[Any]] = {}  # of projections by the module that owns them, of all others by ""
        self._outputs: dict[str, _Outputs] = {}  # by the module that owns them, the newest last
        self._norms: deque[_Norm] = deque(maxlen=4)
        self._tables: dict[str, PositionTable] = {}
        self._bias_tables: dict[str, Tensor] = {}
        self._layers: dict[str, dict[str, Any]] = {}
        self._last_rows: dict[tuple[str, str], _Pair] = {}  # of the call before, by site and side
        self._counts: dict[str, int] = {}

    def __deepcopy__(self, memo: Any) -> "BeforeAttention":
        """Return the object itself, which all call sites share."""
        return self

    def __enter__(self) -> "BeforeAttention":
        for name, module in _open_modules(self._model, ""):
            owner, _, leaf = name.rpartition(".")
            if isinstance(module, nn.Embedding):
                self._bias_tables[name] = module.weight
            if is_position_name(leaf):
                self._listen("", module, self._table(name, module))
            elif _is_norm(module):
                self._listen("", module, self._norm(owner, leaf))
            elif leaf in _PROJECTION_NAMES and _is_linear(module):
                self._listen(f"{owner}.", module, self._projection(owner, leaf))
        return self

    def __exit__(self, *raised: Any) -> None:
        for owner in list(self._hooks):
            self._stop(owner)
        self._outputs.clear()
        self._norms.clear()
        self._last_rows.clear()
        self._bias_tables.clear()

    def _listen(self, owner: str, module: nn.Module, hook: Any) -> None:
        def of_this_thread(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if threading.get_ident() == self._thread:
                hook(module, args, output)

        self._hooks.setdefault(owner, []).append(module.register_forward_hook(of_this_thread))

    def _stop(self, owner: str) -> None:
        for hook in self._hooks.pop(owner, ()):
            hook.remove()

    def _table(self, name: str, module: nn.Module) -> Any:
        table = self._tables[name] = PositionTable(module)
        return lambda _module, _args, output: table.read(output)

    def _norm(self, owner: str, leaf: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if not isinstance(output, Tensor) or output.ndim < 2:
                return
            if leaf not in _HEAD_NORM_NAMES:
                made = output.detach()
                self._norms.append(_Norm(type(module).__name__, made, made[..., -1:, :].clone()))
            elif self._is_measured(owner):
                return
            elif args and isinstance(args[0], Tensor):
                self._store(owner, leaf, _Output(module, _copy(output), _copy(args[0])))

        return hook

    def _projection(self, owner: str, leaf: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if isinstance(output, Tensor) and args and isinstance(args[0], Tensor):
                norm = next((norm.kind for norm in reversed(self._norms) if norm.is_input(args[0])), None)
                self._store(owner, leaf, _Output(module, _copy(output), norm=norm))

        return hook

    def _store(self, owner: str, leaf: str, output: _Output) -> None:
        outputs = self._outputs.pop(owner, {})
        self._outputs[owner] = {**outputs, leaf: output}
        for oldest in list(self._outputs)[:-_OWNERS]:
            del self._outputs[oldest]

    def compare(self, site: str, problem: Problem, v: Tensor | None = None) -> None:
        """Compare the queries, keys and values of a call with what the projections of its module have just returned."""
        count = self._counts.get(site, 0)
        if count >= _CALLS:
            return
        self._counts[site] = count + 1
        owner = site.partition("#")[0]
        outputs = self._outputs_of(owner)
        layer = self._layers.setdefault(site, {})
        vectors = {"query": problem.q, "key": problem.k, **({} if v is None else {"value": v})}
        heads = problem.q.shape[1], problem.k.shape[1]
        for side, x in vectors.items():
            previous = self._last_rows.get((site, side))
            side_note, pair = _measured(side, outputs, heads, x, previous)
            if pair is not None:
                self._last_rows[site, side] = (_copy(pair[0][:, :, -1:]), _copy(pair[1][:, :, -1:]))
            if side_note is not None and (side not in layer or _is_more(side_note, layer[side])):
                layer[side] = side_note
        norms = [outputs[leaf].norm for leaf in (*_PROJECTIONS["query"], *_FUSED) if leaf in outputs]
        if norms and norms[0] is not None:
            layer["input"] = norms[0]
        if "bias_table" not in layer and (name := bias_table(problem, self._bias_tables)) is not None:
            layer["bias_table"] = name
        module = _module_at(self._model, owner)
        if not outputs and type(module) is nn.MultiheadAttention:
            has_bias = module.in_proj_bias is not None
            layer |= {"class": "nn.MultiheadAttention", **{side: {"bias": has_bias} for side in _PROJECTIONS}}
        self._forget(owner)

    def _forget(self, owner: str) -> None:
        """Drop the outputs of a module whose call was compared, and listen no longer where all was compared."""
        self._norms.clear()
        for name in [name for name in self._outputs if _is_within(name, owner)]:
            del self._outputs[name]
        if not self._is_measured(owner):
            return
        for name in [name for name in self._hooks if name and _is_within(name.removesuffix("."), owner)]:
            self._stop(name)
        if not any(self._hooks):  # of projections
            self._stop("")

    def _is_measured(self, owner: str) -> bool:
        """Return whether all calls of the module that owns this one were compared, as far as they are."""
        counts = [count for site, count in self._counts.items() if _is_within(owner, site.partition("#")[0])]
        return bool(counts) and min(counts) >= _CALLS

    def _outputs_of(self, owner: str) -> _Outputs:
        """Return the latest outputs within the module that owns a call, by the last part of their names."""
        own = [outputs for name, outputs in self._outputs.items() if _is_within(name, owner)]
        return {leaf: output for outputs in own for leaf, output in outputs.items()}

    def notes(self, names: Iterator[str] | list[str]) -> dict[str, Any]:
        """Return what was measured of these layers; what is not there is not known."""
        layers = {name: self._layers[name] for name in names if self._layers.get(name)}
        positions = {name: table.kind for name, table in self._tables.items() if table.kind is not None}
        return {"positions": positions, "layers": layers}


def _is_within(name: str, owner: str) -> bool:
    return name == owner or name.startswith(f"{owner}.")


def _is_more(note: dict[str, Any], earlier: dict[str, Any]) -> bool:
    """Return whether a later call shows more: the first had the position whose angle is 0, or one position."""
    if "then" not in note or note["then"] is None:
        return False
    if "then" not in earlier:
        return True
    if earlier["then"] is None:
        return False
    directions = [2 * ("rotated" in then) + ("turned" in then) for then in (note["then"], earlier["then"])]
    return directions[0] > directions[1] or (not earlier["then"] and bool(note["then"]))


def _open_modules(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules that may be listened to, with their names."""
    yield name, module
    if isinstance(module, (*_OPAQUE, torch.jit.ScriptModule)):
        return
    for leaf, child in module.named_children():
        yield from _open_modules(child, f"{name}.{leaf}" if name else leaf)


def _module_at(model: nn.Module, name: str) -> nn.Module | None:
    try:
        return model.get_submodule(name)
    except AttributeError:
        return None


def _is_norm(module: nn.Module) -> bool:
    return "Norm" in type(module).__name__ and not isinstance(module, torch.jit.ScriptModule)


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def _copy(x: Tensor) -> Tensor:
    return x.detach().clone()


def _measured(
    side: str, outputs: _Outputs, heads: tuple[int, int], x: Heads, previous: _Pair | None
) -> tuple[dict[str, Any] | None, _Pair | None]:
    """Return what was done to a projection's output, None where no projection was heard; and what was compared."""
    own = [(outputs[leaf], [outputs[leaf].output]) for leaf in _PROJECTIONS[side] if leaf in outputs]
    fused = [(outputs[leaf], _parts(side, outputs[leaf].output, heads, x)) for leaf in _FUSED if leaf in outputs]
    if not own and not fused:
        return None, None
    projection, starts = (own or fused)[0]
    note: dict[str, Any] = {"bias": getattr(projection.module, "bias", None) is not None}
    norm = next((outputs[leaf] for leaf in _NORMS[side] if leaf in outputs), None)
    results = [_steps(start, norm, x, previous) for start in starts]
    then, pair = max(results, key=_certainty, default=(_UNKNOWN, None))
    if then is _UNKNOWN or (then is None and not own):  # of a fused projection, the layout may be another
        return note, pair
    return {**note, "then": then}, pair


def _certainty(result: tuple[list[Any] | None, Any]) -> int:
    then, _ = result
    return 0 if then is _UNKNOWN else 1 if then is None else 2


def _steps(
    start: Tensor, norm: _Output | None, x: Heads, previous: _Pair | None
) -> tuple[list[Any] | None, _Pair | None]:
    """Return the steps from a projection's output to the vectors of a call, and the last pair that was compared."""
    if norm is None:
        pair = _aligned(start, x)
        return (_UNKNOWN if pair is None else _change(*pair, previous)), pair
    assert norm.input is not None  # each normalization of heads has it
    vectors = _as_heads(norm.input, start.shape[1] if start.ndim == 3 else x.shape[2], x.shape[-1])
    before = None if vectors is None else _aligned(start, vectors)
    after = _aligned(norm.output, x)
    if before is None or after is None:
        return _UNKNOWN, after
    changes = _change(*before, None), _change(*after, previous)
    if changes[0] is None or changes[1] is None:
        return None, after
    return [*changes[0], ["norm", type(norm.module).__name__], *changes[1]], after


def _parts(side: str, output: Tensor, heads: tuple[int, int], x: Heads) -> list[Tensor]:
    """Return what of a fused projection's output may be these vectors: side by side, head by head, or by groups of
    heads that share a key.
    """
    queries, width = heads[0], x.shape[-1]
    if output.ndim != 3 or output.shape[-1] % width:
        return []
    keys, odd = divmod(output.shape[-1] // width - queries, 2)
    if odd or keys < 1 or queries % keys:
        return []
    index = ("query", "key", "value").index(side)
    parts = [output.split([queries * width, keys * width, keys * width], -1)[index]]
    if keys == queries:
        parts.append(output.unflatten(-1, (3, queries, width))[..., index, :, :].flatten(-2))
    group = queries // keys
    grouped = output.unflatten(-1, (keys, group + 2, width)).split([group, 1, 1], -2)
    return [*parts, grouped[index].flatten(-3)]


def _as_heads(x: Tensor, count: int, width: int) -> Heads | None:
    """Return vectors as (batch, heads, positions, width), from that, (batch, positions, heads, width) or (batch,
    positions, heads · width); None if they are none of these.
    """
    made = x.unflatten(-1, (-1, width)) if x.ndim == 3 and x.shape[-1] % width == 0 else x
    if made.ndim != 4 or made.shape[-1] != width:
        return None
    if made.shape[1] == count:
        made = made.transpose(1, 2)
    return made if made.shape[2] == count else None


def _aligned(start: Tensor, x: Heads) -> _Pair | None:
    """Return a projection's output and the vectors of a call in one shape, or None; without positions from a cache."""
    steps = start.shape[1] if start.ndim == 3 else x.shape[2]
    x = x[:, :, max(0, x.shape[2] - steps) :]
    made = _as_heads(start, x.shape[2], x.shape[3])
    if made is None or made.shape[0] != x.shape[0] or x.shape[1] % made.shape[1]:
        return None
    return made.repeat_interleave(x.shape[1] // made.shape[1], 1), x


def _change(made: Heads, x: Heads, previous: _Pair | None) -> list[Any] | None:
    """Return what turns a projection's output into the vectors of heads: nothing, a scale, another direction, or both;
    None if it is none of these. `previous` is the last position of the call before.
    """
    if torch.equal(made, x):
        return []
    tolerance = 2e-2 if made.itemsize < 4 else 1e-3
    made, x = made.double(), x.double()
    lengths, own = torch.linalg.vector_norm(x, dim=-1), torch.linalg.vector_norm(made, dim=-1)
    shown = own > 0
    if not bool(shown.any()) or bool(lengths[~shown].any()):
        return None
    ratios = lengths[shown] / own[shown]
    ratio = float(ratios.median())
    if ratio == 0 or float((ratios / ratio - 1).abs().max()) > tolerance:
        return None
    scaled = ["scaled"] if abs(ratio - 1) > tolerance else []
    if bool((x - ratio * made).abs().max() <= tolerance * x.abs().max()):
        return scaled
    if previous is not None and all(a.shape[:2] == b.shape[:2] for a, b in zip(previous, (made, x), strict=True)):
        made, x = (torch.cat([last.double(), both], 2) for last, both in zip(previous, (made, x), strict=True))
    made = ratio * made
    if not _keeps_products(made, x, x[:, :1], made[:, :1], tolerance):  # of a head with another at the same position
        return None
    firsts = _keeps_products(made, x, x[:, :, :1], made[:, :, :1], tolerance)
    neighbours = _keeps_products(made[:, :, 1:], x[:, :, 1:], x[:, :, :-1], made[:, :, :-1], tolerance)
    return ["turned" if firsts and neighbours else "rotated", *scaled]


def _keeps_products(made: Heads, x: Heads, other_x: Heads, other_made: Heads, tolerance: float) -> bool:
    """Return whether the products of vectors with others are the same before and after: all are turned alike."""
    differences = ((x * other_x).sum(-1) - (made * other_made).sum(-1)).abs()
    lengths = torch.linalg.vector_norm(x, dim=-1) * torch.linalg.vector_norm(other_x, dim=-1)
    return bool((differences <= 2 * tolerance * lengths + 1e-30).all())
