"""A long run that is killed leaves the atlas that was there, or a folder from which it goes on; never a broken file."""

import json
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import regard
from regard.errors import InputError, ObservationError
from regard.observe.statistics import Rollout
from regard.record.atlas import read_atlas
from regard.record.resumable_atlas import AtlasParts
from sweeps import sweep

N, LAYERS = 30, 5
RUN = {"text": "a", "keep": "qk"}


class Layer(nn.Module):
    def forward(self, x):
        regard.attention(x, x, x, mask=regard.masks.Causal())


class Stack(nn.Module):
    """Some calls, and what happens before each."""

    def __init__(self, before=lambda n: None):
        super().__init__()
        self.blocks = nn.ModuleList([Layer() for _ in range(LAYERS)])
        self.before = before

    def forward(self):
        for n, block in enumerate(self.blocks):
            self.before(n)
            block(torch.randn(1, 2, N, 8, generator=torch.Generator().manual_seed(n)))


def watched(on_layer_end=None, before=lambda n: None, **asked):
    with regard.watch(model := Stack(before), **({"keep": "qk"} | asked), on_layer_end=on_layer_end) as seen:
        model()
    return seen.record


def same(one, other):
    assert [layer.name for layer in one.layers] == [layer.name for layer in other.layers]
    for a, b in zip(one.layers, other.layers, strict=True):
        for name in ("mean", "top_keys", "top_weights", "entropy", "received"):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
        np.testing.assert_array_equal(a.qk.whole(0, 1, N, N), b.qk.whole(0, 1, N, N))


def stop_at(number):
    def before(n):
        if n == number:
            raise KeyboardInterrupt

    return before


def test_layers_by_way_of_a_folder_are_those_of_a_run_without(tmp_path):
    part = AtlasParts(tmp_path / "it.atlas", RUN)
    part.finish(watched(part))
    assert [path.name for path in tmp_path.iterdir()] == ["it.atlas"]
    same(read_atlas(tmp_path / "it.atlas")[0], watched())


class Counting(AtlasParts):
    put_again = 0

    def __call__(self, number, layer):
        self.put_again += 1
        return super().__call__(number, layer)


@pytest.mark.parametrize("stop", [1, 3, 4])
def test_an_interrupted_run_goes_on_with_what_is_finished(tmp_path, stop):
    with pytest.raises(KeyboardInterrupt):
        watched(AtlasParts(tmp_path / "it.atlas", RUN), stop_at(stop))
    part = Counting(tmp_path / "it.atlas", RUN, resume=True)
    assert part.finished == stop
    part.finish(watched(part))
    assert part.put_again == LAYERS - stop  # the others were not observed again
    same(read_atlas(tmp_path / "it.atlas")[0], watched())


def test_it_is_asked_whether_to_go_on(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        watched(AtlasParts(tmp_path / "it.atlas", RUN), stop_at(2))
    with pytest.raises(InputError, match=r"it\.atlas\.part holds 2 finished layers .* add --resume .* or remove"):
        AtlasParts(tmp_path / "it.atlas", RUN)


def test_another_run_is_refused(tmp_path):
    for case in sweep([{"text": "b"}, {"keep": "maps"}, {"statistics": ["distance"]}, {"version": 2}]):
        with case as other:
            (folder := tmp_path / next(iter(other))).mkdir()
            with pytest.raises(KeyboardInterrupt):
                watched(AtlasParts(folder / "it.atlas", RUN), stop_at(2))
            words = rf"belongs to another run, whose {next(iter(other))} was .* and is now .*: run it with the same"
            with pytest.raises(InputError, match=words):
                AtlasParts(folder / "it.atlas", RUN | other, resume=True)


def test_layers_of_another_run_go_when_its_process_has_ended(tmp_path):
    """Not before the new run has a layer: one that is refused, or dies at once, removes nothing."""
    with pytest.raises(KeyboardInterrupt):
        watched(living := AtlasParts(tmp_path / "it.atlas", RUN), stop_at(2))
    with pytest.raises(InputError, match=r"it\.atlas\.part holds 2 finished layers"):
        AtlasParts(tmp_path / "it.atlas", RUN | {"text": "b"})
    living._release()  # as when it is killed
    part = AtlasParts(tmp_path / "it.atlas", RUN | {"text": "b"})
    assert part.finished == 2
    with pytest.raises(KeyboardInterrupt):
        watched(part, stop_at(1))
    assert part.finished == 1
    assert json.loads((part.folder / "run.json").read_text())["text"] == "b"
    part = AtlasParts(tmp_path / "it.atlas", RUN | {"text": "b"}, resume=True)
    part.finish(watched(part))
    assert [path.name for path in tmp_path.iterdir()] == ["it.atlas"]


def test_a_folder_that_says_nothing_is_refused(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        watched(AtlasParts(tmp_path / "it.atlas", RUN), stop_at(2))
    for text in ("", "[]", "7", "{"):
        (tmp_path / "it.atlas.part" / "run.json").write_text(text)
        with pytest.raises(InputError, match=r"cannot be resumed|belongs to another run"):
            AtlasParts(tmp_path / "it.atlas", RUN, resume=True)


def test_a_run_that_died_before_its_first_layer_binds_nobody(tmp_path):
    folder = tmp_path / "it.atlas.part"
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"text": "other"}))
    with pytest.raises(KeyboardInterrupt):
        watched(AtlasParts(tmp_path / "it.atlas", RUN), stop_at(2))
    assert json.loads((folder / "run.json").read_text())["text"] == "a"


