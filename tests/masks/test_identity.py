"""What a mask knows of itself: its own answer, its own tensors, and when a plan may be used again."""

import copy
import pickle
from dataclasses import InitVar, dataclass

import pytest
import torch

import regard
from regard import masks
from regard.errors import InputError
from regard.masks.base import And, Not, Or
from regard.nn import ValueModule
from sweeps import sweep

FLAGS = torch.tensor([[True, True, False, True], [True, False, False, True]])


def of_even_keys(parent):
    class Even(parent):
        def __call__(self, batch, head, i, j):
            return super().__call__(batch, head, i, j) & (j % 2 == 0)

        def blocks(self, rectangles, /):
            return masks.Mask.blocks(self, rectangles)

        @property
        def relative(self):
            return False

    return Even


PARENTS = {
    "and": lambda: of_even_keys(And)(masks.Causal(), masks.Window(3)),
    "or": lambda: of_even_keys(Or)(masks.Window(2), masks.Window(left=0, right=1)),
    "not": lambda: of_even_keys(Not)(masks.Window(2)),
    "padding": lambda: of_even_keys(masks.Padding)(FLAGS),
    "dense": lambda: of_even_keys(masks.Dense)(torch.ones(4, 4).bool()),
}


def test_a_mask_that_answers_otherwise_than_its_parent_is_asked_itself():
    x = torch.randn(2, 1, 4, 8)
    for case in sweep(PARENTS):
        with case as name:
            mask = PARENTS[name]()
            b, h, i, j = (
                torch.arange(2)[:, None, None, None],
                torch.zeros(1, 1, 1, 1).long(),
                *torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij"),
            )
            visible = mask(b, h, i[None, None], j[None, None])
            assert torch.equal(mask.bind(4, 4).dense(2, 1).expand(2, 1, 4, 4), visible.expand(2, 1, 4, 4))
            for inner, pairs in ((mask, visible), (~mask, ~visible), (mask & masks.Causal(), visible & (i >= j))):
                expected = regard.attention(x, x, x, mask=pairs.expand(2, 1, 4, 4), backend="reference")
                for backend in ("auto", "sdpa", "reference", "strips"):
                    torch.testing.assert_close(regard.attention(x, x, x, mask=inner, backend=backend), expected)


def test_a_mask_may_answer_with_one_number():
    @dataclass(frozen=True)
    class Everything(masks.Mask):
        def __call__(self, batch, head, i, j):
            return torch.tensor(True)

    x = torch.randn(1, 1, 4, 8)
    torch.testing.assert_close(regard.attention(x, x, x, mask=Everything()), regard.attention(x, x, x))


def test_a_mask_made_in_inference_mode_refuses_to_be_changed():
    x = torch.randn(2, 1, 4, 8)
    with torch.inference_mode():
        mask = masks.Padding(FLAGS)
        regard.attention(x, x, x, mask=mask)
        mask.attention_mask[:, 0] = False
        with pytest.raises(InputError, match="changed in place"):
            regard.attention(x, x, x, mask=mask)


def test_state_that_is_no_field_is_not_taken_for_that_of_another_mask():
    class Nth(masks.Causal):
        def __init__(self, n):
            super().__init__()
            object.__setattr__(self, "n", n)

        def __call__(self, batch, head, i, j):
            return j % self.n == 0

        def blocks(self, rectangles, /):
            return masks.Mask.blocks(self, rectangles)

    @dataclass(frozen=True)
    class Kept(masks.Mask):
        n: InitVar[int] = 1

        def __post_init__(self, n):
            object.__setattr__(self, "every", n)
            super().__post_init__()

        def __call__(self, batch, head, i, j):
            return j % self.every == 0

    x = torch.randn(1, 1, 6, 8)
    for kind in (Nth, Kept):
        for n in (1, 2, 3, 2):
            visible = (torch.arange(6) % n == 0).expand(1, 1, 6, 6)
            expected = regard.attention(x, x, x, mask=visible, backend="reference")
            for mask in (kind(n), ~~kind(n)):
                torch.testing.assert_close(regard.attention(x, x, x, mask=mask), expected)


def test_copies_are_planned_for_as_their_originals_are():
    for mask in (masks.Padding(FLAGS), masks.Causal() & ~masks.Padding(FLAGS)):
        for again in (copy.deepcopy(mask), pickle.loads(pickle.dumps(mask))):
            leaves, form = again.identity()
            assert form == mask.identity()[1]
            assert leaves[0] is not mask.identity()[0][0]
            assert torch.equal(leaves[0], FLAGS)


def test_the_mask_of_a_module_is_that_of_its_buffer():
    module = ValueModule(masks.Padding(FLAGS))
    assert module() is module()
    changes = {
        "in place": lambda: module.attention_mask.logical_not_(),
        "memory": lambda: setattr(module.attention_mask, "data", ~module.attention_mask),
        "state": lambda: module.load_state_dict({"attention_mask": ~module.attention_mask}),
        "assigned": lambda: module.load_state_dict({"attention_mask": ~module.attention_mask}, assign=True),
    }
    for case in sweep(changes):
        with case as name:
            before = module().attention_mask.clone()
            changes[name]()
            assert torch.equal(module().attention_mask, ~before)
            assert module().identity() is not None
    assert torch.equal(copy.deepcopy(module)().attention_mask, module().attention_mask)
