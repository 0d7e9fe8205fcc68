"""A tap of a compiled model: rows of dense weights, the compiled run's bits, and nothing compiled that need not be."""

import copy
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.nn import functional

import regard
from regard import masks
from regard.errors import ObservationError
from regard.observe.intercept import exchanged_functions

transformers = pytest.importorskip("transformers")

WIDTH, KEYS = 8, 16
HEADS = ["1.1", "0.0"]
PAIRS = [(1, 1), (0, 0)]
PROMPT = torch.tensor([[3, 5, 2, 6]])


class Cache:
    """Keys and values of fixed size."""

    def __init__(self) -> None:
        self.keys, self.values = torch.zeros(2, 2, 1, 2, KEYS, WIDTH // 2)
        self.length = torch.zeros((), dtype=torch.long)

    def get_seq_length(self) -> Tensor:
        return self.length


class Layer(nn.Module):
    """Two heads by PyTorch's kernel, or written out."""

    def __init__(self, at: int, by_hand: bool) -> None:
        super().__init__()
        self.at, self.by_hand, self.breaks = at, by_hand, False
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor, cache: Cache) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        at = cache.length + torch.arange(x.shape[1])
        keys, values = cache.keys[self.at].index_copy_(2, at, k), cache.values[self.at].index_copy_(2, at, v)
        sees = torch.arange(KEYS) <= at[:, None]
        if self.breaks:
            torch._dynamo.graph_break()
        if self.by_hand:
            scores = q @ keys.mT / math.sqrt(q.shape[-1])
            out = scores.masked_fill(~sees, -math.inf).softmax(-1) @ values
        else:
            out = functional.scaled_dot_product_attention(q, keys, values, attn_mask=sees)
        return x + out.transpose(1, 2).flatten(2)


class Model(nn.Module):
    """A decoder that is small enough to be compiled in a fast test."""

    def __init__(self, by_hand: bool = False, layers: int = 2) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(9, WIDTH), nn.Linear(WIDTH, 9)
        self.layers = nn.ModuleList(Layer(at, by_hand) for at in range(layers))

    def forward(self, input_ids: Tensor, past_key_values: Cache) -> Tensor:
        x = self.embed(input_ids)
        for layer in self.layers:
            x = layer(x, past_key_values)
        past_key_values.length.add_(input_ids.shape[1])
        return self.head(x)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.compiler.reset()
    with torch.no_grad():
        yield
    torch.compiler.reset()


def made(by_hand: bool = False, layers: int = 2) -> Any:
    torch.manual_seed(0)
    return Model(by_hand, layers).eval()


def decode(
    model: Any, steps: int = 5, cache: Any = None, *, prompt: Tensor = PROMPT, **more: Any
) -> tuple[list[Tensor], Tensor]:
    """Logits of each step, and the text whose positions have run."""
    cache = Cache() if cache is None else cache
    logits, text, ids = [], prompt, prompt
    for step in range(steps):
        text = text if step == 0 else torch.cat([text, ids], 1)
        out = model(ids, past_key_values=cache, **more)
        logits.append(out if isinstance(out, Tensor) else out.logits)
        ids = logits[-1][:, -1:].argmax(-1)
    return logits, text


def dense(model: Any, text: Tensor) -> list[Tensor]:
    """The weights of all heads by the formula, without a cache."""
    x, found = model.embed(text), []
    for layer in model.layers:
        q, k, v = layer.qkv(x).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~torch.ones(2 * text.shape[1:]).tril().bool(), -1e9)
        found.append(scores.softmax(-1))
        x = x + (found[-1] @ v).transpose(1, 2).flatten(2)
    return found


def furthest(rows: Any, weights: Any, pairs: list[tuple[int, int]] = PAIRS) -> float:
    found = []
    for row in rows:
        theirs = torch.stack([weights[layer][:, head, row.position] for layer, head in pairs], 1)
        count = row.weights.shape[-1]
        assert not theirs[..., count:].any()
        theirs = theirs[..., :count]
        found.append(float((row.weights - theirs).abs().max()))
    return max(found)


def compiled(model: Any, way: str, backend: Any = "eager") -> Any:
    if way == "forward":
        model.forward = torch.compile(model.forward, backend=backend, fullgraph=True)
    elif way == "module":
        return torch.compile(model, backend=backend, fullgraph=True)
    else:
        model.compile(backend=backend, fullgraph=True)
    return model


