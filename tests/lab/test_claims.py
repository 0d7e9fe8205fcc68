"""Each experiment's numbers against values known from elsewhere, and each verdict turned by other numbers."""

import math

import numpy as np
import pytest
import torch

import regard
from regard.hub import folder
from regard_lab import measuring
from regard_lab.claims import (
    approximations,
    causal_mask,
    costs,
    heads,
    order,
    recurrence,
    scaling,
    sinks,
    small_claims,
    worked_example,
)
from regard_lab.experiment import Setting
from regard_lab.pronouns import Looks, looks
from regard_lab.two_relations import TwoRelations, accuracy_over_steps

QUICK = Setting(quick=True, threads=1)


def verdicts(parts):
    return [str(part.verdict) for part in parts]


def found(experiment):
    torch.manual_seed(0)
    return experiment.run(QUICK)


# --- 1, the worked example


def test_the_example_by_hand():
    numbers = found(worked_example).numbers
    assert numbers["Q = K = V"] == [[2, 0], [0, 3], [2, 2]]
    assert numbers["scores"] == [[4, 0, 4], [0, 9, 6], [4, 6, 8]]
    first, small = 1 / (2 + math.exp(-2 * math.sqrt(2))), math.exp(-2 * math.sqrt(2))
    assert numbers["weights"][0] == pytest.approx([first, small * first, first], abs=1e-12)
    assert numbers["outputs"][0] == pytest.approx([4 * first, 3 * small * first + 2 * first], abs=1e-12)
    assert numbers["weights"][2] == pytest.approx([0.0454, 0.1867, 0.7679], abs=5e-5)
    assert numbers["printed outputs follow from the printed weights"] == [True, False, False]


def test_no_printed_row_is_right_and_right_ones_would_be_called_so():
    numbers = dict(found(worked_example).numbers)
    assert verdicts(worked_example.judge(numbers)) == ["does not hold"] * 6
    numbers["printed weights"] = np.round(numbers["weights"], 2).tolist()
    assert verdicts(worked_example.judge(numbers)) == ["holds"] * 3 + ["does not hold"] * 3


# --- 2, scaling


@pytest.fixture(scope="module")
def scaled():
    torch.manual_seed(0)
    return scaling.run(QUICK)


def test_the_variance_is_the_width(scaled):
    assert scaled.numbers["variance"] == pytest.approx(list(scaling.WIDTHS), rel=0.05)
    assert verdicts(scaled.parts) == ["holds"] * 4


def test_the_gradient_is_the_norm_of_the_jacobian():
    p = torch.tensor([[0.5, 0.5, 0.0], [0.7, 0.2, 0.1]], dtype=torch.float64)
    dense = [np.linalg.norm(np.diag(one) - np.outer(one, one)) for one in p.numpy()]
    assert dense[0] == pytest.approx(0.5)
    np.testing.assert_allclose(scaling._gradient(p), dense, rtol=1e-12)
    spike = torch.tensor([[0.0, -60.0]], dtype=torch.float64).softmax(-1)  # 1 − p would be 0 here
    assert float(scaling._gradient(spike)) == pytest.approx(2 * math.exp(-60), rel=1e-9)


def test_scaling_would_fail_where_nothing_saturates(scaled):
    same = {name: scaled.numbers[name.replace("unscaled", "scaled")] for name in scaled.numbers if "unscaled" in name}
    assert verdicts(scaling.judge({**scaled.numbers, **same})) == ["holds", "does not hold", "does not hold", "holds"]
    half = {"variance": [one / 2 for one in scaled.numbers["variance"]]}
    assert verdicts(scaling.judge({**scaled.numbers, **half}))[0] == "does not hold"


# --- 3, order


def test_the_map_turns_what_sines_and_cosines_say():
    angle = 7 * 100.0 ** -np.array([0, 0.5])
    turned = order.rotation(3, 4, base=100.0).numpy() @ np.array(
        [np.sin(angle[0]), np.cos(angle[0]), np.sin(angle[1]), np.cos(angle[1])]
    )
    after = 10 * 100.0 ** -np.array([0, 0.5])
    np.testing.assert_allclose(turned[[0, 2]], np.sin(after), atol=1e-14)
    np.testing.assert_allclose(turned[[1, 3]], np.cos(after), atol=1e-14)


