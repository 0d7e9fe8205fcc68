"""The lessons' modules, watched: each attention is seen, with the weights that the module itself gives."""

import itertools

import torch

import regard
from regard.nn import tutorials
from sweeps import sweep

X, MEMORY = (torch.randn(2, n, 16, generator=torch.Generator().manual_seed(n)) for n in (5, 7))
IDS = torch.arange(10).reshape(2, 5)
HIDDEN = torch.ones(2, 1, 1, 7)
HIDDEN[1, ..., 4:] = 0

# A module, its inputs, and the names and weights of its layers, after a call that gave `found`.
LESSONS = {
    "single_head": (
        lambda: tutorials.single_head.DotProductAttention(16),
        (X, MEMORY, MEMORY),
        lambda module, found: {"": torch.softmax(X @ MEMORY.mT / 4, -1)[:, None]},
    ),
    "multi_head": (
        lambda: tutorials.multi_head.MultiHeadAttention(16, 4, dropout=0.4),
        (X, MEMORY, MEMORY, HIDDEN),
        lambda module, found: {"": found[1]},
    ),
    "encoder": (
        lambda: tutorials.encoder.TransformerEncoder(20, 16, 4, 32, 3),
        (IDS, torch.ones(5, 5).tril()),
        lambda module, found: {
            f"layers.{index}.self_attn": layer.self_attn.attention_weights for index, layer in enumerate(module.layers)
        },
    ),
    "cross_attention": (
        lambda: tutorials.cross_attention.MultiHeadAttention(16, 4, 0.4),
        (X, MEMORY, MEMORY, HIDDEN),
        lambda module, found: {"": by_hand(module)},
    ),
}


def by_hand(module):
    q, k = (project(x).view(2, -1, 4, 4).transpose(1, 2) for project, x in ((module.w_q, X), (module.w_k, MEMORY)))
    return torch.softmax((q @ k.mT / 2).masked_fill(HIDDEN == 0, -1e9), -1)


def test_each_lesson_is_seen_with_its_own_weights_and_nothing_changes() -> None:
    for case in sweep(itertools.product(LESSONS, [False, True])):
        with case as (lesson, training):
            torch.manual_seed(0)
            make, inputs, expected = LESSONS[lesson]
            module = make().train(training)
            torch.manual_seed(1)
            plain, after = module(*inputs), torch.get_rng_state()
            torch.manual_seed(1)
            with regard.watch(module, keep="weights") as seen:
                found = module(*inputs)
            for one, other in zip(*((x if isinstance(x, tuple) else (x,)) for x in (plain, found)), strict=True):
                assert torch.equal(one, other)
            assert torch.equal(torch.get_rng_state(), after)
            layers = {layer.name: layer.weights for layer in seen.record}
            wanted = expected(module, found)
            assert list(layers) == list(wanted)
            for name, weights in wanted.items():
                torch.testing.assert_close(torch.as_tensor(layers[name]), weights.detach(), atol=1e-6, rtol=0)


def test_calls_by_keyword_are_seen_as_cross_attention() -> None:
    torch.manual_seed(0)
    for module in (
        tutorials.multi_head.MultiHeadAttention(16, 4),
        tutorials.encoder.MultiHeadAttention(16, 4),
        tutorials.cross_attention.MultiHeadAttention(16, 4, 0.1),
    ):
        with regard.watch(module) as seen:
            module(query=X, key=MEMORY, value=MEMORY)
        (layer,) = seen.record
        assert (layer.kind, layer.queries, layer.keys, layer.heads) == ("cross", 5, 7, 4)