@pytest.mark.parametrize(
    "way", ["forward", *(pytest.param(way, marks=pytest.mark.slow) for way in ("module", "in place"))]
)
def test_rows_are_dense_weights_and_the_compiled_code_outside_is_left_as_it_is(way: str) -> None:
    model = made()
    run = compiled(model, way)
    plain, text = decode(run)
    state = dict(vars(model)), dict(exchanged_functions._patches)
    counters.clear()
    with regard.tap(run, heads=HEADS) as tap:
        tapped, _ = decode(run)
    assert counters["stats"]["unique_graphs"] == 2  # the prompt and a step
    assert (dict(vars(model)), exchanged_functions._patches) == state
    assert all(map(torch.equal, plain, tapped))
    assert tap.heads == tuple(PAIRS)
    assert [(row.step, row.position) for row in tap.rows] == [(step, 3 + step) for step in range(5)]
    assert all(torch.equal(row.ids, text[:, row.position]) for row in tap.rows)
    assert furthest(tap.rows, dense(model, text)) < 1e-6
    with torch.compiler.set_stance("fail_on_recompile"):
        assert all(map(torch.equal, plain, decode(run)[0]))
        with regard.tap(run, heads=HEADS, keys={"first": (0, 2), "rest": (2, None)}) as spans:
            decode(run)
    for row, whole in zip(spans.rows, tap.rows, strict=True):
        parts = torch.stack([whole.weights[..., :2].sum(-1), whole.weights[..., 2:].sum(-1)], -1)
        assert torch.allclose(row.weights, parts, atol=1e-6)


@pytest.mark.slow
def test_two_taps_a_twin_and_chosen_queries() -> None:
    model, twin = made(), made()
    for one in (model, twin):
        compiled(one, "forward")
    plain, text = decode(twin)
    weights = dense(model, text)
    with (
        regard.tap(model, heads=["1.1"], queries="new") as new,
        regard.tap(model, heads=["0.0"], queries=[1, 6]) as some,
    ):
        counters.clear()
        decode(twin)
        assert not counters["stats"]  # nothing is compiled for it
        tapped, _ = decode(model)
        decode(twin)
    assert all(map(torch.equal, plain, tapped))
    assert [row.position for row in new.rows] == list(range(8))
    assert [(row.position, row.step) for row in some.rows] == [(1, 0), (6, 3)]
    assert furthest(new.rows, weights, [(1, 1)]) < 1e-6
    assert furthest(some.rows, weights, [(0, 0)]) < 1e-6


@pytest.mark.slow
def test_steps_may_be_compiled_and_not_in_either_order() -> None:
    for order in ("compiled first", "compiled last"):
        model = made()
        whole = torch.compile(model, backend="eager", fullgraph=True)
        cache, ids, text = Cache(), PROMPT, PROMPT
        with regard.tap(model, heads=HEADS) as tap:
            for step in range(4):
                text = text if step == 0 else torch.cat([text, ids], 1)
                run = whole if (step < 2) == (order == "compiled first") else model
                ids = run(ids, past_key_values=cache)[:, -1:].argmax(-1)
        assert len(tap.rows) == 4
        assert furthest(tap.rows, dense(model, text)) < 1e-6


def test_what_cannot_be_tapped_in_compiled_code_is_refused_with_a_way_out() -> None:
    model = compiled(made(by_hand=True), "forward")
    with (
        pytest.raises(ObservationError, match="layer 1 cannot be tapped in compiled code"),
        regard.tap(model, heads=HEADS),
    ):
        decode(model, 1)
    broken = made()
    broken.layers[1].breaks = True
    broken.forward = torch.compile(broken.forward, backend="eager")
    with pytest.raises(ObservationError, match=r"layer 1 cannot.*fullgraph=True"), regard.tap(broken, heads=HEADS):
        decode(broken, 1)
    part = made()
    part.layers[1] = torch.compile(part.layers[1], backend="eager")
    with pytest.raises(ObservationError, match=r"its module 'layers.1' is compiled.*compile the whole model"):
        regard.tap(part, heads=HEADS)
    around = made()

    def step(ids: Tensor, cache: Cache) -> Tensor:
        return around(ids, past_key_values=cache)

    function = torch.compile(step, backend="eager")
    function(PROMPT, Cache())
    with regard.tap(around, heads=HEADS) as tap:
        around(PROMPT, past_key_values=Cache())
        with pytest.raises(ObservationError, match="a function that was compiled around it"):
            function(PROMPT, Cache())
    assert len(tap.rows) == 1
    sample = torch.compile(lambda logits: logits.softmax(-1), backend="eager")
    with regard.tap(around, heads=HEADS) as tap:
        sample(around(PROMPT, past_key_values=Cache()))  # a compiled function that does not run the model
    assert len(tap.rows) == 1
    with torch.compiler.set_stance("force_eager"), regard.tap(model := compiled(made(), "forward"), heads=HEADS) as tap:
        decode(model, 2)
    assert len(tap.rows) == 2


@pytest.mark.slow
def test_crossing_models_are_refused_in_compiled_code() -> None:
    sizes = {"vocab_size": 9, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes)).eval()
    compiled(model, "forward")
    with (
        pytest.raises(ObservationError, match=r"has cross-attention.*force_eager"),
        regard.tap(model, heads=["0.1"], stream="target"),
    ):
        model(PROMPT, decoder_input_ids=PROMPT)


class Windowed(nn.Module):
    """Attention by one of regard's operators."""

    def __init__(self) -> None:
        super().__init__()
        self.qk = nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k = self.qk(x).unflatten(-1, (2, 2, -1)).permute(2, 0, 3, 1, 4)
        return regard.attention(q, k, k, mask=masks.Causal() & masks.Window(3), backend="strips")


