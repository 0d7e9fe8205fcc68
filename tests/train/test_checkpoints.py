"""A damaged checkpoint is refused: whatever is loaded is what was saved, to the bit."""

import json
import re
import zlib
from itertools import product

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from regard.errors import InputError
from regard.train import train
from regard.train.checkpoints import Checkpoints, TrainerState
from sweeps import sweep
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


def saved_in(folder):
    checkpoints = Checkpoints(folder)
    model, optimizer = stepped(*made())
    checkpoints.save(model, optimizer, TrainerState(2))
    checkpoints.save(*stepped(model, optimizer), PLACE)
    return checkpoints, model, optimizer


@pytest.fixture
def saved(tmp_path):
    return saved_in(tmp_path)


def state(model, optimizer):
    moments = [one[key] for one in optimizer.state.values() for key in sorted(one)]
    return [*model.state_dict().values(), *moments]


def test_no_flipped_bit_is_trained_on(tmp_path_factory):
    """Of every third byte a bit: it is refused in a sentence, or what is loaded is what was saved."""
    for case in sweep(FILES):
        with case as name:
            checkpoints, *trained = saved_in(tmp_path_factory.mktemp("checkpoints"))
            path = checkpoints.at(3) / name
            whole, rng = bytearray(path.read_bytes()), np.random.default_rng(0)
            fresh, refused = made(1), 0
            words = r"^cannot read the checkpoint .*step-00000003: .*; remove that folder, .* from step 2$"
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
            # In JSON " " and "\n" are both white space.
            assert refused >= (len(tried) if name != "place.json" else 0.95 * len(tried))


def test_a_file_that_is_not_what_was_written_is_named(tmp_path_factory):
    for case in sweep(product(FILES, ["cut", "empty", "missing", "of another step", "added to"])):
        with case as (name, damage):
            checkpoints, *_ = saved_in(tmp_path_factory.mktemp("checkpoints"))
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


def test_moments_that_are_not_the_optimizers_are_refused(tmp_path_factory):
    """Also where every checksum holds."""
    for case in sweep(["missing", "another", "shape"]):
        with case as change:
            checkpoints, *_ = saved_in(tmp_path_factory.mktemp("checkpoints"))
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
            with pytest.raises(
                InputError, match=r"optimizer\.safetensors has the moments .* of weight, and the optimizer"
            ) as refused:
                checkpoints.load(3, *made())
            assert "is whole" in str(refused.value)
            assert "remove" not in str(refused.value)


def test_a_checkpoint_of_another_model_is_whole_and_not_to_be_removed(saved):
    model = nn.Linear(4, 2)
    with pytest.raises(InputError, match=r"is whole, and is not of this model .*: .*size mismatch") as refused:
        saved[0].load(3, model, torch.optim.AdamW(model.parameters()))
    assert "remove" not in str(refused.value)


GOOD = {"step": 3, "epoch": 0, "batch": 0, "scores": []}


def test_a_place_of_wrong_types_is_one_sentence(saved):
    changes = [{"step": 2}, {"epoch": "1"}, {"batch": -1}, {"step": True}]
    changes += [{"scores": scores} for scores in (None, 5, [5], [{}], [{"step": "a"}], [{"step": [1]}], {"step": 1})]
    cases = [None, [], 7, {}, *(GOOD | change for change in changes)]
    for case in sweep(cases):
        with case as place:
            checkpoints, *_ = saved
            written_again(checkpoints, place=place)
            with pytest.raises(InputError, match="cannot read the checkpoint"):
                checkpoints.load(3, *made())


def test_a_place_that_is_no_object_is_one_sentence(saved):
    for case in sweep(["", "[]", "7", "{}", "null", '"a"', "[" * 100_000, '{"version": 2}', "\ufeff{}"]):
        with case as text:
            checkpoints, *_ = saved
            (checkpoints.at(3) / "place.json").write_text(text, "utf-8")
            with pytest.raises(InputError, match="cannot read the checkpoint"):
                checkpoints.load(3, *made())


def test_a_checkpoint_without_checksums_is_refused_with_its_version(saved):
    checkpoints, *_ = saved
    (checkpoints.at(3) / "place.json").write_text(json.dumps(GOOD), "utf-8")
    with pytest.raises(InputError, match=r"place\.json is not of version 2; remove that folder"):
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
