"""Weights that are made or used part by part are recorded whole, or are missing with a reason: never a part alone."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import regard
from regard.record import missing_attention as missing
from sweeps import sweep

B, H, N, D = 3, 2, 5, 4
ORDER = torch.tensor([4, 2, 0, 1, 3])
Scores = Callable[[Tensor, Tensor], Tensor]


def rows_written(q: Tensor, k: Tensor) -> Tensor:
    weights = torch.empty(*q.shape[:3], k.shape[2])
    for row in range(q.shape[2]):
        weights[:, :, row] = torch.softmax(torch.einsum("bhd,bhjd->bhj", q[:, :, row], k), -1)
    return weights


def heads_written(q: Tensor, k: Tensor) -> Tensor:
    scores = torch.empty(*q.shape[:3], k.shape[2])
    for head in range(q.shape[1]):
        scores[:, head] = q[:, head] @ k[:, head].mT
    return torch.softmax(scores, -1)


# Ways to make weights (batch, heads, queries, keys).
MADE: dict[str, Scores] = {
    "at once": lambda q, k: torch.softmax(q @ k.mT, -1),
    "row by row": lambda q, k: torch.cat([torch.softmax(one @ k.mT, -1) for one in q.split(1, 2)], 2),
    "head by head": lambda q, k: torch.stack([torch.softmax(q[:, h] @ k[:, h].mT, -1) for h in range(H)], 1),
    "text by text": lambda q, k: torch.stack([torch.softmax(one @ other.mT, -1) for one, other in zip(q, k)]),  # noqa: B905
    "rows written": rows_written,
    "heads written": heads_written,
}


def rows_out(w: Tensor, v: Tensor) -> Tensor:
    output = torch.empty(*w.shape[:3], v.shape[-1])
    for row in range(w.shape[2]):
        output[:, :, row] = (w[:, :, row : row + 1] @ v)[:, :, 0]
    return output


# Ways to use them all at once, in several products with the values.
WHOLE: dict[str, Scores] = {
    "at once": lambda w, v: w @ v,
    "half of the width each": lambda w, v: torch.cat([w @ v[..., :2], w @ v[..., 2:]], -1),
    "two values": lambda w, v: w @ v + w @ v.flip(-1),
}
# Ways to use them part by part.
APART: dict[str, Scores] = {
    "rows": lambda w, v: torch.cat([w[:, :, row : row + 1] @ v for row in range(N)], 2),
    "a row's new dimension": lambda w, v: torch.stack([(w[:, :, row, None] @ v)[:, :, 0] for row in range(N)], 2),
    "rows in einsum": lambda w, v: torch.stack([torch.einsum("bhj,bhjd->bhd", w[:, :, row], v) for row in range(N)], 2),
    "rows selected": lambda w, v: torch.stack([(w.select(2, row)[:, :, None] @ v)[:, :, 0] for row in range(N)], 2),
    "rows by a tensor": lambda w, v: torch.stack(
        [torch.einsum("bhj,bhjd->bhd", w[:, :, row], v) for row in torch.arange(N)], 2
    ),
    "pairs of rows": lambda w, v: torch.cat([w[:, :, row : row + 2] @ v for row in range(0, N, 2)], 2),
    "split rows": lambda w, v: torch.cat([one @ v for one in w.split(2, 2)], 2),
    "rows, written": rows_out,
    "the last row apart": lambda w, v: torch.cat([w[:, :, :-1] @ v, w[:, :, -1:] @ v], 2),
    "the first row, then all": lambda w, v: torch.cat([w[:, :, :1] @ v, w @ v], 2)[:, :, 1:],
    "heads": lambda w, v: torch.stack([w[:, head] @ v[:, head] for head in range(H)], 1),
    "slices of heads": lambda w, v: torch.cat([w[:, h : h + 1] @ v[:, h : h + 1] for h in range(H)], 1),
    "unbound heads": lambda w, v: torch.stack([one @ other for one, other in zip(w.unbind(1), v.unbind(1))], 1),  # noqa: B905
    "texts": lambda w, v: torch.stack([one @ other for one, other in zip(w, v)]),  # noqa: B905
    "slices of texts": lambda w, v: torch.cat([w[at : at + 1] @ v[at : at + 1] for at in range(B)]),
    "halves of keys": lambda w, v: w[..., :2] @ v[:, :, :2] + w[..., 2:] @ v[:, :, 2:],
    "hsplit": lambda w, v: torch.cat([one @ other for one, other in zip(w.hsplit(2), v.hsplit(2))], 1),  # noqa: B905
    "vsplit": lambda w, v: torch.cat([one @ other for one, other in zip(w.vsplit(3), v.vsplit(3))]),  # noqa: B905
    "rows in another order": lambda w, v: w[:, :, ORDER] @ v,
    "keys in another order": lambda w, v: w[..., ORDER] @ v[:, :, ORDER],
    "heads by a list": lambda w, v: w[:, [1, 0]] @ v[:, [1, 0]],
    "a product, then one by one": lambda w, v: w[..., :-1] @ v[:, :, :-1] + w[..., -1:] * v[:, :, -1:],
    "under vmap": lambda w, v: torch.func.vmap(torch.matmul)(w, v),
    "rows under vmap": lambda w, v: torch.func.vmap(lambda a, b: (a[..., None, :] @ b)[..., 0, :], (2, None), 2)(w, v),
}


class Layer(nn.Module):
    def __init__(self, make: Scores, use: Scores) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(H * D, H * D) for _ in range(3))
        self.make, self.use = make, use
        self.weights = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (one(x).unflatten(-1, (H, D)).transpose(1, 2) for one in (self.q, self.k, self.v))
        weights = self.make(q, k)
        self.weights = weights.detach()
        return self.use(weights, v).transpose(1, 2).flatten(2)


def watched(make: Scores, use: Scores) -> tuple[Layer, Any]:
    """Return the second of two layers, and what was seen of both."""
    torch.manual_seed(0)
    second = Layer(make, use)
    model = nn.Sequential(Layer(MADE["at once"], WHOLE["at once"]), second).eval()
    x = torch.randn(B, N, H * D)
    with torch.no_grad():
        plain = model(x)
        with regard.watch(model, strict=False) as seen:
            output = model(x)
    assert torch.equal(plain, output)
    return second, seen


def test_weights_used_at_once_are_recorded_whole(far) -> None:
    for case in sweep(itertools.product(MADE, WHOLE)):
        with case as (make, use):
            layer, seen = watched(MADE[make], WHOLE[use])
            assert not seen.missing
            assert far(seen.weights(layer=1), layer.weights) == 0


def test_weights_used_part_by_part_are_missing() -> None:
    """Only the first part was recorded, as if it were all, or nothing without a word."""
    for case in sweep(itertools.product(MADE, APART)):
        with case as (make, use):
            _, seen = watched(MADE[make], APART[use])
            assert len(seen.record.layers) == 1
            (one,) = seen.missing
            assert one.module == "1"
            assert one.reason.endswith((missing.REARRANGED, missing.TRANSFORMED))


def zeroed(weights: Tensor) -> Tensor:
    weights[..., 0] = 0
    return weights


WRITTEN: dict[str, Callable[[Tensor], Tensor]] = {
    "a copy": lambda w: zeroed(w.clone()),
    "itself": zeroed,
    "a cast": lambda w: zeroed(w.to(torch.float64)).float(),
    "a copy's view": lambda w: (copy := w.clone(), copy[:, 1].mul_(0.5))[0],
    "a copy's lower part": lambda w: w.clone().tril_(),
}


def test_weights_written_in_place_are_recorded_as_they_are_used(far) -> None:
    """A copy had the weights of before."""

    def check(what: str) -> None:
        used = []

        def use(w: Tensor, v: Tensor) -> Tensor:
            used.append(WRITTEN[what](w))
            return used[-1] @ v

        _, seen = watched(MADE["at once"], use)
        assert far(seen.weights(layer=1), used[-1]) == 0

    for case in sweep(WRITTEN):
        with case as what:
            check(what)


def test_one_row_that_is_all_in_use_is_seen(far) -> None:
    def check(use: str) -> None:
        def first(w: Tensor, v: Tensor) -> Tensor:
            if use == "index":
                return torch.einsum("bhj,bhjd->bhd", w[:, :, 0], v)[:, :, None].expand(-1, -1, N, -1)
            output = w[:, :, :1] @ v
            return (output if use == "slice" else output + w[:, :, :1] @ v.flip(-1)).expand(-1, -1, N, -1)

        layer, seen = watched(MADE["at once"], first)
        assert far(seen.weights(layer=1), layer.weights[:, :, :1]) == 0

    for case in sweep(["slice", "index", "view used twice"]):
        with case as use:
            check(use)


def test_softmaxes_between_transforms_and_plain_code_are_missing() -> None:
    def check(inside: str) -> None:
        def weights(q: Tensor, k: Tensor) -> Tensor:
            if inside == "the softmax":
                return torch.func.vmap(lambda one: torch.softmax(one, -1))(q @ k.mT)
            scores = torch.func.vmap(lambda one, other: one @ other.mT)(q, k)
            return torch.softmax(scores if inside == "the scores" else scores / 2, -1)

        _, seen = watched(weights, WHOLE["at once"])
        (one,) = seen.missing
        assert one.module == "1"

    for case in sweep(["the softmax", "the scores", "the scores, which are scaled outside"]):
        with case as inside:
            check(inside)


def test_a_softmax_by_hand_whose_values_are_weighted_one_by_one_is_missing() -> None:
    def by_hand(q: Tensor, k: Tensor) -> Tensor:
        weights = (q @ k.mT).exp()
        return weights / weights.sum(-1, keepdim=True)

    _, seen = watched(by_hand, lambda w, v: (w[..., None] * v[:, :, None]).sum(-2))
    (one,) = seen.missing
    assert one.reason.endswith(missing.BY_HAND)


def test_an_index_under_vmap_leaves_the_model_running() -> None:
    """Its number cannot be read there."""

    def rows(w: Tensor, v: Tensor) -> Tensor:
        row = torch.func.vmap(lambda at: (w.transpose(0, 2)[at].transpose(0, 1)[:, :, None] @ v)[:, :, 0], out_dims=2)
        return row(torch.arange(N))

    _, seen = watched(MADE["at once"], rows)
    assert [one.module for one in seen.missing] == ["1"]


LEFT: dict[str, Callable[[Tensor, Tensor], object]] = {
    "stacked copies": lambda w, v: torch.stack([w.detach(), w.detach()], 1),
    "stacked clones": lambda w, v: torch.stack([w.clone(), w.clone()]),
    "written to a list's tensor": lambda w, v: torch.empty(2, *w.shape).__setitem__(0, w.detach()),
    "a divergence": lambda w, v: nn.functional.kl_div(w.log(), torch.full_like(w, 0.2), reduction="sum") * 0.1 + 1,
    "an error": lambda w, v: -nn.functional.mse_loss(w, torch.zeros_like(w)) / 2,
    "a trace": lambda w, v: w[0, 0].trace() + 1,
    "overlap of rows": lambda w, v: (w @ w.mT - torch.eye(N)).square().mean(),
}


def test_what_a_model_computes_of_its_weights_beside_leaves_it_running(far) -> None:
    """Copies in a stack and losses of the weights ended in an IndexError, also in the block's own code."""

    def check(what: str, hidden: bool) -> None:
        def make(q: Tensor, k: Tensor) -> Tensor:
            scores = q @ k.mT
            return torch.softmax(scores.index_fill(2, torch.tensor(1), -1e9) if hidden else scores, -1)

        def use(w: Tensor, v: Tensor) -> Tensor:
            LEFT[what](w, v)
            output = w @ v
            LEFT[what](w, v)
            return output

        layer, seen = watched(make, use)
        assert not seen.missing
        weights = layer.weights.index_fill(2, torch.tensor(1), 0) if hidden else layer.weights
        assert far(seen.weights(layer=1), weights) == 0

    for case in sweep(itertools.product(LEFT, [False, True])):
        with case as values:
            check(*values)