class Reader(nn.Module):
    """A model that reads whole texts, without a cache."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layers = nn.Embedding(9, WIDTH), nn.ModuleList([Windowed()])

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.layers[0](self.embed(input_ids))


@pytest.mark.slow
def test_a_call_of_regards_operators_and_lengths_that_are_symbols() -> None:
    """Texts without a cache: a compiler has one graph for all lengths from the second one on."""
    torch.manual_seed(0)
    model = Reader().eval()
    text = torch.tensor([[3, 5, 2, 6, 1, 7, 4]])
    compiled(model, "forward")
    with regard.tap(model, heads=["0.1"]) as tap:
        outputs = [model(text[:, :length]) for length in (4, 5, 6, 7)]
    assert all(torch.equal(model(text[:, :length]), one) for length, one in zip((4, 5, 6, 7), outputs, strict=True))
    q, k = model.layers[0].qk(model.embed(text)).unflatten(-1, (2, 2, -1)).permute(2, 0, 3, 1, 4)
    sees = torch.ones(7, 7).tril().triu(-2).bool()
    weights = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~sees, -math.inf).softmax(-1)
    assert [row.position for row in tap.rows] == [3, 4, 5, 6]
    assert furthest(tap.rows, [weights], [(0, 1)]) < 1e-6


SIZES = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64}
SIZES |= {"num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 512}
LAST = ["0.1", "0.3"]


def llama(attention: str = "sdpa") -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SIZES, attn_implementation=attention)
    model = transformers.LlamaForCausalLM(config).eval()
    for one in model.parameters():
        if one.ndim >= 2:
            one.normal_(0, one.shape[-1] ** -0.5)
    model.generation_config.pad_token_id, model.generation_config.eos_token_id = 0, None
    return model


def eager_weights(text: Tensor) -> Any:
    return llama("eager")(text, output_attentions=True, use_cache=False).attentions


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyTorch's compiler
def test_code_that_inductor_makes_has_the_same_bits() -> None:
    model = compiled(made(layers=1), "forward", "inductor")
    plain, text = decode(model, prompt=PROMPT[:, :1])
    with regard.tap(model, heads=["0.1", "0.0"]) as tap:
        tapped, _ = decode(model, prompt=PROMPT[:, :1])
    assert all(map(torch.equal, plain, tapped))
    assert furthest(tap.rows, dense(model, text), [(0, 1), (0, 0)]) < 1e-6


@pytest.mark.slow
def test_a_llama_with_a_static_cache_runs_256_steps_without_compiling_again() -> None:
    model = llama()
    compiled(model, "forward")

    def run() -> tuple[list[Tensor], Tensor]:
        return decode(model, 256, transformers.StaticCache(config=model.config, max_cache_len=260), use_cache=True)

    plain, text = run()
    counters.clear()
    with regard.tap(model, heads=LAST) as tap:
        tapped, _ = run()
    assert counters["stats"]["unique_graphs"] == 2
    assert not counters["graph_break"]
    assert all(map(torch.equal, plain, tapped))
    assert furthest(tap.rows, eager_weights(text), [(0, 1), (0, 3)]) < 1e-5
    with torch.compiler.set_stance("fail_on_recompile"):
        assert all(map(torch.equal, plain, run()[0]))


@pytest.mark.slow
def test_generate_runs_a_compiled_forward_and_streams() -> None:
    model = llama()
    compiled(model, "forward")
    asked = {"max_new_tokens": 6, "do_sample": False, "cache_implementation": "static"}
    given = {"input_ids": PROMPT.repeat(2, 1), "attention_mask": torch.tensor([[1, 1, 1, 1], [0, 1, 1, 1]])}
    plain = model.generate(**given, **asked)
    with regard.tap(model, heads=LAST) as tap:
        text = model.generate(**given, **asked)
    assert torch.equal(plain, text)
    mask = torch.cat([given["attention_mask"], torch.ones(2, 5, dtype=torch.long)], 1)
    places = (mask.cumsum(-1) - 1).clamp_min(0)
    weights = llama("eager")(
        text[:, :-1], attention_mask=mask, position_ids=places, output_attentions=True, use_cache=False
    ).attentions
    assert furthest(tap.rows, weights, [(0, 1), (0, 3)]) < 1e-5
    with regard.tap(torch.compile(model, backend="eager"), heads=LAST) as tap:
        pairs = list(tap.stream(PROMPT, **asked))
    assert [token for token, _ in pairs] == plain[0, 4:].tolist()
    assert furthest([row for _, row in pairs], [one[:1] for one in weights], [(0, 1), (0, 3)]) < 1e-5


@pytest.mark.slow
def test_a_copied_model_has_no_compiler_of_its_own() -> None:
    model = compiled(made(), "in place")
    with regard.tap(model, heads=HEADS):
        decode(model, 2)
    other = copy.deepcopy(model)
    with regard.tap(other, heads=HEADS) as tap:
        _, text = decode(other, 2)
    assert furthest(tap.rows, dense(other, text)) < 1e-6
