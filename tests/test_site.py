"""The site of the documentation: complete, no link to nothing, nothing from elsewhere, and found by one search."""

import operator
import os
import re
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote

import pytest

import regard
from chromium import chromium, needs_chromium
from documents import ROOT

pytestmark = pytest.mark.slow  # half a minute: the site is built once

# What somebody new asks, and the pages of which one is to be among the first five results.
QUESTIONS = {
    "install": {"start", "index"},
    "sliding window": {"mechanisms/masks/window", "nn", "migration"},
    "key_padding_mask": {"migration", "nn"},
    "output_attentions": {"migration", "watching", "index"},
    "bertviz": {"migration"},
    "FlexAttention mask_mod": {"migration", "mechanisms/masks/maskmod"},
    "RoPE": {"mechanisms/positions/rope", "reference/positions"},
    "ALiBi": {"mechanisms/positions/alibi", "reference/positions"},
    "grouped queries": {"mechanisms/arguments/grouped_queries"},
    "attention sink": {"mechanisms/arguments/sink_logit", "mechanisms/masks/sinks", "heads"},
    "own mask": {"start", "contributing", "reference/masks", "mechanisms/masks/maskmod"},
    "own statistic": {"extensions", "watching", "adding"},
    "induction head": {"heads", "lab"},
    "ablate heads": {"heads", "reference/regard"},
    "long text atlas": {"atlas", "watching"},
    "generate beam search": {"models", "reference/models.decoding"},
    "train translator": {"training", "index"},
    "memory": {"strips", "performance", "precision", "watching"},
    "security": {"security"},
    "deprecated": {"stability"},
    "查询 键 值": {"index.zh", "start.zh", "notebooks/from_query_key_value_to_a_transformer.zh"},
}
# The results are those of this question: one of them marks the beginning of one of its words.
ANSWERED = """words => [...document.querySelectorAll(".md-search-result__item mark")].some(
    mark => words.some(word => mark.textContent.toLowerCase().startsWith(word.toLowerCase())))"""


class Page(HTMLParser):
    """The ids of a page, where it leads to, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids |= {given.get("id") or "", given.get("name") or ""}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"] or "")
        if tag in ("script", "img", "iframe", "source") and given.get("src"):
            self.loaded.append(given["src"] or "")
        if tag == "link" and given.get("rel") not in ("canonical", "prev", "next"):
            self.loaded.append(given.get("href") or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site, built as `make docs` builds it."""
    pytest.importorskip("mkdocs", reason="mkdocs is not installed (the extra `docs`)")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site) -> dict[str, Page]:
    """Every page by its path."""
    return {path.relative_to(site).as_posix(): Page(path.read_text("utf-8")) for path in site.rglob("*.html")}


def test_every_link_leads_to_a_page_and_a_place_of_it(site, pages):
    broken = []
    for name, page in pages.items():
        for link in page.links:
            if re.match(r"https?:|mailto:", link) or name == "404.html":
                continue
            path, _, anchor = unquote(link).partition("#")
            target = os.path.normpath(os.path.join(os.path.dirname(name), path)) if path else name
            target = f"{target}/index.html".removeprefix("./") if (site / target).is_dir() else target
            if not (site / target).is_file() or (anchor and target in pages and anchor not in pages[target].ids):
                broken.append((name, link))
    assert broken == []


def test_nothing_is_loaded_from_elsewhere(site, pages):
    assert [(name, one) for name, page in pages.items() for one in page.loaded if "//" in one] == []
    styles = "\n".join(path.read_text("utf-8") for path in site.rglob("*.css"))
    assert re.findall(r"url\([\"']?(?:https?:)?//[^)]*|@import[^;]*//", styles) == []


def test_the_lesson_is_on_the_site_in_both_languages_and_within_its_pages(site, pages):
    for name, language in {"start": "en", "lesson": "en", "start.zh": "zh", "lesson.zh": "zh"}.items():
        (frame,) = [path for path in pages[f"{name}.html"].loaded if path.startswith("assets/lesson")]
        page = (site / frame).read_text("utf-8")
        assert f'<html lang="{language}">' in page
        assert page == regard.lesson(lang=language).html()
        assert frame in pages[f"{name}.html"].links  # and in a tab of its own


def test_every_public_name_has_a_place_in_the_reference(pages):
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["regard"]["public"]
    modules = {package: operator.attrgetter(package)(SimpleNamespace(regard=regard)) for package in packages}
    titles = {f"{package}.{name}" for package, module in modules.items() for name in module.__all__}
    ids = set().union(*(page.ids for name, page in pages.items() if name.startswith("reference/")))
    assert "regard.masks.Window" in titles
    assert sorted(titles - ids) == []


def test_shapes_are_shown_in_the_reference(site):
    text = re.sub(r"<[^>]+>", "", (site / "reference/regard.html").read_text("utf-8")).replace("&#34;", '"')
    assert 'q: Float[Tensor, "*batch queries dim"]' in text.replace("&quot;", '"')


@pytest.mark.browser
@needs_chromium
def test_each_question_is_answered_by_one_search_without_a_server(site):
    asked = {}
    with chromium() as running:
        page = running.new_page()
        page.goto((site / "index.html").as_uri())
        page.click(".md-search__input")
        for question in QUESTIONS:
            page.fill(".md-search__input", question)
            page.keyboard.press("End")  # the search listens to keys
            page.wait_for_function(ANSWERED, arg=[word[:4] for word in re.split(r"[\s_]", question)])
            links = page.eval_on_selector_all(
                ".md-search-result__item > a.md-search-result__link", "all => all.map(one => one.href)"
            )
            asked[question] = list(dict.fromkeys(re.split("[?#]", link)[0] for link in links))[:5]
    paths = {
        question: [link.removeprefix(site.as_uri() + "/").removesuffix(".html") for link in links]
        for question, links in asked.items()
    }
    assert {question: found for question, found in paths.items() if not QUESTIONS[question] & set(found)} == {}
