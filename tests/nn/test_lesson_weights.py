"""A learner's own trained class against ours: a strict state dict both ways, then outputs, weights and gradients."""

import copy
import io
from itertools import product

import pytest
import torch
from torch import nn

from lessons import cross_attention, encoder, multi_head
from regard.nn import tutorials
from sweeps import sweep

LESSONS = {"multi_head": multi_head, "encoder": encoder, "cross_attention": cross_attention}


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def padding(batch, keys, seen):
    mask = torch.ones(batch, 1, 1, keys)
    mask[0, ..., seen:] = 0
    return mask


X, MEMORY, IDS = randn(2, 6, 24), randn(2, 9, 24, seed=1), torch.arange(12).reshape(2, 6)
CAUSAL = torch.tril(torch.ones(6, 6))
# Lesson, class, arguments, inputs, and the masks that it is called with.
CLASSES = {
    "multi_head.MultiHeadAttention": ((24, 4), (X, MEMORY, MEMORY), (None, padding(2, 9, 7), torch.ones(6, 9).tril())),
    "multi_head.MultiHeadAttention, to itself": ((24, 4, 0.3), (X, X, X), (None, CAUSAL, CAUSAL.bool(), CAUSAL.int())),
    "encoder.MultiHeadAttention": ((24, 4), (X, MEMORY, MEMORY), (None, padding(2, 9, 7), torch.ones(6, 9).tril())),
    "encoder.FeedForward": ((24, 40), (X,), ()),
    "encoder.PositionalEncoding": ((24, 50), (X,), ()),
    "encoder.EncoderLayer": ((24, 4, 40), (X,), (None, CAUSAL, padding(2, 6, 4) * CAUSAL)),
    "encoder.TransformerEncoder": ((12, 24, 4, 40, 2, 30), (IDS,), (None, CAUSAL, padding(2, 6, 4), CAUSAL[None])),
    "cross_attention.MultiHeadAttention": (
        (24, 4, 0.2),
        (X, MEMORY, MEMORY),
        (None, padding(2, 9, 7), torch.ones(2, 4, 6, 9).tril()),
    ),
}


def pair(name):
    """The learner's module, with weights that no initialization gives, and ours with others."""
    lesson, _, kind = name.partition(",")[0].partition(".")
    arguments, inputs, masks = CLASSES[name]
    torch.manual_seed(0)
    theirs = getattr(LESSONS[lesson], kind)(*arguments)
    for one in theirs.parameters():
        nn.init.normal_(one, std=0.15)
    ours = getattr(getattr(tutorials, lesson), kind)(*arguments)
    return ours.eval(), theirs.eval(), inputs, [(one,) for one in masks] or [()]


def outputs(module, inputs):
    """What it gives, and the weights that it keeps."""
    found = module(*inputs)
    kept = [one.attention_weights for one in module.modules() if hasattr(one, "attention_weights")]
    return [*(found if isinstance(found, tuple) else (found,)), *kept]


def assert_close(ours, theirs, atol=1e-6):
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=atol, rtol=0)


def test_a_strict_state_dict_gives_the_same_output_and_weights():
    for case in sweep(product(["theirs into ours", "ours into theirs"], CLASSES)):
        with case as (way, name):
            ours, theirs, inputs, masks = pair(name)
            source, target = (theirs, ours) if way == "theirs into ours" else (ours, theirs)
            assert list(source.state_dict()) == list(target.state_dict())
            target.load_state_dict(source.state_dict(), strict=True)
            for mask in masks:
                with torch.no_grad():
                    assert_close(outputs(ours, (*inputs, *mask)), outputs(theirs, (*inputs, *mask)))


