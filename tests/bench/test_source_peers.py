"""Running texts are drawn the same every time, and the figures of source_peers.py are those of cases made by hand."""

import hashlib
import importlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from documents import ROOT

transformers = pytest.importorskip("transformers", reason="transformers is not installed (the extra `models`)")
tokenizers = pytest.importorskip("tokenizers")

TEXT = (
    "They went to see Miss Grey at the old mill. Nobody saw Robin there. It rained, and Robin stayed. Go. Then we left."
)


@pytest.fixture(scope="module")
def bench():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        names = ("running_texts", "source_methods", "source_peers")
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})


def test_the_texts_are_those_that_were_drawn_before_any_method_ran_on_them(bench, tmp_path):
    drawn = bench.running_texts.draw_texts()
    assert len(drawn) == 24
    said = "\n".join(f"{one.title}\n{one.text}\n{one.question}\n{one.source}" for one in drawn)
    pinned = "63e6a17260972d3d1347e94a128b8eb34e26e36a3ca656beb505c0023ff66d8f"
    assert hashlib.sha256(said.encode()).hexdigest() == pinned
    blocks = bench.running_texts.TEXTS.read_text("utf-8").split("\n== ")
    other = tmp_path / "reversed.txt"
    other.write_text("\n== ".join([blocks[0], *reversed(blocks[1:])]), "utf-8")
    assert bench.running_texts.draw_texts(path=other) == drawn
    lengths = [len(list(bench.running_texts.sentences(one.text))) for one in drawn]
    assert min(lengths) >= 20
    assert max(lengths) <= 60


def test_a_question_is_about_a_name_that_one_sentence_has(bench):
    found = bench.running_texts.question_of("a title", TEXT)
    assert (found.question, found.source) == ("What does the text say about Miss Grey?", 0)
    assert bench.running_texts.question_of("a title", TEXT.replace("Miss Grey", "Robin")) is None
    short = TEXT.replace("They went to see Miss Grey at the old mill", "They saw Miss Grey there")  # five words
    assert bench.running_texts.question_of("a title", short) is None


def test_runs_are_whole_paragraphs_one_after_the_other(bench):
    long = "word " * 449 + "end."
    chapter = ["It rained. We sat.", "He left.", long, "It rained. We sat. He left.", "It rained.", "We sat. He left."]
    assert list(bench.running_texts.runs(chapter, 3)) == [(0, 2), (3, 4), (4, 6)]


def test_drops_are_of_the_parts_with_the_largest_scores_per_token(bench):
    worth = np.array([1.0, 8.0, 2.0, 4.0, 16.0, 32.0])
    found = bench.source_peers.drops(np.array([0.1, 0.9, 0.3, 0.8, 0.2, 0.0]), lambda kept: float(kept @ worth), 2)
    assert found == {"1": 4.0, "3": 7.0, "5": 15.5}


def test_the_datamodelling_score_is_spearmans_correlation_with_shared_ranks(bench):
    kept = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1]], dtype=bool)
    score = bench.source_peers.datamodelling
    assert score(np.array([1.0, 2.0, 4.0]), kept, np.array([-30.0, -3.0, -2.9, -1.0])) == pytest.approx(1)
    assert score(np.array([1.0, 2.0, 4.0]), kept, np.array([4.0, 3.0, 2.0, 1.0])) == pytest.approx(-1)
    assert score(np.zeros(3), kept, np.array([4.0, 3.0, 2.0, 1.0])) == 0
    # sums 0, 0, 1, 1 have the ranks 0.5, 0.5, 2.5, 2.5; with 0, 1, 2, 3: covariance 1, spreads 1 and √1.25
    assert score(np.array([0.0, 0.0, 1.0]), kept, np.array([-4.0, -3.0, -2.0, -1.0])) == pytest.approx(1 / 1.25**0.5)
    np.testing.assert_array_equal(bench.source_peers.ranks(np.array([5.0, 1.0, 5.0, 7.0])), [1.5, 0, 1.5, 3])


def test_the_interval_is_of_the_mean_over_prompts(bench):
    assert bench.source_peers.mean_interval([0.5] * 8) == {"mean": 0.5, "95 %": [0.5, 0.5]}
    found = bench.source_peers.mean_interval([0.0, 1.0] * 200)  # a mean of 400 has the standard deviation 0.025
    np.testing.assert_allclose(found["95 %"], [0.5 - 1.96 * 0.025, 0.5 + 1.96 * 0.025], atol=0.004)


