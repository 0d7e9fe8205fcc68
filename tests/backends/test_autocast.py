"""Under autocast every backend gives the type that PyTorch's kernel gives, and all but that one compute in float32."""

import itertools

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import regard
from oracles import causal, dense, f64, window
from regard import masks, nn
from regard.backends import call_cache
from regard.errors import InputError
from regard.models import RecurrentConfig, RecurrentSeq2Seq
from sweeps import sweep

N = 300
MASKS = {
    "none": (None, np.ones((N, N), bool)),
    "causal": (masks.Causal(), causal(N, N)),
    "window": (masks.Causal() & masks.Window(9), causal(N, N) & window(N, N, 8, 0)),
    "tensor": (torch.from_numpy(causal(N, N)), causal(N, N)),
}
BACKENDS = ["auto", "sdpa", "strips", "reference", "native"]


def drawn():
    return torch.randn(3, 1, 2, N, 16, generator=torch.Generator().manual_seed(0)).unbind()


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_output_has_the_type_of_pytorchs_kernel(backend):
    for case in sweep(MASKS):
        with case as mask:
            q, k, v = drawn()
            rule, seen = MASKS[mask]
            with torch.autocast("cpu", torch.bfloat16):
                expected = scaled_dot_product_attention(q, k, v).dtype
                for _ in range(2):  # the second time a usual call is known
                    found = regard.attention(q, k, v, mask=rule, backend=backend)
                    assert found.dtype == expected == torch.bfloat16
            np.testing.assert_allclose(f64(found), dense(q, k, v, visible=seen).output, atol=0.03)


def test_so_it_has_with_dropout():
    for case in sweep(itertools.product(["auto", "strips", "reference"], MASKS)):
        with case as (backend, mask):
            q, k, v = drawn()
            with torch.autocast("cpu", torch.bfloat16):
                assert (
                    regard.attention(q, k, v, mask=MASKS[mask][0], dropout=0.1, backend=backend).dtype == torch.bfloat16
                )


@pytest.mark.parametrize("backend", ["strips", "reference", "native"])
def test_what_computes_in_float32_rounds_once_at_the_end(backend):
    q, k, v = drawn()
    plain = regard.attention(q, k, v, backend=backend)
    with torch.autocast("cpu", torch.bfloat16):
        found = regard.attention(q, k, v, backend=backend)
    assert torch.equal(found, plain.bfloat16())


def test_the_formula_is_as_exact_as_rounding_its_output():
    q, k, v = drawn()
    with torch.autocast("cpu", torch.bfloat16):
        found, weights = regard.attention(q, k, v, return_weights=True)
    right = dense(q, k, v)
    assert np.abs(f64(weights) - right.weights).max() < 1e-6
    assert (np.abs(f64(found) - right.output) <= 2.0**-8 * np.abs(right.output) + 1e-6).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_another_type_of_autocast_is_followed_by_calls_that_are_known(backend):
    q, k, v = drawn()
    call_cache._KEPT.clear()
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype):
            assert regard.attention(q, k, v, backend=backend).dtype == dtype
    assert regard.attention(q, k, v, backend=backend).dtype == torch.float32


@pytest.mark.parametrize("backend", ["auto", "sdpa", "strips", "reference"])
def test_float64_stays(backend):
    q, k, v = (x.double() for x in drawn())
    with torch.autocast("cpu", torch.bfloat16):
        assert regard.attention(q, k, v, backend=backend).dtype == torch.float64


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_come_in_the_type_of_the_inputs(backend):
    q, k, v = (x.requires_grad_() for x in drawn())
    with torch.autocast("cpu", torch.bfloat16):
        output = regard.attention(q, k, v, backend=backend)
    output.sum().backward()
    right = dense(q, k, v, cotangent=torch.ones(1, 2, N, 16))
    for x, want in zip((q, k, v), (right.q, right.k, right.v), strict=True):
        assert x.grad.dtype == torch.float32
        np.testing.assert_allclose(f64(x.grad), want, atol=0.03)