def test_gradients_are_the_same():
    for case in sweep([name for name in CLASSES if "Positional" not in name]):
        with case as name:
            ours, theirs, inputs, masks = pair(name)
            ours.load_state_dict(theirs.state_dict(), strict=True)
            ours, theirs = ours.double(), theirs.double()
            if hasattr(theirs, "scale"):
                theirs.scale = 6**0.5  # no buffer, so that `.double()` leaves it rounded
            for mask in masks:
                gradients = []
                for module in (ours, theirs):
                    given = [x.double().requires_grad_() if x.is_floating_point() else x for x in inputs]
                    found = outputs(module, (*given, *mask))  # through the weights too, which a driver may regularize
                    loss = sum((one * torch.arange(one.numel()).reshape(one.shape).sin()).sum() for one in found)
                    wanted = [*(x for x in given if x.requires_grad), *module.parameters()]
                    gradients.append(torch.autograd.grad(loss, wanted))
                assert_close(*gradients, atol=1e-9)


def test_the_same_seed_begins_with_the_same_parameters():
    for case in sweep([name for name in CLASSES if "Positional" not in name]):
        with case as name:
            lesson, _, kind = name.partition(",")[0].partition(".")
            made = []
            for place in (LESSONS[lesson], getattr(tutorials, lesson)):
                torch.manual_seed(3)
                made.append(getattr(place, kind)(*CLASSES[name][0]))
            for (one, x), (other, y) in zip(*(module.named_parameters() for module in made), strict=True):
                assert one == other
                assert torch.equal(x, y)


def test_the_table_of_positions_is_a_buffer_of_the_lessons_shape():
    ours, theirs = tutorials.PositionalEncoding(64), encoder.PositionalEncoding(64)
    assert dict(ours.named_buffers()).keys() == {"pe"}
    assert ours.pe.shape == theirs.pe.shape == (1, 5000, 64)
    torch.testing.assert_close(ours.pe[:, :100], theirs.pe[:, :100], atol=1e-5, rtol=0)
    torch.testing.assert_close(ours.pe, theirs.pe, atol=1e-3, rtol=0)  # the lesson's angles are rounded: 5000 · 2⁻²⁴


def test_modules_have_the_lessons_attributes():
    """What a driver may look at or set: every name that the lesson's class sets in its constructor."""
    for name, (arguments, _, _) in CLASSES.items():
        lesson, _, kind = name.partition(",")[0].partition(".")
        ours, theirs = (getattr(place, kind)(*arguments) for place in (getattr(tutorials, lesson), LESSONS[lesson]))
        for where, module in theirs.named_modules():
            own = ours.get_submodule(where)
            assert [one for one in vars(module) if not one.startswith("_") and not hasattr(own, one)] == []


def test_a_dropout_that_is_set_afterwards_holds():
    torch.manual_seed(0)
    for layer, dropout in (
        (tutorials.multi_head.MultiHeadAttention(24, 4, dropout=0.5), "dropout"),
        (tutorials.cross_attention.MultiHeadAttention(24, 4, 0.5), "do"),
    ):
        first, again = (outputs(layer, (X, X, X))[0] for _ in "ab")
        assert not torch.equal(first, again)
        getattr(layer, dropout).p = 0.0
        assert torch.equal(outputs(layer, (X, X, X))[0], outputs(layer.eval(), (X, X, X))[0])


def test_a_trained_model_can_be_copied_and_saved_whole():
    """The lesson's own cannot: it keeps a tensor with a graph."""
    ours, theirs = tutorials.encoder.EncoderLayer(24, 4, 40), encoder.EncoderLayer(24, 4, 40)
    for layer in (ours, theirs):
        layer(X).sum().backward()
    with pytest.raises(RuntimeError, match="deepcopy"):
        copy.deepcopy(theirs)
    assert ours.self_attn.attention_weights.requires_grad
    torch.save(ours, file := io.BytesIO())
    file.seek(0)
    for twin in (copy.deepcopy(ours), torch.load(file, weights_only=False)):
        assert torch.equal(twin.self_attn.attention_weights, ours.self_attn.attention_weights)
        assert not twin.self_attn.attention_weights.requires_grad
        assert torch.equal(twin.eval()(X), ours.eval()(X))
        ours.train()
        ours(X)
    assert ours.self_attn.attention_weights.requires_grad
