"""Public names are the field's: listed with their source, none banned, each with one meaning (docs/vocabulary.md)."""

import importlib
import json
import tomllib
from types import ModuleType

import pytest

from documents import ROOT

pytest.importorskip("typer", reason="typer is not installed (the extra `cli`)")
SOURCES = json.loads((ROOT / "docs" / "surface.json").read_text(encoding="utf-8"))
TABLES = tomllib.loads((ROOT / "docs" / "words.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def surface() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "docs")
        return importlib.import_module("surface")


def test_the_list_is_that_of_the_code(surface):
    found: dict[str, list[str]] = {}
    for entry in surface.surface():
        found.setdefault(entry.word, []).append(entry.place)
    listed = {word: one["places"] for word, one in SOURCES.items()}
    assert {word: (listed.get(word), places) for word, places in found.items() if listed.get(word) != places} == {}
    assert sorted(listed.keys() - found.keys()) == [], "run `python docs/surface.py`"


def test_no_word_is_banned(surface):
    words = surface.banned_words()
    banned = [(e.place, words[e.word]) for e in surface.surface() if e.word in words]
    assert banned == []


def test_words_of_our_own_are_those_listed_and_become_no_more():
    own = {word for word, one in SOURCES.items() if not one["source"]}
    assert own == set(TABLES["own"]["words"])
    places = sum(len(one["places"]) for one in SOURCES.values())
    assert sum(len(SOURCES[word]["places"]) for word in own) <= 0.03 * places


def test_no_word_of_our_own_is_met_in_the_first_hour(surface):
    found = [place for one in SOURCES.values() if not one["source"] for place in one["places"]]
    assert [place for place in found if place.startswith(surface.FIRST_HOUR)] == []


def test_every_place_of_the_first_hour_exists(surface):
    places = [entry.place for entry in surface.surface()]
    assert [one for one in surface.FIRST_HOUR if not any(place.startswith(one) for place in places)] == []


def test_a_word_is_no_flag_in_one_place_and_a_tensor_in_another(surface):
    assert surface.many_kinds().keys() == TABLES["kinds"].keys()


def test_every_public_package_has_one_level_of_stability(surface):
    assert sorted(surface.levels()) == sorted(surface.PACKAGES)
    assert set(surface.levels().values()) == {"stable", "experimental"}


def test_no_stable_name_of_the_last_release_is_gone_without_a_warning(surface):
    released = json.loads((ROOT / "docs" / "released.json").read_text(encoding="utf-8"))
    assert len(released["places"]) > 1000
    assert set(released["places"]) - {e.place for e in surface.surface()} == TABLES["removed"].keys()


@pytest.mark.slow
def test_sources_are_signatures_that_have_the_word(surface):
    pytest.importorskip("transformers", reason="transformers is not installed (the extra `models`)")
    field, listed = surface.field_words(), surface.listed_words()
    assert {word: field.get(word) or listed.get(word, "") for word in SOURCES} == {
        word: one["source"] for word, one in SOURCES.items()
    }
