"""Small claims, checked to the last digit."""

import math
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from regard.errors import MissingExtraError
from regard.nn import MultiHeadAttention
from regard_lab.charts import Bars, LabeledMatrix, Matrices
from regard_lab.experiment import Claim, Finding, Numbers, Part, Setting, Verdict, within

__all__ = ["CLAIM", "judge", "run"]

CLAIM = Claim(
    number=15,
    name="small-claims",
    title="Small claims, to the digit",
    statement="softmax [100, 1, 1] is [1, 0, 0]; the dot product of unit vectors is the cosine; softmax [.1, .6, .2, "
    ".1] is not [.1, .6, .2, .1] but [.210, .347, .233, .210]; 我愛你 and 你愛我 give permuted outputs, not equal "
    "ones; heads cost no more FLOPs than one head of full width; GPT-Neo's positions are learned and absolute, T5's "
    "relative.",
    source="Tutorial pages; on heads: Vaswani et al. 2017, 3.2.2, arXiv:1706.03762; on T5: Raffel et al. 2020, "
    "arXiv:1910.10683",
)
SAID = (0.210, 0.347, 0.233, 0.210)
ROUNDING = 0.0005
EXACT = 1e-12  # relative error, float64
HEADS = (1, 2, 4, 8, 16)
TOKENS, WIDTH = 128, 64
ABSOLUTE, RELATIVE, ROTARY = "learned, absolute", "learned, relative", "rotary"


def judge(numbers: Numbers) -> tuple[Part, ...]:
    """Return one part for each claim."""
    return (_spike(numbers), _cosine(numbers), *_shares(numbers), *_swapped(numbers), _flops(numbers), *_kinds(numbers))


def _spike(numbers: Numbers) -> Part:
    rest = numbers["softmax [100, 1, 1]"][1]
    text = f"softmax [100, 1, 1] is [1, 0, 0]: the others get {rest:.1e}, 0 to {math.floor(-math.log10(rest))} digits"
    return Part(text, within(rest < 1e-9))


def _cosine(numbers: Numbers) -> Part:
    apart = numbers["unit vectors: |dot − cosine|"]
    return Part(f"for unit vectors the dot product is the cosine: {apart:.0e} apart", within(apart <= EXACT))


def _shares(numbers: Numbers) -> tuple[Part, ...]:
    found = numbers["softmax [.1, .6, .2, .1]"]
    right = [abs(one - said) <= ROUNDING for one, said in zip(found, SAID, strict=True)]
    verdict = within(all(right)) if all(right) or not any(right) else Verdict.WITHIN
    shown = ", ".join(f"{one:.3f}" for one in found)
    text = f"it is [.210, .347, .233, .210]: {sum(right)} of 4 digits right, exactly [{shown}]"
    far = max(abs(one - said) for one, said in zip(found, (0.1, 0.6, 0.2, 0.1), strict=True))
    return (
        Part(f"softmax [.1, .6, .2, .1] is not [.1, .6, .2, .1]: {far:.2f} apart", within(far > ROUNDING)),
        Part(text, verdict),
    )


def _swapped(numbers: Numbers) -> tuple[Part, ...]:
    permuted, equal = numbers["我愛你, 你愛我: apart when permuted"], numbers["我愛你, 你愛我: apart in place"]
    return (
        Part(f"我愛你 and 你愛我 give permuted outputs: {permuted:.0e} apart", within(permuted <= EXACT)),
        Part(f"and not equal ones: {equal:.2f} apart", within(equal > 0.01)),
    )


def _flops(numbers: Numbers) -> Part:
    counted = numbers["FLOPs by heads"]
    most = max(counted.values()) / counted["1"]
    return Part(f"heads cost no more FLOPs than one: at most {most:.3f} times as many", within(most <= 1.0))


def _kinds(numbers: Numbers) -> tuple[Part, ...]:
    found = numbers["positions"]
    return (
        Part(f"GPT-Neo: learned, absolute positions; found {found['GPT-Neo']}", within(found["GPT-Neo"] == ABSOLUTE)),
        Part(f"T5: relative positions; found {found['T5']}", within(found["T5"] == RELATIVE)),
    )


