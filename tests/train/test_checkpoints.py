"""A damaged checkpoint is refused: whatever is loaded is what was saved, to the bit."""

import json
import re
import zlib

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from regard.errors import InputError
from regard.train import train
from regard.train.checkpoints import Checkpoints, TrainerState
from train.runs import tiny

FILES = ("model.safetensors", "optimizer.safetensors", "place.json")
PLACE = TrainerState(3, 1, 2, ({"step": 2, "loss": 0.5}, {"step": 3, "loss": float("nan")}))


def made(seed=0):
    torch.manual_seed(seed)
    model = nn.Linear(3, 2)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def stepped(model, optimizer):
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


@pytest.fixture
def saved(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    model, optimizer = stepped(*made())
    checkpoints.save(model, optimizer, TrainerState(2))
    checkpoints.save(*stepped(model, optimizer), PLACE)
    return checkpoints, model, optimizer


def state(model, optimizer):
    moments = [one[key] for one in optimizer.state.values() for key in sorted(one)]
    return [*model.state_dict().values(), *moments]


@pytest.mark.parametrize("name", FILES)
def test_no_flipped_bit_is_trained_on(saved, name):
    """Of every third byte a bit: it is refused in a sentence, or what is loaded is what was saved."""
    checkpoints, *trained = saved
    path = checkpoints.at(3) / name
    whole, rng = bytearray(path.read_bytes()), np.random.default_rng(0)
    fresh, refused = made(1), 0
    words = r"^cannot read the checkpoint .*step-00000003: .*; remove that folder, and the .* continues from step 2$"
    tried = range(int(rng.integers(3)), len(whole), 3)
    for at in tried:
        changed = whole.copy()
        changed[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(changed)
        try:
            place = checkpoints.load(3, *fresh)
        except InputError as problem:
            refused += bool(re.search(words, str(problem)))
        else:
            assert repr(place) == repr(PLACE)
            assert all(torch.equal(*pair) for pair in zip(state(*fresh), state(*trained), strict=True))
    assert refused >= (len(tried) if name != "place.json" else 0.95 * len(tried))  # " " and "\n" are both white space


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["cut", "empty", "missing", "of another step", "added to"])
def test_a_file_that_is_not_what_was_written_is_named(saved, name, damage):
    checkpoints, *_ = saved
    path = checkpoints.at(3) / name
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        other = (checkpoints.at(2) / name).read_bytes()
        path.write_bytes({"cut": content[:-1], "empty": b"", "added to": content + b"x"}.get(damage, other))
    with pytest.raises(InputError, match=rf"step-00000003: .*{re.escape(name)}"):
        checkpoints.load(3, *made())
    if name != "optimizer.safetensors":
        with pytest.raises(InputError, match=r"cannot read the checkpoint"):
            checkpoints.weights(3)


def written_again(checkpoints, **changes):
    """place.json with other values, and with checksums that hold."""
    path = checkpoints.at(3) / "place.json"
    about = json.loads(path.read_text("utf-8")) | changes
    about["files"] = {name: zlib.crc32((path.parent / name).read_bytes()) for name in about["files"]}
    del about["crc"]
    path.write_text(json.dumps(about | {"crc": zlib.crc32(json.dumps(about, sort_keys=True).encode())}), "utf-8")


@pytest.mark.parametrize("change", ["missing", "another", "shape"])
def test_moments_that_are_not_the_optimizers_are_refused(saved, change):
    """Also where every checksum holds."""
    checkpoints, *_ = saved
    path = checkpoints.at(3) / "optimizer.safetensors"
    moments = load_file(path)
    if change == "missing":
        del moments["exp_avg_sq:weight"]
    elif change == "another":
        moments["max_exp_avg_sq:weight"] = torch.zeros(2, 3)
    else:
        moments["exp_avg:weight"] = torch.zeros(3)
    save_file(moments, path)
    with pytest.raises(InputError, match=r"the checksum of optimizer\.safetensors does not hold"):
        checkpoints.load(3, *made())
    written_again(checkpoints)
    with pytest.raises(InputError, match=r"optimizer\.safetensors has the moments .* of weight, and the optimizer"):
        checkpoints.load(3, *made())


GOOD = {"step": 3, "epoch": 0, "batch": 0, "scores": []}


@pytest.mark.parametrize(
    "place",
    [None, [], 7, {}, GOOD | {"step": 2}, GOOD | {"epoch": "1"}, GOOD | {"batch": -1}, GOOD | {"step": True}]
    + [GOOD | {"scores": one} for one in (None, 5, [5], [{}], [{"step": "a"}], [{"step": [1]}], {"step": 1})],
    ids=str,
)
def test_a_place_of_wrong_types_is_one_sentence(saved, place):
    checkpoints, *_ = saved
    written_again(checkpoints, place=place)
    with pytest.raises(InputError, match="cannot read the checkpoint"):
        checkpoints.load(3, *made())


@pytest.mark.parametrize("text", ["", "[]", "7", "{}", "null", '"a"', "[" * 100_000, '{"version": 2}', "\ufeff{}"])
def test_a_place_that_is_no_object_is_one_sentence(saved, text):
    checkpoints, *_ = saved
    (checkpoints.at(3) / "place.json").write_text(text, "utf-8")
    with pytest.raises(InputError, match="cannot read the checkpoint"):
        checkpoints.load(3, *made())


def test_a_checkpoint_without_checksums_is_refused_with_its_version(saved):
    checkpoints, *_ = saved
    (checkpoints.at(3) / "place.json").write_text(json.dumps(GOOD), "utf-8")
    with pytest.raises(InputError, match=r"place\.json is not of version 2 .* of version 1, without checksums"):
        checkpoints.load(3, *made())


def test_a_run_refuses_and_continues_when_the_damaged_folder_is_removed(tmp_path):
    """The way out is the one that the sentence names, and it ends with the same bits."""
    whole = Checkpoints(tmp_path / "whole" / "checkpoints")
    train(tiny(tmp_path / "whole", training__max_steps=3))
    train(tiny(tmp_path / "run", training__max_steps=2))
    folder = tmp_path / "run" / "checkpoints" / "step-00000002"
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[-1] ^= 64
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(InputError, match=r"step-00000002: .*model\.safetensors does not hold; .* from step 1"):
        train(tiny(tmp_path / "run", training__max_steps=3))
    folder.rename(tmp_path / "away")
    train(tiny(tmp_path / "run", training__max_steps=3))
    one, other = whole.weights(3), Checkpoints(tmp_path / "run" / "checkpoints").weights(3)
    assert all(torch.equal(one[name], other[name]) for name in one)
