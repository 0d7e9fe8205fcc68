"""Models of transformers of which a part cannot be seen: what can be is, and the rest is listed wherever one looks."""

import io
import json
import re
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn

import regard
from regard.errors import ObservationError
from regard.interpret.observation import Observation
from regard.record.atlas import read_atlas
from regard.record.highlight import choose_focus
from regard.record.tokens import Token
from regard.render.terminal import picture
from regard.web.endpoints import books
from regard.web.record_store import Shelf

t = pytest.importorskip("transformers")

SMALL = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
SMALL |= {"max_position_embeddings": 64}
LED = {"vocab_size": 99, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4}
LED |= {"decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "attention_window": 4}
LED |= {"max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 64}
IDS = torch.randint(3, 99, (2, 16), generator=torch.Generator().manual_seed(0))


def made(kind: str, given: dict[str, Any], **options: Any) -> Any:
    torch.manual_seed(1)
    config = getattr(t, f"{kind}Config")(**given)
    model = getattr(t, f"{kind}Model")._from_config(config, **options)
    with torch.no_grad():
        for one in model.parameters():
            if one.ndim >= 2:
                one.normal_(0, one.shape[-1] ** -0.5)
    return model.eval()


@pytest.fixture(scope="module")
def led() -> Any:
    model = made("LED", LED)
    inputs = {"input_ids": IDS, "decoder_input_ids": IDS[:, :7].flip(1)}
    with torch.no_grad(), regard.watch(model, strict=False) as seen:
        model(**inputs)
    return model, inputs, seen


def test_leds_decoder_is_seen_and_its_encoder_is_missing(led, far) -> None:
    model, inputs, seen = led
    with torch.no_grad():
        output = model(**inputs, output_attentions=True)
    kinds = {"self": output.decoder_attentions, "cross": output.cross_attentions}
    for kind, expected in kinds.items():
        ours = [layer.mean for layer in seen.record if layer.kind == kind]
        assert max(far(one, other) for one, other in zip(ours, expected, strict=True)) == 0
    stem = "encoder.layers.{}.self_attn.longformer_self_attn"
    assert [(one.module, one.calls) for one in seen.missing] == [(stem.format(at), 1) for at in (0, 1)]
    assert all(one.reason.startswith("LEDEncoderSelfAttention rearranges its weights") for one in seen.missing)
    refused = pytest.raises(ObservationError, match="not all attention of this LEDModel could be seen")
    with refused, torch.no_grad(), regard.watch(model):
        model(**inputs)


@pytest.mark.parametrize(
    ("kind", "more", "reason", "options"),
    [
        ("Nystromformer", {"segment_means_seq_len": 16, "num_landmarks": 4}, "landmarks", {}),
        ("DiffLlama", {"num_key_value_heads": 2}, "differential attention", {"attn_implementation": "eager"}),
        ("DiffLlama", {"num_key_value_heads": 2}, "differential attention", {"attn_implementation": "sdpa"}),
    ],
)
def test_softmaxes_over_landmarks_and_differences_are_not_shown(
    kind: str, more: Any, reason: str, options: Any
) -> None:
    model = torch.nn.Sequential(made(kind, SMALL | more, **options))
    model.append(Attends())
    with torch.no_grad(), regard.watch(model, strict=False) as seen:
        model(IDS)
    assert [layer.name for layer in seen.record] == ["1"]
    assert len(seen.missing) == 2
    assert all(reason in one.reason for one in seen.missing)


class Attends(torch.nn.Module):
    def forward(self, x: Any) -> torch.Tensor:
        x = x.last_hidden_state
        return torch.nn.functional.scaled_dot_product_attention(x, x, x)


def test_the_page_the_terminal_the_notebook_and_the_server_list_what_is_missing(led, tmp_path) -> None:
    seen = led[2]
    seen.save(tmp_path / "led.atlas")
    (record,) = read_atlas(tmp_path / "led.atlas")
    assert record.missing == seen.missing
    tokens = tuple(Token(word, word=at) for at, word in enumerate("abcdefghijklmnop"))
    source = (tokens,) * 2
    streams = {"source": source, "target": tuple(one[:7] for one in source)}
    record = type(record)(record.layers, streams, missing=record.missing)
    said = r"longformer_self_attn \(2 calls\): LEDEncoderSelfAttention rearranges"
    console = Console(width=400, color_system=None, record=True, file=io.StringIO())
    console.print(picture(record, choose_focus(record), width=400))
    assert re.search(rf"Not seen: .*{said}", console.export_text())
    Observation((record,)).to_html(tmp_path / "led.html")
    page = (tmp_path / "led.html").read_text(encoding="utf-8")
    meta = json.loads(re.search(r'id="meta">(.*?)</script>', page, re.DOTALL)[1])
    assert re.search(said, meta["missing"][0])
    assert re.search(said, books(Shelf((record,)), None)["records"][0]["missing"][0])


class TwoWays(nn.Module):
    """Attention by the first of three modules or by all, which its arguments do not show."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.used = nn.Embedding(9, 8), 1
        self.first, self.other, self.third = (nn.MultiheadAttention(8, 2, batch_first=True) for _ in range(3))

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.table(input_ids)
        for layer in (self.first, self.other, self.third)[: self.used]:
            x = layer(x, x, x, need_weights=False)[0]
        return x


def test_a_call_that_does_not_fit_what_was_learned_is_missing_and_learned_anew() -> None:
    model, ids = TwoWays().train(), torch.tensor([[1, 2, 3]])
    with regard.watch(model):
        model(ids)
    model.used = 3
    with regard.watch(model, strict=False) as seen:
        model(ids)
    assert [layer.name for layer in seen.record] == ["first"]
    assert [(one.module, "attends otherwise" in one.reason) for one in seen.missing] == [
        ("other", True),
        ("third", True),
    ]
    with regard.watch(model) as again:
        model(ids)
    assert [layer.name for layer in again.record] == ["first", "other", "third"]
