"""Sinks: a streaming window on a real language model, with and without the first four tokens."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from regard.errors import InputError
from regard.hub import Loaded
from regard.interpret.model_loading import load_model
from regard.masks import Causal, Mask, Sinks, Window
from regard_lab.charts import Bars, Line, Lines
from regard_lab.experiment import Claim, Finding, Numbers, Part, Setting, within
from regard_lab.texts import chapters

__all__ = ["CLAIM", "judge", "run", "text"]

CLAIM = Claim(
    number=10,
    name="sinks",
    title="Attention sinks",
    statement="With a window that keeps the first four tokens the perplexity of a language model stays within 10 % of "
    "that of full attention; with a window of the same size that does not, it is more than 10 times as high.",
    source="Xiao et al. 2024, arXiv:2309.17453; Gu et al. 2024, arXiv:2410.10781",
)
KEPT = 4
NEAR, FAR = 1.10, 10.0  # perplexity relative to full attention
TOKENS = {True: 1280, False: 4096}
WINDOWS = {True: (32, 512), False: (32, 128, 256, 512, 1024)}
BIN = 64  # tokens averaged per point of the figure
TOPICS = ("objects", "execmodel", "compound", "import", "customization", "debugger", "formatstrings")


def judge(numbers: Numbers) -> tuple[Part, ...]:
    """Return the parts: each window's perplexity after its end, relative to full attention."""
    parts = []
    for window, found in numbers["perplexity"].items():
        kept, dropped = found["with sinks"] / found["full"], found["without"] / found["full"]
        parts += [
            Part(f"window {window}, {KEPT} of them the first tokens: × {kept:.2f}", within(kept <= NEAR)),
            Part(f"window {window} without them: × {dropped:,.1f}", within(dropped >= FAR)),
        ]
    return tuple(parts)


def run(setting: Setting) -> Finding:
    """Compute the loss on prose with full attention and with each mask; queries see equally many keys in both
    windows.
    """
    loaded = load_model("smollm2")
    ids = _ids(loaded, TOKENS[setting.quick])
    setting.progress("full attention")
    losses: dict[str, dict[str, Float[Tensor, " n"]]] = {}
    full = _losses(loaded, ids, Causal())
    for window in WINDOWS[setting.quick]:
        ways: dict[str, Mask] = {
            "with sinks": Causal() & (Window(window - KEPT) | Sinks(KEPT)),
            "without": Causal() & Window(window),
        }
        losses[str(window)] = {"full": full}
        for name, mask in ways.items():
            setting.progress(f"window of {window}, {name}")
            losses[str(window)][name] = _losses(loaded, ids, mask)
    numbers: dict[str, Any] = {
        "model": loaded.name,
        "tokens": ids.shape[1],
        "first tokens": loaded.tokenizer.decode(ids[0, :KEPT]),
        "perplexity": {
            window: {name: _perplexity(one[int(window) :]) for name, one in of_window.items()}
            for window, of_window in losses.items()
        },
        "perplexity within the window": {
            window: {name: _perplexity(one[: int(window) - KEPT]) for name, one in of_window.items()}
            for window, of_window in losses.items()
        },
    }
    parts = judge(numbers)
    widest = str(WINDOWS[setting.quick][-1])
    found = numbers["perplexity"][widest]
    kept, dropped = found["with sinks"] / found["full"], found["without"] / found["full"]
    said = (
        f"Behind the first {widest} tokens the perplexity is {found['full']:.1f} with full attention, "
        f"{found['with sinks']:.1f} with a window that keeps the first {KEPT}, and {found['without']:,.0f} "
        "without them."
    )
    return Finding(
        parts, numbers, f"window {widest}: × {kept:.2f}, without × {dropped:,.1f}", said,
        f"One model of 135 million weights, {ids.shape[1]:,} tokens of one text (Python's own language "
        "reference, which "
        "may have been in its training data), positions as in the text: StreamingLLM counts them anew within "
        "its cache.",
        tuple(_charts(losses, numbers["perplexity"])),
    )  # fmt: skip


def text() -> str:
    """Return prose that is installed with Python: some chapters of its language reference."""
    known = chapters()
    found = [known[name] for name in TOPICS if name in known]
    lines = (" ".join(line.split()) for line in "\n".join(found).splitlines())
    return "\n".join(line for line in lines if line.strip("*=-~"))  # neither empty nor the underline of a heading


def _ids(loaded: Loaded, count: int) -> Tensor:
    ids = loaded.tokenizer(text(), verbose=False)["input_ids"][:count]
    if len(ids) < count:
        raise InputError(f"the text must have {count:,} tokens, this Python's reference gives {len(ids):,}")
    return torch.tensor([ids])


def _losses(loaded: Loaded, ids: Tensor, mask: Mask) -> Float[Tensor, " n"]:
    """Return −ln p of each token but the first, in nats, with the mask applied."""
    n = ids.shape[1]
    visible = mask.bind(n, n).dense()
    model: Any = loaded.model
    with torch.inference_mode():
        states = model.model(input_ids=ids, attention_mask=visible, use_cache=False).last_hidden_state[0]
        parts = [
            functional.cross_entropy(model.lm_head(states[at : at + 256][: n - 1 - at]).float(), rest, reduction="none")
            for at, rest in ((start, ids[0, start + 1 : start + 257]) for start in range(0, n - 1, 256))
        ]
    return torch.cat(parts)


def _perplexity(losses: Float[Tensor, " n"]) -> float:
    return float(losses.double().mean().exp())


def _charts(losses: Mapping[str, Mapping[str, Tensor]], perplexity: Mapping[str, Mapping[str, float]]) -> list[Any]:
    window, of_window = list(losses.items())[-1]
    lines = []
    for name, one in of_window.items():
        bins = one[: len(one) // BIN * BIN].view(-1, BIN).double().mean(1).numpy()
        x = tuple(float(BIN * at + BIN / 2) for at in range(len(bins)))
        lines.append(Line(name if name != "full" else "full attention", x, tuple(np.exp(bins).tolist())))
    names = tuple(name for name in next(iter(perplexity.values())))
    values = tuple(tuple(found[name] for found in perplexity.values()) for name in names)
    return [
        Lines(
            f"Perplexity along the text, window of {window}", f"Means over {BIN} tokens. Behind token {window} the "
            "window leaves the first tokens behind.", "token", "perplexity", tuple(lines),
            log_up=True,
        ),
        Bars(
            "Perplexity behind the window", "Of the tokens behind the first window, with full attention and with "
            "each mask.", "perplexity", tuple(f"window {one}" for one in perplexity), names, values,
        ),
    ]  # fmt: skip
