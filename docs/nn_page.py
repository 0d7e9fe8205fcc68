"""The page of regard.nn, docs/nn.md: what each module is, its signature, shapes, arguments, an example, its peers.

Words, signatures and shapes are those of the modules; here is only what no docstring has.
"""

import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import docstrings

from regard import masks, nn, normalizers, positions, scores

__all__ = ["GROUPS", "PAGE", "Entry", "page"]

PAGE = Path(__file__).resolve().parent / "nn.md"
NOTE = "<!-- Written by docs/generate.py: change the docstring or docs/nn_page.py, then run `make docs`. -->"


@dataclass(frozen=True)
class Entry:
    """A section: the name, what is the same elsewhere, and an example where the docstring has none."""

    name: str
    peers: str
    example: str = ""


NOWHERE = "none."

GROUPS = {
    "Attention": [
        Entry(
            "MultiHeadAttention",
            "`torch.nn.MultiheadAttention(batch_first=True)`. `MultiHeadAttention.from_torch(module)` copies its "
            "weights, and `to_torch()` converts back. PyTorch's boolean masks are True for hidden tokens; `mask=` "
            "here is True for visible tokens. With `num_kv_heads=`, `rotary=` and `bias=False` it is Llama's "
            "attention.",
        ),
        Entry(
            "SlidingWindowAttention",
            "`MultiHeadAttention(..., mask=masks.Causal() & masks.Window(sliding_window))`; in transformers, the "
            "attention of Mistral.",
        ),
        Entry(
            "LongformerAttention",
            "`LongformerSelfAttention` of transformers (query, key, value are `q_proj`, `k_proj`, `v_proj`; "
            "`query_global` is `q_global`), with `attention.output.dense` as `out_proj`.",
        ),
        Entry(
            "BigBirdAttention",
            "`BigBirdBlockSparseAttention` of transformers in training mode, with the same random blocks. In eval mode "
            "transformers draws no random blocks and counts block 0 more than once.",
        ),
        Entry("NeighborhoodAttention", NOWHERE + ' With boundary="shift" the window is NATTEN\'s.'),
        Entry("AxialAttention", NOWHERE),
        Entry("AdditiveAttention", NOWHERE + " Keras's `AdditiveAttention` has no W and U."),
        Entry("BilinearAttention", NOWHERE + " The score is `torch.nn.functional.bilinear` of each pair."),
        Entry("LocalAttention", NOWHERE),
        Entry("AttentionPooling", NOWHERE),
    ],
    "Blocks of a Transformer": [
        Entry(
            "EncoderBlock",
            "`torch.nn.TransformerEncoderLayer(batch_first=True)`: `EncoderBlock.from_torch(layer)` copies its "
            "weights.",
        ),
        Entry(
            "DecoderBlock",
            "`torch.nn.TransformerDecoderLayer(batch_first=True)`: `DecoderBlock.from_torch(layer)` copies its "
            "weights.",
        ),
        Entry(
            "Encoder",
            "`torch.nn.TransformerEncoder`: `Encoder.from_torch(module)` copies its weights, and `to_torch()` "
            "converts back.",
        ),
        Entry(
            "Decoder",
            "`torch.nn.TransformerDecoder`: `Decoder.from_torch(module)` copies its weights, and `to_torch()` "
            "converts back.",
        ),
        Entry(
            "EncoderDecoder",
            "`torch.nn.Transformer(batch_first=True)`: `EncoderDecoder.from_torch(module)` copies its weights.",
        ),
        Entry(
            "FeedForward",
            '`torch.nn.Sequential(Linear, activation, Linear)`, or with `activation="swiglu"` and `bias=False` '
            "transformers' `LlamaMLP`, whose layers have the same names.",
        ),
        Entry("PositionalEncoding", "the class of this name in PyTorch's tutorials, for `batch_first=True`."),
        Entry("LearnedPositions", "`x + torch.nn.Embedding(max_len, embed_dim)(torch.arange(n))`."),
    ],
    "Recurrent networks with attention": [
        Entry("ElmanCell", "`torch.nn.RNNCell` with one bias instead of two, followed by an output layer."),
        Entry("Elman", "`torch.nn.RNN(batch_first=True)` with one bias instead of two, followed by an output layer."),
        Entry("AttentionDecoderCell", "none; the cell is `torch.nn.GRUCell` or `torch.nn.LSTMCell`."),
        Entry(
            "DecoderState",
            "the (h, c) of `torch.nn.LSTMCell`, and the input-feeding vector of Luong's decoder.",
            '>>> step = AttentionDecoderCell(4, 8, cell="lstm")\n'
            ">>> _, state = step(torch.zeros(2, 4), torch.zeros(2, 5, 8))\n"
            ">>> state.hidden_state.shape, state.cell_state.shape\n"
            "(torch.Size([2, 8]), torch.Size([2, 8]))",
        ),
    ],
    "Tools": [
        Entry("load_attention_state_dict", "`load_state_dict` of each, by its own names."),
        Entry(
            "LoadedKeys",
            "the result of `load_state_dict` of a module.",
            ">>> layer = MultiHeadAttention(4, 2)\n"
            ">>> load_attention_state_dict(layer, layer.state_dict())\n"
            "LoadedKeys(missing_keys=[], unexpected_keys=[])",
        ),
        Entry("ValueModule", NOWHERE),
        Entry("unregistered_parameters", NOWHERE),
        Entry("summary", NOWHERE + " The packages torchinfo and torchsummary print such tables."),
        Entry(
            "Summary",
            NOWHERE,
            ">>> from torch import nn\n"
            ">>> table = summary(nn.Linear(4, 8))\n"
            ">>> type(table).__name__, table.parameters, table.trainable\n"
            "('Summary', 40, 40)",
        ),
    ],
}


