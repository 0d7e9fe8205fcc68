"""Every method of what `watch` gives, asked for what is not there: one sentence, whatever the model."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import regard
from regard.errors import InputError, ObservationError, RegardError
from regard.interpret.observation import Observation

N, M = 6, 4


def encoder() -> Observation:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()
    with torch.no_grad(), regard.watch(model, tokens=[f"w{n}" for n in range(N)]) as seen:
        model(torch.randn(1, N, 8))
    return seen


def two_streams() -> Observation:
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    ends = {"vocab_size": 60, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = transformers.CLIPConfig(
        text_config=sizes | ends, vision_config=sizes | {"image_size": 16, "patch_size": 4}, projection_dim=8
    )
    model = transformers.CLIPModel(config).eval()
    given = {"text": [f"w{n}" for n in range(N)]}
    with torch.no_grad(), regard.watch(model, tokens=given) as seen:
        model(input_ids=torch.arange(4, 4 + N)[None], pixel_values=torch.rand(1, 3, 16, 16))
    return seen


def encoder_decoder() -> Observation:
    model = nn.Transformer(8, 2, 1, 1, 16, batch_first=True).eval()
    given = {"source": [f"s{n}" for n in range(N)], "target": [f"t{n}" for n in range(M)]}
    with torch.no_grad(), regard.watch(model, tokens=given) as seen:
        model(torch.randn(1, N, 8), torch.randn(1, M, 8))
    return seen


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cross_attn = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.cross_attn(x, y, y)[0]


def cross_only() -> Observation:
    model = Reader().eval()
    with torch.no_grad(), regard.watch(model) as seen:
        model(torch.randn(1, M, 8), torch.randn(1, N, 8))
    return seen


WRONG_LAYERS = [9, -9, 1.5, "nowhere", True, None, [0], 2**70]
WRONG_HEADS = [2, -3, 1.5, "x", True, [0]]
WRONG_SEQUENCES = [1, -2, 0.5, "x", True]
WRONG_STREAMS = ["vision", 3, ("text",), ("image", "text", "x"), ["image"], {"a": 1}, ""]


@pytest.mark.parametrize("made", [encoder, two_streams, encoder_decoder, cross_only])
def test_what_is_not_there_is_said_in_one_sentence(made: Callable[[], Observation], tmp_path: Path) -> None:
    torch.manual_seed(0)
    seen = made()
    good = {"layer": 0, "stream": regard.record.layers.stream_of(seen.layers[0])}
    calls: dict[str, Callable[[dict[str, Any]], Any]] = {
        "weights": lambda given: seen.weights(**given),
        "heatmap": lambda given: seen.heatmap(**given),
        "entropy": lambda given: seen.entropy(**given),
        "received": lambda given: seen.received(**given),
        "statistic": lambda given: seen.statistic("entropy", **given),
        "top": lambda given: seen.top(**{"head": 0, "query": 0} | given),
        "plot": lambda given: seen.plot(**{"head": 0} | given),
        "plot_patches": lambda given: seen.plot_patches(torch.rand(3, 4, 4), None, **given),
        "export": lambda given: seen.export(tmp_path / "it.csv", "map", **{"head": 0} | given),
        "alignment": lambda given: seen.export(tmp_path / "it.csv", "alignment", **given),
    }  # fmt: skip
    wrong = [{"layer": one} for one in WRONG_LAYERS] + [{"head": one} for one in WRONG_HEADS]
    wrong += [{"stream": one} for one in WRONG_STREAMS]
    asked = [(name, good | one) for name in calls for one in wrong]
    of_one = ("top", "plot", "plot_patches", "export", "alignment")
    asked += [(name, good | {"batch_index": one}) for name in of_one for one in WRONG_SEQUENCES]
    asked += [("top", good | {"query": one}) for one in (99, -99, 0.5, "w0", True, None)]
    for name, given in asked:
        if given.get("layer") is None and name == "alignment":
            continue  # all of them
        with pytest.raises(RegardError) as told:
            calls[name](given)
        says = str(told.value)
        assert 15 < len(says) < 700, (name, given, says)
        assert "\n" not in says


OTHERS: list[Callable[[Observation, Path], Any]] = [
    lambda seen, path: seen[7],
    lambda seen, path: seen["x"],
    lambda seen, path: seen[None],
    lambda seen, path: seen.layer(None),
    lambda seen, path: seen.layer(0, "nothing"),
    lambda seen, path: seen.heatmap(layer=seen.layers[0].name, head=0, pool="median"),
    lambda seen, path: seen.statistic("nothing", layer=seen.layers[0].name),
    lambda seen, path: seen.statistic(3, layer=seen.layers[0].name),
    lambda seen, path: seen.statistic([], layer=seen.layers[0].name),
    lambda seen, path: seen.words("nothing"),
    lambda seen, path: seen.words(None),
    lambda seen, path: seen.words(["text"]),
    lambda seen, path: seen.stream("text", 5),
    lambda seen, path: seen.stream("target", "x"),
    lambda seen, path: seen.rank_heads("nowhere", "w1"),
    lambda seen, path: seen.rank_heads(3.5, "w1"),
    lambda seen, path: seen.rank_heads(99, "w1"),
    lambda seen, path: seen.rank_heads(("w1", 9), "w1"),
    lambda seen, path: seen.place("nowhere"),
    lambda seen, path: seen.rank_heads("w1", None),
    lambda seen, path: seen.rank_heads("w1", "w2", stream="nothing"),
    lambda seen, path: seen.rank_heads("w1", "w2", batch_index=4),
    lambda seen, path: seen.rank_heads("s1", "s2", batch_index="x"),
    lambda seen, path: seen.plot_alignment("all"),
    lambda seen, path: seen.plot_alignment([(9, 0)]),
    lambda seen, path: seen.plot_alignment([(0, 9)]),
    lambda seen, path: seen.plot_alignment([0]),
    lambda seen, path: seen.plot_alignment(3),
    lambda seen, path: seen.plot_alignment([("x", 0)]),
    lambda seen, path: seen.plot_alignment([(0, "x")]),
    lambda seen, path: seen.plot_alignment(rows="x"),
    lambda seen, path: seen.plot_alignment(batch_index=3),
    lambda seen, path: seen.plot_alignment(source=range(99)),
    lambda seen, path: seen.export(path / "it.txt"),
    lambda seen, path: seen.export(path / "it.csv", "nothing", layer=seen.layers[0].name),
    lambda seen, path: seen.export(path / "it.csv", 3, layer=seen.layers[0].name),
    lambda seen, path: seen.export(path / "it.csv", "weights"),
    lambda seen, path: seen.export(path / "it.csv", "top", head=9),
    lambda seen, path: seen.export(path / "it.csv", "map", head=0),
    lambda seen, path: seen.export(path, "map"),
    lambda seen, path: seen.to_html(path / "no" / "it.html"),
    lambda seen, path: seen.to_html(path / "it.html", token="nowhere"),
    lambda seen, path: seen.to_html(path / "it.html", token=3.5),
    lambda seen, path: seen.save(path / "no" / "it.atlas"),
]


@pytest.mark.parametrize("made", [encoder, two_streams, encoder_decoder, cross_only])
def test_other_questions_without_an_answer_too(made: Callable[[], Observation], tmp_path: Path) -> None:
    torch.manual_seed(0)
    seen = made()
    for number, ask in enumerate(OTHERS):
        with pytest.raises(RegardError) as told:
            ask(seen, tmp_path)
        assert 15 < len(str(told.value)) < 700, number
    assert not list(tmp_path.iterdir())


def test_a_watch_is_entered_once() -> None:
    model = nn.MultiheadAttention(8, 2, batch_first=True)
    x, watch = torch.randn(1, 3, 8), regard.watch(model)
    with watch as seen:
        model(x, x, x)
        with pytest.raises(InputError, match=r"has been entered before.*call regard\.watch\(model\) again"), watch:
            pass
    assert len(seen) == 1
    with pytest.raises(InputError, match="has been entered before"), watch:
        pass


@pytest.mark.parametrize("when", ["in the block", "at its end"])
def test_after_an_exception_nothing_was_kept(tmp_path: Path, when: str) -> None:
    model, x = nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(1, 3, 8)
    watch = regard.watch(model, tokens=["a", "b"] if when == "at its end" else None)
    seen = watch.__enter__()
    model(x, x, x)
    mine = KeyError("mine") if when == "in the block" else None
    with contextlib.suppress(RegardError):
        assert not watch.__exit__(mine and type(mine), mine, None)
    for ask in (lambda: seen.weights(layer=0), lambda: seen[0], lambda: seen.save(tmp_path / "a")):
        with pytest.raises(ObservationError, match="nothing was kept, as an exception ended the `with` block"):
            ask()


def test_before_the_end_of_the_block_nothing_has_been_seen(tmp_path: Path) -> None:
    empty = Observation()
    for ask in (
        lambda: empty.layers, lambda: empty.tokens, lambda: empty.model, lambda: empty.notes, lambda: empty.streams,
        lambda: empty.weights(layer=0), lambda: empty.rank_heads("a", "b"), lambda: empty.plot(layer=0, head=0),
        lambda: empty.plot_alignment(), lambda: empty.export(tmp_path / "it.csv"), lambda: empty.save(tmp_path / "a"),
        lambda: empty.to_html(tmp_path / "it.html"), lambda: empty.words(), lambda: empty.layer(0),
    ):  # fmt: skip
        with pytest.raises(RegardError, match="nothing has been seen yet"):
            ask()
