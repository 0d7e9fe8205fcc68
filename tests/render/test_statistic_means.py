"""The mean of a statistic that pages and the terminal show of a head."""

import numpy as np
import pytest
import torch
from torch import nn

import regard
from oracles import set_attention
from regard.interpret.head_scores import text_scores
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
    np.testing.assert_allclose(found["sink"], rows[:, 0].mean(), rtol=1e-5)  # of the first position
    norms = seen.statistic("value_norm", layer=0, head=1)[0]  # one for each key, whatever queries were chosen
    np.testing.assert_allclose(found["value_norm"], norms.mean(), rtol=1e-5)


@pytest.mark.parametrize("name", ["smollm2", "minilm", "me5"])
def test_means_of_a_page_are_the_scores_of_the_command_line(name) -> None:
    """Both are the means over the same rows, of transformers' own weights: without those of special tokens, and of a
    causal text without the first, which sees only itself.
    """
    loaded = regard.load_model(name)
    words = loaded.tokenizer
    text = words("猫 追 老鼠, because it was hungry", return_tensors="pt")
    asked = ["self", "previous", "first", "distance", "confidence", "sink"]
    set_attention(loaded.model, "eager")
    with torch.no_grad():
        weights = loaded.model(**text, output_attentions=True).attentions
        with regard.watch(loaded.model, tokenizer=words, statistics=asked) as seen:
            loaded.model(**text)
    names = words.convert_ids_to_tokens(text["input_ids"][0])
    shown = [
        at for at, one in enumerate(names) if one not in ("[CLS]", "[SEP]", "<s>", "</s>") and (at, one) != (1, "▁")
    ]
    causal = name == "smollm2"
    rows = [at for at in shown if not causal or at > 0]
    before = [at for at in rows if at - 1 in shown]
    scores = text_scores(seen.record)
    for layer in range(0, len(weights), 3):
        w, head = weights[layer][0].double().numpy(), layer % weights[layer].shape[1]
        i, j = np.arange(len(names))[:, None], np.arange(len(names))
        expected = {
            "self": w[head, rows, rows].mean(),
            "previous": w[head, before, [at - 1 for at in before]].mean(),
            "first": w[head, shown, shown[0]].mean(),
            "distance": (w[head] * abs(i - j)).sum(-1)[rows].mean(),
            "confidence": w[head].max(-1)[rows].mean(),
            "sink": w[head, :, 0].mean(),
        }
        means = statistic_means(seen.record, seen.layer(layer), head, 0)
        for one, value in expected.items():
            np.testing.assert_allclose(means[one], value, atol=1e-4, err_msg=f"{one} of {layer}.{head}, page")
            np.testing.assert_allclose(scores[one][layer, head], value, atol=1e-4, err_msg=f"{one} of {layer}.{head}")
