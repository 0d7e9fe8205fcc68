"""The mean of a statistic that pages and the terminal show of a head."""

import numpy as np
import pytest
import torch
from torch import nn

import regard
from regard.render.labels import statistic_means


@pytest.mark.parametrize("queries", [None, [2, 5], range(4, 6)])
def test_rows_of_queries_that_were_not_chosen_do_not_count(queries) -> None:
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x = torch.randn(1, 6, 8)
    asked = ["distance", "confidence", "sink", "value_norm"]
    with torch.no_grad():
        with regard.watch(attention, statistics=asked, queries=queries) as seen:
            attention(x, x, x)
        _, weights = attention(x, x, x, average_attn_weights=False)
    rows = weights[0, 1].double().numpy()[list(queries or range(6))]
    places = range(6) if queries is None else queries
    distance = [sum(row[j] * abs(i - j) for j in range(6)) for i, row in zip(places, rows, strict=True)]
    found = statistic_means(seen.record, seen.layer(0), 1, 0)
    np.testing.assert_allclose(found["distance"], np.mean(distance), rtol=1e-5)
    np.testing.assert_allclose(found["confidence"], rows.max(1).mean(), rtol=1e-5)
    for per_key in ("sink", "value_norm"):  # has a number for each key, whatever queries were chosen
        np.testing.assert_allclose(found[per_key], seen.statistic(per_key, layer=0, head=1)[0].mean(), rtol=1e-5)
