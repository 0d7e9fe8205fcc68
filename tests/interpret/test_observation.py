"""What `watch` gives, as people hold it: its methods, its numbers counted from either end, its forms in a notebook."""

import html
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import regard
from regard.errors import InputError, ObservationError
from regard.interpret.observation import Observation
from regard.nn.summary import summary
from regard.record.highlight import choose_focus
from regard.record.records import Record
from regard.render.notebook import card, forwards_html

HEBREW = ["שלום", "<b>", "עולם", "and", "سلام", "Ada"]


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()


@pytest.fixture(scope="module")
def seen(model: nn.Module) -> Observation:
    return watched(model)


def watched(model: nn.Module, times: int = 1, **asked: Any) -> Observation:
    torch.manual_seed(1)
    with torch.no_grad(), regard.watch(model, tokens=HEBREW, **asked) as seen:
        for _ in range(times):
            model(torch.randn(1, 6, 8))
    return seen


def test_everything_that_a_record_answers_is_a_method_of_its_own(seen: Observation) -> None:
    public = {name for name in dir(Record) if not name.startswith("_")} | set(Record.__dataclass_fields__)
    assert public <= set(dir(seen))
    assert not hasattr(Observation, "__getattr__")  # so that a type checker knows every name


@pytest.mark.parametrize("keep", ["maps", "qk"])
def test_without_a_head_they_are_of_all_heads(model: nn.Module, keep: str) -> None:
    seen = watched(model, keep=keep)
    for name in ("weights", "heatmap", "entropy", "received"):
        every = getattr(seen, name)(layer=1)
        assert every.shape[:2] == (1, 2)
        for head in (0, 1):
            np.testing.assert_array_equal(every[:, head], getattr(seen, name)(layer=1, head=head))
            np.testing.assert_array_equal(every[:, head], getattr(seen, name)(layer=-1, head=head - 2))


def test_all_heads_are_computed_from_queries_and_keys(model: nn.Module) -> None:
    torch.manual_seed(1)
    x = torch.randn(1, 600, 8)  # longer than the maps are exact
    with torch.no_grad(), regard.watch(model, keep="qk") as seen:
        model(x)
    found = seen.weights(layer=0)
    assert seen.layers[0].exact is None
    q, k, _ = (x @ model.layers[0].self_attn.in_proj_weight.T).view(600, 3, 2, 4).permute(1, 2, 0, 3)
    expected = (q.double() @ k.double().mT / 2).softmax(-1)
    np.testing.assert_allclose(found[0], expected.detach().numpy(), atol=1e-6)


def test_a_sight_is_as_long_as_its_passes(model: nn.Module) -> None:
    three = watched(model, times=3)
    assert (len(three), len(three[0]), len(list(three)), len(three.records[0])) == (3, 1, 3, 2)
    assert three[-1].record is three.records[2]
    assert len(Observation()) == 0
    with pytest.raises(InputError, match=r"`seen\[i\]` must be from 0 to 2 \(forward passes: 3\), got 3"):
        three[3]
    with pytest.raises(InputError, match=r"`seen\[i\]` must be an integer, got 'a'"):
        three["a"]  # type: ignore[index]
    with pytest.raises(ObservationError, match="nothing has been seen yet"):
        Observation()[0]


def test_a_figure_shows_itself_without_magic(model: nn.Module) -> None:
    with torch.no_grad(), regard.watch(model) as seen:
        model(torch.randn(1, 6, 8))
    assert seen.plot(layer=0, head=0)._repr_png_()[:8] == b"\x89PNG\r\n\x1a\n"
    assert seen.plot(layer=-1, head=-1).axes[0].images[0].get_array().shape == (6, 6)


def test_explanations_and_summaries_have_a_form_in_html() -> None:
    x = torch.zeros(1, 1, 4, 8)
    shown = regard.explain(x, x, x)._repr_html_()
    assert shown.startswith(f"<p><strong>{regard.explain(x, x, x).backend} runs it</strong></p><ul><li>")
    odd = nn.Sequential()
    odd.add_module("<script>alert(1)</script>", nn.Linear(2, 3))
    table = summary(odd)._repr_html_()
    assert "<script" not in table
    cells = [html.unescape(one) for one in re.findall(r"<td[^>]*>(.*?)</td>", table)]
    assert cells == [
        "Sequential",
        "Sequential",
        "",
        "9",
        "<script>alert(1)</script>",
        "Linear",
        "weight 3 × 2, bias 3",
        "9",
    ]
    assert table.endswith("<p>9 parameters, 9 of them trainable</p>")


def test_right_to_left_tokens_are_isolated_where_they_are_beside_others(seen: Observation, tmp_path: Path) -> None:
    listed = forwards_html([seen.record, seen.record])
    assert f"<bdi>{html.escape(''.join(HEBREW))}</bdi>" in listed
    drawn = card(seen.record, choose_focus(seen.record))
    for text in re.findall(r"[\u0590-\u06ff]+", drawn):
        assert f"<bdi>{text}</bdi>" in drawn
        assert not re.search(rf"(?<!<bdi>){text}|{text}(?!</bdi>)", drawn)
    assert "<b>" not in drawn.replace("<bdi>", "")
    seen.to_html(tmp_path / "it.html")
    before = (tmp_path / "it.html").read_text(encoding="utf-8").partition('id="meta"')[0]
    assert not re.search(r"(?<!<bdi>)\b[\u0590-\u06ff]+", before)
