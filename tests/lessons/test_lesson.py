"""A lesson as a value: what its page opens with, its text, and what is refused with one sentence."""

import copy
import dataclasses
import html
import json
import re
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import regard
from regard import masks
from regard.errors import InputError
from regard.hub import Loaded
from regard.lessons.lesson import lesson_of_translation
from sweeps import sweep

X = [[1, 0, 1, 0], [0, 2, 0, 1], [1, 1, 1, 1]]
W = [[1, 0], [0, 1], [1, 0], [0, 1]]
OWN = {"x": X, "w_query": W, "w_key": W, "w_value": W}


class Elements(HTMLParser):
    """The texts of the elements of a page that have an id, the language, and the descriptions."""

    def __init__(self, page):
        super().__init__()
        self.texts, self.meta, self.tags, self._id = {}, {}, [], None
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.tags.append((tag, attributes))
        self._id = attributes.get("id", tag if tag == "title" else None)
        if tag == "meta" and "name" in attributes:
            self.meta[attributes["name"]] = attributes["content"]

    def handle_data(self, data):
        if self._id:
            self.texts[self._id] = self.texts.get(self._id, "") + data

    def handle_endtag(self, tag):
        self._id = None


def state_of(lesson):
    return json.loads(Elements(lesson.html()).texts["start"])


def random_heads(heads=3, n=4, m=5, wide=6, dim=3, value_dim=2):
    draw = torch.Generator().manual_seed(52)
    shapes = {
        "x": (n, wide),
        "key_x": (m, wide),
        "value_x": (m, wide + 1),
        "w_query": (heads, wide, dim),
        "w_key": (heads, wide, dim),
        "w_value": (heads, wide + 1, value_dim),
        "w_output": (heads * value_dim, wide),
    }
    return {name: torch.randn(shape, generator=draw, dtype=torch.float64) for name, shape in shapes.items()}


def test_the_page_of_the_example_opens_with_the_example():
    state = state_of(regard.lesson())
    shared = {name: state[name] for name in ("tokens", "x", "heads", "output", "keyTokens", "keyX", "valueX")}
    assert shared == {
        "tokens": ["我", "爱", "你"],
        "x": X,
        "heads": [{"query": W, "key": W, "value": W}],
        "output": None,
        "keyTokens": None,
        "keyX": None,
        "valueX": None,
    }
    choices = {"step": "why", "language": "en", "row": 0, "head": 0, "positions": "none", "scale": "default"}
    choices |= {"temperature": 1, "score": {"kind": "dot"}, "mask": {"kind": "none"}}
    assert {name: state[name] for name in choices} == choices


def test_the_page_of_the_example_is_one_file_of_at_most_500_kb_that_loads_nothing():
    page = regard.lesson().html()
    assert len(page.encode()) <= 500_000
    elements = Elements(page)
    loading = [(tag, name) for tag, attributes in elements.tags for name in attributes if name in ("src", "srcset")]
    assert not loading
    assert [attributes["href"] for tag, attributes in elements.tags if tag == "link"] == ["data:,"]


def test_the_example_needs_no_torch(tmp_path):
    code = f"import sys, regard; regard.lesson().to_html({str(tmp_path / 'a.html')!r}); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
    assert (tmp_path / "a.html").stat().st_size > 10_000


def test_language_and_description():
    for language, word in (("en", "Attention"), ("zh", "注意力")):
        elements = Elements(regard.lesson(lang=language).html())
        assert ("html", {"lang": language}) in elements.tags
        assert word in elements.meta["description"]
        assert word in elements.texts["title"]


