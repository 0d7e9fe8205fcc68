"""The files of a task: running text, files of their own for evaluation and test, languages, and what the notes say."""

import json
from dataclasses import replace

import pytest

from regard.data import Tokenizer
from regard.data.running_text import encode_running_text
from regard.errors import InputError
from regard.models.pretrained_mixin import write_config
from regard.train import Translator, train
from regard.train.config import Config, task_of
from sweeps import sweep
from train.runs import tiny

CODE = "def f(x):\n    if x:\n\treturn 1\n\n    return  2\n\n\n"
SHORT = {"training__save_steps": None, "training__eval_steps": None, "training__max_steps": 2}
SHORT |= {"training__max_tokens_per_batch": 200}
FEW = {"model_type": "char", "vocab_size": 100}


def translation(**more):
    tokenizers = {"src_tokenizer": FEW, "tgt_tokenizer": FEW}
    return (
        {"type": "translation", "validation_size": 2, "max_predict_samples": 2, "target_lang": "de"} | tokenizers | more
    )


def classification(**more):
    return {"type": "classification", "validation_size": 2, "tokenizer": FEW} | more


@pytest.fixture
def write(tmp_path):
    def write(name, text):
        (tmp_path / name).write_text(text, "utf-8")
        return str(tmp_path / name)

    return write


@pytest.fixture
def pairs(write):
    return write("pairs.tsv", "".join(f"{a} {b}\t{b}{a}\n" for a in "abcdef" for b in "uvwxyz"))


def made(tmp_path, task):
    return task_of(tiny(tmp_path / "run", task=task), tmp_path / "words")


# Running text


@pytest.mark.parametrize("model_type", ["char", "bpe", "unigram"])
def test_code_is_restored_by_its_tokens_whole_and_in_parts(model_type):
    lines = CODE.splitlines(keepends=True) * 3
    tokenizer = Tokenizer.train([CODE], model_type=model_type, vocab_size=60)
    for num_characters in (1, 5, 40, 10**6):
        assert tokenizer.decode(encode_running_text(tokenizer, lines, num_characters)) == CODE * 3


def test_a_language_model_of_code_is_trained_on_its_indentation_and_line_ends(tmp_path, write):
    text = CODE * 8
    path = write("code.py", text)
    task = made(tmp_path, {"type": "clm", "train_file": path, "validation_size": 7, "block_size": 16, "tokenizer": FEW})
    held = [token for row, _, _ in task.held for token in row] + [task.held[-1][1][-1]]
    trained = [token for row, _, _ in task.trained for token in row] + [task.trained[-1][1][-1]]
    words = task.vocabulary
    assert words.decode(trained) == CODE * 7
    assert words.decode(held) == CODE  # the last seven lines, in one piece
    assert trained[0] == words.bos_token_id
    assert trained.count(words.eos_token_id) == 1
    assert trained[-1] == words.eos_token_id
    assert "49 lines are trained on, 7 held out" in task.notes
    assert "row 2:     if x:↵" in task.notes


def test_without_line_ends_each_line_is_a_document(tmp_path, write):
    options = {"type": "clm", "train_file": write("a.txt", "one\n  two\nthree\n"), "validation_size": 1}
    task = made(tmp_path, options | {"block_size": 16, "tokenizer": FEW, "keep_linebreaks": False})
    tokens = [token for row, _, _ in task.trained for token in row] + [task.trained[-1][1][-1]]
    assert tokens.count(task.vocabulary.eos_token_id) == 2
    assert "  " not in task.vocabulary.decode(tokens)
    assert any("1 lines begin with spaces, which are left out" in note for note in task.notes)


def test_a_document_of_json_keeps_its_lines(tmp_path, write):
    path = write("code.jsonl", "".join(json.dumps({"text": CODE + name}) + "\n" for name in "abc"))
    options = {"type": "clm", "train_file": path, "validation_size": 1, "block_size": 512, "tokenizer": FEW}
    task = made(tmp_path, options)
    words = task.vocabulary
    row = [*task.trained[0][0], task.trained[0][1][-1]]
    assert CODE in words.decode(row)
    assert row.count(words.eos_token_id) == 2


