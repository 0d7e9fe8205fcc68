"""`regard look` on real models, and what it says of bad input: one sentence, exit code 2, no traceback."""

import json
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.cells import cell_len

import regard
from regard.errors import InputError
from regard.record.atlas import read_atlas
from sweeps import sweep

pytest.importorskip("transformers", reason="transformers is not installed (the extra `models`)")
bundled = pytest.importorskip("regard.hub")

SENTENCE = "The animal didn't cross the street because it was too tired"
TIRED, WIDE = SENTENCE, SENTENCE.replace("tired", "wide")
CHINESE = "貓追老鼠，因為它餓了"

pytestmark = [
    pytest.mark.models,
    pytest.mark.usefixtures("models_stay_loaded"),
    pytest.mark.skipif(
        not all(map(bundled.is_installed, bundled.BUNDLED)), reason="the bundled models are missing: regard models get"
    ),
]


def test_the_sentence_of_the_introductions_shows_it_looking_at_animal_and_tired(run) -> None:
    code, out, _ = run("look", SENTENCE)
    assert code == 0
    assert "it → tired" in out
    assert "it → animal" in out
    assert "Of the 72 heads" in out
    assert "regard steps --model minilm --layer" in out
    assert max(map(len, out.splitlines())) <= 80


def test_a_picture_is_as_wide_as_columns_says_and_40_at_least(run) -> None:
    for case in sweep([(20, 40), (40, 40), (55, 55)]):
        with case as (columns, width):
            code, out, err = run("look", SENTENCE, "--model", "minilm", columns=columns)
            assert code == 0, err
            picture, command = out.split(LESSON)
            assert width - 12 < max(map(cell_len, picture.splitlines())) <= width
            assert f'"{SENTENCE}"' in command  # which is not wrapped, so that it can be copied


def test_two_texts_in_a_narrow_terminal_are_drawn_60_wide(run) -> None:
    code, out, err = run("look", SENTENCE, "--compare", SENTENCE.replace("tired", "wide"), columns=30)
    assert code == 0, err
    assert max(map(cell_len, out.splitlines())) <= 60


def test_a_chinese_sentence_chooses_a_model_that_reads_it(run) -> None:
    code, out, err = run("look", CHINESE, "--token", "它")
    assert code == 0
    assert "--model me5" in out
    assert "它 →" in out
    assert "[UNK]" not in out
    assert err == ""


def test_an_unsuitable_model_gets_a_warning_that_names_a_better_one(run) -> None:
    code, _, err = run("look", CHINESE, "--model", "minilm", "--layer", "0", "--head", "0", "--token", "貓")
    assert code == 0
    assert "--model me5" in err


def _written(run, folder: Path, text: str, suffix: str) -> Path:
    """The file that a look writes: the only one in its folder."""
    out = folder / f"it.{suffix}"
    code, _, err = run("look", text, "--out", str(out))
    assert code == 0, err
    starts = {"html": b"<!doctype html>", "png": b"\x89png", "svg": b"<?xml", "atlas": b""}
    assert out.read_bytes()[:15].lower().startswith(starts[suffix])
    assert [path.name for path in folder.iterdir()] == [out.name]
    return out


def _check_atlas(file: Path, layers: int, token: str) -> None:
    record = regard.load_atlas(file)
    assert len(record.layers) == layers
    assert token in [one.text for one in record.stream("text")]


def test_it_writes_what_the_suffix_says(run, tmp_path: Path) -> None:
    for case in sweep(["html", "atlas"]):
        with case as suffix:
            (folder := tmp_path / suffix).mkdir()
            out = _written(run, folder, SENTENCE, suffix)
    _check_atlas(out, 6, "animal")


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["html", "png", "svg", "atlas"])
def test_it_writes_chinese_as_the_suffix_says(run, request, tmp_path: Path, suffix: str) -> None:
    if suffix in ("png", "svg"):
        request.getfixturevalue("chinese_font")
    out = _written(run, tmp_path, CHINESE, suffix)
    if suffix == "atlas":
        _check_atlas(out, 12, "貓")


