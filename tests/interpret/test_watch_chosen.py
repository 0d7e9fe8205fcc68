"""Watching chosen heads, queries and spans of keys: the numbers of a whole watch, and none of the others."""

import itertools
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import regard
from regard.errors import InputError, ObservationError
from regard.observe import statistics
from regard.observe.weight_rows import RowBlock
from sweeps import sweep

transformers = pytest.importorskip("transformers")

SIZES = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
IDS = torch.randint(3, 99, (2, 20), generator=torch.Generator().manual_seed(0))
NAMES = ("distance", "confidence", "sink", "previous", "induction", "value_norm")


def made(kind: str = "sdpa") -> Any:
    torch.manual_seed(1)
    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=2, max_position_embeddings=900)
    model = transformers.LlamaForCausalLM(config).eval()
    model.set_attn_implementation(kind)
    return model


def watched(model: Any, ids: torch.Tensor = IDS, **asked: Any) -> Any:
    with torch.no_grad(), regard.watch(model, **asked) as seen:
        model(ids)
    return seen


def test_chosen_heads_are_those_of_a_whole_watch() -> None:
    def check(kind: str, keep: Any) -> None:
        if (kind, keep) == ("eager", "qk"):
            return  # shows no q and k
        model, asked = made(kind), {"keep": keep, "statistics": NAMES}
        whole, some = watched(model, **asked), watched(model, **asked, heads=["2.3", (0, 1), (2, 1)])
        assert [one.name for one in some.layers] == ["model.layers.0.self_attn", "model.layers.2.self_attn"]
        for layer, heads in ((0, [1]), (2, [1, 3])):
            assert np.array_equal(some.weights(layer=layer), whole.weights(layer=layer)[:, heads])
            for head in heads:
                for name in (*NAMES, "entropy", "received"):
                    ours, theirs = (one.statistic(name, layer=layer, head=head) for one in (some, whole))
                    assert np.allclose(ours, theirs, atol=1e-6), name
                ours, theirs = (one.heatmap(layer=layer, head=head, pool="max") for one in (some, whole))
                assert np.allclose(ours, theirs, atol=1e-6)
                assert some.top(layer=layer, head=head, query=9) == whole.top(layer=layer, head=head, query=9)
                assert np.allclose(
                    some.weights(layer=layer, head=head), whole.weights(layer=layer, head=head), atol=1e-6
                )
        with pytest.raises(
            InputError, match=r"`head` must be one that was chosen for recording, 1, 3 of layer .*, got 0"
        ):
            some.weights(layer=2, head=0)

    for case in sweep(itertools.product(["sdpa", "eager"], ["maps", "weights", "qk"])):
        with case as values:
            check(*values)


class Rows(statistics.PerQuery):
    """Counts the rows of weights that a watch computes, over all heads and texts."""

    name = "rows"
    counts: ClassVar[list[int]] = []

    def of(self, rows: RowBlock) -> torch.Tensor:
        self.counts.append(rows.weights.shape[0] * rows.weights.shape[1])
        return rows.weights.new_zeros(rows.weights.shape[:2])


def test_a_statistic_is_given_chosen_rows_alone() -> None:
    for queries, count in (({}, 2 * 20), ({"queries": [3, 4, 19]}, 2 * 3)):
        Rows.counts.clear()
        watched(made(), heads=["1.2"], statistics=[Rows()], **queries)
        assert sum(Rows.counts) == count


