"""The commands `regard steps` of the start pages, each one line to run, and their numbers worked out by hand."""

import math
import re
import shlex

import pytest
import typer
from typer.testing import CliRunner

from documents import ROOT
from regard.cli.steps import steps

app = typer.Typer()
app.command()(steps)
PAGES = ("docs/start.md", "docs/start.zh.md")


def lines(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    found = re.findall(r"^regard steps(.*?)(?:  #.*)?$", text, re.MULTILINE)
    return [line.strip() for line in found if "--model" not in line and "--out" not in line]


def run(line, monkeypatch):
    monkeypatch.chdir(ROOT)
    done = CliRunner().invoke(app, shlex.split(line), env={"COLUMNS": "100", "NO_COLOR": "1"})
    assert done.exit_code == 0, (line, done.output, done.exception)
    return done.output


def the_line(name, file):
    (line,) = [one for one in lines(name) if file in one]
    return line


def shown(number):
    return f"{number:.3g}"


@pytest.mark.parametrize("name", PAGES)
def test_every_line_runs_as_it_stands_there(name, monkeypatch):
    assert len(lines(name)) >= 4
    for line in lines(name):
        assert "softmax" in run(line, monkeypatch).lower()


@pytest.mark.parametrize("name", PAGES)
def test_three_tokens(name, monkeypatch):
    (line,) = [one for one in lines(name) if one in ("", "--lang zh")][:1]
    text = run(line, monkeypatch)
    large = math.exp(4 / math.sqrt(2))  # scores 4, 0, 4
    assert f"w₁₁ = 16.9 / 34.8 = {shown(large / (2 * large + 1))}" in text
    assert "0.486" in text


@pytest.mark.parametrize("name", PAGES)
def test_softmax_of_100_1_1(name, monkeypatch):
    text = run(the_line(name, "softmax"), monkeypatch)
    assert f"w₁₂ = 1.01e-43 / 1 = {math.exp(-99):.2e}".replace("e-0", "e-") in text
    assert "z₁ = [1 1.01e-43 1.01e-43]" in text


@pytest.mark.parametrize("name", PAGES)
def test_a_library(name, monkeypatch):
    """The question [2 2 0 0] scores 4, 8 and 0; over √4 that is 2, 4, 0; the second book tells three times as much."""
    text = run(the_line(name, "library"), monkeypatch)
    total = math.exp(2) + math.exp(4) + 1
    first, second, third = math.exp(2) / total, math.exp(4) / total, 1 / total
    for weight in (first, second, third):
        assert f"= {shown(weight)}" in text
    assert f"z₁ = [{shown(first + 3 * second)} {shown(4 * third)}]" in text


@pytest.mark.parametrize("name", PAGES)
def test_two_heads(name, monkeypatch):
    """The values are 3, 6 and 9. Head 0 averages them; head 1 scores itself with 10, over √3; W_O is 1 and 100."""
    text = run(the_line(name, "heads"), monkeypatch)
    own = math.exp(10 / math.sqrt(3))
    first, last = (3 * own + 6 + 9) / (own + 2), (9 * own + 6 + 3) / (own + 2)
    rows = zip(("x1", "x2", "x3"), (first, 6, last), strict=True)
    end = text[text.index("Z = [Z_0 Z_1]") :]
    for row, second in rows:
        assert re.search(rf"{row} \[6  {shown(second)} *\]", end)
        assert re.search(rf"{row} \[{6 + 100 * second:.0f}\]", end)


@pytest.mark.parametrize("name", PAGES)
def test_a_shop(name, monkeypatch):
    """红色连衣裙 is q = [1 1]; the titles' scores are 2, 0, 0, −2; the values are prices."""
    text = run(the_line(name, "shop"), monkeypatch)
    assert "红色连衣裙  q₁·k₁ = 1·1 + 1·1 = 2" in text
    assert "蓝色鞋      q₁·k₄ = 1·(-1) + 1·(-1) = -2" in text
    powers = [math.exp(score / math.sqrt(2)) for score in (2, 0, 0, -2)]
    weights = [power / sum(powers) for power in powers]
    for number, weight in enumerate(weights, start=1):
        assert re.search(rf"w₁{chr(0x2080 + number)} = .* = {shown(weight)}$", text, re.MULTILINE), number
    price = sum(weight * price for weight, price in zip(weights, (199, 159, 89, 79), strict=True))
    assert f"z₁ = [{price:.0f}]" in text