def test_a_difference_is_paired_and_what_did_not_run_has_its_reason(bench):
    def row(ours, theirs):
        made = {"first": 0, "datamodelling": 0.5}
        methods = {"regard": {**made, "drops": dict.fromkeys("135", ours)},
                   "other": {**made, "first": 1, "drops": dict.fromkeys("135", theirs)},
                   "broken": {"error": "RuntimeError: no"}}  # fmt: skip
        return {"source": 0, "methods": methods}

    found = bench.source_peers.summary([row(3.0, 1.0), row(5.0, 3.0), row(9.0, 7.0)])
    assert found["other"]["regard's drop at 3 minus its"] == {"mean": 2.0, "95 %": [2.0, 2.0]}
    assert found["regard"]["source found"].startswith("1.00")
    assert found["other"]["source found"].startswith("0.00")
    assert found["broken"] == {"not run": "RuntimeError: no"}


def test_the_tables_are_those_of_the_results(bench, tmp_path):
    made = {"mean": 1.0, "95 %": [0.5, 1.25]}
    one = {"source found": "0.50 (0.20 to 0.80, 4 examples)", "linear datamodelling score": made}
    one |= {f"drop at {count}": made for count in (1, 3, 5)}
    known = {"date": "today", "machine": "one", "prompts": 4, "seconds": {"of the processor": {"regard": 2.5}},
             "regard": one, "other": {"not run": "no"}, "rows": [{"methods": {"regard": {}, "other": {}}}]}  # fmt: skip
    text = bench.source_peers.table("prompts", known).splitlines()
    assert text[0] == "4 of 40 prompts, today, one."
    assert text[4:] == [
        "| regard | 0.50 (0.20 to 0.80) | " + "1.00 (0.50 to 1.25) | " * 3 + " |  | 1.00 (0.50 to 1.25) | 2.5 |",
        "| other | not run: no |",
    ]
    assert text[2].count("|") == text[3].count("|") == text[4].count("|")
    page = tmp_path / "sources.md"
    page.write_text((ROOT / "docs" / "sources.md").read_text("utf-8"), "utf-8")
    bench.source_peers.write_tables(ROOT / "benchmarks" / "results", page)
    assert page.read_text("utf-8") == (ROOT / "docs" / "sources.md").read_text("utf-8")


def test_parts_are_left_out_as_verify_leaves_them_out(bench):
    text = "Intro\n[1] a\nOne. Two.\n\n[2] b\nThree.\n\nQuestion"
    places = [(12, 16), (17, 21), (29, 35)]
    assert [text[start:end] for start, end in places] == ["One.", "Two.", "Three."]
    without = bench.source_methods.without
    assert without(text, places[:1]) == "Intro\n[1] a\nTwo.\n\n[2] b\nThree.\n\nQuestion"
    assert without(text, [places[2], places[0]]) == "Intro\n[1] a\nTwo.\n\n[2] b\n\nQuestion"
    assert without(text, places) == "Intro\n[1] a\n\n[2] b\n\nQuestion"
    assert without(text, []) == text


def test_the_log_probability_without_parts_is_that_of_a_run_of_its_own(bench):
    known = "Answer the question from these documents . [ 1 ] a The cat is grey dog red Question : What ? \n".split(" ")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: at for at, word in enumerate(known)}, known[0]))
    split = tokenizers.Regex(r"[A-Za-z]+|[^\sA-Za-z]|\n")
    words.pre_tokenizer = tokenizers.pre_tokenizers.Split(split, "removed", invert=True)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(known), hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, initializer_range=0.5, pad_token_id=0, eos_token_id=None,
    )  # fmt: skip
    loaded = SimpleNamespace(model=transformers.LlamaForCausalLM(config).eval(), tokenizer=tokenizer)
    one = bench.source_methods.Question(
        "q", {"a": "The cat is grey. The dog is red."}, "What is grey?", "The cat.", "sentence"
    )
    asked = bench.source_methods.Asked(loaded, one, "The cat.")
    for kept in ([True, True], [True, False], [False, True], [False, False], [True, True]):
        text = f"{asked.text(np.array(kept))} The cat."
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            rows = loaded.model(ids).logits[0, -4:-1].double().log_softmax(-1)
        expected = float(rows.gather(1, ids[0, -3:, None]).sum())
        assert asked.log_prob(np.array(kept)) == pytest.approx(expected, abs=1e-5)
    assert bench.source_methods.by_leaving_out(asked)[0] == pytest.approx(
        asked.log_prob(np.array([True, True])) - asked.log_prob(np.array([False, True]))
    )