@pytest.mark.parametrize("backend", BACKENDS)
def test_products_that_autocast_narrowed_may_stand_beside_others(backend):
    """As in PyTorch's kernel: a projection gives bfloat16, a state that was not projected is float32."""
    for case in sweep([(0, 1, 1), (1, 0, 0), (1, 1, 0), (2, 1, 0)]):
        with case as kinds:
            dtypes = [(torch.float32, torch.bfloat16, torch.float16)[kind] for kind in kinds]
            q, k, v = (one.to(dtype).requires_grad_() for one, dtype in zip(drawn(), dtypes, strict=True))
            call_cache._KEPT.clear()
            with torch.autocast("cpu", torch.bfloat16):
                assert scaled_dot_product_attention(q, k, v).dtype == torch.bfloat16
                for _ in range(2):
                    found = regard.attention(q, k, v, mask=masks.Causal(), backend=backend)
                    assert found.dtype == torch.bfloat16
            np.testing.assert_allclose(f64(found), dense(q, k, v, visible=causal(N, N)).output, atol=0.03)
            found.float().sum().backward()
            assert [one.grad.dtype for one in (q, k, v)] == dtypes
            with pytest.raises(InputError, match="one dtype"):
                regard.attention(q, k, v, backend=backend)  # without autocast it would be a mistake


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.float8_e4m3fn])
def test_other_types_beside_those_of_autocast_are_refused(dtype):
    q, k, v = drawn()
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(InputError, match="one dtype"):
        regard.attention(q, k.to(dtype), v)


@pytest.mark.parametrize("keep", ["maps", "qk"])
def test_a_watch_reads_calls_of_several_types(keep):
    attend, memory = nn.AdditiveAttention(16, 16), torch.randn(2, 7, 16)
    with torch.autocast("cpu", torch.bfloat16), regard.watch(attend, keep=keep) as seen:
        query = torch.nn.functional.linear(torch.randn(2, 3, 16), torch.eye(16))
        attend(query, memory)
    assert query.dtype == torch.bfloat16
    w, u, v = (f64(one) for one in (attend.query_proj.weight, attend.key_proj.weight, attend.vector))
    scores = np.tanh((f64(query) @ w.T)[:, :, None] + (f64(memory) @ u.T)[:, None]) @ v
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    np.testing.assert_allclose(seen.weights(layer=0)[:, 0], weights, atol=1e-6)


@pytest.mark.parametrize("kind", ["bahdanau", "general", "concat", "local-p"])
def test_a_recurrent_model_takes_a_step(kind):
    """Its states stay in float32 where its projections are narrower; the output is near that without autocast."""
    torch.manual_seed(0)
    config = RecurrentConfig(src_vocab_size=20, tgt_vocab_size=15, embedding_dim=8, hidden_size=16, attention=kind)
    model = RecurrentSeq2Seq(config)
    ids, written = torch.randint(4, 20, (2, 7)), torch.randint(4, 15, (2, 5))
    plain = model(ids, decoder_input_ids=written).logits
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(ids, decoder_input_ids=written).logits
    np.testing.assert_allclose(f64(logits), f64(plain), atol=0.03)
    logits.float().sum().backward()
    assert all(one.grad is None or bool(one.grad.isfinite().all()) for one in model.parameters())
    assert sum(one.grad is not None for one in model.parameters()) > 5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("keep", ["weights", "qk"])
def test_a_watch_reads_pytorchs_kernel_with_what_autocast_made_of_its_arguments(keep, dtype):
    class Model(torch.nn.Module):
        def forward(self, q, k, v, mask):
            return scaled_dot_product_attention(q, k, v, attn_mask=mask)

    q, k, v = drawn()
    model, mask = Model(), torch.linspace(-3, 3, N)[None, None, None]
    with torch.autocast("cpu", dtype), regard.watch(model, keep=keep) as seen:
        model(q * 3, k, v, mask)
    given = [f64(one.to(dtype)) for one in (q * 3, k, v)]
    right = dense(*map(torch.from_numpy, given), bias=f64(mask.to(dtype)))
    np.testing.assert_allclose(seen.weights(layer=0), right.weights, atol=1e-6)
