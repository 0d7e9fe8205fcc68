"""What is recorded for the lesson page: the scripts that make it, and that its numbers are those of real outputs."""

import json
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from tools import lesson_data

from documents import ROOT
from regard.data import read_corpus
from regard.errors import InputError, ObservationError
from regard.hub import Loaded
from regard.interpret.translation_steps import record_translation
from regard.train import train
from regard_lab.repeating import GROUPS, LETTERS, PATTERN, WORDS, Clauses, Repeating
from train.runs import tiny

pytest.importorskip("transformers", reason="transformers is not installed (the extra `models`)")

DATA = ROOT / "src/regard/lessons/data"
PAGE = json.loads((DATA / "bottleneck.json").read_text("utf-8"))
OUTPUTS = json.loads((ROOT / "benchmarks/results/lesson-bottleneck.json").read_text("utf-8"))
TRANSLATION = json.loads((DATA / "translation.json").read_text("utf-8"))
TINY = Repeating(hidden=8, steps=3, batch=4, longest=6, seeds=(0, 1), lengths=(3, 6), sentences=4, examples=1)


def right(said, source):
    """How many words of a sentence were said at their places."""
    return sum(place < len(said) and said[place] == letter for place, letter in enumerate(source))


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The files of the script in a tiny setting: the outputs, and what the page gets."""
    folder = tmp_path_factory.mktemp("data")
    lesson_data.bottleneck(TINY, folder / "outputs.json", folder)
    return folder


def shape(value):
    """What is comparable of two files of different sizes: names, and the kinds of values."""
    if isinstance(value, dict):
        numbers = all(name.isdigit() for name in value)
        return shape(next(iter(value.values()))) if numbers else {name: shape(part) for name, part in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return "number" if isinstance(value, int | float) else type(value).__name__


def test_the_script_makes_files_of_the_recorded_format(small):
    for path, recorded in (("outputs.json", OUTPUTS), ("bottleneck.json", PAGE)):
        made = json.loads((small / path).read_text("utf-8"))
        assert made.keys() == recorded.keys()
        for name in recorded.keys() - {"examples", "strongest"}:  # of a model of three steps they may be empty
            assert shape(made[name]) == shape(recorded[name]), name
    made = json.loads((small / "bottleneck.json").read_text("utf-8"))
    assert [set(example) for example in made["examples"]] == [set(PAGE["examples"][0])] * 2
    assert made["settings"] == json.loads(json.dumps(asdict(TINY)))


def test_the_script_makes_the_same_again_and_from_outputs_alone_too(small, tmp_path):
    lesson_data.bottleneck(TINY, tmp_path / "outputs.json", tmp_path)
    first, second = (json.loads((folder / "outputs.json").read_text("utf-8")) for folder in (small, tmp_path))
    assert first["models"] == second["models"]
    assert first["sources"] == second["sources"]
    (tmp_path / "again").mkdir()
    lesson_data.bottleneck(TINY, small / "outputs.json", tmp_path / "again", again=True)
    assert (tmp_path / "again/bottleneck.json").read_bytes() == (small / "bottleneck.json").read_bytes()


def test_the_recorded_settings_are_those_of_the_script():
    assert PAGE["settings"] == OUTPUTS["settings"] == json.loads(json.dumps(asdict(Repeating())))
    assert PAGE["made"] == OUTPUTS["made"]


def test_the_shares_on_the_page_are_counted_in_the_recorded_outputs():
    lengths = [str(length) for length in PAGE["settings"]["lengths"]]
    assert lengths == ["5", "10", "20", "30", "40", "50"]
    for name, model in PAGE["models"].items():
        assert list(model["words_right"]) == list(model["sentences_right"]) == lengths
        for length in lengths:
            sources = OUTPUTS["sources"][length]
            assert len(sources) == PAGE["settings"]["sentences"]
            assert {len(source) for source in sources} == {int(length)}
            for at, outputs in enumerate(OUTPUTS["models"][name]["outputs"].values()):
                counts = [right(said, source) for said, source in zip(outputs[length], sources, strict=True)]
                whole = sum(said == source for said, source in zip(outputs[length], sources, strict=True))
                assert model["words_right"][length][at] == pytest.approx(
                    sum(counts) / int(length) / len(sources), abs=6e-5
                )
                assert model["sentences_right"][length][at] == pytest.approx(whole / len(sources), abs=6e-5)


def test_the_script_makes_the_page_of_the_recorded_outputs(tmp_path):
    lesson_data.bottleneck(Repeating(), ROOT / "benchmarks/results/lesson-bottleneck.json", tmp_path, again=True)
    assert (tmp_path / "bottleneck.json").read_bytes() == (DATA / "bottleneck.json").read_bytes()


def test_the_examples_are_the_first_seeds_outputs_for_typical_sentences():
    """Of no sentence that is not shown does one vector keep a number of words that is nearer to the mean."""
    count = PAGE["settings"]["examples"]
    outputs = OUTPUTS["models"]["fixed"]["outputs"]
    for length in map(str, PAGE["settings"]["lengths"]):
        sources = OUTPUTS["sources"][length]
        kept = np.array([[right(said, source) for said, source in zip(run[length], sources, strict=True)]
                         for run in outputs.values()])  # fmt: skip
        distances = np.abs(kept[0] - kept.mean())
        examples = [example for example in PAGE["examples"] if example["length"] == int(length)]
        assert len(examples) == count
        numbers = [sources.index("".join(LETTERS[symbol] for symbol in example["source"])) for example in examples]
        assert len(set(numbers)) == count
        assert max(distances[numbers]) <= np.delete(distances, numbers).min() + 1e-9
        assert abs(kept[0, numbers[0]] - kept.mean()) < 1  # of all lengths there are sentences as typical as this
        for example, number in zip(examples, numbers, strict=True):
            for model in ("fixed", "attention"):
                said = OUTPUTS["models"][model]["outputs"]["0"][length][number]
                assert example[model] == [LETTERS.find(letter) for letter in said]
            assert len(example["strongest"]) == len(example["attention"])


def test_the_sentences_follow_the_pattern_and_any_word_may_come():
    groups = [list(group) for group in GROUPS.values()]
    assert [len(group) for group in groups] == [16, 16, 16]
    assert PAGE["guess"] == 1 / 16
    assert PAGE["vocabulary"]["en"] == [word for group in groups for word in group]
    assert PAGE["vocabulary"]["zh"] == [chinese for group in GROUPS.values() for chinese in group.values()]
    assert len(set(PAGE["vocabulary"]["zh"])) == len(set(PAGE["vocabulary"]["en"])) == len(WORDS) == len(LETTERS)
    met = set()
    for sources in OUTPUTS["sources"].values():
        assert len(set(sources)) == len(sources)
        for source in sources:
            for place, letter in enumerate(source):
                word = WORDS[LETTERS.index(letter)][0]
                assert word in groups[PATTERN[place % 5]]
                met.add(word)
    assert len(met) == 48


def test_one_vector_loses_words_as_sentences_grow_and_attention_does_not():
    """What the page says of the numbers, for each seed."""
    fixed, attention = (PAGE["models"][name]["words_right"] for name in ("fixed", "attention"))
    for seed in range(len(PAGE["settings"]["seeds"])):
        shares = [fixed[length][seed] for length in ("5", "10", "20", "50")]
        assert shares[0] > 0.95
        assert all(before > after for before, after in pairwise(shares))
        assert shares[-1] < 0.3
        assert min(attention[length][seed] for length in attention) > 0.95
    sizes = PAGE["models"]["fixed"], PAGE["models"]["attention"]
    assert abs(sizes[0]["parameters"] / sizes[1]["parameters"] - 1) < 0.01


def test_most_wrong_words_are_of_the_right_kind_and_the_beginning_comes_back():
    """What the answer on the page says of sentences of twenty words."""
    sources, wrong, kind, early, late = OUTPUTS["sources"]["20"], 0, 0, 0, 0
    for outputs in OUTPUTS["models"]["fixed"]["outputs"].values():
        for said, source in zip(outputs["20"], sources, strict=True):
            early += right(said[:3], source[:3])
            late += right(said, source) - right(said[:10], source[:10])
            for a, b in zip(said, source, strict=False):
                if a != b:
                    wrong += 1
                    kind += LETTERS.find(a) // 16 == LETTERS.find(b) // 16
    assert kind / wrong > 0.95
    assert early / (5 * 60 * 3) > 0.8
    assert late / (5 * 60 * 10) < 0.4


def test_a_batch_of_clauses_has_lengths_that_may_end_within_a_clause():
    rows, targets = Clauses().sample(50, length_range=(1, 7), generator=torch.Generator().manual_seed(3))
    assert rows == targets
    assert {len(row) for row in rows} == {1, 2, 3, 4, 5, 6, 7}
    assert all((symbol - 5) // 16 == (0, 1, 2, 0, 1, 0, 1)[at] for row in rows for at, symbol in enumerate(row))


def test_the_data_are_small():
    files = list(DATA.glob("*.json"))
    assert {"bottleneck.json", "translation.json"} <= {file.name for file in files}
    assert sum((DATA / name).stat().st_size for name in ("bottleneck.json", "translation.json")) <= 120_000


def check_steps(recorded):
    """What holds of every recorded translation."""
    layers, heads = len(recorded["steps"][0]["weights"]), len(recorded["steps"][0]["weights"][0])
    for step in recorded["steps"]:
        assert len(step["weights"]) == layers
        for layer in step["weights"]:
            assert len(layer) == heads
            for row in layer:
                assert len(row) == len(recorded["source"]) == len(recorded["special"])
                assert sum(row) == pytest.approx(1, abs=1e-4 * len(row))
        values = [value for _, value in step["likeliest"]]
        assert values == sorted(values, reverse=True)
        assert [step["token"], step["probability"]] == list(step["likeliest"][0])
    for before, after in pairwise(recorded["steps"]):
        assert after["input"] == before["token"]


def test_the_recorded_translation_was_never_trained_on_and_looks_where_the_page_says():
    check_steps(TRANSLATION)
    assert TRANSLATION["sentence"] == "I love deep learning."
    assert TRANSLATION["translation"] == "我爱深度学习。"
    assert "".join(step["token"] for step in TRANSLATION["steps"] if not step["special"]) == TRANSLATION["translation"]
    trained_on = read_corpus(ROOT / "examples/data/learning-machines.tsv")
    assert TRANSLATION["sentence"] not in trained_on["source"]
    assert TRANSLATION["translation"] not in trained_on["target"]
    step = next(step for step in TRANSLATION["steps"] if step["token"] == "深")
    rows = [head for layer in step["weights"] for head in layer]
    mean = [sum(row[at] for row in rows) / len(rows) for at in range(len(rows[0]))]
    order = sorted(range(len(mean)), key=lambda at: -mean[at])
    assert [TRANSLATION["source"][at] for at in order[:2]] == ["deep", "learning"]
    looks = {TRANSLATION["source"][row.index(max(row))] for row in rows}
    assert looks == {"deep", "learning"}  # the heads differ
    after = next(step for step in TRANSLATION["steps"] if step["token"] == "度")
    rows = [head for layer in after["weights"] for head in layer]
    assert max(sum(row[at] for row in rows) / len(rows) for at in range(len(rows[0]))) < 0.3  # spread


PAIRS = "".join(
    f"{a} {b}\t{one} {two}\n"
    for a, one in (("I", "ich"), ("you", "du"), ("we", "wir"))
    for b, two in (("see", "sehe"), ("buy", "kaufe"), ("like", "mag"))
)


@pytest.fixture(scope="module", params=["transformer", "recurrent"])
def run(request, tmp_path_factory) -> Path:
    """A translator of a few steps of training."""
    pytest.importorskip("sacrebleu", reason="sacrebleu is not installed (the extra `train`)")
    folder = tmp_path_factory.mktemp("run")
    (folder / "pairs.tsv").write_text(PAIRS * 2, "utf-8")
    task = {"type": "translation", "train_file": str(folder / "pairs.tsv"), "validation_size": 2, "target_lang": "de"}
    task |= {"src_tokenizer": {"vocab_size": 60}, "tgt_tokenizer": {"vocab_size": 60}}
    model = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24, "num_hidden_layers": 1}
    if request.param == "recurrent":
        model = {"type": "recurrent", "hidden_size": 16, "embedding_dim": 8}
    train(tiny(folder / "run", task=task, model=model, training__max_steps=3, training__eval_steps=3))
    return folder / "run"


def test_the_script_records_a_translator_of_ones_own(run, tmp_path):
    lesson_data.translation(str(run), "we like", tmp_path)
    made = json.loads((tmp_path / "translation.json").read_text("utf-8"))
    check_steps(made)
    assert made.keys() == TRANSLATION.keys()
    assert made["made"].keys() == TRANSLATION["made"].keys()
    assert made["steps"][0].keys() == TRANSLATION["steps"][0].keys()
    assert "".join(made["source"][:-1]) == "welike"
    assert made["special"][-1]


def letters():
    """A tokenizer whose words are letters."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "<s>", "</s>", *"abcdefghijklmnopqrst"]
    backend = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="a"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", pad_token="<pad>", bos_token="<s>")


