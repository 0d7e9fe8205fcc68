"""Each part, used through regard as a user would, with the package installed."""

import numpy as np
import torch

import regard


def test_the_statistic_is_found_by_name_and_is_the_largest_weight():
    model = torch.nn.MultiheadAttention(16, 4, batch_first=True).eval()
    x = torch.randn(1, 9, 16)
    with torch.no_grad(), regard.watch(model, statistics=["largest"]) as seen:
        _, weights = model(x, x, x, average_attn_weights=False)
    np.testing.assert_allclose(seen.statistic("largest", layer=0), weights.amax(-1), rtol=1e-6)


def test_the_loader_makes_the_model_that_is_named_and_the_same_one_twice():
    first, second = (regard.load_model("random:bert") for _ in range(2))
    assert first.model.config.model_type == "bert"
    state = second.model.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in first.model.state_dict().items())


def test_the_command_writes_markdown_of_a_random_model(tmp_path):
    from typer.testing import CliRunner

    from regard.cli.app import app

    out = tmp_path / "it.md"
    command = ["look", "The cat sat because it was tired", "--model", "random:bert", "--out", str(out)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    title, _, head, ruler, *rows = out.read_text(encoding="utf-8").splitlines()
    assert (title, head) == ("# random:bert", "| layer | head | from | to | weight |")
    assert ruler.count("|") == head.count("|")
    assert rows
    assert all(0 < float(row.split("|")[5]) <= 1 for row in rows)
