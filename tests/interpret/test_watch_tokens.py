"""Which words a record carries: those of its own pass, one for each position, or none."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import regard

transformers = pytest.importorskip("transformers", reason="transformers is not installed (the extra `models`)")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["<unk>", *"the animal was tired a cold house it".split()]
    backend = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", pad_token="<unk>")


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, vocab_size=9)).eval()


class Plain(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(x, x, x)


def texts(record: regard.Record) -> list[str]:
    return [token.text for token in record.stream("text")]


@pytest.mark.parametrize(
    ("first", "second"), [("the animal was tired", "a cold house"), ("a cold house", "the animal was tired")]
)
def test_each_pass_has_its_own_words(model: Any, tokenizer: Any, first: str, second: str) -> None:
    with regard.watch(model, tokenizer=tokenizer) as seen, torch.no_grad():
        for text in (first, second):
            model(input_ids=tokenizer(text, return_tensors="pt")["input_ids"], use_cache=False)
    assert [texts(record) for record in seen.records] == [first.split(), second.split()]


def test_the_steps_of_a_generation_are_one_text(model: Any, tokenizer: Any) -> None:
    ids = tokenizer("the animal was", return_tensors="pt")["input_ids"]
    with regard.watch(model, tokenizer=tokenizer) as seen:
        out = model.generate(ids, max_new_tokens=4, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert texts(seen.record) == tokenizer.convert_ids_to_tokens(out[0, :-1].tolist())


def test_tokens_that_do_not_fit_are_refused() -> None:
    x = torch.randn(1, 6, 8)
    with pytest.raises(regard.InputError, match=r"6 \(text\) of them in a batch of 1, got 2"):  # noqa: SIM117, PT012
        with regard.watch(Plain(), tokens=["a", "b"]):
            Plain()(x)
            functional.scaled_dot_product_attention(x, x, x)
    with pytest.raises(regard.InputError, match="list of texts"), regard.watch(Plain(), tokens="abcdef"):  # type: ignore[arg-type]
        pass


def test_what_was_seen_is_drawn_and_written(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with regard.watch(model, tokenizer=tokenizer) as seen, torch.no_grad():
        model(input_ids=tokenizer("the animal was tired it house", return_tensors="pt")["input_ids"])
    seen.to_html(tmp_path / "page.html", token="it")
    assert "animal" in (tmp_path / "page.html").read_text(encoding="utf-8")
    axes = seen.plot(layer=1, head=2).axes
    assert any("animal" in label.get_text() for axis in axes for label in axis.get_yticklabels())


def test_a_call_from_another_thread_is_not_heard(model: Any, tokenizer: Any) -> None:
    one, other = (tokenizer(text, return_tensors="pt")["input_ids"] for text in ("the animal was", "it house tired"))
    with regard.watch(model, tokenizer=tokenizer) as seen, torch.no_grad(), ThreadPoolExecutor(1) as pool:
        model(input_ids=one, use_cache=False)
        pool.submit(model, input_ids=other.expand(2, -1), use_cache=False).result()
    assert texts(seen.record) == ["the", "animal", "was"]
    assert seen.calls_elsewhere == 1


def test_listening_leaves_a_fast_path_on(tokenizer: Any) -> None:
    """A hook on the layer would switch it off, and a mask of numbers hides on that path alone."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x, mask = torch.randn(2, 5, 8), torch.full((5, 5), -0.5).triu(1)
    with torch.no_grad():
        plain = layer(x, src_mask=mask)
        with regard.watch(layer, tokenizer=tokenizer):
            assert torch.equal(layer(x, src_mask=mask), plain)


def test_translations_one_after_the_other_have_their_own_words(tokenizer: Any) -> None:
    """`generate` calls the encoder alone, which begins the second record before the model is called again."""
    torch.manual_seed(0)
    sizes = {"d_model": 32, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 32}
    counts = {f"{side}_{what}": 2 for side in ("encoder", "decoder") for what in ("layers", "attention_heads")}
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    config = transformers.BartConfig(vocab_size=9, **sizes, **counts, **special, forced_eos_token_id=None)
    model = transformers.BartForConditionalGeneration(config).eval()
    sources = [tokenizer(text, return_tensors="pt")["input_ids"] for text in ("the animal was", "a cold house was it")]
    with torch.no_grad(), regard.watch(model, tokenizer=tokenizer) as seen:
        outs = [model.generate(one, max_new_tokens=4, do_sample=True, eos_token_id=None) for one in sources]
    for record, out in zip(seen.records, outs, strict=True):
        found = [token.text for token in record.stream("target")]
        assert found == tokenizer.convert_ids_to_tokens(out[0, :-1].tolist())