def test_heads_are_those_of_torch_and_their_text_is_the_same_numbers():
    numbers = random_heads()
    visible = torch.tensor([[1, 1, 0, 0, 1], [1, 1, 1, 0, 0], [0, 1, 0, 0, 0], [1, 1, 1, 1, 1]]).bool()
    q, k = numbers["x"] @ numbers["w_query"], numbers["key_x"] @ numbers["w_key"]
    v = numbers["value_x"] @ numbers["w_value"]
    outputs = scaled_dot_product_attention(q, k, v, attn_mask=visible, scale=0.7)
    joined = outputs.transpose(0, 1).flatten(1)
    lesson = regard.lesson(**numbers, mask=visible, scale=0.7, head=1, tokens="a b c d e", token="query 2")
    heads = lesson.steps.joined
    np.testing.assert_allclose(heads.joined, joined, rtol=1e-12)
    np.testing.assert_allclose(heads.result, joined @ numbers["w_output"], rtol=1e-12)
    state = lesson.start
    assert (state["head"], state["row"], state["scale"]) == (1, 1, 0.7)
    assert state["mask"] == {"kind": "drawn", "rows": ["11001", "11100", "01000", "11111"]}
    assert state["tokens"] == ["query 1", "query 2", "query 3", "query 4"]
    assert state["keyTokens"] == list("abcde")
    for name, key in {"x": "x", "keyX": "key_x", "valueX": "value_x", "output": "w_output"}.items():
        assert state[name] == numbers[key].tolist()
    for part in ("query", "key", "value"):
        assert [head[part] for head in state["heads"]] == numbers[f"w_{part}"].tolist()
    text = lesson.text
    assert text.startswith("Attention step by step: head 1 of 3, counted from 0\n")
    third_significant = f"{outputs[1, 1, 0]:.3g}"
    assert f"z₂ = [{third_significant}" in text


def test_queries_keys_and_values_themselves():
    q, k, v = [[1, 0], [0, 1]], [[2, 0], [0, 3], [1, 1]], [[1], [2], [3]]
    state = regard.lesson(x=q, key_x=k, value_x=v, tokens=["a", "b", "c"], query_tokens="p q").start
    assert state["heads"] is None
    assert (state["x"], state["keyX"], state["valueX"]) == (q, k, v)
    assert (state["tokens"], state["keyTokens"]) == (["p", "q"], ["a", "b", "c"])


MASKS = {  # of 3 tokens, by hand
    "causal": (masks.Causal(), {"kind": "causal"}, ["100", "110", "111"]),
    "window": (masks.Window(2), {"kind": "window", "left": 1, "right": 0}, ["100", "110", "011"]),
    "padding": (masks.Padding(torch.tensor([[1, 0, 1]])), {"kind": "padding", "hidden": [1]}, ["101", "101", "101"]),
    "prefix": (masks.prefix_lm(2), {"kind": "prefix", "length": 2}, ["110", "110", "111"]),
    "longformer": (
        masks.longformer(0, [1]),
        {"kind": "longformer", "window": 0, "globals": [1]},
        ["110", "111", "011"],
    ),
    "wider longformer": (
        masks.longformer(2, [0]),
        {"kind": "longformer", "window": 2, "globals": [0]},
        ["111", "111", "111"],
    ),
    "composed": (~masks.Causal(), {"kind": "drawn", "rows": ["011", "001", "000"]}, ["011", "001", "000"]),
    "matrix": (np.eye(3) > 0, {"kind": "drawn", "rows": ["100", "010", "001"]}, ["100", "010", "001"]),
    "all": ([[True] * 3] * 3, {"kind": "none"}, ["111", "111", "111"]),
}


def test_masks_keep_their_name_and_hide_by_it():
    for case in sweep(MASKS):
        with case as name:
            mask, state, rows = MASKS[name]
            lesson = regard.lesson(mask=mask)
            assert lesson.start["mask"] == state
            weights = lesson.steps.worked.weights
            visible = torch.tensor([[letter == "1" for letter in row] for row in rows])
            q = torch.tensor([[2.0, 0], [0, 3], [2, 2]], dtype=torch.float64)
            scores = (q @ q.T / 2**0.5).masked_fill(~visible, -torch.inf)
            np.testing.assert_allclose(weights, scores.softmax(-1).nan_to_num(0), rtol=1e-12)


