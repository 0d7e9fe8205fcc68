"""Names of models that are nowhere are refused at once, and what was fetched before opens without a network."""

import pytest

from regard.errors import InputError
from regard.hub import names
from regard.hub.names import is_offline, resolve
from regard.interpret import model_loading
from regard.models import Transformer

huggingface_hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed (extra `models`)")
constants = pytest.importorskip("huggingface_hub.constants")
errors = pytest.importorskip("huggingface_hub.errors")


class Refused(errors.RepositoryNotFoundError):
    def __init__(self):
        Exception.__init__(self, "404")


class Gated(errors.HfHubHTTPError):
    def __init__(self):
        Exception.__init__(self, "403")


@pytest.fixture
def answers(monkeypatch, tmp_path):
    """The hub answers with what is raised; its cache holds one model."""
    (tmp_path / "models--someone--small-gpt").mkdir()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    names._is_offline.cache_clear()

    def answer(problem):
        def model_info(self, name, *, timeout):
            assert timeout <= 3
            if problem is not None:
                raise problem

        monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)

    yield answer
    names._is_offline.cache_clear()


@pytest.mark.parametrize("problem", [OSError("no network"), Exception("a library's own"), TimeoutError()])
def test_without_a_network_a_name_that_is_nowhere_is_refused_at_once(answers, problem):
    answers(problem)
    for name in ("nosuch", "some/nosuch"):
        with pytest.raises(InputError, match=rf"no folder '{name}'.*cannot be reached: bundled models are me5, minilm"):
            is_offline(name)
    with pytest.raises(InputError, match=r"cannot be reached: did you mean 'someone/small-gpt'\?"):
        is_offline("someone/small-gpd")
    assert is_offline("someone/small-gpt")


def test_the_hub_says_what_it_has(answers):
    answers(Refused())
    with pytest.raises(InputError, match="no such model on the hub"):
        is_offline("someone/small-gpt")
    answers(Gated())
    assert not is_offline("someone/gated")
    answers(None)
    assert not is_offline("gpt2")


def test_folders_and_bundled_models_need_no_hub(answers, tmp_path, monkeypatch):
    answers(AssertionError("was asked"))
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    for name in ("me5", "runs", "./runs"):
        assert not is_offline(name)
    for name in ("./nosuch", "~/nosuch", "/nosuch"):
        with pytest.raises(InputError, match="there is no folder"):
            is_offline(name)
    with pytest.raises(InputError, match="must not be empty"):
        is_offline(" ")


def test_a_name_means_one_thing_wherever_it_is_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, file, text in [
        ("ours", "config.json", '{"regard": {}}'),
        ("run", "run.json", "{}"),
        ("step", "place.json", "{}"),
        ("theirs", "config.json", '{"model_type": "bert"}'),
        ("broken", "config.json", "{"),
        ("empty", "note.txt", ""),
    ]:
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text(text)
    kinds = {name: resolve(name).kind for name in ("ours", "run", "step", "theirs", "broken", "empty", "minilm", "a/b")}
    assert kinds == dict.fromkeys(("ours", "run", "step"), "saved") | dict.fromkeys(
        ("theirs", "broken", "empty"), "folder"
    ) | {"minilm": "bundled", "a/b": "hub"}
    with pytest.raises(InputError, match="needs the loader 'nosuch'"):
        resolve("nosuch:bert")


@pytest.mark.parametrize("load", [model_loading.load_model, Transformer.from_pretrained, is_offline])
def test_a_folder_named_as_a_bundled_model_is_not_taken_for_it_nor_it_for_the_folder(load, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "minilm").mkdir()
    assert resolve("minilm").kind == "bundled"  # nothing in it could be meant
    (tmp_path / "minilm" / "config.json").write_text("{}")
    with pytest.raises(
        InputError, match=r"'minilm' is a bundled model, and here also a folder .*name the folder \./min"
    ):
        load("minilm")
    assert resolve("./minilm").kind == "folder"


def test_what_a_loader_opens_has_no_files(monkeypatch):
    monkeypatch.setattr(names, "extension_names", lambda group: ["random"])
    with pytest.raises(InputError, match=r"opened by the loader 'random' of an extension, which `regard.load_model`"):
        Transformer.from_pretrained("random:bert")


@pytest.mark.parametrize("load", [model_loading.load_model, Transformer.from_pretrained])
def test_whatever_loads_a_model_asks_first(answers, load):
    answers(OSError("no network"))
    with pytest.raises(InputError, match="no folder 'some/nosuch'"):
        load("some/nosuch")


def test_a_model_in_the_cache_is_not_asked_for_file_by_file(answers, monkeypatch):
    answers(OSError("no network"))
    told = []
    monkeypatch.setattr(model_loading, "_open", lambda *given, local_files_only: told.append(local_files_only))
    model_loading.load_model("someone/small-gpt")
    assert told == [True]