def test_running_text_with_too_few_lines_names_the_way_out(tmp_path, write):
    options = {"type": "clm", "train_file": write("a.txt", "one line"), "validation_size": 1, "block_size": 8}
    with pytest.raises(InputError, match=r"`validation_size`.* has 1, got 1; lower it, or name a `validation_file`"):
        made(tmp_path, options)


# Files of their own


def test_a_validation_file_is_held_out_and_nothing_of_the_training_file(tmp_path, pairs, write):
    other = write("dev.tsv", "a u\tau\nnew one\tneu\nNew one!\tfrisch\n")
    task = made(tmp_path, translation(train_file=pairs, validation_file=other))
    assert len(task.trained) == 36
    assert task.held_texts["source"] == ("a u", "new one", "New one!")
    assert task.references == [["au"], ["neu", "frisch"], ["frisch", "neu"]]  # of this file, as its BLEU is known
    assert "dev.tsv: 1 of 3 rows have a source that is trained on, too" in task.notes
    assert {"pairs.tsv", "dev.tsv (validation_file)"} <= task.data.keys()


def test_with_a_validation_file_a_further_file_is_trained_on_whole(tmp_path, pairs, write):
    files = {
        "validation_file": write("dev.tsv", "a u\tua\n"),
        "extra_train_file": write("more.tsv", "A u!\tua\nnew\tneu\n"),
    }
    task = made(tmp_path, translation(train_file=pairs, **files))
    assert len(task.trained) == 36 + 2
    assert "dev.tsv: 1 of 1 rows have a source that is trained on, too" in task.notes


def test_a_test_file_is_scored_at_the_end_only(tmp_path, pairs, write):
    other = write("test.csv", "source,target\na u,ua\nb v,vb\nc w,wc\n")
    log = []
    ended = train(tiny(tmp_path / "run", task=translation(train_file=pairs, test_file=other), **SHORT), [log.append])
    names = {"loss", "bleu", "chrf"}
    assert ended.scores.keys() == names | {f"test_{name}" for name in names}
    saved = json.loads((tmp_path / "run/model/scores.json").read_text("utf-8"))
    assert saved["scores"].keys() == ended.scores.keys()
    scored = [event for event in log if type(event).__name__ == "Evaluated"]
    assert scored
    assert all(not name.startswith("test") for event in scored for name in event.scores)
    # Its scores are those of a run that is evaluated on it.
    task = translation(train_file=pairs, validation_file=other)
    task |= {"max_predict_samples": 3}
    direct = task_of(tiny(tmp_path / "run", task=task), tmp_path / "run/checkpoints")
    model = Translator.load(tmp_path / "run").model
    assert direct.final(model, 200)["loss"] == pytest.approx(ended.scores["test_loss"], rel=1e-6)
    task = translation(train_file=pairs, test_file=other)
    both = task_of(tiny(tmp_path / "run", task=task), tmp_path / "run/checkpoints")
    held = both.held
    assert both.final(model, 200) == both.final(model, 200)
    assert both.held is held