def test_a_causal_mask_aligned_at_the_start_is_another_one():
    """Of one query over two keys it sees the first alone; the page's causal mask, aligned at the end, sees both."""
    arguments = {"x": [[1]], "key_x": [[1], [1]], "value_x": [[1], [2]]}
    start = regard.lesson(**arguments, mask=masks.Causal(align="start"))
    assert start.start["mask"] == {"kind": "drawn", "rows": ["10"]}
    assert start.steps.worked.output.tolist() == [[1]]
    end = regard.lesson(**arguments, mask=masks.Causal())
    assert end.start["mask"] == {"kind": "causal"}
    assert end.steps.worked.output.tolist() == [[1.5]]


def test_of_many_tokens_the_text_shows_the_chosen_query_in_all_heads():
    numbers = random_heads(heads=2, n=20, m=20)
    own = {name: numbers[name] for name in ("x", "w_query", "w_key", "w_output")}
    lesson = regard.lesson(**own, w_value=numbers["w_value"][:, :6], token="x18", tokens=[f"x{i}" for i in range(20)])
    end = lesson.text.partition("All heads together")[2]
    assert end.count("x18 [") == 4  # Z_0, Z_1, both, times W_O
    assert "x17 [" not in end
    result = " ".join(f"{value:.3g}" for value in lesson.steps.joined.result[18])
    assert result.split()[0] in end


def test_tensors_of_any_type_that_require_gradients():
    x = torch.tensor(X, dtype=torch.bfloat16)
    w = torch.nn.Parameter(torch.tensor(W, dtype=torch.float32))
    assert regard.lesson(x=x, w_query=w, w_key=w, w_value=w).start["x"] == X


def test_the_numbers_on_the_page_are_those_of_python_to_the_last_digit():
    x = np.array([[0.1, 1 / 3, -2.5e-300, 1e22], [0, -0.0, 123456789.125, 5e-324]])
    state = state_of(regard.lesson(**OWN | {"x": x}))
    assert np.array_equal(np.array(state["x"], dtype=np.float64), x)


def test_no_token_ends_an_element_of_the_page():
    names = ["</script><script>alert(1)</script>", "<!--", "\u2028&amp;"]
    lesson = regard.lesson(**OWN, tokens=names)
    assert state_of(lesson)["tokens"] == names
    assert [tag for tag, _ in Elements(lesson.html()).tags].count("script") == 3


def test_saved_page(tmp_path, monkeypatch):
    lesson = regard.lesson()
    path = tmp_path / "lesson.html"
    path.write_text("old")
    lesson.to_html(path)
    assert path.read_text(encoding="utf-8") == lesson.html()
    monkeypatch.setenv("HOME", str(tmp_path))
    lesson.to_html("~/home.HTML")
    assert (tmp_path / "home.HTML").is_file()
    refused = {"lesson.pdf": "must end in .html", "lesson": "must end in .html", "none/a.html": "create .*none first"}
    for name, words in refused.items():
        with pytest.raises(InputError, match=words):
            lesson.to_html(tmp_path / name)
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(InputError, match="got the folder"):
        lesson.to_html(tmp_path / "folder.html")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["folder.html", "home.HTML", "lesson.html"]


def test_a_notebook_shows_the_page_in_a_frame_of_its_own():
    lesson = regard.lesson(lang="zh")
    (frame,) = [attributes for tag, attributes in Elements(lesson._repr_html_()).tags if tag == "iframe"]
    assert frame["srcdoc"] == lesson.html()
    assert "allow-same-origin" not in frame["sandbox"]
    assert frame["title"] == "注意力：每个数都可以动手改"


def test_a_notebook_shows_the_text_of_a_page_of_more_than_3_mb():
    lesson = dataclasses.replace(regard.lesson(), data={"blob": "a" * 3_000_000})
    shown = lesson._repr_html_()
    assert "<iframe" not in shown
    assert re.search(r"The page has 3\.\d MB", shown)
    assert html.unescape(re.search("<pre>(.*)</pre>", shown, re.DOTALL)[1]) == lesson.text


