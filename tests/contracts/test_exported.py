"""Programs of torch.export: PyTorch's own operators where these compute the call, for every batch and length."""

import subprocess
import sys

import pytest
import torch
from torch import nn

import regard
from onnx_programs import Calls
from regard import masks, normalizers, positions, scores
from regard.cache import KVCache
from regard.errors import InputError
from regard.nn import MultiHeadAttention

FREE = torch.export.Dim.DYNAMIC


def operators(program):
    return {str(node.target).split(".")[0] for node in program.graph.nodes if node.op == "call_function"}


LAYERS = {
    "softcap, window": {"score": scores.ScaledDot(softcap=3.0), "mask": masks.Causal() & masks.Window(3)},
    "sigmoid, ALiBi": {"normalizer": normalizers.Sigmoid(), "attn_bias": positions.ALiBi(4)},
    "Shaw": {"score": scores.Shaw(nn.Parameter(torch.randn(7, 4)), nn.Parameter(torch.randn(7, 4)))},
    "grouped heads, turned": {"num_kv_heads": 2, "rotary": positions.RoPE(4), "mask": masks.Causal()},
}

_LOADS = """
import sys, torch
program = torch.export.load(sys.argv[1]).module()
for inputs, expected in torch.load(sys.argv[2]):
    for one, right in zip(program(*inputs), expected, strict=True):
        torch.testing.assert_close(one, right, rtol=0, atol=1e-5)
assert "regard" not in sys.modules
"""


@pytest.mark.slow  # 10 s: another process imports PyTorch
@pytest.mark.parametrize("strict", [False, True], ids=["traced", "by the compiler"])
def test_a_program_is_loaded_without_regard_for_every_batch_and_length(tmp_path, strict):
    torch.manual_seed(0)

    def call(*given):
        *layers, x, hidden = given
        return tuple(layer(x, key_padding_mask=hidden) for layer in layers)

    def draw(batch, length):
        return torch.randn(batch, length, 16), torch.arange(length) >= torch.randint(0, length + 1, (batch, 1))

    module = Calls(call, *(MultiHeadAttention(16, 4, **options) for options in LAYERS.values())).eval()
    shapes = ({0: FREE, 1: FREE},) * 2
    program = torch.export.export(module, draw(2, 9), dynamic_shapes=(shapes,), strict=strict)
    paths = [str(tmp_path / name) for name in ("program.pt2", "given.pt")]
    torch.export.save(program, paths[0])
    given = [draw(*size) for size in ((3, 12), (1, 1), (4, 1), (1, 7), (2, 300))]
    with torch.no_grad(), regard.use_backend("reference"):
        torch.save([(inputs, module(*inputs)) for inputs in given], paths[1])
    subprocess.run([sys.executable, "-c", _LOADS, *paths], check=True)


@pytest.mark.slow  # 2 s each
@pytest.mark.parametrize(
    ("mask", "max_bytes"),
    [(masks.RandomBlocks(2, block=4) | masks.Sinks(1), 2**31), (masks.Causal() & masks.Window(16), 2**16)],
    ids=["blocks that no graph draws", "more than the limit"],
)
def test_what_pytorch_has_no_operator_for_takes_that_of_strips(mask, max_bytes):
    x, y = torch.randn(2, 1, 2, 400, 8)
    module = Calls(lambda x: regard.attention(x, x, x, mask=mask, max_bytes=max_bytes))
    program = torch.export.export(module, (x,))
    assert "regard" in operators(program)
    expected = regard.attention(y, y, y, mask=mask, backend="reference")
    torch.testing.assert_close(program.module()(y), expected, rtol=0, atol=1e-5)


@pytest.mark.slow  # 2 s each
def test_a_limit_is_kept_for_lengths_that_are_known_and_no_guard_for_those_that_are_free():
    module = Calls(lambda x: regard.attention(x, x, x, mask=masks.Causal() & masks.Window(4), max_bytes=2**16))
    x = torch.randn(1, 2, 9, 8)
    program = torch.export.export(module, (x,), dynamic_shapes=(({2: FREE},),))
    assert "regard" not in operators(program)
    longer = torch.randn(1, 2, 400, 8)
    expected = regard.attention(longer, longer, longer, mask=masks.Causal() & masks.Window(4), backend="reference")
    torch.testing.assert_close(program.module()(longer), expected, rtol=0, atol=1e-5)
    least = torch.export.Dim("n", min=300, max=4096)  # of which the shortest is beyond the limit
    long = torch.export.export(module, (longer,), dynamic_shapes=(({2: least},),))
    assert "regard" in operators(long)


@pytest.mark.slow  # 2 s
@pytest.mark.parametrize("grad", [True, False])
def test_a_cache_goes_on_with_any_number_of_keys(grad):
    """More than the room that a cache of so few keys as in the example has to spare."""

    def step(model, x, keys, values):
        cache = KVCache()
        cache.update(keys, values)
        return model(x, cache=cache), *cache.held

    def draw(batch, queries, keys):
        return torch.randn(batch, queries, 16), *torch.randn(2, batch, 4, keys, 4)

    module = Calls(step, MultiHeadAttention(16, 4, mask=masks.Causal(), rotary=positions.RoPE(4))).eval()
    past = {0: FREE, 2: FREE}
    with torch.set_grad_enabled(grad):
        program = torch.export.export(
            module, draw(2, 3, 9), dynamic_shapes=(({0: FREE, 1: FREE}, past, past),)
        ).module()
        for size in ((3, 2, 80), (1, 1, 1), (2, 90, 5)):
            inputs = draw(*size)
            for one, expected in zip(program(*inputs), module(*inputs), strict=True):
                torch.testing.assert_close(one, expected, rtol=0, atol=1e-5)


def test_a_mask_of_lengths_that_must_be_read_is_refused_by_name():
    module = Calls(lambda x, n: regard.attention(x, x, x, mask=masks.Document.from_lengths(n)))
    with pytest.raises(InputError, match=r"masks\.Document\(ids\)"):
        torch.export.export(module, (torch.randn(1, 2, 9, 8), torch.tensor([4, 5])))