@pytest.mark.slow
def test_a_table_is_of_one_head_and_the_message_says_which(run, tmp_path: Path) -> None:
    code, _, err = run("look", SENTENCE, "--model", "minilm", "--layer", "2", "--out", str(tmp_path / "it.npy"))
    assert code == 0
    layer, head = map(int, re.search(r"minilm: weights of layer (\d+) head (\d+) → ", err).groups())
    with torch.no_grad():
        weights = regard.look(SENTENCE, model="minilm").record.weights(layer=layer)[0].copy()
    found = np.load(tmp_path / "it.npy")
    assert [np.allclose(found, one, atol=1e-6) for one in weights].index(True) == head


@pytest.mark.slow
def test_a_page_of_512_tokens_is_below_two_megabytes(run, tmp_path: Path) -> None:
    text, out = tmp_path / "long.txt", tmp_path / "page.html"
    text.write_text("the cat sat on the mat and looked at a dog " * 46 + "and so on", encoding="utf-8")
    code, _, err = run("look", str(text), "--model", "minilm", "--out", str(out))
    assert code == 0, err
    assert 100_000 < out.stat().st_size < 2_000_000


REPEATED = "it was cold and the dog barked because it was hungry"


LESSON = "The same weight as a lesson:"


def as_text(arguments):
    """The arguments of a command without those that make a page of it."""
    at = arguments.index("--out")
    return [*arguments[:at], *arguments[at + 2 :]]


PRINTED = [(SENTENCE, ()), (SENTENCE, ("--token", "it", "--layer", "2", "--head", "1")), (REPEATED, ("--token", "10"))]


def test_the_printed_command_shows_the_same_weight(run) -> None:
    for case in sweep(PRINTED):
        with case as (text, options):
            _, out, _ = run("look", text, *options)
            program, *arguments = shlex.split(out.partition(LESSON)[2].replace("\\\n", " "))
            assert program == "regard"
            code, steps, err = run(*as_text(arguments))
            assert code == 0, err
            target, weight = re.search(r"① layer .*→ (\S+) +(0\.\d\d)", out).groups()
            exact = re.findall(rf"^ *{target} +w\S+ += .* = (0\.\d+)", steps, re.MULTILINE)
            assert weight in [f"{float(number):.2f}" for number in exact], (target, weight, steps)
    assert "▶ 10 it" in out  # the heat map of the last one counts as the option does
    assert "--token 10" in out


def test_a_long_text_is_one_line_to_copy_and_control_characters_are_spelled(run) -> None:
    text = "The animal crossed the very wide and busy street\tbecause it was \x1b[31mtired and hungry of waiting there"
    _, out, _ = run("look", text, "--model", "minilm")
    typed = (
        r"$'The animal crossed the very wide and busy street\tbecause it was \x1b[31mtired and hungry of waiting there'"
    )
    assert typed in out.splitlines()[-1]
    spoken = subprocess.run(["bash", "-c", f"printf %s {typed}"], capture_output=True, check=True, encoding="utf-8")
    assert spoken.stdout == text