SINKS: dict[str, Callable[[Tensor], Tensor]] = {
    "a column, cut by narrow": lambda s: torch.cat([s, s.new_zeros(*s.shape[:3], 1)], -1).softmax(-1).narrow(-1, 0, N),
    "padding at the end": lambda s: nn.functional.pad(s, (0, 1)).softmax(-1)[..., :-1],
    "padding at the start": lambda s: nn.functional.pad(s, (1, 0)).softmax(-1)[..., 1:],
}


def test_sinks_made_by_padding_or_cut_by_narrow_are_seen(far) -> None:
    def check(how: str) -> None:
        layer, seen = watched(lambda q, k: SINKS[how](q @ k.mT), WHOLE["at once"])
        assert not seen.missing
        assert far(seen.weights(layer=1), layer.weights) == 0

    for case in sweep(SINKS):
        with case as how:
            check(how)


BEFORE: dict[str, Callable[[Tensor, Tensor], object]] = {
    "values of the distance": lambda w, v: w.permute(2, 0, 1, 3).reshape(N, B * H, N) @ torch.ones(N, N, D),
    "an update of coordinates": lambda w, v: (w.mean(1)[..., None] * v[:, 0, :, None]).sum(2),
    "a sum over queries": lambda w, v: w.mT @ v,
}