def run(setting: Setting) -> Finding:
    """Compute each claim in float64, count FLOPs, and inspect small models of transformers."""
    generator = torch.Generator().manual_seed(setting.seed)
    a, b = torch.nn.functional.normalize(torch.randn(2, 100, WIDTH, generator=generator, dtype=torch.float64), dim=-1)
    dots, cosines = (a * b).sum(-1), torch.nn.functional.cosine_similarity(a, b, dim=-1)
    permuted, in_place = _love(generator)
    flops = {str(heads): _count(heads) for heads in HEADS}
    setting.progress("positions of models")
    numbers: dict[str, Any] = {
        "softmax [100, 1, 1]": _softmax([100.0, 1.0, 1.0]),
        "unit vectors: |dot − cosine|": float((dots - cosines).abs().max()),
        "softmax [.1, .6, .2, .1]": _softmax([0.1, 0.6, 0.2, 0.1]),
        "我愛你, 你愛我: apart when permuted": permuted,
        "我愛你, 你愛我: apart in place": in_place,
        "FLOPs by heads": flops,
        "FLOPs by heads, by hand": 4 * 2 * TOKENS * WIDTH**2 + 2 * 2 * TOKENS**2 * WIDTH,
        "positions": _positions(),
    }
    parts = judge(numbers)
    held = sum(part.verdict == Verdict.HOLDS for part in parts)
    third = numbers["softmax [.1, .6, .2, .1]"][2]
    text = (
        f"{held} of {len(parts)} hold. The third weight of softmax [.1, .6, .2, .1] is {third:.5f}, which is "
        ".232 and not "
        ".233: that digit was chosen so that the four add up to 1."
    )
    return Finding(
        parts, numbers, f"{held} of {len(parts)} hold", text,
        "FLOPs are those of matrix products, as counters count them; exponentials grow with the heads, n² of "
        "each. What "
        "models hold is read from small ones of the same classes, not from their checkpoints.",
        (_shares_chart(numbers), _flops_chart(flops)),
    )  # fmt: skip


def _softmax(numbers: list[float]) -> list[float]:
    powers = np.exp(np.array(numbers) - max(numbers))
    shares: list[float] = (powers / powers.sum()).tolist()
    return shares


def _love(generator: torch.Generator) -> tuple[float, float]:
    """Return the relative difference between the outputs for 我愛你 and 你愛我: permuted, and in place."""
    words = torch.randn(3, WIDTH, generator=generator, dtype=torch.float64)  # 我 愛 你
    layer = MultiHeadAttention(WIDTH, 4).double()
    with torch.no_grad():
        one, other = layer(words), layer(words.flip(0))
    return float((one - other.flip(0)).norm() / one.norm()), float((one - other).norm() / one.norm())


def _count(heads: int) -> int:
    layer, x = MultiHeadAttention(WIDTH, heads), torch.zeros(1, TOKENS, WIDTH)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        layer(x, backend="reference")
    return int(counter.get_total_flops())


def _positions() -> dict[str, str]:
    """Return the kind of position encoding of small models of each class, derived from their parameters and buffers."""
    try:
        import transformers as t
    except ImportError as error:
        raise MissingExtraError("transformers", "models") from error
    tokens = {"vocab_size": 9, "bos_token_id": 0, "eos_token_id": 0}
    usual = {**tokens, "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 16}
    neo = {"hidden_size": 8, "num_heads": 2, "num_layers": 1, "attention_types": [[["global"], 1]]}
    made: dict[str, tuple[Any, Any]] = {
        "GPT-Neo": (t.GPTNeoModel, t.GPTNeoConfig(**tokens, **neo)),
        "GPT-2": (t.GPT2Model, t.GPT2Config(**tokens, n_embd=8, n_head=2, n_layer=1)),
        "BERT": (t.BertModel, t.BertConfig(**usual)),
        "T5": (t.T5EncoderModel, t.T5Config(**tokens, d_model=8, d_kv=4, d_ff=16, num_layers=1, num_heads=2)),
        "Llama": (t.LlamaModel, t.LlamaConfig(**usual)),
    }
    return {name: _kind(model(config)) for name, (model, config) in made.items()}


def _kind(model: torch.nn.Module) -> str:
    """Return the kind: learned absolute (one row per position), relative (a table of distances) or rotary (only
    frequencies).
    """
    tables = {name: tuple(one.shape) for name, one in model.named_parameters()}
    frequencies = any("inv_freq" in name for name, _ in model.named_buffers())
    if any("relative_attention_bias" in name for name in tables):
        return RELATIVE
    if any(name.endswith(("wpe.weight", "position_embeddings.weight")) for name in tables):
        return ABSOLUTE
    return ROTARY if frequencies else "none found"


def _shares_chart(numbers: Numbers) -> Matrices:
    columns = ("x₁", "x₂", "x₃", "x₄")
    rows = {"given": (0.1, 0.6, 0.2, 0.1), "said": SAID, "softmax": tuple(numbers["softmax [.1, .6, .2, .1]"])}
    matrix = LabeledMatrix("", tuple(rows), columns, tuple(rows.values()), digits=4, most=1.0, marked=((1, 2),))
    return Matrices(
        "softmax [.1, .6, .2, .1]",
        "The four numbers, what is said of their softmax, and their softmax. The framed one "
        "is wrong in its last digit.", (matrix,),
    )  # fmt: skip


def _flops_chart(flops: dict[str, int]) -> Bars:
    return Bars(
        "FLOPs of multi-head attention, 128 tokens of width 64", "Counted for one layer, by the number of heads.",
        "million FLOPs", tuple(f"{heads} heads" if heads != "1" else "1 head" for heads in flops), ("counted",),
        (tuple(one / 1e6 for one in flops.values()),),
    )  # fmt: skip