def page() -> str:
    """Give docs/nn.md as it must be."""
    held = [getattr(module, name) for module in (masks, nn, normalizers, positions, scores) for name in module.__all__]
    numbers = docstrings.arxiv_numbers(inspect.getdoc(one) or "" for one in held)
    parts = [
        "# Modules",
        NOTE,
        "`regard.nn` contains layers to build models with. They are `torch.nn.Module`s with PyTorch's argument names, "
        "take the batch as the first dimension, and compute attention with `regard.attention`.",
        "`mask=` takes a mask of `regard.masks` or a boolean tensor that is True for visible pairs; it is a keyword "
        "argument of every module. `key_padding_mask=` has PyTorch's meaning: True marks padding. With "
        "`need_weights=True` a module also returns the weights.",
        "Approximate layers (Linformer, Performer, Nyströmformer) are in [`regard.approximations`](approximations.md), "
        "and the classes of four well-known tutorials in `regard.nn.tutorials`.",
    ]
    for group, members in GROUPS.items():
        parts += [f"- {group}: " + ", ".join(f"[{entry.name}](#{_anchor(entry.name)})" for entry in members)]
    for group, members in GROUPS.items():
        parts += [f"## {group}", *(part for entry in members for part in _section(entry, numbers))]
    text = "\n\n".join(part for part in parts if part)
    return re.sub(r"(?<=\))\n\n(?=- )", "\n", text) + "\n"


def _anchor(name: str) -> str:
    """What GitHub makes of a heading: summary and Summary differ by a number."""
    return name.lower() + "-1" * (name != name.lower() and name.lower() in nn.__all__)


def _section(entry: Entry, numbers: dict[str, str]) -> Iterator[str]:
    one, doc = getattr(nn, entry.name), _doc(entry)
    yield f"### {entry.name}"
    role = docstrings.role(doc)
    yield role[0].lower() + role[1:] if re.match(r"\w+\(", role) else role
    if formula := docstrings.section(doc, "Formula"):
        yield f"```text\n{formula}\n```"
    yield f"Paper: {papers}" if (papers := docstrings.papers(doc, numbers)) else ""
    calls = [_call(entry.name, one)]
    forward = one.forward if hasattr(one, "forward") else None
    calls += [_call("forward", forward)] if forward else []
    yield "```text\n" + "\n".join(calls) + "\n```"
    if forward:
        shapes = [f"`{name}` `{shape}`" for name, shape in dict(_shapes(forward)).items()]
        gives = docstrings.capital(" ".join(inspect.getdoc(forward).split("\n\n")[0].split()))
        yield "Shapes: " + "; ".join(shapes) + f". {gives}" if shapes else gives
    for words in docstrings.words("", doc).split("\n\n"):
        is_formula = words.startswith(("Formula, ", "order="))
        yield f"```text\n{words.removeprefix('Formula, ')}\n```" if is_formula else words
    yield f"Cost: {cost}" if (cost := docstrings.section(doc, "Cost")) else ""
    yield f"In PyTorch and transformers: {entry.peers}"
    yield f"```pycon\n{_example(entry, doc)}\n```"


def _doc(entry: Entry) -> str:
    return inspect.getdoc(getattr(nn, entry.name)) or ""


def _call(name: str, one: Any) -> str:
    """The call without its types, wrapped."""
    given = [
        p.replace(annotation=inspect.Parameter.empty)
        for p in inspect.signature(one).parameters.values()
        if p.name != "self"
    ]
    call = name + str(inspect.Signature(given))
    return textwrap.fill(call, 110, subsequent_indent=" " * 4, break_long_words=False, break_on_hyphens=False)


def _shapes(forward: Any) -> Iterator[tuple[str, str]]:
    """The tensors that go in, and their dimensions as the annotation names them."""
    for name, parameter in inspect.signature(forward).parameters.items():
        for kind in (parameter.annotation, *get_args(parameter.annotation)):
            if dims := getattr(kind, "dim_str", ""):
                yield name, "(" + ", ".join(_dimension(dim) for dim in dims.split()) + ")"


def _dimension(dim: str) -> str:
    """A dimension in words: `*batch` is any number of them, `#batch` one that broadcasts."""
    return "..." if dim == "*batch" else f"{dim[1:]} or 1" if dim.startswith("#") else dim


def _example(entry: Entry, doc: str) -> str:
    """The docstring's doctest, with all that it imports."""
    lines = (entry.example or doc[doc.index(">>>") :]).splitlines()
    code = "\n".join(line for line in lines if line != ">>> import torch")
    names = [name for name in nn.__all__ if re.search(rf"\b{name}\(", code)]
    imports = ["import torch", f"from regard.nn import {', '.join(names)}"]
    imports += ["from torch import nn"] * ("nn." in code and "import nn" not in code)
    return "\n".join(f">>> {line}" for line in imports) + "\n" + code