@pytest.mark.parametrize("length", [20, 700])
def test_chosen_queries_are_rows_of_a_whole_watch(length: int) -> None:
    model, ids = made(), torch.randint(3, 99, (1, length), generator=torch.Generator().manual_seed(0))
    whole = watched(model, ids, keep="weights", statistics=["confidence"])
    some = watched(model, ids, keep="weights", statistics=["confidence"], queries=[2, 3, 17], layers=[1])
    rows = [2, 3, 17]
    others = [at for at in range(length) if at not in rows]
    ours, theirs = some.weights(layer=1), whole.weights(layer=1)
    assert np.allclose(ours[:, :, rows], theirs[:, :, rows], atol=1e-6)
    assert not ours[:, :, others].any()
    assert np.allclose(some.received(layer=1), theirs[:, :, rows].sum(2), atol=1e-6)
    assert np.allclose(some.entropy(layer=1)[..., rows], whole.entropy(layer=1)[..., rows], atol=1e-5)
    assert not some.statistic("confidence", layer=1)[..., others].any()
    bins = some.heatmap(layer=1, pool="max")
    wide = some.layer(1).query_bin
    assert np.allclose(
        bins[:, :, 17 // wide].max(-1), theirs[:, :, [r for r in rows if r // wide == 17 // wide]].max((2, 3))
    )


def test_the_last_query_is_that_of_the_prompt_and_of_each_step() -> None:
    model = made()
    model.generation_config.pad_token_id, model.generation_config.eos_token_id = 0, None
    with regard.watch(model, keep="weights", heads=["1.2"], queries="last") as seen:
        text = model.generate(IDS, max_new_tokens=4, do_sample=False)
    whole = watched(model, text[:, :-1], keep="weights")
    ours = seen.weights(layer=1, head=2)
    assert not ours[:, :19].any()
    assert np.allclose(ours[:, 19:], whole.weights(layer=1, head=2)[:, 19:], atol=1e-5)


def test_spans_of_keys_are_the_sums_of_the_dense_rows() -> None:
    spans = {"front": (0, 5), "rest": (5, None), "some": [1, 7, 19]}
    seen = watched(made(), keep="weights", keys=spans, heads=[1])
    rows = seen.weights(layer=1).astype(np.float64)
    sums = np.stack([rows[..., :5].sum(-1), rows[..., 5:].sum(-1), rows[..., [1, 7, 19]].sum(-1)], -1)
    assert np.abs(seen.statistic("key_spans", layer=1) - sums).max() < 1e-6
    assert seen.statistic("key_spans", layer=1, head=2).shape == (2, 20, 3)


def test_gradients_of_chosen_heads() -> None:
    model = made()

    def run(**asked: Any) -> Any:
        with regard.watch(model, statistics=["gradient_x_attention", "importance"], **asked) as seen:
            model(IDS, labels=IDS).loss.backward()
        return seen

    whole, some = run(), run(heads=["1.2", "1.1"])
    for name in ("gradient_x_attention", "importance"):
        ours, theirs = (one.statistic(name, layer=1, head=2) for one in (some, whole))
        assert np.allclose(ours, theirs, rtol=1e-4, atol=1e-9)


def test_an_atlas_knows_which_heads_were_chosen(tmp_path: Path) -> None:
    seen = watched(made(), heads=["2.3", "2.0"], keep="weights")
    seen.save(tmp_path / "some.atlas")
    again = regard.load_atlas(tmp_path / "some.atlas")
    assert again.layer(2).head_numbers == (0, 3)
    assert np.array_equal(again.weights(layer=2, head=3), seen.weights(layer=2, head=3))
    with pytest.raises(InputError, match="must be one that was chosen"):
        again.entropy(layer=2, head=1)


def test_what_cannot_be_chosen_is_refused() -> None:
    model = made()
    with pytest.raises(InputError, match=r"`head` must be from 0 to 3 in layer 1, got 1\.7"):
        watched(model, heads=["1.7"])
    with pytest.raises(InputError, match="`heads` must name layers that are seen, from 0 to 2"):
        watched(model, heads=["7.0"])
    with pytest.raises(InputError, match="leave out `layers`"):
        watched(model, heads=["1.0"], layers=[1])
    with pytest.raises(InputError, match="needs every row: leave out `queries`"):
        watched(model, queries="last", statistics=[regard.statistics.Rollout(query=3)])
    with pytest.raises(ObservationError, match='keep="qk" with chosen heads needs'):
        watched_bias()


class Biased(nn.Module):
    def forward(self, q: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=bias)


def watched_bias() -> None:
    model = Biased()
    with regard.watch(model, keep="qk", heads=["0.1"]):
        model(torch.randn(1, 2, 4, 8), torch.randn(1, 2, 4, 4))


class Every(nn.Module):
    """Attention in every second layer."""

    def __init__(self) -> None:
        super().__init__()
        kinds = (lambda: nn.Linear(8, 8), lambda: nn.MultiheadAttention(8, 2, batch_first=True))
        self.layers = nn.ModuleList([kinds[at % 2]() for at in range(4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x) if isinstance(layer, nn.Linear) else layer(x, x, x)[0]
        return x


def test_a_layer_without_attention_is_refused_with_the_numbers_of_those_with_it() -> None:
    torch.manual_seed(0)
    model, x = Every(), torch.randn(1, 4, 8)
    with pytest.raises(InputError, match=r"that are seen, 1, 3 or one of layers\.1, layers\.3, got 0"):
        watched(model, x, layers=[0])
    with pytest.raises(ObservationError, match=r"sees the layers of its heads alone \(0\)"):  # noqa: SIM117
        with torch.no_grad(), regard.tap(model, heads=[(0, 1)]):
            model(x)
