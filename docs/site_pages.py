"""What the site has besides docs/*.md: pages of the repository's root, and the API reference (hooks of mkdocs.yml)."""

import functools
import importlib
import posixpath
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path.insert(0, str(ROOT / "src"))  # not the installed regard, which may be another checkout
PACKAGES = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["regard"]["public"]

__all__ = ["on_files", "on_page_context", "on_page_markdown", "on_post_page"]

LESSONS = {"en": "assets/lesson.html", "zh": "assets/lesson.zh.html"}  # the page itself, in each language
OF_ROOT = {  # pages of the site, by the file of the repository that has their text
    "README.md": "index.md",
    "README.zh.md": "index.zh.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CODE_OF_CONDUCT.md": "code_of_conduct.md",
}
BOOST = {"start.md": 3, "start.zh.md": 3, "migration.md": 3, "stability.md": 3, "reference": 0.7}  # in the search
LESSON = "<!-- the lesson -->"  # where a page of the site shows it; in the repository nothing is seen of it
LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\]|!\[[^\]]*\]\([^)]*\))*\])\(([^)\s]+)\)")
BROKEN = re.compile(r"(?<=[\u3000-\u9fff\uff00-\uffef])\n(?=[\u3000-\u9fff\uff00-\uffef])")
SECOND = re.compile(r"-(?=\d$)")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages of the root, and a page of reference for each public package."""
    for name, page in OF_ROOT.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        quiet = "---\nsearch:\n  exclude: true\n---\n\n" if name == "CHANGELOG.md" else ""
        files.append(File.generated(config, page, content=quiet + text))
    reference = {f"reference/{package.removeprefix('regard.')}.md": package for package in PACKAGES}
    for page, package in reference.items():
        files.append(File.generated(config, page, content=reference_page(package)))
    for language, page in LESSONS.items():
        files.append(File.generated(config, page, content=lesson(language)))
    (section,) = (entry for entry in config.nav if "Reference" in entry)
    section["Reference"] = [{package: page} for page, package in reference.items()]
    (build,) = (entry["Build"] for entry in config.nav if "Build" in entry)
    families = {folder.name: sorted(folder.glob("*.md")) for folder in sorted(DOCS.glob("mechanisms/*/"))}
    groups = [{name.capitalize(): [f"mechanisms/{name}/{page.name}" for page in families[name]]} for name in families]
    build[0] = {"Mechanisms": ["mechanisms/README.md", *groups]}
    (inside,) = (entry["Inside"] for entry in config.nav if "Inside" in entry)
    inside += [page.name for page in sorted(DOCS.glob("*.md")) if f"'{page.name}'" not in str(config.nav)]  # a new page
    return files


def lesson(language: str) -> str:
    """Return the lesson's page."""
    made: str = importlib.import_module("regard").lesson(lang=language).html()
    return made


def frame(page: str, here: str) -> str:
    """Return the lesson in a frame, for a page in the folder `here`."""
    language = "zh" if page.endswith(".zh.md") else "en"
    path = posixpath.relpath(LESSONS[language], here or ".")
    title, way = {
        "en": ("The lesson: every number of attention can be changed", "Open it in a tab of its own"),
        "zh": ("一课：注意力的每个数都可以改", "单独打开这一页"),
    }[language]
    return f'<iframe class="lesson" src="{path}" title="{title}" loading="lazy"></iframe>\n\n<a href="{path}">{way}</a>'


def module_of(public: str) -> Any:
    """Return a public package by the name that a user types: `regard.statistics` is in another folder."""
    regard = importlib.import_module("regard")
    return functools.reduce(getattr, public.split(".")[1:], regard)


def reference_page(public: str) -> str:
    """Write the page of a package: what it is for, and a section for each name that it exports."""
    module = module_of(public)
    parts = [f"# {public}", (module.__doc__ or "").strip()]
    for name in sorted(module.__all__, key=str.lower):
        value = getattr(module, name)
        parts.append(f'<a id="{public}.{name}"></a>')
        if not hasattr(value, "__qualname__"):  # a module, or a constant
            words = (value.__doc__ or "").strip() if isinstance(value, type(sys)) else f"`{value!r}`"
            parts.append(f"## {public}.{name}\n\n{words}")
            continue
        options = f"heading: {public}.{name}\n      toc_label: {name}"
        parts.append(f"::: {value.__module__}.{value.__qualname__}\n    options:\n      {options}")
    return "\n\n".join(part for part in parts if part) + "\n"


def on_page_markdown(text: str, *, page: Any, files: Any, **_: Any) -> str:
    """Lead links to where the site has their target; a file that is only in the repository keeps its name."""
    page.meta.setdefault("search", {"boost": BOOST.get(page.file.src_uri.partition("/")[0], 1)})
    source = {page: name for name, page in OF_ROOT.items()}.get(page.file.src_uri)
    folder = posixpath.dirname(source or f"docs/{page.file.src_uri}")
    here = posixpath.dirname(page.file.src_uri)

    def lead(link: re.Match[str]) -> str:
        label, target = link[1], link[2]
        path, hash_, anchor = target.partition("#")
        if "://" in target:
            return link[0]
        if not path:  # the second heading of a name: GitHub adds -1 to it, Markdown's toc _1
            return f"{label}(#{SECOND.sub('_', anchor)})"
        inside = posixpath.normpath(posixpath.join(folder, path))
        to = OF_ROOT.get(inside, inside.removeprefix("docs/") if inside.startswith("docs/") else "")
        to = f"{to}/README.md" if f"{to}/README.md" in files.src_uris else to
        if to not in files.src_uris or to.endswith(".py"):
            return label[1:-1]
        return f"{label}({posixpath.relpath(to, here or '.')}{hash_}{anchor})"

    if page.file.src_uri.endswith(".zh.md"):  # a line break within Chinese is no space
        text = BROKEN.sub("", text)
    text = text.replace(LESSON, frame(page.file.src_uri, here))
    blocks = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else LINK.sub(lead, part) for part in blocks)


def on_page_context(context: Any, *, page: Any, config: Any, **_: Any) -> Any:
    """Let the switch of languages lead to the same page, or to the first one, of the other language."""
    path = page.file.src_uri.replace(".zh.md", ".md")
    there = {file.src_uri: file.url for file in context["pages"]}
    chinese = there.get(path.replace(".md", ".zh.md"), "index.zh.html")
    english = there.get(path, "index.html")
    config.extra["alternate"] = [
        {"name": "English", "link": english, "lang": "en"},
        {"name": "中文", "link": chinese, "lang": "zh"},
    ]
    return context


def on_post_page(output: str, *, page: Any, **_: Any) -> str:
    """Name the language of a Chinese page."""
    return output.replace('<html lang="en"', '<html lang="zh"', 1) if ".zh." in page.file.src_uri else output
