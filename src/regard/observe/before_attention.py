"""What a model does before attention to make queries and keys, measured while it runs: normalization of the input,
projection with or without a bias, normalization of each head, rotation, scaling.

The outputs of the projections are compared with the queries and keys of the call that follows. A rotation (RoPE, Su et
al. 2021, arXiv:2104.09864) changes the direction of a vector and keeps its length:

    q_i = R_i (x_i W_Q),   |q_i| = |x_i W_Q|

What cannot be told is left out, so that nobody takes a guess for a measurement.
"""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["BeforeAttention"]

_QUERY = ("q_proj", "query", "query_proj", "q_lin", "q", "wq", "to_q")
_KEY = ("k_proj", "key", "key_proj", "k_lin", "k", "wk", "to_k")
_VALUE = ("v_proj", "value", "value_proj", "v_lin", "v", "wv", "to_v")
_FUSED = ("c_attn", "qkv", "Wqkv", "query_key_value", "qkv_proj")
_QUERY_NORMS = ("q_norm", "q_layernorm", "query_norm", "q_layer_norm", "norm_q")
_KEY_NORMS = ("k_norm", "k_layernorm", "key_norm", "k_layer_norm", "norm_k")
_TABLES = ("position", "relative", "wpe", "embed_pos", "pos_emb")  # of positions, or of distances between them
_OPAQUE = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)  # hooks end their fast paths
_CALLS = 4  # of a layer that are measured: the first position is rotated by an angle of 0, and a vector may be 0

# By the last part of a module's name: the module, its output, and the class of the normalization that made its input.
_Outputs = dict[str, tuple[nn.Module, Tensor, str | None]]


class BeforeAttention(AbstractContextManager["BeforeAttention"]):
    """Listens to projections and normalizations of a model inside a `with` block, and compares them with q and k.

    `notes(names)` returns what was measured of these layers, as JSON: "positions", the tables of positions that the
    model looked up, and for each layer "input" (the class of the normalization that x came from), "query" and "key"
    (`bias` of the projection, and `then`, what followed: ["norm", class], "rotated", "scaled"; None where q or k was
    not what the projection gives, and nothing known explains it) and "value" (`bias`).
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._thread = threading.get_ident()
        self._hooks: list[Any] = []
        self._outputs: dict[str, _Outputs] = {}  # by the name of the module that owns them
        self._norms: deque[tuple[str, Tensor]] = deque(maxlen=4)
        self._positions: dict[str, str] = {}
        self._layers: dict[str, dict[str, Any]] = {}
        self._counts: dict[str, int] = {}

    def __deepcopy__(self, memo: Any) -> "BeforeAttention":
        """Return the object itself, which all call sites share."""
        return self

    def __enter__(self) -> "BeforeAttention":
        for name, module in _open_modules(self._model, ""):
            owner, _, leaf = name.rpartition(".")
            if any(part in leaf for part in _TABLES):
                self._listen(module, self._table(name, module))
            elif _is_norm(module):
                self._listen(module, self._norm(owner, leaf))
            elif leaf in (*_QUERY, *_KEY, *_VALUE, *_FUSED) and _is_linear(module):
                self._listen(module, self._projection(owner, leaf))
        return self

    def __exit__(self, *raised: Any) -> None:
        for hook in self._hooks:
            hook.remove()
        self._outputs.clear()
        self._norms.clear()

    def _listen(self, module: nn.Module, hook: Any) -> None:
        def of_this_thread(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if threading.get_ident() == self._thread:
                hook(module, args, output)

        self._hooks.append(module.register_forward_hook(of_this_thread))

    def _table(self, name: str, table: nn.Module) -> Any:
        kind = "sinusoidal" if "sinus" in type(table).__name__.lower() else "learned"

        def hook(*_: Any) -> None:
            self._positions[name] = kind

        return hook

    def _norm(self, owner: str, leaf: str) -> Any:
        def hook(module: nn.Module, _: Any, output: Any) -> None:
            if isinstance(output, Tensor):
                self._norms.append((type(module).__name__, output.detach()))
                if leaf in (*_QUERY_NORMS, *_KEY_NORMS):
                    self._outputs.setdefault(owner, {})[leaf] = (module, output.detach(), None)

        return hook

    def _projection(self, owner: str, leaf: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if isinstance(output, Tensor) and args and isinstance(args[0], Tensor):
                norm = next((kind for kind, made in reversed(self._norms) if _is_same(made, args[0])), None)
                self._outputs.setdefault(owner, {})[leaf] = (module, output.detach(), norm)

        return hook

    def compare(self, site: str, q: Tensor, k: Tensor) -> None:
        """Compare the queries and keys of a call with what the projections of its module have just given."""
        count = self._counts.get(site, 0)
        if count >= _CALLS:
            return
        self._counts[site] = count + 1
        owner = site.partition("#")[0]
        outputs = self._outputs_of(owner)
        found = self._layers.setdefault(site, {})
        for side, x, names, norms in (("query", q, _QUERY, _QUERY_NORMS), ("key", k, _KEY, _KEY_NORMS)):
            measured = _measured(side, outputs, (q, k), x, names, norms)
            is_first = side not in found or (found[side]["then"] == [] and measured and measured["then"])
            if measured is not None and is_first:  # or before it was the position whose angle is 0
                found[side] = measured
        found |= _around(outputs)
        module = _module_at(self._model, owner)
        if not outputs and isinstance(module, nn.MultiheadAttention):  # its class leaves nothing else to be done
            plain = {"bias": module.in_proj_bias is not None, "then": []}
            found |= {"query": plain, "key": plain, "value": {"bias": plain["bias"]}}

    def _outputs_of(self, owner: str) -> _Outputs:
        """Return the latest outputs within the module that owns a call, by the last part of their names."""
        return {
            leaf: made
            for name, several in self._outputs.items()
            if name == owner or name.startswith(f"{owner}.")
            for leaf, made in several.items()
        }

    def notes(self, names: Iterator[str] | list[str]) -> dict[str, Any]:
        """Return what was measured of these layers; what is not there is not known."""
        layers = {name: self._layers[name] for name in names if self._layers.get(name)}
        return {"positions": dict(self._positions), "layers": layers}


def _around(outputs: _Outputs) -> dict[str, Any]:
    """Return the normalization that the input came from, and what is known of the projection of values."""
    found: dict[str, Any] = {}
    for leaf in (*_QUERY, *_FUSED):
        if leaf in outputs and outputs[leaf][2] is not None:
            found["input"] = outputs[leaf][2]
    for leaf in (*_VALUE, *_FUSED):
        if leaf in outputs:
            found["value"] = {"bias": _has_bias(outputs[leaf][0])}
    return found


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


def _has_bias(module: nn.Module) -> bool:
    return getattr(module, "bias", None) is not None


def _is_same(made: Tensor, x: Tensor) -> bool:
    """Return whether a tensor is another, or a copy, as a dropout that is switched off gives it."""
    return made.shape == x.shape and made.dtype == x.dtype and (made.data_ptr() == x.data_ptr() or torch.equal(made, x))


def _measured(
    side: str,
    outputs: _Outputs,
    both: tuple[Tensor, Tensor],
    x: Tensor,
    names: tuple[str, ...],
    norms: tuple[str, ...],
) -> dict[str, Any] | None:
    """Return what was done to a projection's output; None where no projection was heard."""
    own = [(outputs[leaf], [outputs[leaf][1]]) for leaf in names if leaf in outputs]
    fused = [(outputs[leaf], _parts(side, outputs[leaf][1], *both)) for leaf in _FUSED if leaf in outputs]
    if not own and not fused:
        return None
    (module, _, _), projected = (own or fused)[0]
    then: list[Any] = []
    starts = projected
    for leaf in norms:
        if leaf in outputs:
            then, starts = [["norm", type(outputs[leaf][0]).__name__]], [outputs[leaf][1]]
    for start in starts:
        if (change := _change(start, x)) is not None:
            return {"bias": _has_bias(module), "then": [*then, *change]}
    return {"bias": _has_bias(module), "then": None}


