"""The files of a task: running text, files of their own for evaluation and test, languages, and what the notes say."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from regard.data import Tokenizer
from regard.data.running_text import encode_running_text
from regard.errors import InputError
from regard.models.loading import load_saved
from regard.models.pretrained_mixin import write_config
from regard.train import Translator, train
from regard.train.callbacks import Started
from regard.train.config import Config, task_of
from regard.train.tasks import TranslationTask
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
    held = [token for row, _, _ in task.held.rows for token in row] + [task.held.rows[-1][1][-1]]
    trained = [token for row, _, _ in task.trained for token in row] + [task.trained[-1][1][-1]]
    words = task.vocabulary
    assert words.decode(trained) == CODE * 7
    assert words.decode(held) == CODE  # the last seven lines, in one piece
    assert words.bos_token_id not in trained  # a text that goes on from row to row begins nowhere, as prompts do
    assert trained.count(words.eos_token_id) == 1
    assert trained[-1] == words.eos_token_id
    assert "running text of 56 lines: the last 7 lines are held out" in task.notes
    assert "row 2:     if x:↵" in task.notes


def test_without_line_ends_each_line_is_a_document(tmp_path, write):
    options = {"type": "clm", "train_file": write("a.txt", "one\n  two\nthree\n"), "validation_size": 1}
    task = made(tmp_path, options | {"block_size": 16, "tokenizer": FEW, "keep_linebreaks": False})
    tokens = [token for row, _, _ in task.trained for token in row] + [task.trained[-1][1][-1]]
    assert tokens.count(task.vocabulary.eos_token_id) == 2
    assert "  " not in task.vocabulary.decode(tokens)
    assert any("1 lines begin with spaces, which are left out" in note for note in task.notes)


def test_packing_packs_the_lines_of_plain_text(tmp_path, write):
    options = {"type": "clm", "train_file": write("a.txt", "one\ntwo\nthree\n"), "validation_size": 1, "packing": True}
    options |= {"block_size": 16, "tokenizer": FEW}
    task = made(tmp_path, options)
    assert "2 lines are trained on, 1 held out" in task.notes
    assert {number for _, _, numbers in task.trained for number in numbers} >= {0, 1}
    with pytest.raises(
        InputError, match=r"`task.packing` packs documents, and a.txt is one .*: leave `keep_linebreaks`"
    ):
        made(tmp_path, options | {"keep_linebreaks": True})
    path = write("a.jsonl", "".join(json.dumps({"text": CODE + name}) + "\n" for name in "abc"))
    assert made(tmp_path, options | {"train_file": path, "keep_linebreaks": True}).trained[0][2]


@pytest.mark.parametrize("lines", [True, False])
def test_a_prompt_has_the_tokens_that_training_fed(tmp_path, write, lines):
    """With a start token where each line is a document, and without one where the text is one, which has none."""
    path = write("a.txt", "the first line\nand more\n" * 20)
    task = {"type": "clm", "train_file": path, "validation_size": 2, "block_size": 16, "tokenizer": FEW}
    config = tiny(tmp_path / "run", task=task | {"keep_linebreaks": lines, "validation_file": path}, **SHORT)
    fed = task_of(config, tmp_path / "words").held.rows[0][0]
    train(config)
    prompt = "the first"
    for folder in ("run", "run/model", "run/checkpoints"):
        tokens = load_saved(str(tmp_path / folder)).tokenizer(prompt)["input_ids"]
        assert tokens == fed[: len(prompt) + (not lines)]
    further = tiny(
        tmp_path / "tuned", task=task, model={"type": "checkpoint", "model_name_or_path": str(tmp_path / "run")}
    )
    assert task_of(further, tmp_path / "further").trained[0][0][0] == fed[0]
    assert load_saved(str(tmp_path / "run")).tokenizer("")["input_ids"] == ([] if lines else fed[:1])


def test_a_running_text_that_began_with_a_start_token_goes_on_with_it(tmp_path, write):
    path = write("a.txt", "the first line\nand more\n" * 20)
    task = {"type": "clm", "train_file": path, "validation_size": 2, "block_size": 16, "tokenizer": FEW}
    config = tiny(tmp_path / "run", task=task, **SHORT)
    new = task_of(config, tmp_path / "none").vocabulary
    (tmp_path / "words").mkdir()
    new.with_template(bos=True).save(tmp_path / "words" / "tokenizer.json")
    assert task_of(config, tmp_path / "words").trained[0][0][0] == new.bos_token_id


def test_a_folder_of_another_task_is_refused_by_its_type(tmp_path, write):
    path = write("a.txt", "".join(f"line {n} of text\n" for n in range(20)))
    task = {"train_file": path, "validation_size": 2, "block_size": 16, "tokenizer": FEW}
    for first, then in (("mlm", "clm"), ("clm", "mlm")):
        train(tiny(tmp_path / first, task=task | {"type": first}, **SHORT))
        with pytest.raises(InputError, match=f"`task.type` was '{first}' .* is '{then}' now"):
            train(tiny(tmp_path / first, task=task | {"type": then}, **SHORT))


@pytest.mark.parametrize("options", [{}, {"keep_linebreaks": False}, {"packing": True}])
def test_a_document_of_json_keeps_its_indentation(tmp_path, write, options):
    text = "    if x:\n        y\n"
    path = write("code.jsonl", "".join(json.dumps({"text": text + name}) + "\n" for name in "abc"))
    task = {"type": "clm", "train_file": path, "validation_size": 1, "block_size": 512, "tokenizer": FEW}
    task = made(tmp_path, task | options)
    row = task.trained[0][0]
    assert task.vocabulary.decode(row).startswith(text)
    assert not any("spaces" in note for note in task.notes)


def test_a_run_whose_documents_of_json_lost_their_spaces_is_refused(tmp_path, write):
    path = write("code.jsonl", "".join(json.dumps({"text": f"  x = {n}\n"}) + "\n" for n in range(40)))
    task = {"type": "clm", "train_file": path, "validation_size": 5, "block_size": 16, "tokenizer": FEW}
    config = tiny(tmp_path / "run", task=task | {"keep_linebreaks": False}, **SHORT)
    train(config)
    train(config)  # its own run is none
    old(config, tmp_path / "run")
    with pytest.raises(InputError, match=r"by a release that read other rows from code.jsonl: resume it by that"):
        train(config)


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


def test_running_text_that_is_trained_on_and_held_out_is_said(tmp_path, write):
    path = write("code.py", CODE + "print(f(3))\n")
    options = {"type": "clm", "train_file": path, "block_size": 4, "tokenizer": FEW}
    for text, count in ((CODE + "print(f(3))\n", "5 of 5"), ("return 1\n\n\nother()\n", "1 of 2"), ("a\nb\n", None)):
        for key in ("validation_file", "test_file"):
            own = write("own.py", text)
            if key == "test_file" and count == "5 of 5":
                count = "4 of 5"  # as the last line is held out
            task = made(tmp_path, options | {key: own, "validation_size": 1})
            said = [note for note in task.notes if "trained on, too" in note]
            assert said == ([f"own.py: {count} lines that are not empty are trained on, too"] if count else [])


def test_a_held_out_part_without_letters_is_refused(tmp_path, write):
    poem = "The sea is calm tonight.\nThe tide is full, the moon lies fair\n"
    options = {"type": "clm", "train_file": write("poem.txt", poem + "\n  \n***\n"), "block_size": 4}
    options |= {"tokenizer": FEW}
    with pytest.raises(InputError, match=r"the 3 lines of poem.txt that are held out have no letter"):
        made(tmp_path, options | {"validation_size": 3})
    with pytest.raises(InputError, match=r"the 2 lines of blank.txt that are held out have no letter"):
        made(tmp_path, options | {"validation_file": write("blank.txt", "\n\n")})
    notes = made(tmp_path, options | {"validation_size": 4}).notes
    assert "running text of 5 lines: the last 4 lines are held out" in notes
    signs = options | {"train_file": write("morse.txt", "... --- ...\n" * 9), "validation_size": 2}
    assert "running text of 9 lines: the last 2 lines are held out" in made(tmp_path, signs).notes


# Files of their own


def test_a_validation_file_is_held_out_and_nothing_of_the_training_file(tmp_path, pairs, write):
    other = write("dev.tsv", "a u\tau\nnew one\tneu\nNew one!\tfrisch\n")
    task = made(tmp_path, translation(train_file=pairs, validation_file=other))
    assert len(task.trained) == 36
    assert task.held.texts["source"] == ("a u", "new one", "New one!")
    assert task.held.references == [["au"], ["neu", "frisch"], ["frisch", "neu"]]  # of this file, as its BLEU is known
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
    # Pairs with one reference each have the same signature in both sets, but for the number of references.
    assert [note.split(" nrefs:")[0] for note in ended.notes] == ["BLEU", "chrF", "test BLEU", "test chrF"]
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
    assert both.final(model, 200) == both.final(model, 200)


def test_every_task_of_files_scores_its_test_file(tmp_path_factory, pairs):
    labels = "".join(f"{a} {b} {a}\t{'xy'[a < 'd']}\n" for a in "abcdef" for b in "uvwxyz")
    cases = [
        (classification(), "labels.tsv", labels, {"test_loss", "test_accuracy", "test_f1_macro"}),
        ({"type": "clm", "block_size": 16, "validation_size": 3}, "text.txt", CODE, {"test_loss", "test_perplexity"}),
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


LEARNED = {"type": "transformer", "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16}
LEARNED |= {"num_hidden_layers": 1, "positions": "learned"}


def notes_and_end(config):
    told = []
    return train(config, [lambda event: told.extend(event.notes) if isinstance(event, Started) else None]), told


def test_a_test_file_that_comes_later_changes_no_model(tmp_path, pairs, write):
    """The sources of `pairs` have three characters, so the model has positions for twice four tokens."""
    task = translation(train_file=pairs)
    train(tiny(tmp_path / "run", task=task, model=LEARNED, **SHORT))
    other = write("test.tsv", f"a u\tua\n{'b v ' * 9}\tvb\nb v\tvb\n")
    resumed = tiny(
        tmp_path / "run", task=task | {"test_file": other}, model=LEARNED, **SHORT | {"training__max_steps": 4}
    )
    ended, told = notes_and_end(resumed)
    assert ended.step == 4
    assert {"test_loss", "test_bleu"} <= ended.scores.keys()
    (note,) = [one for one in told if "left out" in one]
    assert note.startswith(f"1 of 3 rows of test_file {other} are longer than the 8 positions of the model")
    assert "the first is row 2, of 36 tokens" in note
    train(tiny(tmp_path / "whole", task=task, model=LEARNED, **SHORT | {"training__max_steps": 4}))
    one, same = (load_file(tmp_path / run / "model/model.safetensors") for run in ("run", "whole"))
    assert all(torch.equal(one[name], same[name]) for name in same)


def test_rows_that_a_checkpoint_has_no_positions_for_are_known_before_the_first_step(tmp_path, pairs, write):
    train(tiny(tmp_path / "first", task=translation(train_file=pairs), model=LEARNED, **SHORT))
    model = {"type": "checkpoint", "model_name_or_path": str(tmp_path / "first/model")}
    long, dev = f"{'b v ' * 9}\tvb\n", "b v\tvb\nc w\twc\n"
    task = translation(train_file=pairs, validation_file=write("dev.tsv", dev + long))
    ended, told = notes_and_end(tiny(tmp_path / "run", task=task, model=model, **SHORT))
    (note,) = [one for one in told if "left out" in one]
    assert "1 of 3 rows of validation_file" in note
    assert "the first is row 3, of 36 tokens: they are left out" in note
    whole = train(tiny(tmp_path / "whole", task=task | {"validation_file": write("d.tsv", dev)}, model=model, **SHORT))
    assert ended.scores == whole.scores
    with pytest.raises(InputError, match=r"1 of 1 rows of validation_file .*none.tsv .*: nothing is left to score"):
        train(tiny(tmp_path / "none", task=task | {"validation_file": write("none.tsv", long)}, model=model, **SHORT))
    longer = translation(train_file=write("more.tsv", dev + long + "d x\txd\n" * 3), validation_file=pairs)
    with pytest.raises(InputError, match=r"trained on has 36 tokens, .* positions for 8: lower `task.max_length` to 8"):
        train(tiny(tmp_path / "trained", task=longer, model=model, **SHORT))
    ended = train(tiny(tmp_path / "fits", task=longer | {"max_length": 8}, model=model, **SHORT))
    assert ended.step == 2


def test_texts_that_a_model_has_no_positions_for_are_refused_by_the_key(tmp_path, write):
    path = write("code.py", CODE * 8)
    task = {"type": "clm", "train_file": path, "validation_size": 7, "block_size": 8, "tokenizer": FEW}
    train(tiny(tmp_path / "first", task=task, model=LEARNED, **SHORT))
    model = {"type": "checkpoint", "model_name_or_path": str(tmp_path / "first/model")}
    with pytest.raises(InputError, match=r"positions for 16: lower `task.block_size` to 16"):
        train(tiny(tmp_path / "run", task=task | {"block_size": 20}, model=model, **SHORT))
    documents = write("short.jsonl", '{"text": "def f(x):"}\n' * 9)  # ten tokens each, two of them in a row
    packed = task | {"train_file": documents, "validation_size": 1, "packing": True, "block_size": 20}
    packed |= {"validation_file": documents}
    assert train(tiny(tmp_path / "packed", task=packed, model=model, **SHORT)).step == 2


def test_held_out_scores_stay_where_those_of_the_test_file_fail(tmp_path, pairs, write, monkeypatch):
    usual = TranslationTask.final_scores

    def fails(self, model, tokens, held):
        if held is self.test:
            raise RuntimeError("no memory left")
        return usual(self, model, tokens, held)

    monkeypatch.setattr(TranslationTask, "final_scores", fails)
    task = translation(train_file=pairs, test_file=write("test.tsv", "a u\tua\n"))
    ended = train(tiny(tmp_path / "run", task=task, **SHORT))
    assert ended.scores.keys() == {"loss", "bleu", "chrf"}
    assert json.loads((tmp_path / "run/model/scores.json").read_text("utf-8"))["scores"] == ended.scores
    assert ended.warnings == ("the part `test_` of scores.json is left out: RuntimeError: no memory left",)
    assert [note.split()[0] for note in ended.notes] == ["BLEU", "chrF"]


def test_a_label_that_only_the_test_file_has_is_refused(tmp_path, write):
    labels = write("labels.tsv", "".join(f"good {n}\tx\nbad {n}\ty\n" for n in range(6)))
    other = write("test.tsv", "good\tx\nodd\tz\n")
    with pytest.raises(
        InputError, match=r"the label 'z' of test.tsv is only among the held-out texts: .* in labels.tsv"
    ):
        made(tmp_path, classification(train_file=labels, test_file=other))


def test_files_may_move_and_their_contents_may_not_change_but_for_the_test_file(tmp_path, pairs, write):
    (tmp_path / "there").mkdir()
    files = {"train_file": pairs, "extra_train_file": write("more.tsv", "x x\txx\n")}
    files |= {"validation_file": write("dev.tsv", "a u\tua\n"), "test_file": write("test.tsv", "a u\tua\n")}
    config = tiny(tmp_path / "run", task=translation(**files), **SHORT)
    train(config)
    for key in ("train_file", "extra_train_file", "validation_file"):
        moved = write(f"there/{key}.tsv", Path(files[key]).read_text("utf-8"))
        task = translation(**files | {key: moved})
        assert train(tiny(tmp_path / "run", task=task, **SHORT)).step == 2
        write(f"there/{key}.tsv", Path(files[key]).read_text("utf-8") + "new\tneu\n")
        with pytest.raises(InputError, match=rf"the data of '{key}.tsv' has changed"):
            train(tiny(tmp_path / "run", task=task, **SHORT))
    swapped = files | {"train_file": files["extra_train_file"], "extra_train_file": pairs}
    with pytest.raises(InputError, match=r"the data of 'more.tsv' has changed"):
        train(tiny(tmp_path / "run", task=translation(**swapped), **SHORT))
    for key in ("validation_file", "extra_train_file"):
        with pytest.raises(InputError, match=rf"`task.{key}` was .*.tsv.* and is left to its default now"):
            train(tiny(tmp_path / "run", task=translation(**files | {key: None}), **SHORT))
    write("test.tsv", "b u\tub\n")
    for other in (files["test_file"], None, write("other.tsv", "c u\tuc\n")):
        ended = train(tiny(tmp_path / "run", task=translation(**files | {"test_file": other}), **SHORT))
        assert ("test_loss" in ended.scores) == (other is not None)


def test_files_of_one_name_are_told_apart_when_they_move(tmp_path, write):
    """Also a test file with the name of the file that is trained on, which is compared alone."""
    for folder in ("a", "b", "c"):
        (tmp_path / folder).mkdir()
    text = "".join(f"{a} {b}\t{b}{a}\n" for a in "abcdef" for b in "uvwxyz")
    one, other = write("a/pairs.tsv", text), write("b/pairs.tsv", "x x\txx\n")
    task = translation(train_file=one, extra_train_file=other, test_file=write("c/pairs.tsv", "a u\tua\n"))
    train(tiny(tmp_path / "run", task=task, **SHORT))
    write("c/pairs.tsv", "b u\tub\n")
    train(tiny(tmp_path / "run", task=task | {"extra_train_file": write("more.tsv", "x x\txx\n")}, **SHORT))
    write("a/pairs.tsv", "y y\tyy\n" + text)
    with pytest.raises(InputError, match=r"the data of 'pairs.tsv' has changed"):
        train(tiny(tmp_path / "run", task=task, **SHORT))


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