def test_of_a_model_of_transformers_it_is_what_it_says_itself():
    """Greedy generation, the cross-attention and the logits of transformers' own eager model."""
    from transformers import MarianConfig, MarianMTModel

    tokenizer = letters()
    config = MarianConfig(
        vocab_size=len(tokenizer), d_model=16, encoder_layers=1, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=4, encoder_ffn_dim=24, decoder_ffn_dim=24, pad_token_id=0, eos_token_id=2,
        decoder_start_token_id=0, max_position_embeddings=80, forced_eos_token_id=None, attn_implementation="eager",
    )  # fmt: skip
    torch.manual_seed(2)
    model = MarianMTModel(config).eval()
    for parameter in model.parameters():
        if parameter.ndim >= 2:
            torch.nn.init.normal_(parameter, std=0.6)
    made = record_translation(Loaded("marian", model, tokenizer, "encoder-decoder"), "c d e")
    ids = torch.tensor([tokenizer("c d e")["input_ids"]])
    with torch.no_grad():
        written = model.generate(ids, do_sample=False, num_beams=1, max_new_tokens=64)
        oracle = model(ids, decoder_input_ids=written[:, :-1], output_attentions=True)
    assert made.source == ("c", "d", "e", "</s>")
    assert [step.token for step in made.steps] == tokenizer.convert_ids_to_tokens(written[0, 1:].tolist())
    probabilities = torch.softmax(oracle.logits[0].double(), -1)
    for at, step in enumerate(made.steps):
        assert [value for _, value in step.likeliest] == pytest.approx(
            probabilities[at].topk(5).values.tolist(), abs=1e-4
        )
        cross = torch.stack([layer[0, :, at] for layer in oracle.cross_attentions])
        assert torch.allclose(torch.tensor(step.weights), cross, atol=1e-4)
    assert made.ended == bool(written[0, -1] == 2)
    assert made.sizes is None
    model.final_logits_bias[0, 2] = 1e4  # it ends at once
    made = record_translation(Loaded("marian", model, tokenizer, "encoder-decoder"), "c d e")
    assert ([step.token for step in made.steps], made.translation, made.ended) == (["</s>"], "", True)
    model.final_logits_bias[0, 2] = -1e4  # it never ends
    made = record_translation(Loaded("marian", model, tokenizer, "encoder-decoder"), "c d e")
    assert (len(made.steps), made.ended) == (64, False)