def test_every_task_of_files_scores_its_test_file(tmp_path_factory, pairs):
    labels = "".join(f"{a} {b} {a}\t{'xy'[a < 'd']}\n" for a in "abcdef" for b in "uvwxyz")
    cases = [
        (classification(), "labels.tsv", labels, {"test_loss", "test_accuracy", "test_f1_macro"}),
        ({"type": "clm", "block_size": 16, "validation_size": 2}, "text.txt", CODE, {"test_loss", "test_perplexity"}),
        ({"type": "mlm", "block_size": 16, "validation_size": 2}, "text.txt", CODE, {"test_loss"}),
    ]
    for case in sweep(cases):
        with case as (task, name, text, names):
            folder = tmp_path_factory.mktemp("case")
            (folder / name).write_text(text, "utf-8")
            (folder / "test").mkdir()
            (folder / "test" / name).write_text(text[: len(text) // 2 * 2], "utf-8")
            files = {"train_file": str(folder / name), "test_file": str(folder / "test" / name), "tokenizer": FEW}
            ended = train(tiny(folder / "run", task=task | files, **SHORT))
            assert names <= ended.scores.keys()


def test_a_label_that_only_the_test_file_has_is_refused(tmp_path, write):
    labels = write("labels.tsv", "".join(f"good {n}\tx\nbad {n}\ty\n" for n in range(6)))
    other = write("test.tsv", "good\tx\nodd\tz\n")
    with pytest.raises(
        InputError, match=r"the label 'z' of test.tsv is only among the held-out texts: .* in labels.tsv"
    ):
        made(tmp_path, classification(train_file=labels, test_file=other))


def test_a_changed_test_file_is_noticed_and_another_validation_file_is_refused(tmp_path, pairs, write):
    dev, other = write("dev.tsv", "a u\tua\n"), write("test.tsv", "a u\tua\n")
    task = translation(train_file=pairs, validation_file=dev, test_file=other)
    config = tiny(tmp_path / "run", task=task, **SHORT)
    train(config)
    write("test.tsv", "b u\tub\n")
    with pytest.raises(InputError, match=r"the data of 'test.tsv \(test_file\)' has changed"):
        train(config)
    write("test.tsv", "a u\tua\n")
    with pytest.raises(InputError, match=r"`task.validation_file` was .*dev.tsv.* and is left to its default now"):
        train(tiny(tmp_path / "run", task=task | {"validation_file": None}, **SHORT))
    train(config)


# Languages and notes


def test_chinese_by_any_code_has_one_script_characters_and_its_bleu(tmp_path, write):
    path = write("zh.tsv", "".join(f"{word}\t{word}圖書館\n" for word in "abcdefgh"))
    for case in sweep(["zh", "zh-CN", "cmn", "zho_Hans", "zho"]):
        with case as code:
            options = {"type": "translation", "train_file": path, "validation_size": 1, "script": "hans"}
            task = made(tmp_path / code, options | {"target_lang": code, "src_tokenizer": FEW})
            assert all(task.target.decode(target).endswith("图书馆") for _, target in task.trained)
            assert task.options.target_tokenizer.model_type == "char"
            assert any("English → Chinese" in note for note in task.notes)


def test_no_code_of_a_language_and_a_script_that_contradicts_one_are_refused(tmp_path):
    cases = [
        ({"target_lang": "Chinese"}, '`target_lang`: .*"zh"'),
        ({"source_lang": "xq"}, '`source_lang`: .*"und"'),
        ({"target_lang": "zh-TW", "script": "hans"}, r'`target_lang` is zh-TW, .* and `script` is "hans"'),
    ]
    for case in sweep(cases):
        with case as (more, words), pytest.raises(InputError, match=words):
            tiny(tmp_path, task={"type": "translation", "train_file": "a.tsv"} | more)


def test_the_notes_show_the_first_rows_and_count_unknown_characters(tmp_path, write):
    path = write("pairs.tsv", "".join(f"{a}{b}\t{a}嗨{b}\n" for a in "abcdefgh" for b in "abcdefgh"))
    task = made(tmp_path, translation(train_file=path, tgt_tokenizer={"model_type": "char", "vocab_size": 8}))
    assert "row 1: aa → a嗨a" in task.notes
    # Three tokens beside the special five: 嗨, a third of all characters, and two of eight letters, each as frequent.
    note = next(note for note in task.notes if "unknown" in note)
    assert float(note.split(" %")[0]) == pytest.approx(100 * 2 / 3 * 6 / 8, abs=3)
    assert "of the characters of the target" in note
    assert note.endswith("raise `task.tgt_tokenizer.vocab_size`")


# Runs of 0.2


def old(config, folder):
    """Take from run.json what 0.2 did not record."""
    path = folder / "run.json"
    record = json.loads(path.read_text("utf-8"))
    record["data"] = {name: one for name, one in record["data"].items() if "rows" not in name}
    record["config"]["task"].pop("keep_linebreaks", None)
    path.write_text(json.dumps(record), "utf-8")


def test_a_run_of_0_2_goes_on_with_a_line_a_document_and_a_new_one_does_not(tmp_path, write):
    path = write("a.txt", "".join(f"line {n} of text\n" for n in range(40)))
    task = {"type": "clm", "train_file": path, "validation_size": 5, "block_size": 16, "tokenizer": FEW}
    longer = {"training__max_steps": 4, "training__lr_scheduler_type": "constant", "model__type": "transformer"}
    config = tiny(tmp_path / "run", task=task | {"keep_linebreaks": False}, **SHORT | longer)
    train(config.model_copy(update={"training": replace(config.training, max_steps=2)}))
    old(config, tmp_path / "run")
    resumed = train(tiny(tmp_path / "run", task=task, **SHORT | longer))
    whole = train(tiny(tmp_path / "whole", task=task | {"keep_linebreaks": False}, **SHORT | longer))
    assert resumed.scores == whole.scores
    record = json.loads((tmp_path / "run/run.json").read_text("utf-8"))
    assert record["config"]["task"]["keep_linebreaks"] is False
    new = train(tiny(tmp_path / "new", task=task, **SHORT | longer))
    assert new.scores != whole.scores
    assert json.loads((tmp_path / "new/run.json").read_text("utf-8"))["config"]["task"]["keep_linebreaks"] is True


def test_a_run_of_0_2_whose_header_was_a_row_is_refused(tmp_path, write):
    path = write("named.tsv", "en\tde\n" + "".join(f"{a} {b}\t{b}{a}\n" for a in "abcdef" for b in "uvwxyz"))
    config = tiny(tmp_path / "run", task=translation(train_file=path), **SHORT)
    train(config)
    train(config)  # its own run is none
    old(config, tmp_path / "run")
    with pytest.raises(
        InputError, match=r"by a release that read other rows from named.tsv: resume it by that release"
    ):
        train(config)


def test_a_language_of_0_2_that_is_none_is_any_language_now(tmp_path, pairs):
    config = tiny(tmp_path / "run", task=translation(train_file=pairs), **SHORT)
    train(config)
    old(config, tmp_path / "run")
    model = Translator.load(tmp_path / "run").model
    for name, keys in (("run.json", ("config", "task")), ("model/translation.json", ())):
        path = tmp_path / "run" / name
        record = found = json.loads(path.read_text("utf-8"))
        for key in keys:
            found = found[key]
        found["target_lang"] = "dothraki"
        path.write_text(json.dumps(record), "utf-8")
    write_config(model.config, tmp_path / "run/model")  # with the checksum of what was changed
    assert Translator.load(tmp_path / "run").target_lang == "und"
    train(Config.from_dict(config.to_dict() | {"task": config.to_dict()["task"] | {"target_lang": "und"}}))


def test_a_script_that_0_2_did_not_convert_is_none(tmp_path, write):
    """0.2 converted "zh" alone: a run of 0.2 in "zh-CN" goes on without a script, and says so."""
    path = write("zh.tsv", "".join(f"{word}\t{word}圖書館\n" for word in "abcdefgh"))
    task = translation(train_file=path, target_lang="zh-CN", validation_size=1)
    config = tiny(tmp_path / "run", task=task, **SHORT)
    train(config)
    old(config, tmp_path / "run")
    record = json.loads((tmp_path / "run/run.json").read_text("utf-8"))
    record["config"]["task"]["script"] = "hans"  # which did nothing
    (tmp_path / "run/run.json").write_text(json.dumps(record), "utf-8")
    with pytest.raises(InputError, match=r"`task.script` was left to its default .* and is 'hans' now"):
        train(tiny(tmp_path / "run", task=task | {"script": "hans"}, **SHORT))
    train(config)
