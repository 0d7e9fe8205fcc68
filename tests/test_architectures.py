"""Tiny models of forty architectures are seen in full and equal eager; `make architectures` runs all."""

import importlib
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch

from documents import ROOT

pytest.importorskip("transformers", reason="transformers is not installed (the extra `models`)")

SEEN = """
    afmoe albert aimv2 align_text_model altclip apertus arcee bart beit bert biogpt bitnet blip_text_model bloom
    bridgetower camembert canine chinese_clip clip codegen cohere2 convbert csm data2vec-vision deberta-v2 deepseek_v2
    deit detr distilbert dots1 dots3_note_text embedding_gemma2_text gemma2 gpt2 gpt_oss llama mixtral
    qwen2_vl t5 vit wav2vec2 whisper
""".split()


@pytest.fixture(scope="module")
def architectures() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        yield importlib.import_module("architectures")


@pytest.mark.slow
@pytest.mark.parametrize("name", SEEN)
def test_an_architecture_is_seen_in_full(architectures: ModuleType, name: str) -> None:
    found = architectures.examine(name, lambda _: None)
    assert found["state"] == "seen", found
    assert found["layers"] > 0
    assert found["largest difference"] <= 2e-5


@pytest.mark.slow
def test_a_model_without_attention_and_one_that_is_refused(architectures: ModuleType) -> None:
    assert architectures.examine("mamba", lambda _: None)["state"] == "without attention"
    found = architectures.examine("diffllama", lambda _: None)
    assert found["state"] == "refused"
    assert "DiffLlamaAttention" in found["reason"]


def test_weights_that_differ_are_none_of_the_references(architectures: ModuleType) -> None:
    torch.manual_seed(0)
    one, other = (torch.randn(1, 2, 3, 3).softmax(-1) for _ in range(2))
    assert architectures.matched([one, other], [other, one])["unmatched"] == 0
    assert architectures.matched([one + 1e-4], [one])["unmatched"] == 1
    assert architectures.matched([one], [one, other])["unseen"] == 1
    flat, with_sink = one.flatten(0, 1), torch.cat([one, torch.rand(1, 2, 3, 1)], -1)
    assert architectures.matched([one, one], [flat, with_sink])["unmatched"] == 0


def test_a_trace_finds_softmax_that_reaches_a_product_and_the_q_and_k_of_fused_calls(architectures: ModuleType) -> None:
    from dispatch_trace import Trace

    x = torch.randn(1, 2, 5, 8)
    weights = (x @ x.mT / 8**0.5).softmax(-1)
    trace = Trace()
    with trace, torch.no_grad():
        _ = (x @ x.mT / 8**0.5).softmax(-1).clone() @ x  # attention
        _ = x.softmax(-1).sum()  # a router, say
        _ = torch.nn.functional.scaled_dot_product_attention(x, x, x)
    assert len(trace.weights()) == 2
    assert all(torch.allclose(one, weights, atol=1e-6) for one in trace.weights())
