"""Names of models that are nowhere are refused at once, and what was fetched before opens without a network."""

import pytest

from regard.errors import InputError
from regard.hub import names
from regard.hub.names import is_offline
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
    for name in ("me5", "runs", "./nosuch", "~/nosuch", "/nosuch", ""):
        assert not is_offline(name)


@pytest.mark.parametrize("load", [model_loading.load_model, Transformer.from_pretrained])
def test_whatever_loads_a_model_asks_first(answers, load):
    answers(OSError("no network"))
    with pytest.raises(InputError, match="no folder 'some/nosuch'"):
        load("some/nosuch")


def test_a_model_in_the_cache_is_not_asked_for_file_by_file(answers, monkeypatch):
    answers(OSError("no network"))
    told = []
    monkeypatch.setattr(
        model_loading, "_from_transformers", lambda *given, local_files_only: told.append(local_files_only)
    )
    model_loading.load_model("someone/small-gpt")
    assert told == [True]