def test_what_cannot_be_recorded_is_refused_with_a_way_out(tmp_path):
    pytest.importorskip("sacrebleu", reason="sacrebleu is not installed (the extra `train`)")
    (tmp_path / "pairs.tsv").write_text(PAIRS * 2, "utf-8")
    task = {"type": "translation", "train_file": str(tmp_path / "pairs.tsv"), "validation_size": 2, "target_lang": "de"}
    task |= {"src_tokenizer": {"vocab_size": 60}, "tgt_tokenizer": {"vocab_size": 60}}
    model = {"type": "recurrent", "hidden_size": 8, "embedding_dim": 8, "attention": "none"}
    train(tiny(tmp_path / "run", task=task, model=model, training__max_steps=1, training__eval_steps=1))
    with pytest.raises(ObservationError, match="no attention"):
        record_translation(str(tmp_path / "run"), "we like")
    with pytest.raises(InputError, match="empty"):
        record_translation(str(tmp_path / "run"), " ")
    from transformers import GPT2Config, GPT2LMHeadModel

    tokenizer = letters()
    decoder = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), n_embd=8, n_layer=1, n_head=2)).eval()
    with pytest.raises(InputError, match=r"`model` must be a translator.*regard train"):
        record_translation(Loaded("gpt", decoder, tokenizer, "decoder"), "c d e")