@pytest.fixture(scope="module")
def translator():
    """An encoder–decoder of random weights, whose words are letters."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed (the extra `models`)")
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = ["<pad>", "<s>", "</s>", *"abcdefghijklmnopqrst"]
    backend = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="a"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", pad_token="<pad>")
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "max_position_embeddings": 80}
    sizes |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8}
    tokens = {"pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0, "forced_eos_token_id": None}
    torch.manual_seed(2)
    config = transformers.MarianConfig(vocab_size=len(words), **sizes, **tokens)
    return Loaded("letters", transformers.MarianMTModel(config).eval(), tokenizer, "encoder-decoder")


def test_a_translation_as_it_is_written(translator):
    lesson = regard.lesson("c d e", translator=translator, lang="zh")
    assert lesson.start["step"] == "transformer"
    assert lesson.start["tokens"] == ["我", "爱", "你"]
    translation = json.loads(Elements(lesson.html()).texts["data"])["translation"]
    assert (translation["model"], translation["source"]) == ("letters", ["c", "d", "e", "</s>"])
    ids = torch.tensor([translator.tokenizer("c d e")["input_ids"]])
    written = translator.model.generate(ids, do_sample=False, num_beams=1, max_new_tokens=64)[0, 1:]
    tokens = translator.tokenizer.convert_ids_to_tokens(written.tolist())
    assert [step["token"] for step in translation["steps"]] == tokens
    eager = copy.deepcopy(translator.model)
    eager.set_attn_implementation("eager")
    with torch.inference_mode():
        read = torch.tensor([[0, *written[:-1].tolist()]])
        cross = eager(input_ids=ids, decoder_input_ids=read, output_attentions=True)
    weight, source = torch.stack(cross.cross_attentions).mean((0, 2))[0, 0].max(-1)
    name, _, first, *_ = lesson.text.splitlines()
    assert name == lesson.name == f"c d e → {translation['translation']}"
    assert first.startswith(f"{tokens[0]}  p = ")
    assert first.endswith(f"最关注 {translation['source'][int(source)]}  {float(weight):.2f}")


def test_a_model_that_reads_and_a_translator_exclude_each_other(translator):
    for argument in ({"model": "minilm"}, {"layer": 0}, {"head": 0}, {"token": "c"}):
        with pytest.raises(InputError, match="and `translator` writes a translation: leave one of them out"):
            regard.lesson("c d e", translator=translator, **argument)


def test_an_encoder_decoder_opens_with_one_of_its_heads(translator):
    lesson = regard.lesson("c d e", model=translator)
    assert lesson.start["step"] == "real"
    assert lesson.name.startswith("letters, layer ")


NAN, INF = float("nan"), float("inf")
TWO = {"w_query": [W, W], "w_key": [W, W], "w_value": [W, W]}
BY_HEAD = masks.MaskMod(lambda batch, head, i, j: (i >= j) | (head == 1))
REFUSED = [  # arguments beside OWN, and words of the one sentence
    ({"x": "我爱你"}, "`x` must be a matrix of numbers"),
    ({"x": [["1", "2", "3", "4"]]}, "`x` must be a matrix of numbers"),
    ({"x": [[1, 2, 3, "a"]]}, "`x` must be a matrix of numbers"),
    ({"x": [[1, 2, 3, None]]}, "`x` must be a matrix of numbers"),
    ({"x": [[1, 2, 3, NAN]]}, "`x` must hold finite numbers up to 1e.70, got nan in row 1, column 4"),
    ({"x": [[1, 2, 3, 4], [1, INF, 3, 4]]}, "`x` must hold finite numbers up to 1e.70, got inf in row 2, column 2"),
    ({"x": [[1, 2, -INF, 4]]}, "got -inf in row 1, column 3"),
    ({"x": [[1, 2, 1e300, 4]]}, "got 1e.300 in row 1, column 3: replace it"),
    ({"x": [[1, 2, 10**400, 4]]}, "`x` must be a matrix of numbers"),
    ({"x": [[1, 2, 3, 1j]]}, "`x` must be a matrix of numbers"),
    ({"x": [[True, False, True, True]]}, "`x` must be a matrix of numbers"),
    ({"x": [[1, 2, 3, 4], [1, 2]]}, "`x` must have rows of one length"),
    ({"x": [1, 2, 3, 4]}, r"`x` must be a matrix with rows and columns, got shape \(4,\)"),
    ({"x": [[X]]}, "`x` must be a matrix with rows and columns, got shape"),
    ({"x": []}, "`x` must be a matrix with rows and columns, got shape"),
    ({"x": [[]]}, "`x` must be a matrix with rows and columns, got shape"),
    ({"x": 3}, r"`x` must be a matrix with rows and columns, got shape \(\)"),
    ({"x": object()}, "`x` must be a matrix of numbers"),
    ({"x": [[1, 2, 3]]}, r"`w_query` must have as many rows as `x` has columns \(3\)"),
    ({"x": [[1, 2, 3, 4]] * 33}, "at most 32 tokens, got 33: take fewer, or"),
    ({"w_query": [[1, 2]]}, r"`w_query` must have as many rows as `x` has columns \(4\), got .*\(1, 2\)"),
    ({"w_key": [[1], [2], [3], [4]]}, "queries and keys must have one width"),
    ({"w_value": [[1, 2]] * 5}, r"`w_value` must have as many rows as `x` has columns \(4\)"),
    ({"w_query": [[1, NAN]] * 4}, "`w_query` must hold finite numbers .* got nan in row 1, column 2"),
    ({"w_query": [[1, 2], [1, 2], [1, 2], [1]]}, "`w_query` must have rows of one length"),
    ({"w_query": None}, "belong together: give `w_query` too"),
    ({"w_query": None, "w_key": None}, "belong together: give `w_query` and `w_key` too"),
    ({"w_query": None, "w_key": None, "w_value": None}, "`x` needs `w_query`, `w_key` and `w_value`"),
    ({"w_query": [W, W]}, "every head needs its W_Q, W_K and W_V, got 2 in `w_query`, 1 in `w_key`"),
    ({"w_query": [W] * 9, "w_key": [W] * 9, "w_value": [W] * 9}, "at most 8 heads, got 9"),
    ({"w_query": [[W]]}, "`w_query` must be a matrix, or one for each head, with rows and columns"),
    ({"w_query": "W"}, "`w_query` must be a matrix, or one for each head, of numbers"),
    ({"w_query": [W, [[1, 2]]], "w_key": [W, W], "w_value": [W, W]}, "`w_query` must have rows of one length"),
    ({"w_output": [[1]]}, r"`w_output` must have a row for each number .*\(1 heads × 2 = 2\), got .*\(1, 1\)"),
    ({"w_output": [["a"], ["b"]]}, "`w_output` must be a matrix of numbers"),
    ({"w_output": [[1e69], [1e69]], "w_value": [[1e69, 1]] * 4}, None),
    ({"key_x": [[1, 2]]}, r"`w_key` must have as many rows as `key_x` has columns \(2\)"),
    ({"key_x": [[INF, 2, 3, 4]]}, "`key_x` must hold finite numbers"),
    ({"value_x": [[1, 2, 3, 4]]}, r"`value_x` must have a row for each key \(3\), got shape \(1, 4\)"),
    ({"value_x": [[1, 2]] * 3}, "`w_value` must have as many rows as `value_x` has columns"),
    ({"key_x": [[1, 2, 3, 4]] * 40}, "at most 32 tokens, got 40"),
    ({"tokens": "a b"}, "`tokens` must name each of the 3 rows, got 2 names: 'a b'"),
    ({"tokens": [1, 2, 3]}, "`tokens` must be a list of texts"),
    ({"tokens": 3}, "`tokens` must be a list of texts"),
    ({"query_tokens": "a b c"}, "give `key_x`, or `tokens` in its place"),
    ({"mask": [[1, 0, 0]] * 3}, r"matrix of True \(may see\) and False of shape \(3, 3\), got int64 of shape"),
    ({"mask": [[True, False]] * 3}, r"of shape \(3, 3\), got bool of shape \(3, 2\)"),
    ({"mask": "causal"}, "`mask` must be a mask of regard.masks"),
    ({"mask": masks.Padding(torch.tensor([[1, 1, 1], [1, 1, 0]]))}, "one mask for all heads of one text"),
    ({**TWO, "mask": BY_HEAD}, "one mask for all heads, got one that differs by head"),
    ({"mask": masks.Causal}, r"got the class Causal: make one, as in Causal\("),
    ({"scale": NAN}, "`scale` must be a finite number up to 1e.70, got nan"),
    ({"scale": 1e100}, "`scale` must be a finite number up to 1e.70, got 1e.100"),
    ({"scale": 10**400}, "`scale` must be a finite number up to 1e.70, got 1000"),
    ({"x": [[1e70] * 4], "w_query": [[1e70]] * 4, "w_key": [[1e70]] * 4, "scale": 1e60}, "make `scale` smaller, or"),
    ({"scale": "1"}, "`scale` must be a finite number up to 1e.70, got '1'"),
    ({"scale": True}, "`scale` must be a finite number up to 1e.70, got True"),
    ({"head": 1}, "`head` must be a number from 0 to 0, got 1"),
    ({"head": -1}, "`head` must be a number from 0 to 0, got -1"),
    ({"head": "0"}, "`head` must be a number from 0 to 0, got '0'"),
    ({"token": "cat"}, "`token` must be a word of the text"),
    ({"token": 7}, "`token` must be"),
    ({"lang": "de"}, '`lang` must be "en" or "zh", got \'de\''),
    ({"lang": None}, '`lang` must be "en" or "zh", got None'),
    ({"text": "The cat sat."}, "`x` is for numbers of your own, and a text is read by a model"),
    ({"translator": "run"}, "`translator` needs a text to read, as in"),
    ({"model": "minilm"}, "`model` needs a text to read, as in"),
    ({"layer": 0}, "`layer` needs a text to read, as in"),
    ({"x": None}, "`w_query` belongs to numbers of your own: give `x` with it"),
]


def test_what_does_not_fit_is_refused_with_one_sentence():
    for case in sweep(REFUSED, name=lambda refusal: str(refusal)[:100]):
        with case as (arguments, words):
            if words is None:
                regard.lesson(**OWN | arguments)
                continue
            with pytest.raises(InputError, match=words) as raised:
                regard.lesson(**OWN | arguments)
            sentence = str(raised.value)
            assert "\n" not in sentence
            assert len(sentence) < 300


def test_of_another_type_is_refused_with_one_sentence_too(tmp_path):
    refused = [
        ({"text": 5}, "`text` must be a text that a model reads, got 5: numbers of your own"),
        ({"text": ["hi"]}, "`text` must be a text that a model reads"),
        ({"text": "hi", "model": 5}, "`model` must be a name, a folder or what regard.load_model returns, got int"),
        ({"text": "hi", "translator": object()}, "`translator` must be a name, .* give the folder"),
        ({"text": "hi", "layer": "x"}, "`layer` must be a number from 0, got 'x'"),
        ({"text": "hi", "head": True}, "`head` must be a number from 0, got True"),
    ]
    for case in sweep(refused, name=lambda refusal: str(refusal[0])):
        with case as (arguments, words), pytest.raises(InputError, match=words):
            regard.lesson(**arguments)
    for path in (5, None):
        with pytest.raises(InputError, match=r"`path` must be the name of a file that ends in \.html"):
            regard.lesson().to_html(path)
    with pytest.raises(InputError, match='`lang` must be "en" or "zh", got \'de\''):
        lesson_of_translation({}, language="de")


def test_a_page_holds_at_most_2_mb_of_numbers():
    wide = np.random.default_rng(0).standard_normal((6, 160, 50))
    with pytest.raises(InputError, match=r"at most 2,000,000 bytes, got .*: take fewer"):
        regard.lesson(x=wide[0, :, :30].T, w_query=wide, w_key=wide, w_value=wide)