def test_order_is_not_seen_without_positions():
    finding = found(order)
    assert verdicts(finding.parts) == ["holds"] * 5
    assert finding.numbers["shuffled, float64"] < 1e-14
    turned = {
        "shuffled, float64": 1e-3,
        "shuffled, with positions": 1e-3,
        "error of R_k": [1e-3],
        "fitted map, random table": [0.0],
    }
    assert verdicts(order.judge({**finding.numbers, **turned})) == [
        "does not hold", "holds", "does not hold", "does not hold", "does not hold",
    ]  # fmt: skip


# --- 4, the causal mask


def test_the_mask_leaks_nothing_and_a_number_leaks_as_its_exponential():
    finding = found(causal_mask)
    assert set(finding.numbers["gradient under Causal"].values()) == {0.0}
    leaks = dict(finding.numbers["gradient under a finite number"])
    assert leaks[60.0] / leaks[30.0] == pytest.approx(math.exp(-30), rel=0.01)
    assert leaks[100.0] > 0 == leaks[120.0]  # exp(−103.97) is the smallest number of float32
    assert finding.numbers["weight on hidden keys, a row that may see none, −1e9"] == pytest.approx(1)
    assert verdicts(finding.parts) == ["holds"] * 3 + ["holds within limits", "holds", "holds"]


def test_a_tiny_leak_would_be_seen():
    x = torch.randn(1, causal_mask.TOKENS, causal_mask.WIDTH, generator=torch.Generator().manual_seed(0))
    later = torch.ones(causal_mask.TOKENS, causal_mask.TOKENS).triu(1)
    jacobian = causal_mask._jacobian(lambda one: one + 1e-30 * (later @ one), x)
    assert causal_mask._later(jacobian) == pytest.approx(1e-30 * math.sqrt(causal_mask.WIDTH), rel=1e-5)
    numbers = {
        "gradient under Causal": {"reference": 1e-38},
        "gradient under a finite number": [(10.0, 0.0), (1e9, 0.0)],
        "weight on hidden keys, a row that may see none, −1e9": 0.0,
        "weight on hidden keys, a row that may see none, masks": 0.1,
    }
    assert verdicts(causal_mask.judge(numbers)) == ["does not hold"] * 4
    every = {**numbers, "gradient under a finite number": [(10.0, 1e-3), (1e9, 1e-3)]}
    assert verdicts(causal_mask.judge(every))[1] == "holds"


# --- 6, costs


def test_bytes_are_those_that_are_alive_at_once():
    x = torch.zeros(1000)
    assert measuring.peak_bytes(lambda: x + 1) == 4000
    assert measuring.peak_bytes(lambda: (x + 1) + 1) == 8000
    assert measuring.peak_bytes(lambda: ((x + 1) + 1) + 1) == 8000
    assert measuring.peak_bytes(lambda: x.view(10, 100).t()) == 0
    assert measuring.peak_bytes(lambda: x.double().mul_(2)) == 8000


@pytest.mark.slow
def test_costs_over_short_texts(monkeypatch):
    monkeypatch.setattr(costs, "SIZES", {True: (1024, 2048, 4096)})  # one strip, and more
    monkeypatch.setattr(costs, "LONG", {True: (1024, 2048, 4096)})
    monkeypatch.setattr(costs, "WIDTHS", (64, 128))
    monkeypatch.setattr(costs, "AT", 1024)
    finding = found(costs)
    memory = finding.numbers["power of n, memory"]
    assert memory[costs.FULL] == pytest.approx(2, abs=0.1)
    assert memory["Performer"] == pytest.approx(1, abs=0.05)
    assert memory["Linformer"] == pytest.approx(1, abs=0.15)
    assert max(memory[name] for name in memory if name != costs.FULL) < 1.2
    dense = finding.numbers["peak bytes"][costs.FULL]
    assert 2 * 4 * 4096**2 <= dense["4096"] <= 4 * 4 * 4096**2  # scores and weights, n × n floats each
    assert set(finding.numbers["power of n, time"]) == set(costs.EXPECTED)


def test_costs_are_judged_by_their_powers():
    def judged(time, memory, width):
        names = dict.fromkeys(costs.EXPECTED)
        numbers = {
            "power of n, time": dict.fromkeys(names, time),
            "power of n, memory": dict.fromkeys(names, memory),
            "power of n, time, least and most": {name: [time, time] for name in names},
            "power of w, time": width,
        }
        return dict(
            zip(
                [part.text.split(" grows")[0] for part in costs.judge(numbers)],
                verdicts(costs.judge(numbers)),
                strict=False,
            )
        )

    linear = judged(1.0, 1.0, 1.0)
    assert linear.pop("full, by the formula: time") == linear.pop("full, by the formula: memory") == "does not hold"
    assert linear.pop("full, in blocks: time") == "does not hold"
    assert set(linear.values()) == {"holds"}
    quadratic = judged(2.0, 2.0, 2.0)
    assert [name for name, one in quadratic.items() if one == "holds"] == [
        "full, by the formula: time", "full, by the formula: memory", "full, in blocks: time",
    ]  # fmt: skip