def test_weights_that_are_also_used_in_another_way_first_are_seen_whole(far) -> None:
    """The first use was recorded with other axes, or made the layer missing although it was recorded."""

    def check(what: str) -> None:
        layer, seen = watched(MADE["at once"], lambda w, v: (BEFORE[what](w, v), w @ v)[1])
        assert not seen.missing
        assert far(seen.weights(layer=1), layer.weights) == 0

    for case in sweep(BEFORE):
        with case as what:
            check(what)


def test_speculative_sampling_of_transformers_runs_under_a_watch() -> None:
    """Probabilities of a few tokens had the layout of all, and an IndexError ended the user's `generate`."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.LlamaConfig(**sizes, vocab_size=20, attn_implementation="eager")
    model, assistant = (transformers.LlamaForCausalLM(config).eval() for _ in range(2))
    asked = {
        "assistant_model": assistant,
        "do_sample": True,
        "max_new_tokens": 6,
        "eos_token_id": None,
        "pad_token_id": 0,
    }
    torch.manual_seed(0)
    plain = model.generate(torch.tensor([[5, 6, 7]]), **asked)
    torch.manual_seed(0)
    with regard.watch(model) as seen:
        text = model.generate(torch.tensor([[5, 6, 7]]), **asked)
    assert torch.equal(plain, text)
    assert len(seen) > 0


def test_a_mean_of_heads_and_then_the_heads_are_no_one_head() -> None:
    """The mean, which came first, was recorded as the layer's only head."""
    _, seen = watched(MADE["at once"], lambda w, v: w.mean(1, keepdim=True) @ v + w @ v)
    assert [one.module for one in seen.missing] == ["1"]
