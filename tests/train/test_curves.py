"""The figure of a run shows what its log says."""

import math

import pytest

from regard.errors import InputError
from regard.train import JsonlLog, curves_figure, read_log
from regard.train.callbacks import Evaluated, Started, Stepped


@pytest.fixture
def log(tmp_path):
    journal = JsonlLog(tmp_path / "log.jsonl")
    journal(Started(tmp_path, 0, 4, 10))
    for step in range(1, 5):
        journal(Stepped(step, 0, 5.0 / step, 0.1 * step, 1.0, 100, 0.5))
    journal(Evaluated(2, 0, {"loss": 3.0, "bleu": 10.0}, True, 1.0))
    journal(Evaluated(4, 0, {"loss": 2.0, "bleu": 20.0}, True, 1.0))
    return tmp_path / "log.jsonl"


def test_each_score_has_a_panel_with_its_numbers(log):
    panels = curves_figure(read_log(log)).axes
    assert [axes.get_ylabel() for axes in panels] == ["loss (nats)", "BLEU", "learning rate"]
    trained, held = panels[0].lines
    assert list(trained.get_ydata()) == [5.0, 2.5, pytest.approx(5 / 3), 1.25]
    assert (list(held.get_xdata()), list(held.get_ydata())) == ([2, 4], [3.0, 2.0])
    assert list(panels[1].lines[0].get_ydata()) == [10.0, 20.0]
    assert len({axes.get_xlim() for axes in panels}) == 1


def test_a_score_that_the_last_evaluation_lacks_keeps_its_panel(log):
    journal = JsonlLog(log)
    journal(Stepped(5, 0, 1.0, 0.1, 1.0, 100, 0.5))
    journal(Evaluated(5, 0, {"loss": 1.5}, True, 1.0))
    panels = curves_figure(read_log(log)).axes
    assert [axes.get_ylabel() for axes in panels] == ["loss (nats)", "BLEU", "learning rate"]
    values = panels[1].lines[0].get_ydata()
    assert [float(value) for value in values[:2]] == [10.0, 20.0]
    assert math.isnan(float(values[2]))


def test_a_run_that_has_just_begun_can_be_drawn(tmp_path):
    journal = JsonlLog(tmp_path / "log.jsonl")
    journal(Started(tmp_path, 0, 4, 10))
    assert len(curves_figure(read_log(tmp_path / "log.jsonl")).axes) == 2


def test_a_line_that_a_kill_has_cut_is_left_out_and_another_is_named(log):
    whole = log.read_text("utf-8")
    log.write_text(whole + '{"event": "step', "utf-8")
    assert len(read_log(log)) == 7
    log.write_text('{"event": "step\n' + whole, "utf-8")
    with pytest.raises(InputError, match="cannot read line 1 of"):
        read_log(log)
