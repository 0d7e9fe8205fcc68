"""One walk over values: tensors and form, and back; forms as keys, names and JSON."""

import json
from collections import namedtuple
from dataclasses import dataclass, is_dataclass

import pytest
import torch

from regard import masks, normalizers, positions, scores, serialization
from regard.serialization import KINDS, UnwritableError
from regard.values import copied, flatten, is_fixed, names, tensors, unflatten
from sweeps import sweep

Pair = namedtuple("Pair", "left right")
FLAGS = torch.tensor([[True, True, False]])


@dataclass(frozen=True, eq=False)
class Box:
    inside: object
    size: int = 3


VALUES = {
    "nothing": None,
    "tensor": torch.arange(3.0),
    "numbers": (1, 2.5, True, "word", None, range(3)),
    "nested": Box((torch.zeros(2), [Box(torch.ones(1)), "x"]), size=4),
    "dictionary": Box({"a": torch.ones(1), "b": (1, torch.zeros(1))}),
    "named tuple": Pair(torch.ones(1), 2),
    "empty": Box(()),
    "mask": masks.Causal() & ~masks.Padding(FLAGS) | masks.Window(2),
    "score": scores.Bilinear(torch.eye(2)),
}


def same(one, other):
    """Whether two values are alike, by their types and parts, without the walk."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if type(one) is not type(other):
        return False
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if is_dataclass(one):
        return all(same(getattr(one, name), getattr(other, name)) for name in type(one).__dataclass_fields__)
    return one == other


def test_what_is_taken_apart_is_put_together_again():
    for case in sweep(VALUES):
        with case as name:
            for numbers in (False, True):
                leaves, form = flatten(VALUES[name], numbers=numbers)
                assert same(unflatten(form, leaves), VALUES[name])
                assert len(list(names(form))) == len(leaves) == len(set(names(form)))


def test_leaves_are_the_tensors_in_order_and_with_numbers_these_too():
    value = Box((torch.zeros(1), True, 5, (0.5, torch.ones(1)), "x"), size=7)
    assert [float(leaf) for leaf in tensors(value)] == [0.0, 1.0]
    leaves, form = flatten(value, numbers=True)
    assert [float(leaf) for leaf in leaves] == [0.0, 5.0, 0.5, 1.0, 7.0]
    assert unflatten(form, [*leaves[:-1], 8]).size == 8


def test_forms_are_keys_that_tell_everything_but_tensors():
    forms = {flatten(value)[1] for name, value in VALUES.items() if name != "nested"}
    assert len(forms) == len(VALUES) - 1
    for one, other in (
        (masks.Window(2), masks.Window(3)),
        (masks.Causal(), ~masks.Causal()),
        ((1, 2), [1, 2]),
        ((1,), (True,)),
        ((1,), (1.0,)),
        (Box(None, 1), Box(None, True)),
        (Box((torch.zeros(1), None)), Box((None, torch.zeros(1)))),
        (masks.Causal() & masks.Window(2), masks.Causal() | masks.Window(2)),
    ):
        assert flatten(one)[1] != flatten(other)[1], (one, other)
    assert flatten(masks.Padding(FLAGS))[1] == flatten(masks.Padding(~FLAGS))[1]


def test_a_value_is_fixed_if_only_its_tensors_can_change():
    @dataclass
    class Open(masks.Mask):
        size: int = 1

    assert all(is_fixed(flatten(value)[1]) for value in (masks.Causal(), (1, "x"), masks.Padding(FLAGS), torch.ones(1)))
    for value in ([1], {"a": 1}, Open(), ~Open(), masks.MaskMod(lambda b, h, i, j: i == j), Box({1, 2}), object()):
        assert not is_fixed(flatten(value)[1]), value


def test_a_copy_has_tensors_of_its_own_and_no_more_memory():
    value = Box((torch.zeros(2, requires_grad=True) * 1, torch.ones(1).expand(1000)))
    copy = copied(value)
    assert same(copy, value)
    assert not any(tensor.requires_grad for tensor in tensors(copy))
    assert tensors(copy)[1].untyped_storage().nbytes() == 4
    tensors(copy)[0].add_(1)
    assert not tensors(value)[0].any()


def test_every_part_that_is_exported_has_json_and_what_users_write_has_none():
    roles = {masks: masks.Mask, positions: positions.Bias, scores: scores.Score, normalizers: normalizers.Normalizer}
    for module, role in roles.items():
        for name in module.__all__:
            kind = getattr(module, name)
            if isinstance(kind, type) and issubclass(kind, role) and is_dataclass(kind) and kind is not masks.MaskMod:
                assert KINDS[name] is kind

    @dataclass(frozen=True)
    class Mine(masks.Mask):
        pass

    for value, name in ((Mine(), "Mine"), (masks.Causal() & Mine(), "Mine"), (masks.MaskMod(print), "MaskMod")):
        with pytest.raises(UnwritableError, match=name):
            serialization.write(value, str)
    assert "Mine" not in KINDS


def test_json_is_text_that_gives_the_value_back():
    for value in (
        masks.Causal() & ~masks.Padding(FLAGS),
        positions.ALiBi(2),
        scores.Bilinear(torch.eye(2)),
        (None, "a b"),
    ):
        arrays = []

        def put(array, arrays=arrays):
            arrays.append(array)
            return str(len(arrays) - 1)

        written = json.loads(json.dumps(serialization.write(value, put)))
        assert same(serialization.read(written, lambda name, arrays=arrays: arrays[int(name)]), value)
    for broken in ({"kind": "Nobody", "fields": {}}, {"kind": "Window", "fields": {"left": 1}}):
        with pytest.raises((KeyError, ValueError)):
            serialization.read(broken, str)