def test_steps_reads_the_file_that_look_read(run, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(SENTENCE, encoding="utf-8")
    _, out, _ = run("look", str(tmp_path / "text.txt"))
    _, *arguments = shlex.split(out.partition(LESSON)[2].replace("\\\n", " "))
    code, steps, err = run(*as_text(arguments))
    assert code == 0, err
    assert "animal" in steps


def test_the_printed_command_opens_the_same_head_as_a_lesson(run, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    _, out, _ = run("look", SENTENCE)
    layer, head = re.search(r"① layer (\d+) head (\d+)", out).groups()
    _, *arguments = shlex.split(out.partition(LESSON)[2].replace("\\\n", " "))
    code, _, err = run(*arguments)
    assert code == 0, err
    assert err.startswith(f"minilm, layer {layer}, head {head}: [CLS] The animal didn")
    page = (tmp_path / "lesson.html").read_text(encoding="utf-8")
    state, data = (
        json.loads(re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', page)[1])
        for name in ("start", "data")
    )
    assert state["step"] == "real"
    shown = data["real"]["layers"][state["real"]["layer"]]
    assert (shown["number"], shown["heads"][state["real"]["head"]]) == (int(layer), int(head))
    texts = data["real"]["streams"][shown["tokens"][0]]["texts"]
    assert texts[state["real"]["query"]] == "it"


def test_a_lesson_of_a_text_has_the_text_of_steps(run) -> None:
    cases = [
        (SENTENCE, {"model": "minilm", "layer": 5, "head": 11, "token": "it"}),
        ("猫追老鼠，因为它饿了", {"model": "me5", "layer": 11, "head": 8, "token": "老鼠", "lang": "zh"}),
        ("the tokenizer works well", {"model": "minilm", "layer": 0, "head": 3, "token": "tokenizer"}),
        ("the tokenizer works well", {"model": "smollm2", "layer": 3, "head": 3}),
        (REPEATED, {"model": "minilm", "token": "10"}),
        (SENTENCE, {"model": "me5"}),
    ]
    for case in sweep(cases):
        with case as (text, options):
            arguments = [part for name, value in options.items() for part in (f"--{name}", str(value))]
            code, steps, err = run("steps", text, *arguments)
            assert code == 0, err
            assert regard.lesson(text, **options).text == steps


REFUSALS = [
    (["look", "   "], "the text is empty"),
    (["look", SENTENCE, "--layer", "6"], "`layer` must be from 0 to 5"),
    (["look", SENTENCE, "--layer", "0", "--head", "12"], "`head` must be from 0 to 11"),
    (["look", SENTENCE, "--head", "1"], "needs a `layer`"),
    (["look", SENTENCE, "--token", "giraffe"], "`token` must be a word of the text"),
    (["look", SENTENCE, "--out", "it.pdf"], "`--out` must end in .html"),
    (["look", SENTENCE, "--out", "no/such/folder/it.png"], "there is no folder no/such/folder"),
    (["look", SENTENCE, "--model", "./no-such-folder"], "is no folder"),
    (["look", SENTENCE, "--model", ""], "the name of a model must not be empty"),
    (["steps", SENTENCE, "--model", ""], "the name of a model must not be empty"),
    (["look", SENTENCE, "--target", "le chat"], "minilm is none: leave `--target` out"),
    (["look", "word " * 600, "--model", "minilm"], "minilm reads at most 512"),
    (["steps", "--model", "minilm", "--layer", "9", "--head", "0", SENTENCE], "`layer` must be from 0 to 5"),
    (["steps", "--model", "minilm", "--layer", "0", "--head", "99", SENTENCE], "`head` must be from 0 to 11"),
    # files of the folder, which `files` makes
    (["look", "a.bin"], "binary"),
    (["look", "b.bin"], "binary"),
    (["look", SENTENCE, "--model", "model"], "cannot load the model"),
    (["look", SENTENCE, "--out", "it.png"], "is a folder"),
    # two texts
    (
        ["look", SENTENCE, "--compare", WIDE, "--keep", "qk"],
        "`--compare` is for two short texts: only --model, --token",
    ),
    (["look", SENTENCE, "--compare", WIDE, "--out", "it.atlas"], "`--out` must end in .html, .png or .svg"),
    (["look", SENTENCE, "--compare", WIDE, "--words", "animal"], "`--words` must be two different words"),
    (["look", SENTENCE, "--compare", WIDE, "--words", "animal,dog"], "`words` must be two words of both texts"),
    (["look", SENTENCE, "--words", "animal,street"], "`--words` are the two words that --compare compares"),
    (["look", SENTENCE, "--compare", "Ein Satz."], "the two texts share no word: a minimal pair is one text twice"),
    (["look", SENTENCE, "--compare", " "], "the text is empty"),
    (["look", SENTENCE, "--compare", "word " * 600, "--model", "minilm"], "minilm reads at most 512"),
]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two binary files, a model without weights, and a folder in the place of an output."""
    monkeypatch.chdir(tmp_path)
    Path("a.bin").write_bytes(b"\xff\xfe\x00\x01\x80")
    Path("b.bin").write_bytes(b"abc\0def")
    Path("it.png").mkdir()
    Path("model").mkdir()
    Path("model/config.json").write_text('{"model_type": "bert", "architectures": ["BertModel"]}')


@pytest.mark.usefixtures("files")
def test_bad_input_is_one_sentence_and_exit_code_2(refused) -> None:
    for case in sweep(REFUSALS, name=lambda refusal: " ".join(refusal[0])[-60:]):
        with case as (arguments, words):
            assert words in refused(*arguments)


@pytest.mark.slow
def test_two_texts_are_compared_up_to_512_tokens(refused) -> None:
    sentence = refused("look", SENTENCE, "--compare", "word " * 600, "--model", "smollm2")
    assert "two texts are compared up to 512 tokens each, got 601" in sentence


def test_doctor_tells_why_a_backend_refuses(run) -> None:
    code, out, _ = run("doctor")
    assert code == 0
    assert "log-sum-exp" in out
    assert "fused kernels do not return" in out
    assert "smollm2" in out


def test_doctor_sets_backends_apart_that_are_not_ready_on_a_gpu(run) -> None:
    _, out, _ = run("doctor")
    table = out.split("what is not as it should be yet")[1].split("\n\n")[0]
    assert [line.split()[0] for line in table.splitlines() if line[:1].strip()] == ["flex"]
    assert "on an H100" in " ".join(table.split())


def test_an_encoder_decoder_shows_its_cross_attention(run, tmp_path: Path) -> None:
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = ["<pad>", "</s>", "<unk>", *"the cat sat on a mat le chat est assis".split()]
    ids = {word: number for number, word in enumerate(words)}
    backend = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    wrapped = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )
    sizes = {"d_model": 32, "d_kv": 8, "num_layers": 2, "num_heads": 4, "d_ff": 48, "vocab_size": len(words)}
    config = transformers.T5Config(**sizes, decoder_start_token_id=0, eos_token_id=1, pad_token_id=0)
    transformers.T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    wrapped.save_pretrained(tmp_path)
    code, out, err = run("look", "the cat sat", "--target", "le chat est assis", "--model", str(tmp_path))
    assert code == 0, err
    assert "chat →" in out or "assis →" in out or "est →" in out or "le →" in out
    assert "cat" in out
    assert "regard steps" not in out
    code, _, err = run("look", "the cat sat", "--target", "", "--model", str(tmp_path))
    assert code == 2
    assert "give a longer `--target`" in err


# --- atlases of long texts: what they keep, and runs that are interrupted


def test_an_atlas_keeps_what_was_asked_for(run, tmp_path: Path) -> None:
    out = tmp_path / "it.atlas"
    asked = ["--keep", "qk", "--layers", "1,encoder.layer.3.attention.self", "--statistics", "distance, induction"]
    code, _, err = run("look", SENTENCE, "--out", str(out), *asked)
    assert code == 0, err
    seen = regard.load_atlas(out)
    assert [(layer.number, layer.qk is not None) for layer in seen.layers] == [(1, True), (3, True)]
    assert list(seen.layers[0].statistics) == ["distance", "induction"]
    n = seen.layers[0].queries
    whole = seen.layers[0].qk.tile(0, 2, slice(0, n), slice(0, n))
    assert abs(whole - seen.weights(layer=1, head=2)[0]).max() < 1e-6


ATLAS_REFUSALS = [
    (["--keep", "qk"], "are for an atlas: add --out it.atlas"),
    (["--layers", "1", "--out", "page.html"], "are for an atlas: add --out it.atlas"),
    (["--keep", "all", "--out", "it.atlas"], '`keep` must be "maps", "qk", "qkv" or "weights"'),
    (
        ["--keep", "qk", "--layers", "77", "--out", "it.atlas"],
        "`layers` must name layers that are seen, from 0 to 5",
    ),
    (
        ["--keep", "qk", "--layers", "1,encoder.layer.3.attention.slef", "--out", "it.atlas"],
        "got 'encoder.layer.3.attention.slef': did you mean 'encoder.layer.3.attention.self'?",
    ),
    (
        ["--keep", "qk", "--layers", "no such", "--out", "it.atlas"],
        "by numbers from 0 to 5 or the names of modules",
    ),
    (["--statistics", "warmth", "--out", "it.atlas"], "`statistics` knows the names"),
    (["--token", "giraffe", "--out", "it.atlas"], "`token` must be a word of the text"),
    (["--layer", "6", "--out", "it.atlas"], "`layer` must be from 0 to 5"),
    (["--head", "3", "--out", "it.atlas"], "`head` 3 needs a `layer` too"),
]


def test_what_cannot_be_is_said_before_an_atlas_is_written(refused, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for case in sweep(ATLAS_REFUSALS):
        with case as (options, words):
            assert words in refused("look", SENTENCE, "--model", "minilm", *options)
            assert not list(tmp_path.glob("it.atlas*"))  # nor layers of a run with what was mistyped


def test_a_backend_that_cannot_fold_is_named_and_done_without(tmp_path: Path) -> None:
    with regard.use_backend("native"):
        found = regard.look(SENTENCE, model="minilm", statistics=["sink"], out=tmp_path / "it.atlas")
        assert regard.look(SENTENCE, model="minilm").warning is None
    assert found.warning.startswith("native did not compute 6 of 6 layers: the statistic 'sink' reads the weights")
    assert (tmp_path / "it.atlas").exists()


SERVER = """
import os, signal, sys, time
import torch, transformers, regard.interpret.look, regard.cli.app
from regard.cli import main

errors, out, *arguments = sys.argv[1:]
def files():
    try:
        found = [(one.name, one.stat()) for one in os.scandir(os.path.dirname(out))]
        return {(name, stat.st_mtime_ns) for name, stat in found if stat.st_size > 999}
    except FileNotFoundError:  # a draft that has gone between the two
        return files()

print("ready", flush=True)
for line in sys.stdin:
    seconds, number, while_writing = line.split()
    before = files()
    child = os.fork()  # from a process that has imported all and computed nothing
    if not child:
        os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        sys.argv = ["regard", *arguments]
        try:
            main()
        except SystemExit as ended:
            os._exit(ended.code or 0)
        os._exit(0)
    while while_writing == "True" and files() == before:
        pass
    time.sleep(float(seconds))
    os.kill(child, int(number))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_an_atlas_whose_making_ends_at_any_moment_is_the_old_one_or_the_new(tmp_path: Path, ending) -> None:
    (folder := tmp_path / "atlas").mkdir()
    (tmp_path / "long.txt").write_text(f"{SENTENCE} " * 30)
    (folder / "it.atlas.part").mkdir()  # of 0.2, which resumed from it
    out, errors = folder / "it.atlas", tmp_path / "errors"
    regard.look(SENTENCE, model="minilm", out=out)
    old, ends = out.read_bytes(), []
    command = ["look", str(tmp_path / "long.txt"), "--model", "minilm", "--keep", "weights", "--out", str(out)]
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, errors, out, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout.readline() == "ready\n"
        moments = [(0.2, False), (0.8, False), (0, True), (0.005, True), (0.02, True), (0, False)]
        for number, (seconds, while_writing) in enumerate(moments, 1):
            server.stdin.write(f"{seconds} {int(ending) if number < len(moments) else 0} {while_writing}\n")
            server.stdin.flush()
            ends.append(int(server.stdout.readline()))
            if ends[-1] == 130:
                assert errors.read_text() == "regard: interrupted; no file was left half-written\n"
            (record,) = read_atlas(out)
            for layer in record.layers:  # every checksum holds
                assert layer.exact is None or layer.exact.shape[2:] == (layer.queries, layer.keys)
        server.stdin.close()
    assert set(ends[:3]) == {130 if ending is signal.SIGINT else -signal.SIGKILL}
    assert ends[-1] == 0
    assert out.read_bytes() != old
    assert {one.name for one in folder.iterdir()} == {"it.atlas", "it.atlas.part"}, "what was left half-written goes"


def test_a_file_that_cannot_be_written_is_known_before_the_model_runs(tmp_path: Path) -> None:
    for out in (tmp_path, tmp_path / "none" / "it.atlas"):
        with pytest.raises(InputError, match=r"must be a file to write|cannot write .*: No such file"):
            regard.look(SENTENCE, model="minilm", out=out, progress=lambda *_: pytest.fail("it ran"))


def test_layers_that_cannot_be_seen_are_an_error_and_listed_without_strict(run, tmp_path: Path) -> None:
    """LED's decoder is seen, and its encoder, which attends in bands, is not."""
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {word: at for at, word in enumerate(["<pad>", "</s>", "the", "cat", "sleeps"])}
    spelled = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    spelled.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=spelled, pad_token="<pad>", eos_token="</s>", unk_token="<pad>"
    )
    sizes = {
        f"{side}_{what}": size for side in ("encoder", "decoder") for what, size in (("layers", 1), ("ffn_dim", 16))
    }
    sizes |= {f"{side}_attention_heads": 2 for side in ("encoder", "decoder")}
    sizes |= {f"max_{side}_position_embeddings": 16 for side in ("encoder", "decoder")}
    config = transformers.LEDConfig(
        vocab_size=5, d_model=16, attention_window=4, pad_token_id=0, eos_token_id=1, decoder_start_token_id=1, **sizes
    )
    transformers.LEDForConditionalGeneration(config).save_pretrained(tmp_path / "led")
    tokenizer.save_pretrained(tmp_path / "led")
    command = ["look", "the cat sleeps", "--target", "the cat", "--model", str(tmp_path / "led")]
    code, _, err = run(*command)
    assert code == 2
    assert re.search(
        r"could be seen: \S*longformer_self_attn \(1 call\): LEDEncoderSelfAttention", " ".join(err.split())
    )
    code, out, err = run(*command, "--no-strict")
    assert code == 0, err
    assert "Not seen: " in out
    assert "LEDEncoderSelfAttention rearranges its weights" in " ".join(out.split())
    code, out, err = run(*command, "--no-strict", "--out", str(tmp_path / "led.atlas"))
    assert code == 0, err
    assert "not seen: " in err
    assert [one.calls for one in regard.load_atlas(tmp_path / "led.atlas").missing] == [1]


# --- two texts that differ in a word or two


def test_two_texts_show_one_head_side_by_side_what_moved_and_which_heads_flip(run) -> None:
    code, out, err = run("look", TIRED, "--compare", WIDE)
    assert code == 0, err
    text = " ".join(out.split())
    assert "layer 5 head 11 from it, in the first text and in the second" in text
    assert re.search(r"① animal +0\.65 \S+ +▏ 0\.50 .*-0\.14", out)
    assert "animal 0.65 and 0.50, street 0.02 and 0.04: it weighs animal more in both" in text
    assert "Of the 72 heads, 28 give animal and street together at least 0.10" in text
    assert "and 4 flip: 4.0: animal 0.12, street 0.09 → animal 0.06, street 0.19" in text
    assert "It does not show that the model has understood the sentence." in text
    assert max(map(cell_len, out.splitlines())) <= 80


@pytest.mark.slow
def test_two_chinese_texts_fit_80_columns(run) -> None:
    code, out, err = run("look", CHINESE, "--compare", "老鼠追貓，因為它餓了")
    assert code == 0, err
    assert re.search(r"① 貓 +0\.48 .*▏ 0\.33 .*-0\.15", out)
    assert max(map(cell_len, out.splitlines())) <= 80


def test_the_word_the_head_and_the_compared_words_can_be_given(run) -> None:
    asked = ["--token", "it", "--layer", "2", "--head", "1", "--words", "street, animal"]
    code, out, err = run("look", TIRED, "--compare", WIDE, *asked)
    assert code == 0, err
    assert "layer 2 head 1 from it" in out
    assert re.search("① street .*\n", out)


@pytest.mark.slow
def test_a_model_that_reads_from_left_to_right_says_that_nothing_differs(run) -> None:
    code, out, err = run("look", TIRED, "--compare", WIDE, "--model", "smollm2")
    assert code == 0, err
    assert "Nothing differs at it: the model reads from left to right" in " ".join(out.split())


@pytest.mark.parametrize("suffix", ["html", pytest.param("png", marks=pytest.mark.slow)])
def test_two_texts_are_written_side_by_side(run, tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"pair.{suffix}"
    code, _, err = run("look", TIRED, "--compare", WIDE, "--out", str(out))
    assert code == 0, err
    assert out.read_bytes()[:15].lower().startswith({"html": b"<!doctype html>", "png": b"\x89png"}[suffix])


@pytest.mark.parametrize("text", ["Thinking Machines", pytest.param("我爱你", marks=pytest.mark.slow)])
def test_a_text_of_a_few_words_gives_a_picture(run, text: str) -> None:
    code, out, err = run("look", text)
    assert code == 0, err
    assert "①" in out
    assert max(map(cell_len, out.splitlines())) <= 80


def test_a_pronoun_within_a_token_is_marked_as_the_part_that_it_is(run) -> None:
    code, out, err = run("look", "猫追老鼠，因为它饿了", "--token", "它")
    assert code == 0, err
    assert "layer 10 head 1: 它 (in 因为它) → 追" in out
    assert "“它” is a part of the token “因为它”: the weights are those of the whole token." in " ".join(out.split())
    assert out.splitlines()[1].index("┯") == 16  # under 它, which is the third character of its token
    assert max(map(cell_len, out.splitlines())) <= 80