# --- 7, approximations


def test_the_lemma_is_one_over_the_root_of_the_rank():
    # E|w RᵀR v − w v|² = (|w|²|v|² + (w·v)²)/k, and w·v is small beside |w||v|.
    for rank in (16, 64, 256):
        assert approximations.lemma(rank, 512) == pytest.approx(rank**-0.5, rel=0.2)


def test_plain_qr_is_biased_in_opposite_ways_and_the_fixed_one_is_not():
    means = approximations._means(8000, 0)
    low, high = (mean for mean, _ in means[approximations.PLAIN].values())
    assert low == pytest.approx(0.70, abs=0.04)
    assert high == pytest.approx(1.31, abs=0.06)
    for mean, error in means[approximations.FIXED].values():
        assert abs(mean - 1) < 4 * error < 0.08


def test_performer_comes_close_for_small_scores_alone():
    close, far = (approximations.performer_error(256, spread, draws=1, tokens=256) for spread in (0.1, 1.0))
    assert close < 0.1 < 0.5 < far


def test_errors_of_approximations_are_drawn_as_powers():
    performer = {str(spread): {str(m): 4 * spread / m for m in (16, 64, 256, 1024)} for spread in (0.35, 1.0)}
    linformer = {"256": {str(rank): rank**-0.5 for rank in (4, 8, 16, 32, 64, 128, 256)}}
    charts = approximations._charts(performer, linformer)
    assert [(chart.log_across, chart.log_up) for chart in charts] == [(True, True)] * 2  # a power is a straight line
    assert [len(chart.lines) for chart in charts] == [3, 2]
    half, root = (chart.lines[-1] for chart in charts)
    assert half.y == (0.0875, 0.04375, 0.021875, 0.0109375)
    assert root.y[::2] == (0.5, 0.25, 0.125, 0.0625)


def test_approximations_are_judged_by_what_was_said():
    means = {"a": [0.7, 0.01], "b": [1.3, 0.01]}, {"a": [1.0, 0.01], "b": [1.01, 0.01]}
    numbers = {
        "Performer": {"0.35": {"1024": 0.05}, "1.0": {"1024": 0.8}},
        "Performer: power of m": -0.5,
        "Performer: mean of the estimate": dict(zip((approximations.PLAIN, approximations.FIXED), means, strict=True)),
        "Linformer": {"256": {"16": 0.25, "256": 0.06}},
        "Linformer: power of k": {"256": -0.5},
    }
    assert verdicts(approximations.judge(numbers)) == ["holds"] * 2 + ["does not hold"] + ["holds"] * 5
    swapped = dict(zip((approximations.PLAIN, approximations.FIXED), means[::-1], strict=True))
    other = {
        "Performer": {"0.35": {"1024": 0.5}, "1.0": {"1024": 0.05}}, "Performer: power of m": -0.1,
        "Performer: mean of the estimate": swapped, "Linformer": {"256": {"16": 0.4, "256": 0.3}},
        "Linformer: power of k": {"256": -0.1},
    }  # fmt: skip
    assert verdicts(approximations.judge(other)) == ["does not hold"] * 2 + ["holds"] + ["does not hold"] * 5


# --- 9, heads


def test_the_head_that_looks_at_the_first_noun_and_those_that_turn():
    weights = np.zeros((2, 2, 1, 4))
    weights[0, :, 0] = [[0.5, 0.6, 0.1, 0.01], [0.1, 0.1, 0.5, 0.02]]
    weights[1, :, 0] = [[0.1, 0.6, 0.5, 0.01], [0.5, 0.1, 0.1, 0.02]]
    seen = Looks(("animal", "street"), weights)
    assert seen.head == (0, 1)
    assert seen.of_head(1) == {"head": "0.1", "weights": {"animal": 0.6, "street": 0.1}}
    assert seen.turning() == {"right": 1, "wrong": 1, "asked": 3}


