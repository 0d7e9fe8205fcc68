"""Step 9 in Chromium: weights that a browser computes from a page are those of the model's own eager attention."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import nn

import regard
from chromium import address, chromium, needs_chromium, rest
from oracles import dense
from regard.interpret.model_loading import load_model
from regard.masks import Causal
from regard.normalizers import Softmax
from regard.positions import ALiBi
from regard.scores import ScaledDot

pytestmark = [pytest.mark.browser, needs_chromium]

ANIMAL = "The animal didn't cross the street because it was too tired"


@pytest.fixture(scope="module")
def browser():
    with chromium() as running:
        yield running


@pytest.fixture
def opened(browser, tmp_path):
    """Open a lesson; after the test, nothing may have complained, asked the network or opened a dialog."""

    @contextmanager
    def open_page(lesson, width: int = 1100, start: str = "", **context) -> Iterator:
        path = tmp_path / "page.html"
        lesson.to_html(path)
        trouble: list[str] = []
        with browser.new_context(viewport={"width": width, "height": 900}, **context) as fresh:
            tab = fresh.new_page()
            tab.on("console", lambda message: trouble.append(f"console: {message.text}"))
            tab.on("pageerror", lambda error: trouble.append(f"error: {error}"))
            tab.on("dialog", lambda dialog: (trouble.append(f"dialog: {dialog.message}"), dialog.dismiss()))
            tab.on(
                "request",
                lambda request: request.url.split("#")[0] == path.as_uri() or trouble.append(request.url),
            )
            tab.goto(path.as_uri() + start)
            tab.wait_for_selector("#step-real .body[data-shown]", timeout=20_000)
            yield tab
        assert trouble == []

    return open_page


def values(tab, name: str):
    """The exact numbers of a matrix or table of the page."""
    return np.array(tab.evaluate(f"""document.querySelector('[data-name="{name}"]').values"""))


def choose(tab, **chosen: int) -> None:
    for name, value in chosen.items():
        tab.locator(f'#step-real select[name="real-{name}"]').select_option(str(value))
    at = tab.evaluate(
        "['layer', 'head', 'query', 'key'].map(name => document.querySelector(`[name=real-${name}]`).value)"
    )
    tab.wait_for_function(
        "shown => document.querySelector('#step-real .body').dataset.shown === shown", arg=" ".join(at)
    )


def eager(loaded, text: str):
    """What a model computes for itself: weights (layers, heads, n, n) in float64."""
    ids = loaded.tokenizer.encode(text)
    ids = torch.tensor([getattr(ids, "ids", ids)])
    loaded.model.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            attentions = loaded.model(input_ids=ids, output_attentions=True).attentions
    finally:
        loaded.model.set_attn_implementation("sdpa")
    return torch.stack(attentions)[:, 0].double().numpy()


@pytest.mark.models
@pytest.mark.parametrize(
    ("model", "text", "places"),
    [
        ("minilm", ANIMAL, [(5, 11, 10), (0, 0, 3), (2, 7, 14)]),
        ("smollm2", ANIMAL, [(3, 8, 8), (17, 0, 11), (29, 4, 5)]),
        ("me5", "貓追老鼠，因為牠餓了。", [(0, 7, 7), (11, 3, 5), (6, 11, 2)]),
    ],
)
def test_the_page_computes_the_weights_of_the_models_own_eager_attention(opened, model, text, places):
    loaded = load_model(model)
    result = regard.look(text, model=loaded, keep="qkv")
    expected = eager(loaded, text)
    with opened(result.lesson()) as tab:
        for layer, head, query in places:
            choose(tab, layer=layer, head=head, query=query)
            np.testing.assert_allclose(values(tab, "real-weights"), expected[layer, head], atol=1e-5)
            np.testing.assert_allclose(values(tab, "real-row"), expected[layer, head, query], atol=1e-5)
            kept = result.record.layers[layer].qk
            v = kept.arrays["v"][0][head * kept.arrays["v"].shape[1] // expected.shape[1]]
            np.testing.assert_allclose(
                values(tab, "real-output")[0], expected[layer, head, query] @ v.astype(np.float64), atol=1e-4
            )
        difference = float(tab.locator("#step-real [data-difference]").get_attribute("data-difference"))
        assert difference < 1e-5


def test_the_page_opens_with_it_animal_0_65_and_the_five_products_that_make_it(opened):
    with opened(regard.lesson()) as tab:
        step = tab.locator("#step-real")
        assert step.locator(".counter").inner_text() == "it → animal: 0.647"
        rows = [row.inner_text().split("\t") for row in step.locator('[data-name="real-products"] tbody tr').all()]
        assert len(rows) == 7
        q, k = values(tab, "real-queries")[10], values(tab, "real-keys")[2]
        products = q * k
        largest = np.argsort(-abs(products))[:5]
        assert [int(row[0]) - 1 for row in rows[:5]] == largest.tolist()
        shown = [float(row[3].replace("−", "-")) for row in rows]
        np.testing.assert_allclose(shown[:5], products[largest], rtol=6e-3)
        np.testing.assert_allclose(shown[5], np.delete(products, largest).sum(), rtol=6e-3)
        np.testing.assert_allclose(shown[6], q @ k, rtol=6e-3)
        assert "regard look chooses" in step.inner_text()
        assert "--out page.html" in step.inner_text()


@pytest.mark.parametrize("language", ["en", "zh"])
def test_its_numbers_have_the_names_of_the_other_steps_and_are_found_in_the_maps(opened, language):
    with opened(regard.lesson(lang=language)) as tab:
        step = tab.locator("#step-real")
        formula = step.locator(".formula").inner_text()
        assert all(part in formula for part in ("sj = q · kj", "zj = sj · scale", "a = softmax(z)", "o = Σj aj vj"))
        heads = " ".join(step.locator('[data-name="real-row"] thead').inner_text().split())
        assert re.search(r"s = q·k .*\bz .* a\b", heads)
        caption = step.locator('[data-name="real-row"] caption').inner_text()
        assert re.search(r"z = s · 0\.177 ?[(（]1/√32", caption)
        first = 0 if language == "en" else 1
        assert ("component", "第几个分量")[first] in step.locator('[data-name="real-products"] thead').inner_text()
        text = step.inner_text()
        for part in (("both counted from 0", "“the#2” is occurrence 2", "[CLS], [SEP] are marks", "absolute values"),
                     ("都从 0 数起", "“the#2”是第 2 次", "[CLS]、[SEP] 是", "绝对值最大"))[first]:  # fmt: skip
            assert part in text
        ticks = step.locator('[data-name="real-queries"] .strip-ticks')
        assert ticks.locator("span").all_inner_texts() == ["1", "5", "10", "15", "20", "25", "30"]
        columns = [int(row.inner_text()) for row in step.locator('[data-name="real-products"] tbody th').all()[:5]]
        query, key = values(tab, "real-queries")[10], values(tab, "real-keys")[2]
        assert columns == [int(at) + 1 for at in np.argsort(-abs(query * key))[:5]]


def test_each_row_of_weight_times_value_can_be_seen(opened):
    """The smallest of the rows has a hundredth of the numbers of the largest, and as much colour."""
    with opened(regard.lesson()) as tab:
        rows = values(tab, "real-mixed")
        assert abs(rows[:5]).max(1).min() < 0.1 * abs(rows).max()
        strongest = tab.locator('[data-name="real-mixed"] canvas').evaluate(
            """(canvas, rows) => {
              const { width, height } = canvas;
              const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
              return Array.from({ length: rows }, (_, row) => {
                const y = Math.round(((row + 0.25) * height) / rows);
                const spreads = Array.from({ length: width }, (_, x) => {
                  const pixel = data.slice(4 * (y * width + x), 4 * (y * width + x) + 3);
                  return Math.max(...pixel) - Math.min(...pixel);
                });
                return Math.max(...spreads);
              });
            }""",
            len(rows),
        )
        assert min(strongest) > 140


class Stack(nn.Module):
    def __init__(self, *calls):
        super().__init__()
        self.layers = nn.ModuleList(Call(options) for options in calls)

    def forward(self, q, k, v):
        for layer in self.layers:
            layer(q, k, v)


class Call(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.options = options

    def forward(self, q, k, v):
        return regard.attention(q, k, v, **self.options)


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def stack(*calls, count=7, keep="qkv", dtype=torch.float64):
    q, k, v = randn(1, 4, count, 8, seed=1) * 2, randn(1, 2, count, 8, seed=2), randn(1, 2, count, 5, seed=3)
    q, k, v = (x.to(dtype) for x in (q, k, v))
    words = [f"w{at}" for at in range(count)]
    with torch.no_grad(), regard.watch(model := Stack(*calls), keep=keep, tokens=words) as seen:
        model(q, k, v)
    return seen, q, k, v


def test_softcap_bias_mask_and_sink_in_float64_to_1e_12(opened):
    sink = torch.tensor([0.5, -1.0, 2.0, 0.0], dtype=torch.float64)
    slopes = np.array([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8])[:, None, None]
    options = {"bias": ALiBi(4), "mask": Causal(), "score": ScaledDot(softcap=3.0), "normalizer": Softmax(sink)}
    seen, q, k, v = stack(options, {"scale": 0.7})
    distance = np.arange(7)[:, None] - np.arange(7)
    formula = {"visible": distance >= 0, "bias": -slopes * distance, "softcap": 3.0, "sink": sink}
    expected = [dense(q, k, v, **formula), dense(q, k, v, scale=0.7)]
    with opened(seen.lesson(layer=0, head=2, token="w4")) as tab:
        for layer, head, query in ((0, 2, 4), (0, 0, 0), (1, 3, 6)):
            choose(tab, layer=layer, head=head, query=query)
            weights = expected[layer].weights[0, head]
            np.testing.assert_allclose(values(tab, "real-weights"), weights, atol=1e-12)
            output = weights[query] @ np.repeat(v.numpy(), 2, 1)[0, head]
            np.testing.assert_allclose(values(tab, "real-output")[0], output, atol=1e-12)
            parts = values(tab, "real-mixed") if np.count_nonzero(weights[query]) else np.zeros((1, 5))
            np.testing.assert_allclose(parts.sum(0), output, atol=1e-12)
        text = tab.locator("#step-real").inner_text()
        assert "float64" in text
        assert "sink" not in text.lower()  # of this layer
        choose(tab, layer=0)
        assert "sink" in tab.locator("#step-real").inner_text().lower()


def test_a_key_that_is_hidden_is_said_to_be(opened):
    seen, *_ = stack({"mask": Causal()})
    with opened(seen.lesson(token="w2")) as tab:
        choose(tab, key=5)
        assert "may not see" in tab.locator("#step-real .counter").inner_text()
        hidden = tab.locator('#step-real [data-name="real-row"] tr.real-hidden')
        assert hidden.count() == 4
        assert "hidden" in hidden.first.inner_text()


def test_a_record_without_values_ends_with_the_weights_and_says_what_is_missing(opened):
    seen, *_ = stack({}, keep="qk")
    with opened(seen.lesson(token="w2")) as tab:
        missing = tab.locator("#step-real .real-missing")
        assert missing.is_visible()
        assert 'keep="qkv"' in missing.inner_text()
        assert tab.locator('[data-name="real-output"]').is_hidden()
        assert values(tab, "real-weights").shape == (7, 7)


def test_tokens_and_keys_are_chosen_by_mouse_and_keyboard_and_the_address_keeps_them(opened):
    seen, *_ = stack({}, {"mask": Causal()})
    lesson = seen.lesson(layer=1, head=1, token="w3")
    with opened(lesson) as tab:
        tab.locator("#step-real .real-sentence button").nth(5).click()
        tab.wait_for_function("() => document.querySelector('#step-real .body').dataset.shown.split(' ')[2] === '5'")
        button = tab.locator('#step-real [data-name="real-row"] tbody button').nth(2)
        button.focus()
        tab.keyboard.press("Enter")
        tab.wait_for_function("() => document.querySelector('#step-real .body').dataset.shown.endsWith(' 5 2')")
        assert tab.evaluate("document.activeElement.dataset.key") == "2"  # the focus stays in the table
        written = address(tab)
    assert "real" in written
    with opened(lesson, start=written) as tab:
        assert tab.locator("#step-real .body").get_attribute("data-shown") == "1 1 5 2"
        choose(tab, layer=0)
        assert tab.locator("#undo").is_disabled()  # nothing was changed, only looked at


def test_an_address_with_nonsense_shows_the_start(opened):
    seen, *_ = stack({}, {})
    real = '#{"real":{"layer":9,"head":-1,"query":1e9,"key":"x"}}'
    with opened(seen.lesson(layer=0, head=0, token="w0"), start=real) as tab:
        assert re.fullmatch(r"0 0 \d \d", tab.locator("#step-real .body").get_attribute("data-shown"))


def test_a_long_text_shows_its_strongest_keys_as_rows_and_all_in_the_table(opened):
    seen, q, k, _ = stack({"mask": Causal()}, count=100)
    with opened(seen.lesson(layer=0, head=1, token="w77"), width=360) as tab:
        row = dense(q, k, k, visible=np.tri(100, dtype=bool)).weights[0, 1, 77]
        np.testing.assert_allclose(values(tab, "real-row"), row, atol=1e-12)
        assert len(values(tab, "real-keys")) in (16, 17)
        assert tab.locator('#step-real [data-name="real-row"] tbody tr').count() == 100
        assert tab.locator('#step-real [data-name="real-weights"]').is_hidden()
        tab.wait_for_selector("html[data-settled]")
        assert tab.evaluate("document.querySelector('#step-real').scrollWidth") <= 360


def test_what_was_done_before_is_told_in_both_languages(opened):
    import transformers

    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 1, "vocab_size": 50}
    config = transformers.Qwen3Config(
        **sizes, intermediate_size=48, num_key_value_heads=2, head_dim=8, attn_implementation="sdpa"
    )
    torch.manual_seed(0)
    model = transformers.Qwen3Model(config).eval()
    with torch.no_grad(), regard.watch(model, keep="qkv", tokens=list("abcdef")) as seen:
        model(input_ids=torch.arange(5, 11)[None])
    with opened(seen.lesson(layer=0)) as tab:
        text = tab.locator("#step-real").inner_text()
        for part in ("x was normalized (Qwen3RMSNorm)", "q = x WQ, k = x WK", "of each head were normalized", "RoPE"):
            assert part in text
        tab.locator("#language").select_option("zh")
        tab.wait_for_function("() => document.querySelector('#step-real h3').textContent.includes('在此之前')")
        text = tab.locator("#step-real").inner_text()
        for part in ("x 经过归一化（Qwen3RMSNorm）", "旋转（RoPE）", "值 v，每行一个词元"):
            assert part in text


def test_the_largest_products_are_those_of_either_sign(opened):
    seen, q, k, _ = stack({})
    signs = set()
    with opened(seen.lesson(layer=0, head=3, token="w1")) as tab:
        for key in range(7):
            choose(tab, key=key)
            products = (q[0, 3, 1] * k[0, 1, key]).numpy()
            largest = products[np.argsort(-abs(products))[:5]]
            path = """document.querySelector('[data-name="real-products"]').values"""
            np.testing.assert_allclose(tab.evaluate(f"{path}.largest.map(term => term.product)"), largest, atol=1e-12)
            assert tab.evaluate(f"{path}.total") == pytest.approx(products.sum(), abs=1e-12)
            assert tab.evaluate(f"{path}.rest") == pytest.approx(products.sum() - largest.sum(), abs=1e-12)
            signs |= set(np.sign(largest))
    assert signs == {-1.0, 1.0}


@pytest.mark.parametrize("lesson", [0, 1], ids=["bias, cap, mask and sink", "plain"])
def test_the_lines_of_a_head_compute_its_weights_and_output(opened, capsys, lesson):
    sink = torch.tensor([0.5, -1.0, 2.0, 0.0], dtype=torch.float64)
    options = {"bias": ALiBi(4), "mask": Causal(), "score": ScaledDot(softcap=3.0), "normalizer": Softmax(sink)}
    seen, q, k, v = stack(options, {"scale": 0.7})
    distance = np.arange(7)[:, None] - np.arange(7)
    slope = 2.0**-6  # of head 2
    formula = {"visible": distance >= 0, "bias": -slope * distance, "softcap": 3.0, "sink": sink[2:3]}
    head = (q[:, 2:3], k[:, 1:2], v[:, 1:2])
    expected = dense(*head, **formula) if lesson == 0 else dense(*head, scale=0.7)
    with opened(seen.lesson(layer=lesson, head=2, token="w4")) as tab:
        tab.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(new Error()); }")
        tab.locator("#step-real [name='real-python']").click()
        tab.wait_for_selector("#step-real .real-python pre:visible")
        lines = tab.evaluate("document.querySelector('#step-real .real-python pre').textContent")
        assert tab.evaluate("getSelection().toString()").strip() == lines.strip()  # it can be copied by hand
        names: dict = {}
        exec(lines, names)
        np.testing.assert_allclose(names["weights"], expected.weights[0, 0], atol=1e-12)
        np.testing.assert_allclose(names["output"], values(tab, "real-weights") @ v.numpy()[0, 1], atol=1e-12)
        choose(tab, head=1)
        assert tab.locator("#step-real .real-python pre").is_hidden()  # they were those of another head
    capsys.readouterr()


def test_a_head_without_values_has_no_lines(opened):
    seen, *_ = stack({}, keep="qk")
    with opened(seen.lesson(token="w2")) as tab:
        assert tab.locator("#step-real [name='real-python']").is_hidden()


def test_a_tap_on_a_coloured_map_reads_the_number_that_was_tapped(opened):
    with opened(regard.lesson(), width=360, has_touch=True, is_mobile=True) as tab:
        for name in ("real-queries", "real-values"):
            strip = tab.locator(f'#step-real [data-name="{name}"] canvas')
            rows, columns = values(tab, name).shape
            for row, column in ((3, 20), (rows - 1, columns - 1), (0, 7), (3, 20)):
                strip.evaluate("canvas => canvas.scrollIntoView({ block: 'center' })")
                box = strip.bounding_box()
                x = box["x"] + (column + 0.5) * box["width"] / columns
                tab.touchscreen.tap(x, box["y"] + (row + 0.5) * box["height"] / rows)
                rest(tab, 100)  # the focus of the canvas and the click come after the touch
                assert f", \u2068{column + 1}\u2069] = " in tab.locator("#readout").inner_text()
                read = float(tab.locator("#readout").inner_text().split("= ")[-1].replace("−", "-"))
                assert read == pytest.approx(values(tab, name)[row, column], rel=1e-8)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_on_a_phone_the_table_of_keys_and_the_table_of_models_need_no_scrolling(opened, language):
    with opened(regard.lesson(lang=language), width=360, has_touch=True, is_mobile=True) as tab:
        for box in ('[data-name="real-row"]', "#step-transformer .scroll:has(.model-table)"):
            assert tab.locator(box).evaluate("box => box.scrollWidth - box.clientWidth") <= 0
