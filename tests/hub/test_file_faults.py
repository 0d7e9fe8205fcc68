"""States of a downloaded checkpoint: each is refused by its cause and the way out, whoever opens it."""

import json
import shutil

import pytest
import torch
import transformers

import regard
from regard.cli import main
from regard.data import Tokenizer
from regard.errors import InputError
from regard.hub.file_faults import fault_of
from regard.models import Transformer
from regard.models.checkpoint_files import read_tensors
from regard.models.loading import load_tokenizer
from sweeps import sweep

LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 9\n"
PAGE = "\n<!DOCTYPE html><html><title>Sign in</title></html>"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A checkpoint in one file, and in shards."""
    folder = tmp_path_factory.mktemp("whole")
    config = transformers.LlamaConfig(
        vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48
    )
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(folder / "one")
    model.save_pretrained(folder / "shards", max_shard_size="20KB")
    return folder


def _write(name, content):
    return lambda folder: (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)


def _link(name):
    def change(folder):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to("../../blobs/a1")

    return change


def _cut(name, share):
    def cut(folder):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: int(len(content) * share)])

    return cut


def _without(*names, **files):
    def change(folder):
        for name in names:
            (folder / name).unlink()
        for name, content in files.items():
            (folder / name.replace("__", ".")).write_bytes(content.encode() if isinstance(content, str) else content)

    return change


def _only(**files):
    def change(folder):
        for path in folder.iterdir():
            path.unlink()
        _without(**files)(folder)

    return change


def _moved_into(name, **files):
    def change(folder):
        (folder / name).mkdir(parents=True)
        for path in [path for path in folder.iterdir() if path.is_file()]:
            path.rename(folder / name / path.name)
        _without(**files)(folder)

    return change


def _config(**values):
    return lambda folder: (folder / "config.json").write_text(json.dumps(values))


def _shards(count):
    def remove(folder):
        for path in sorted(folder.glob("model-*"))[1 : 1 + count]:
            path.unlink()

    return remove


WEIGHTS = "model.safetensors"
# What became of a checkpoint, and what is said of it.
STATES = {
    "a pointer as weights": (_write(WEIGHTS, LFS), r"model\.safetensors: it is a pointer of Git LFS.*`git lfs pull`"),
    "a pointer as configuration": (_write("config.json", LFS), r"config\.json: it is a pointer of Git LFS"),
    "a pointer as tokenizer": (_write("tokenizer.json", LFS), r"tokenizer\.json: it is a pointer of Git LFS"),
    "a pointer as vocabulary": (_write("spiece.model", LFS), r"spiece\.model: it is a pointer of Git LFS"),
    "a pointer as rules": (_write("generation_config.json", LFS), r"generation_config\.json: it is a pointer"),
    "a page as weights": (_write(WEIGHTS, PAGE), r"model\.safetensors: it is a web page.*/resolve/"),
    "a page as configuration": (_write("config.json", PAGE), r"config\.json: it is a web page"),
    "an error of a server": (_write("config.json", "<?xml version='1.0'?><Error/>"), "it is a web page"),
    "half of the weights": (_cut(WEIGHTS, 0.5), r"safetensors: it has [\d,]+ of [\d,]+ bytes, so it was cut off"),
    "a part of the header": (_cut(WEIGHTS, 0.001), r"it has \d+ of at least [\d,]+ bytes, so it was cut off"),
    "some bytes": (_write(WEIGHTS, b"abc"), "it has 3 bytes, fewer than any safetensors file"),
    "empty weights": (_write(WEIGHTS, b""), r"model\.safetensors: it is empty.*download it again"),
    "an empty configuration": (_write("config.json", b""), r"config\.json: it is empty"),
    "an error as weights": (
        _write(WEIGHTS, '{"error": "Access to model x is restricted"}'),
        r"model\.safetensors: it is JSON, such as the error of a server, .* says .*Access to model x is restricted",
    ),
    "zeros as weights": (_write(WEIGHTS, bytes(5000)), r"model\.safetensors: it begins with zeros.*download it again"),
    "zeros as configuration": (_write("config.json", bytes(50)), r"config\.json: it begins with zeros"),
    "a link to nothing": (_link(WEIGHTS), r"model\.safetensors: it is a link to .*blobs/a1, which is gone: download"),
    "a link as configuration": (_link("config.json"), r"config\.json: it is a link to .*blobs/a1, which is gone"),
    "a mark": (_write("config.json", b'\xef\xbb\xbf{"a": 1}'), r"config\.json: it is UTF-8 with a byte-order mark"),
    "two bytes": (_write("config.json", '{"a": 1}'.encode("utf-16")), r"config\.json: it is UTF-16: save it as"),
    "GGUF by another name": (_write(WEIGHTS, b"GGUF\x03\x00\x00\x00" + bytes(99)), "it is a GGUF file"),
    "a pickle by another name": (_write(WEIGHTS, b"PK\x03\x04" + bytes(99)), "it is a pickle .*never unpickles"),
    "a pickle alone": (_without(WEIGHTS, model__bin=b"PK"), r"has no model.safetensors: .*never pickles such as mo"),
    "a download that goes on": (_without(WEIGHTS, x__incomplete=b"1"), "download is incomplete, as x.incomplete shows"),
    "GGUF alone": (_only(llama__gguf=b"GGUF"), r"it holds GGUF, .*gguf_file='llama\.gguf'"),
    "an adapter": (
        _only(adapter_config__json='{"base_model_name_or_path": "some/llama"}', adapter_model__safetensors=b"1"),
        r"adapter_model\.safetensors|PEFT adapter of some/llama",
    ),
    "sentence-transformers": (_moved_into("0_BERT", modules__json="[]"), "sentence-transformers: name '.*0_BERT"),
    "a folder above": (_moved_into("it"), r"has no config\.json: name '.*it', which has one"),
    "the hub's cache": (_moved_into("snapshots/a1"), r"has no config\.json: name '.*a1'"),
    "diffusers": (_only(model_index__json="{}"), "a pipeline of diffusers"),
    "nothing": (_only(), r"has no config\.json: name a folder or an id"),
    "weights without a configuration": (_only(pytorch_model__bin=b"PK"), "weights alone, such as pytorch_model.bin"),
    "timm": (_config(architecture="vit", pretrained_cfg={}), r"has no `model_type`: it is that of timm"),
    "another library": (_config(dim=32), "has no `model_type`: it is not transformers'"),
}  # fmt: skip


@pytest.mark.parametrize("opened", [Transformer.from_pretrained, regard.load_model], ids=["models", "load_model"])
def test_each_state_is_refused_by_its_cause(whole, tmp_path, opened):
    for number, case in enumerate(sweep(STATES)):
        with case as state:
            change, words = STATES[state]
            folder = shutil.copytree(whole / "one", tmp_path / str(number))
            change(folder)
            with pytest.raises(InputError, match=words) as caught:
                opened(str(folder))
            assert "\n" not in str(caught.value)


UNUSED = {
    "consolidated.safetensors": LFS,  # Mistral's own format, beside that of transformers
    "trainer_notes.json": "",
    "params.json": LFS,
    "model.safetensors.index.json": LFS,  # model.safetensors is there
    "model-00001-of-00002.safetensors": b"abc",
}


def _with_tokenizer(source, folder):
    shutil.copytree(source, folder)
    Tokenizer.train(["some words"], model_type="char", vocab_size=99).save(folder)
    _write("tokenizer_config.json", '{"tokenizer_class": "PreTrainedTokenizerFast"}')(folder)
    return folder


@pytest.mark.parametrize("opened", [Transformer.from_pretrained, regard.load_model], ids=["models", "load_model"])
def test_a_file_that_is_not_in_use_may_be_anything(whole, tmp_path, opened):
    for number, case in enumerate(sweep(UNUSED)):
        with case as name:
            folder = _with_tokenizer(whole / "one", tmp_path / str(number))
            _write(name, UNUSED[name])(folder)
            opened(str(folder))


def test_a_vocabulary_beside_a_tokenizer_json_is_not_in_use(whole, tmp_path):
    folder = _with_tokenizer(whole / "one", tmp_path / "it")
    for name in ("tokenizer.model", "spiece.model", "vocab.json"):
        _write(name, LFS)(folder)
    regard.load_model(str(folder))
    _write("tokenizer_config.json", LFS)(folder)
    with pytest.raises(InputError, match=r"tokenizer_config\.json: it is a pointer of Git LFS"):
        regard.load_model(str(folder))


def test_a_shard_that_the_index_names_is_in_use(whole, tmp_path):
    folder = shutil.copytree(whole / "shards", tmp_path / "it")
    first = min(path.name for path in folder.glob("model-*"))
    _write(first, LFS)(folder)
    for opened in (Transformer.from_pretrained, regard.load_model):
        with pytest.raises(InputError, match=rf"{first}: it is a pointer of Git LFS"):
            opened(str(folder))


@pytest.mark.parametrize("opened", [Transformer.from_pretrained, regard.load_model], ids=["models", "load_model"])
def test_missing_shards_are_counted_and_named(whole, tmp_path, opened):
    files = sorted(path.name for path in (whole / "shards").glob("model-*"))
    folder = shutil.copytree(whole / "shards", tmp_path / "shards alone")
    (folder / "model.safetensors.index.json").unlink()
    with pytest.raises(InputError, match=rf"shards such as {files[0]}, and no model\.safetensors\.index\.json"):
        opened(str(folder))
    for case in sweep([1, 2, len(files) - 1]):
        with case as count:
            folder = shutil.copytree(whole / "shards", tmp_path / str(count))
            _shards(count)(folder)
            words = f"lacks {count} of its {len(files)} files of weights, {files[1]}.*the download is incomplete"
            with pytest.raises(InputError, match=words):
                opened(str(folder))


def test_whole_weights_are_taken_whatever_the_length_of_their_header_looks_like(tmp_path):
    """0x0280 bytes look like a pickle, 0x8b1f like a gzip archive, 0x4b50 like a zip."""
    path = tmp_path / WEIGHTS
    for case in sweep([0x0280, 0x0480, 0x8B1F, 0x4B50, 0x6842]):
        with case as length:
            header = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).ljust(length)
            path.write_bytes(length.to_bytes(8, "little") + header.encode() + bytes(4))
            assert fault_of(path) is None
            assert dict(read_tensors(path))["a"].tolist() == [0.0]


def test_a_tokenizer_alone_is_looked_at_too(tmp_path):
    (tmp_path / "tokenizer.json").write_text(LFS)
    with pytest.raises(InputError, match=r"tokenizer\.json: it is a pointer of Git LFS"):
        load_tokenizer(str(tmp_path))


def test_commands_say_the_same(whole, tmp_path, monkeypatch, capsys):
    shutil.copytree(whole / "one", tmp_path / "lfs")
    (tmp_path / "lfs" / WEIGHTS).write_text(LFS)
    for case in sweep(["look some", "generate some", "heads --for=sink"]):
        with case as command:
            monkeypatch.setattr("sys.argv", ["regard", *command.split(), "--model", str(tmp_path / "lfs")])
            with pytest.raises(SystemExit) as ended:
                main()
            assert ended.value.code == 2
            said = " ".join(capsys.readouterr().err.split())
            assert "it is a pointer of Git LFS, not the file: run `git lfs pull`" in said
            assert "Traceback" not in said


FOREIGN = {
    "torch_dtype": "dtype, such as torch.bfloat16, is meant",
    "device_map": r"\.to\(device\) of what it returns is meant",
    "trust_remote_code": "code that comes with a model is never run: leave it out$",
    "load_in_8bit": "dtype=torch.bfloat16 for half of the memory$",
    "attn_implementation": "regard.attention chooses its backend",
    "low_cpu_mem_usage": "it is always so: leave it out$",
    "subfolder": "the folder itself as the name",
    "num_labels": r"output_head=output_heads.SequenceClassification\(num_labels\) is meant",
}


def test_arguments_of_another_library_are_answered_with_what_is_meant(whole):
    for case in sweep(FOREIGN):
        with case as name, pytest.raises(InputError, match=f"has no argument `{name}`: .*{FOREIGN[name]}"):
            Transformer.from_pretrained(whole / "one", **{name: "auto"})
    for case in sweep(["torch_dtype", "device_map", "trust_remote_code", "load_in_8bit", "revision", "subfolder"]):
        with case as name, pytest.raises(InputError, match=f"load_model has no argument `{name}`: "):
            regard.load_model(str(whole / "one"), **{name: "auto"})
    model = Transformer.from_pretrained(whole / "one")
    names = ("streamer", "stopping_criteria", "logits_processor", "pad_token", "return_tensors", "generation_config")
    for case in sweep([*names, "trust_remote_code", "stop_strings", "inputs_embeds", "typical_p", "tokenizer"]):
        with case as name, pytest.raises(InputError, match=f"generate has no argument `{name}`: .*"):
            model.generate([[5]], **{name: 1})
    with pytest.raises(InputError, match="save_pretrained has no argument `max_shard_size`: the weights are one file"):
        model.save_pretrained("nowhere", max_shard_size="5GB")


def test_a_whole_file_is_none_of_these_whatever_the_length_of_its_header(tmp_path):
    """The first two bytes of the length may be those of a pickle, 80 02 to 80 05."""
    from safetensors.torch import save_file

    path = tmp_path / "model.safetensors"
    starts = set()
    for length in range(500, 1500):  # headers are filled up to whole numbers of 8 bytes
        save_file({"weight": torch.zeros(2)}, path, metadata={"note": "x" * length})
        starts.add(path.read_bytes()[:2])
        assert fault_of(path) is None, path.read_bytes()[:9]
    assert {b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"} <= starts
