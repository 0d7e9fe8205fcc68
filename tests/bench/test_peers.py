"""Other people's packages in the tables: what is missing, broken or not the same is said, and the others go on."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest
import torch

import regard
from regard.errors import InputError
from regard.masks import Causal
from regard_bench.cases import peers, seeing
from regard_bench.cases.inputs import real_tokens
from regard_bench.cases.peers import prepared
from regard_bench.rows import Effort

ROOT = Path(__file__).resolve().parents[2]
SHORT = Effort(max_seconds=0, max_tokens=64)


def test_what_is_missing_or_raises_has_a_reason_and_all_else_is_what_was_made():
    def broken():
        raise RuntimeError("no kernel\n for this  machine " + 100 * "x")

    assert prepared("no_such_package", "That", broken) == "That is not installed"
    why = prepared("torch", "torch", broken)
    assert why.startswith("does not run here: RuntimeError: no kernel for this machine xxx")
    assert len(why) < 140
    assert prepared("torch", "torch", lambda: (1, 2)) == (1, 2)


def test_a_peer_is_measured_only_where_it_gives_the_same_and_the_others_go_on(monkeypatch):
    def same(q, k, v):
        return lambda: (regard.attention(q, k, v, mask=Causal()), "more")

    def other(q, k, v):
        return lambda: regard.attention(q, k, v)

    def broken(q, k, v):
        raise NotImplementedError("not on a CPU")

    made = (
        peers._Peer("other", "torch", "causal", Causal(), other),
        peers._Peer("broken", "torch", "causal", Causal(), broken),
        peers._Peer("missing", "no_such_package", "causal", Causal(), same),
        peers._Peer("same", "torch", "causal", Causal(), same),
    )
    monkeypatch.setattr(peers, "_peers", lambda: made)
    layer, wrong, cannot, missing, right = peers.PEERS.rows(SHORT)
    assert layer.ratio.rounds == right.ratio.rounds == 5
    assert (right.case, right.at) == ("causal, against same", "64 tokens")
    assert re.search(r"it gives other numbers, [\d.]+ apart", wrong.why)
    assert "not on a CPU" in cannot.why
    assert missing.why == "missing is not installed"
    assert [one.ratio for one in (wrong, cannot, missing)] == [None] * 3


def test_without_peers_every_row_says_so_and_no_model_is_read(monkeypatch):
    monkeypatch.setattr("regard_bench.cases.peers.find_spec", lambda name: None)
    monkeypatch.setattr(regard, "load_model", None)
    found = [*seeing.SEEING.rows(SHORT), *list(peers.PEERS.rows(SHORT))[1:]]
    assert [one.why for one in found] == [
        "attnread is not installed", "bertviz is not installed", "x-transformers is not installed",
        "local-attention is not installed", "FlexAttention, compiled is not installed",
        "natten (FlexAttention, not compiled) is not installed",
    ]  # fmt: skip


@pytest.mark.models
@pytest.mark.slow
def test_attnread_is_called_once_between_calls_of_ours_if_both_see_the_weights_of_transformers(monkeypatch):
    eager = regard.load_model("smollm2", attn_implementation="eager").model
    loaded = regard.load_model("smollm2")
    monkeypatch.setattr(regard, "load_model", lambda name: loaded)
    monkeypatch.setattr(seeing, "WEIGHTS", (96, 128))
    calls, shift = [], [0.0]

    def extract_attention(model, inputs, heads):
        calls.append(inputs["input_ids"].shape[1])
        with torch.inference_mode():
            dense = eager(**inputs, use_cache=False, output_attentions=True).attentions
        return {("text", *one): dense[one[0]][:, one[1]] + shift[0] for one in heads}

    module = ModuleType("attnread")
    module.extract_attention = extract_attention
    monkeypatch.setitem(sys.modules, "attnread", module)
    monkeypatch.setattr("regard_bench.cases.peers.find_spec", lambda name: name == "attnread")
    ours = []
    watch = regard.watch
    monkeypatch.setattr(regard, "watch", lambda *model, **options: ours.append(len(calls)) or watch(*model, **options))
    row = seeing._one_layer(Effort(max_tokens=4096))
    assert row.why == ""
    assert calls == [64, 96]
    assert ours == [1, 1, 1, 1, 2, 2]  # tried and warm, two before, two after
    assert (row.at, row.ratio.rounds, row.target) == ("96 tokens, one call", 1, None)
    assert str(seeing._one_layer(Effort()).target) == "≥ 20"
    shift[0] = 1e-3
    assert "it gives other weights, 0.001 apart" in seeing._one_layer(Effort()).why


@pytest.mark.slow
@pytest.mark.models
def test_a_page_of_bertviz_is_timed_from_the_text_and_its_bytes_are_counted(monkeypatch):
    seen = []

    def head_view(attentions, words, html_action):
        seen.append((len(attentions), attentions[0].shape[-1], len(words), html_action))
        time.sleep(0.01)
        return type("HTML", (), {"data": 30_000_000 * "x"})

    module = ModuleType("bertviz")
    module.head_view = head_view
    monkeypatch.setitem(sys.modules, "bertviz", module)
    monkeypatch.setattr("regard_bench.cases.peers.find_spec", lambda name: name == "bertviz")
    monkeypatch.setattr(seeing, "PAGE", (96, 128))
    timed, size = seeing._page(Effort(max_seconds=0, max_tokens=4096))
    assert set(seen) == {(6, 64, 64, "return"), (6, 96, 96, "return")}
    assert timed.ratio.rounds == 5
    assert 30 < size.ratio.median < 600  # of a page of 50 kB to a megabyte


def test_real_tokens_are_those_of_regards_own_sources():
    def tokenizer(text, **_):
        return {"input_ids": [ord(one) for one in text]}

    ids = real_tokens(tokenizer, 200)
    assert ids.shape == (1, 200)
    first = min((ROOT / "src" / "regard").rglob("*.py"))
    assert "".join(map(chr, ids[0])) == first.read_text("utf-8")[:200]
    with pytest.raises(InputError, match=r"`count` must be at most 5, .* got 6"):
        real_tokens(lambda text, **_: {"input_ids": [1] * 5}, 6)


def test_no_peer_brings_a_package_of_ours_and_each_has_one_version():
    lines = (ROOT / "benchmarks" / "peers.txt").read_text("utf-8").splitlines()
    named = [re.fullmatch(r"([a-z0-9-]+)==[\d.]+", line) for line in lines if not line.startswith("#")]
    assert all(named)
    names = [one[1] for one in named]
    assert len(set(names)) == len(names)
    ours = re.findall(r"^([\w-]+)==", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE)
    assert not set(names) & {*(one.lower() for one in ours), "regard"}
    assert {"x-transformers", "local-attention", "natten", "bertviz", "attnread"} <= set(names)


def test_where_there_is_no_earlier_run_on_as_many_cores_bench_check_says_so_and_passes(tmp_path):
    earlier = tmp_path / "speed.json"
    command = ["make", "--no-print-directory", "bench-check", f"RESULTS={earlier}", "--old-file=.venv/stamps/all"]
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(command, cwd=ROOT, env=bare, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"there is no {earlier}: nothing to compare the speed of this machine with\n"