@pytest.mark.slow
@pytest.mark.models
def test_pronouns_look_as_transformers_own_weights_say():
    model = regard.load_model("minilm")
    seen = looks(model, (heads.TIRED, heads.WIDE), heads.ENGLISH)
    eager = (
        type(model.model).from_pretrained(folder("minilm"), attn_implementation="eager", local_files_only=True).eval()
    )
    inputs = model.tokenizer(heads.TIRED, return_tensors="pt")
    with torch.no_grad():
        dense = eager(**inputs, output_attentions=True).attentions
    words = model.tokenizer.convert_ids_to_tokens(inputs["input_ids"][0])
    layer, head = seen.head
    expected = [float(dense[layer][0, head, words.index("it"), words.index(noun)]) for noun in ("animal", "street")]
    assert list(seen.of_head(0)["weights"].values()) == pytest.approx(expected, abs=1e-5)
    # Which heads turn, counted again by hand.
    both = []
    for sentence in (heads.TIRED, heads.WIDE):
        inputs = model.tokenizer(sentence, return_tensors="pt")
        with torch.no_grad():
            dense = torch.stack(eager(**inputs, output_attentions=True).attentions)[:, 0]
        words = model.tokenizer.convert_ids_to_tokens(inputs["input_ids"][0])
        both.append(torch.stack([dense[:, :, words.index("it"), words.index(noun)] for noun in ("animal", "street")]))
    clear = (both[0].sum(0) >= 0.1) & (both[1].sum(0) >= 0.1)
    animal = [one[0] > one[1] for one in both]
    right, wrong = (clear & animal[0] & ~animal[1]).sum(), (clear & ~animal[0] & animal[1]).sum()
    assert seen.turning() == {"right": right, "wrong": wrong, "asked": clear.sum()}
    assert (right, wrong) == (1, 2)  # what docs/lab.md says


def test_the_finding_says_first_what_the_known_sentence_shows():
    weights = {"animal": 0.67, "street": 0.02}, {"animal": 0.56, "street": 0.03}
    look = {
        f"“too {end}”, minilm": {"head": "5.11", "weights": one}
        for end, one in zip(("tired", "wide"), weights, strict=True)
    }
    turning = {"minilm, it": {"right": 1, "wrong": 2, "asked": 28}}
    numbers = {"where the pronoun looks": look, "heads whose choice turns with the sentence": turning}
    said = heads._tired_and_wide(numbers)
    assert "head 5.11 of minilm looks at the animal in both (animal 0.67 and 0.56, street 0.02 and 0.03)" in said
    assert "Of the 28 heads that look at the two, 1 change sides as the meaning does and 2 against it" in said
    look["“too wide”, minilm"]["weights"] = {"animal": 0.1, "street": 0.5}
    assert "turns from the animal to the street" in heads._tired_and_wide(numbers)


def judged_heads(**changed):
    look = {"model": "m", "head": "1.1", "right": "a", "wrong": "b", "weights": {"a": 0.5, "b": 0.1}}
    numbers = {
        "heads by rule": {"m": {"previous": 1, "first": 2, "duplicate_token": 1, "none": 9}},
        "where the pronoun looks": {"s": look},
        "heads whose choice turns with the sentence": {"m": {"right": 3, "wrong": 1}},
        "without the head": {"it moves": {"head": "m 1.1", "change": 0.1, "rank": 0.99}},
        "accuracy, two relations": {"1": [0.5, 0.6], "4": [0.9, 1.0]},
    }
    return verdicts(heads.judge({**numbers, **changed}))


def test_heads_are_judged_part_by_part():
    assert judged_heads() == ["holds"] * 5
    look = {"model": "m", "head": "1.1", "right": "a", "wrong": "b", "weights": {"a": 0.5, "b": 0.4}}
    assert (
        judged_heads(
            **{
                "heads by rule": {"m": {"first": 2, "duplicate_token": 0, "none": 9}},
                "where the pronoun looks": {"s": look},
                "heads whose choice turns with the sentence": {"m": {"right": 2, "wrong": 2}},
                "without the head": {"it moves": {"head": "m 1.1", "change": 0.1, "rank": 0.9}},
                "accuracy, two relations": {"1": [1.0, 1.0], "4": [1.0, 1.0]},
            }
        )
        == ["does not hold"] * 5
    )


def test_two_relations_have_equal_parameters_and_are_learned():
    sizes = {sum(p.numel() for p in TwoRelations(count).parameters()) for count in (1, 2, 4)}
    assert len(sizes) == 1
    with torch.random.fork_rng(devices=[]):
        course = accuracy_over_steps(4, 40, seed=0)
    assert course.steps == tuple(range(2, 41, 2))
    assert 1 / 22 < course.accuracy[-1] < 0.3  # chance is 1/11, and 40 steps are few


# --- 10, sinks