def test_a_layer_that_is_cut_off_is_observed_again(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        watched(AtlasParts(tmp_path / "it.atlas", RUN), stop_at(3))
    file = tmp_path / "it.atlas.part" / "0001.layer"
    file.write_bytes(file.read_bytes()[:-1])
    part = Counting(tmp_path / "it.atlas", RUN, resume=True)
    part.finish(watched(part))
    assert part.put_again == LAYERS - 2
    same(read_atlas(tmp_path / "it.atlas")[0], watched())


def test_a_layer_of_which_a_bit_has_changed_is_observed_again(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        watched(AtlasParts(tmp_path / "it.atlas", RUN), stop_at(3))
    file = tmp_path / "it.atlas.part" / "0001.layer"
    content = bytearray(file.read_bytes())
    content[-100] ^= 4
    file.write_bytes(content)
    part = Counting(tmp_path / "it.atlas", RUN, resume=True)
    part.finish(watched(part))
    assert part.put_again == LAYERS - 2
    same(read_atlas(tmp_path / "it.atlas")[0], watched())


def test_of_two_runs_that_begin_at_once_the_second_is_refused(tmp_path):
    first, second = (AtlasParts(tmp_path / "it.atlas", RUN | {"text": text}) for text in "ab")
    with pytest.raises(KeyboardInterrupt):
        watched(first, stop_at(1))
    with pytest.raises(InputError, match=r"another run writes to .*it\.atlas\.part too: let it end, or choose"):
        watched(second)
    part = AtlasParts(tmp_path / "it.atlas", RUN | {"text": "a"}, resume=True)  # the first one's folder is as it was
    part.finish(watched(part))


def test_a_layer_of_another_run_is_nobodys(tmp_path):
    for text in "ab":  # the file of one run, in the folder of another, whose run.json was written over
        with pytest.raises(KeyboardInterrupt):
            watched(AtlasParts(tmp_path / text, RUN | {"text": text}), stop_at(3))
    (tmp_path / "b.part" / "0001.layer").replace(tmp_path / "a.part" / "0001.layer")
    part = Counting(tmp_path / "a", RUN | {"text": "a"}, resume=True)
    watched(part)
    assert part.put_again == LAYERS - 2


def test_a_layer_that_another_run_writes_over_is_no_result(tmp_path, monkeypatch):
    part = AtlasParts(tmp_path / "it.atlas", RUN)
    with pytest.raises(KeyboardInterrupt):
        watched(other := AtlasParts(tmp_path / "other", RUN | {"text": "b"}), stop_at(2))
    save = regard.record.resumable_atlas.save_atlas

    def save_and_be_written_over(records, path):
        save(records, path)
        (other.folder / path.name).replace(path)

    monkeypatch.setattr(regard.record.resumable_atlas, "save_atlas", save_and_be_written_over)
    with pytest.raises(InputError, match="another run writes to"):
        watched(part)


def test_what_needs_all_layers_is_refused_where_each_is_finished_as_it_comes(tmp_path):
    for case in sweep([Rollout(key=1), Rollout(query=-1), "gradient_x_attention", "importance"]):
        with case as asked:
            name = asked if isinstance(asked, str) else "rollout"
            with pytest.raises(InputError, match=rf"the statistic '{name}' needs all layers, or a backward pass"):
                watched(AtlasParts(tmp_path / "it.atlas", RUN), statistics=[asked])


def test_a_full_disk_leaves_no_folder_without_a_layer(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
        with pytest.raises(InputError, match=r"cannot write .*0000\.layer: File too large"):
            watched(AtlasParts(tmp_path / "it.atlas", RUN))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_goes_meanwhile_is_named(tmp_path):
    (folder := tmp_path / "there").mkdir()
    part = AtlasParts(folder / "it.atlas", RUN)
    folder.rmdir()
    with pytest.raises(InputError, match=r"cannot write .*it\.atlas\.part: No such file or directory"):
        part.finish(watched())


def test_a_second_pass_is_refused(tmp_path):
    model = Stack()

    def twice():
        with regard.watch(model, on_layer_end=AtlasParts(tmp_path / "it.atlas", RUN)):
            model()
            model()

    with pytest.raises(ObservationError, match=r"blocks\.0 was called twice, and layers that are taken"):
        twice()


def test_a_file_in_the_place_of_the_folder_is_named(tmp_path):
    (tmp_path / "it.atlas.part").write_text("mine")
    with pytest.raises(InputError, match=r"it\.atlas\.part is in the way"):
        AtlasParts(tmp_path / "it.atlas", RUN)


SERVER = """
import os, signal, sys, time
import regard.backends  # as the first call does, in a second or more
sys.path[:0] = sys.argv[2:]
from observe.test_part import AtlasParts, RUN, watched
print("ready", flush=True)
for line in sys.stdin:
    child = os.fork()  # from a process that has imported all and computed nothing
    if not child:
        part = AtlasParts(sys.argv[1], RUN, resume=True)
        part.finish(watched(part, lambda n: time.sleep(0.1)))
        os._exit(0)
    time.sleep(float(line))
    os.kill(child, signal.SIGKILL)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.mark.slow
def test_killed_at_any_moment_it_leaves_no_broken_file(tmp_path):
    """Killed over and over until it comes to its end: each run goes on with what the last has left."""
    out = tmp_path / "it.atlas"
    part = AtlasParts(out, {"text": "old"})
    part.finish(watched(part))
    old, expected = out.read_bytes(), watched()
    tests = Path(__file__).parent.parent
    command = [sys.executable, "-c", SERVER, out, tests]
    ends, counts = [], []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout.readline() == "ready\n"
        while 0 not in ends:
            server.stdin.write(f"{0.01 + 0.05 * len(ends)}\n")
            server.stdin.flush()
            ends.append(int(server.stdout.readline()))
            (record,) = read_atlas(out)
            for layer in record.layers:  # every checksum holds
                assert layer.mean.shape == layer.max.shape
                layer.qk.whole(0, 0, N, N)
            if out.read_bytes() != old:
                same(record, expected)
            counts.append(AtlasParts(out, RUN, resume=True).finished)
        server.stdin.close()
    assert len(ends) > 3
    assert set(ends[:-1]) == {-signal.SIGKILL}
    same(read_atlas(out)[0], expected)
    assert not list(tmp_path.glob("*.part"))
    assert max(counts) > 0


def test_the_file_that_identifies_a_run_is_removed_last(tmp_path, monkeypatch):
    """A kill while the folder is removed leaves layers of a known run, or none."""
    left, remove = [], shutil.rmtree

    def looked_at(folder, **how):
        left.append(sorted(one.name for one in Path(folder).iterdir()))
        remove(folder, **how)

    monkeypatch.setattr(shutil, "rmtree", looked_at)
    part = AtlasParts(tmp_path / "it.atlas", RUN)
    part.finish(watched(part))
    assert "run.json" in left[-1]
    assert not [name for name in left[-1] if name.endswith(".layer")]
    assert not list(tmp_path.glob("*.part"))