def _parts(side: str, output: Tensor, q: Tensor, k: Tensor) -> list[Tensor]:
    """Return what of a fused projection's output may be the queries or keys: side by side, or head by head."""
    heads, kv_heads, width = q.shape[1], k.shape[1], q.shape[-1]
    found = []
    if output.shape[-1] in {(heads + 2 * few) * width for few in (kv_heads, heads)} and output.ndim == 3:
        queries = heads * width
        few = (output.shape[-1] - queries) // 2
        found.append(output[..., :queries] if side == "query" else output[..., queries : queries + few])
        if few == queries:
            apart = output.unflatten(-1, (heads, 3, width))
            found.append(apart[..., 0 if side == "query" else 1, :].flatten(-2))
            apart = output.unflatten(-1, (3, heads, width))
            found.append(apart[..., 0 if side == "query" else 1, :, :].flatten(-2))
    return found


def _change(start: Tensor, x: Tensor) -> list[str] | None:
    """Return what turns a projection's output into the vectors of heads (batch, heads, n, width): nothing, a scale, a
    rotation, or both; None if it is none of these, or the shapes differ.
    """
    batch, heads, count, width = x.shape
    steps = start.shape[1] if start.ndim == 3 else count
    if steps < count:  # the others come from a cache
        x, count = x[:, :, -steps:], steps
    made = start.unflatten(-1, (-1, width)) if start.ndim == 3 and start.shape[-1] % width == 0 else start
    if made.ndim != 4 or made.shape[0] != batch or made.shape[-1] != width:
        return None
    if made.shape[1] == count:  # (batch, n, heads, width), as a projection gives it
        made = made.transpose(1, 2)
    if made.shape[2] != count or heads % made.shape[1]:
        return None
    if torch.equal(made.repeat_interleave(heads // made.shape[1], 1), x):
        return []
    made, x = made.repeat_interleave(heads // made.shape[1], 1).double(), x.double()
    tolerance = 2e-2 if start.itemsize < 4 else 1e-3
    lengths, own = torch.linalg.vector_norm(x, dim=-1), torch.linalg.vector_norm(made, dim=-1)
    shown = own > 0
    if not bool(shown.any()):
        return None
    ratios = lengths[shown] / own[shown]
    ratio = float(ratios.median())
    if ratio == 0 or float((ratios / ratio - 1).abs().max()) > tolerance:
        return None
    scaled = ["scaled"] if abs(ratio - 1) > tolerance else []
    is_parallel = bool((x - ratio * made).abs().max() <= tolerance * x.abs().max())
    return scaled if is_parallel else ["rotated", *scaled]