def test_sinks_are_judged_by_ratios():
    assert (
        verdicts(sinks.judge({"perplexity": {"8": {"full": 10.0, "with sinks": 10.9, "without": 101.0}}}))
        == ["holds"] * 2
    )
    other = {"perplexity": {"8": {"full": 10.0, "with sinks": 11.1, "without": 99.0}}}
    assert verdicts(sinks.judge(other)) == ["does not hold"] * 2


def test_the_text_is_long_enough_and_prose():
    words = sinks.text().split()
    assert len(words) > 4096
    assert words[:4] == ["Objects,", "values", "and", "types"]
    assert not [one for one in words if len(one) > 3 and set(one) == {"*"}]


@pytest.mark.slow
@pytest.mark.models
def test_losses_are_those_of_transformers_and_sinks_help():
    model = regard.load_model("smollm2")
    ids = sinks._ids(model, 160)
    full = sinks._losses(model, ids, regard.masks.Causal())
    with torch.no_grad():
        theirs = model.model(input_ids=ids, labels=ids).loss
    assert float(full.mean()) == pytest.approx(float(theirs), abs=1e-4)
    window, kept = regard.masks.Window(32), regard.masks.Window(28) | regard.masks.Sinks(4)
    without, with_sinks = (sinks._losses(model, ids, regard.masks.Causal() & one) for one in (window, kept))
    torch.testing.assert_close(without[:32], full[:32], atol=1e-4, rtol=1e-4)
    assert float(without[32:].mean()) > float(with_sinks[32:].mean()) + 0.5


# --- 14, recurrence


def test_a_recurrence_forgets_or_explodes_at_known_rates_and_attention_does_neither():
    finding = found(recurrence)
    factors = finding.numbers["factor a step"]
    assert factors["relu, ‖W‖ = 2"] == pytest.approx(2 / math.sqrt(2), rel=0.02)  # half of the units are on
    assert factors["attention"] == pytest.approx(1, abs=0.01)
    assert verdicts(finding.parts) == ["holds"] * 4


def test_forgetting_is_judged_by_factor_and_line():
    names = (*recurrence.FALLING, *recurrence.GROWING, recurrence.ATTENTION)
    level = {"factor a step": dict.fromkeys(names, 1.0), "R²": dict.fromkeys(names, 1.0)}
    assert verdicts(recurrence.judge(level)) == ["does not hold"] * 3 + ["holds"]
    bent = {"factor a step": dict(zip(names, (0.5, 0.5, 2.0, 0.5), strict=True)), "R²": dict.fromkeys(names, 0.5)}
    assert verdicts(recurrence.judge(bent)) == ["does not hold"] * 4


# --- 15, small claims


def test_small_claims_to_the_digit():
    pytest.importorskip("transformers")
    finding = found(small_claims)
    numbers = finding.numbers
    assert numbers["softmax [.1, .6, .2, .1]"] == pytest.approx([0.210354, 0.346815, 0.232477, 0.210354], abs=5e-7)
    assert numbers["softmax [100, 1, 1]"][1] == pytest.approx(math.exp(-99), rel=1e-9)
    # Four projections of 128 × 64 by 64 × 64, scores and output of 128 × 128 × 64, two operations a product.
    assert set(numbers["FLOPs by heads"].values()) == {2 * (4 * 128 * 64 * 64 + 2 * 128 * 128 * 64)}
    assert numbers["positions"] == {
        "GPT-Neo": "learned, absolute", "GPT-2": "learned, absolute", "BERT": "learned, absolute",
        "T5": "learned, relative", "Llama": "rotary",
    }  # fmt: skip
    assert verdicts(finding.parts) == ["holds"] * 3 + ["holds within limits"] + ["holds"] * 5


def test_small_claims_would_fail():
    numbers = {
        "softmax [100, 1, 1]": [0.9, 0.05, 0.05],
        "unit vectors: |dot − cosine|": 0.1,
        "softmax [.1, .6, .2, .1]": [0.1, 0.6, 0.2, 0.1],
        "我愛你, 你愛我: apart when permuted": 0.1,
        "我愛你, 你愛我: apart in place": 0.0,
        "FLOPs by heads": {"1": 10, "2": 11},
        "positions": {"GPT-Neo": "rotary", "T5": "rotary"},
    }
    assert verdicts(small_claims.judge(numbers)) == ["does not hold"] * 9
    right = {**numbers, "softmax [.1, .6, .2, .1]": list(small_claims.SAID)}
    assert verdicts(small_claims.judge(right))[2:4] == ["holds", "holds"]
