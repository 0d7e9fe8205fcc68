"""A tap's rows against eager weights, however a model generates: caches, windows, padding, beams, assistants."""

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import regard
from interpret.small_models import MODELS
from oracles import set_attention
from regard.errors import InputError, ObservationError
from sweeps import sweep

transformers = pytest.importorskip("transformers")
cache_utils = pytest.importorskip("transformers.cache_utils")

HEADS = ["1.3", "0.1", (1, 0)]
PAIRS = [(1, 3), (0, 1), (1, 0)]
GREEDY = {"max_new_tokens": 8, "do_sample": False}


def made(name: str, kind: str = "sdpa") -> Any:
    model, config, given = MODELS[name]
    model = getattr(transformers, model)(getattr(transformers, config)(**given)).eval()
    torch.manual_seed(1)
    with torch.no_grad():
        for one in model.parameters():
            if one.ndim >= 2:
                one.normal_(0, one.shape[-1] ** -0.5)
    set_attention(model, kind)
    settings = model.generation_config
    settings.pad_token_id, settings.eos_token_id, settings.forced_eos_token_id = 0, None, None
    settings.decoder_start_token_id = 1
    return model


def prompt(length: int, *, batch: int = 2, left: int = 0) -> dict[str, Tensor]:
    ids = torch.randint(3, 99, (batch, length), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[batch - 1, :left] = 0
    return {"input_ids": ids, "attention_mask": mask}


def dense(model: Any, text: Tensor, mask: Tensor | None = None) -> tuple[Tensor, ...]:
    """Every weight of a finished text, by transformers' eager attention."""
    set_attention(model, "eager")
    mask = torch.ones_like(text) if mask is None else mask
    positions = (mask.cumsum(-1) - 1).clamp_min(0)
    with torch.no_grad():
        return model(
            text, attention_mask=mask, position_ids=positions, output_attentions=True, use_cache=False
        ).attentions


def furthest(row: Any, weights: tuple[Tensor, ...], pairs: list[tuple[int, int]] = PAIRS) -> float:
    theirs = torch.stack([weights[layer][:, head, row.position] for layer, head in pairs], 1)
    count = row.weights.shape[-1]
    assert not theirs[..., count:].any()
    return float((theirs[..., :count] - row.weights).abs().max())


CASES = [
    (name, kind, cache, left)
    for name, kinds in {"Llama": ("sdpa", "eager"), "Mistral": ("sdpa", "eager"), "Gemma-2": ("eager",),
                        "GPT-OSS": ("eager",)}.items()
    for kind in kinds
    for cache in ("dynamic", "static")
    for left in (0, 2)
]  # fmt: skip


# The fast tier has each kind of attention with one kind of cache.
PAIRED = (("sdpa", "dynamic"), ("eager", "static"))
PAIRS_OF_TIERS = [
    pytest.param(PAIRED, id="fast"),
    pytest.param((("sdpa", "static"), ("eager", "dynamic")), id="slow", marks=pytest.mark.slow),
]
KEPT = [row for row in CASES if row[0] not in ("Llama", "Mistral") or row[1:3] in PAIRED]
KEPT = [row for row in KEPT if row[0] == "Llama" or row[3] > 0]  # and one model without padding too


def check_rows(name: str, kind: str, cache: str, left: int) -> None:
    model, given = made(name, kind), prompt(7, left=left)
    plain = model.generate(**given, **GREEDY, cache_implementation=cache)
    with regard.tap(model, heads=HEADS) as tap:
        text = model.generate(**given, **GREEDY, cache_implementation=cache)
    assert torch.equal(plain, text)
    assert tap.heads == tuple(PAIRS)
    assert [(row.step, row.position) for row in tap.rows] == [(step, 6 + step) for step in range(8)]
    mask = torch.cat([given["attention_mask"], torch.ones(2, 7, dtype=torch.long)], 1)
    weights = dense(model, text[:, :-1], mask)
    for row in tap.rows:
        assert row.weights.shape == (2, 3, row.position + 1)
        assert torch.equal(row.ids, text[:, row.position])
        assert furthest(row, weights) < 1e-5
        assert row.parent is None if row.step == 0 else row.parent.tolist() == [0, 1]


def test_the_rows_of_a_generation_are_those_of_one_eager_pass() -> None:
    for case in sweep(KEPT):
        with case as values:
            check_rows(*values)


@pytest.mark.slow
def test_the_rows_of_a_generation_are_those_of_one_eager_pass_with_the_other_caches() -> None:
    for case in sweep([row for row in CASES if row not in KEPT]):
        with case as values:
            check_rows(*values)


class Rounded(cache_utils.QuantizedLayer):
    """Keys and values rounded to eighths of the largest: a quantized layer that needs no other package."""

    def _quantize(self, tensor: Tensor, axis: int) -> tuple[Tensor, Tensor]:
        step = tensor.abs().max() / 8
        return (tensor / step).round().to(torch.int8), step

    def _dequantize(self, q_tensor: tuple[Tensor, Tensor]) -> Tensor:
        return q_tensor[0] * q_tensor[1]


QUANTIZED: dict[str, Callable[[], dict[str, Any]]] = {
    "rounded": lambda: {"past_key_values": transformers.Cache([Rounded(residual_length=4) for _ in range(2)])}
}
if hasattr(cache_utils, "Fp8QuantizedLayer"):  # from transformers 5.21 on
    QUANTIZED["fp8"] = lambda: {"cache_implementation": "quantized", "cache_config": {"backend": "fp8"}}


@pytest.mark.parametrize("cache", QUANTIZED)
def test_a_quantized_cache_gives_the_weights_of_its_own_keys(kernel_calls: Any, cache: str) -> None:
    model, given = made("Llama"), prompt(7)
    with kernel_calls() as calls, regard.tap(model, heads=HEADS) as tap:
        model.generate(**given, **GREEDY, **QUANTIZED[cache]())
    layers = len(calls) // len(tap.rows)
    assert (layers, len(tap.rows)) == (2, 8)
    for row in tap.rows:
        theirs = [torch.as_tensor(one) for one in calls[layers * row.step : layers * (row.step + 1)]]
        # One query of grouped heads is packed as several queries of its key head.
        theirs = [one if one.shape[1] == 4 else one.reshape(2, 4, 1, -1) for one in theirs]
        want = torch.stack([theirs[layer][:, head, -1] for layer, head in PAIRS], 1)
        assert (want - row.weights).abs().max() < 1e-5


@pytest.mark.parametrize("pairs", PAIRS_OF_TIERS)
def test_cross_attention_and_both_sides_of_an_encoder_decoder(pairs: tuple[tuple[str, str], ...]) -> None:
    for case in sweep([(name, *pair) for name in ("T5", "BART") for pair in pairs]):
        with case as (name, kind, cache):
            model, given = made(name, kind), prompt(6)
            rows = {}
            for stream in ("target", ("target", "source")):
                with regard.tap(model, heads=HEADS, stream=stream) as tap:
                    text = model.generate(**given, **GREEDY, cache_implementation=cache)
                rows[stream] = tap.rows
            with regard.tap(model, heads=HEADS, stream="source", queries="new") as tap:
                model.generate(**given, **GREEDY, cache_implementation=cache)
            set_attention(model, "eager")
            with torch.no_grad():
                whole = model(**given, decoder_input_ids=text[:, :-1], output_attentions=True, use_cache=False)
            assert len(rows["target"]) == len(rows["target", "source"]) == 8
            assert max(furthest(row, whole.decoder_attentions) for row in rows["target"]) < 1e-5
            assert max(furthest(row, whole.cross_attentions) for row in rows["target", "source"]) < 1e-5
            assert [row.position for row in tap.rows] == list(range(6))
            assert max(furthest(row, whole.encoder_attentions) for row in tap.rows) < 1e-5


def test_rows_follow_their_beam() -> None:
    for case in sweep([("sdpa", True), ("eager", True), ("sdpa", False)]):
        with case as (kind, use_cache):
            model, given = made("Llama", kind), prompt(6)
            asked = {
                "num_beams": 3,
                "num_return_sequences": 3,
                "max_new_tokens": 9,
                "do_sample": False,
                "use_cache": use_cache,
            }
            plain = model.generate(**given, **asked)
            with regard.tap(model, heads=HEADS) as tap:
                text = model.generate(**given, **asked)
            assert torch.equal(plain, text)
            rows = tap.rows
            assert any(row.parent.tolist() != list(range(6)) for row in rows[1:])
            chains = torch.stack([given["input_ids"].repeat_interleave(3, 0)[:, at] for at in range(6)], 1)
            weights = [[one] for one in rows[0].weights]
            for row in rows[1:]:  # the text of each beam, and its rows, put together by the parents
                chains = torch.cat([chains[row.parent], row.ids[:, None]], 1)
                weights = [
                    [*weights[parent], own] for parent, own in zip(row.parent.tolist(), row.weights, strict=True)
                ]
            theirs = dense(model, chains)
            for beam, own in enumerate(weights):
                for step, one in enumerate(own):
                    want = torch.stack([theirs[layer][beam, head, 5 + step, : 6 + step] for layer, head in PAIRS])
                    assert (want - one).abs().max() < 1e-5


@pytest.mark.parametrize("use_cache", [True, False])
def test_beams_that_begin_as_one_row_are_one_text(use_cache: bool) -> None:
    """Those of regard.models: the prompt is read once, and then each beam."""
    from regard.models import Transformer, TransformerConfig, output_heads

    torch.manual_seed(0)
    sizes = {"vocab_size": 30, "hidden_size": 16, "num_attention_heads": 4, "intermediate_size": 24}
    model = Transformer(TransformerConfig(**sizes, decoder_layers=1, output_head=output_heads.LanguageModel())).eval()
    with torch.no_grad():
        for one in model.parameters():
            one.mul_(3.0)
    asked = {"num_beams": 3, "num_return_sequences": 3, "max_new_tokens": 6, "eos_token_id": [], "use_cache": use_cache}
    with regard.tap(model, heads=[0]) as tap:
        texts = model.generate(torch.tensor([[5, 6, 7]]), **asked)
    assert [row.step for row in tap.rows] == list(range(6))
    chains = torch.tensor([[7]])
    for row in tap.rows[1:]:
        chains = torch.cat([chains[row.parent], row.ids[:, None]], 1)
    assert {tuple(one) for one in texts[:, 3:-1].tolist()} <= {tuple(one) for one in chains[:, 1:].tolist()}
    assert any(row.parent.tolist() != [0, 1, 2] for row in tap.rows[2:])


def test_rows_of_calls_that_are_not_causal_have_every_key_behind_padding_too() -> None:
    """The last keys are padding of all texts, so that the last rows see no later key; nor do those of short targets."""
    ids = prompt(6)["input_ids"]
    mask = torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 0, 0, 0]])
    sizes = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    encoder = transformers.BertModel(transformers.BertConfig(**sizes, intermediate_size=64)).eval()
    with torch.no_grad(), regard.tap(encoder, heads=["1.2"], queries="new") as tap:
        encoder(ids, attention_mask=mask)
    assert [tuple(row.weights.shape) for row in tap.rows] == [(2, 1, 6)] * 6
    model = made("BART")
    for stream, widths in (("source", [6] * 6), ("target", [1, 2, 3, 4]), (("target", "source"), [6] * 4)):
        with torch.no_grad(), regard.tap(model, heads=["1.1"], queries="new", stream=stream) as tap:
            model(ids, attention_mask=mask, decoder_input_ids=ids[:, :4])
        assert [row.weights.shape[-1] for row in tap.rows] == widths


def test_whom_a_row_continues_is_not_guessed_at_without_a_cache() -> None:
    """Equal rows continue themselves, others those that they begin with; what has no ids, or no beginning, nobody."""
    model = made("Llama")
    texts = torch.tensor([[5, 6, 7], [5, 6, 7], [5, 6, 8]])
    longer = torch.tensor([[5, 6, 8, 9], [5, 6, 7, 9], [5, 6, 7, 4]])
    other = torch.tensor([[5, 6, 8, 9, 1], [5, 6, 7, 9, 1], [9, 6, 7, 4, 1]])
    with regard.tap(model, heads=HEADS) as tap, torch.no_grad():
        for ids in (texts, longer, other):
            model(ids, use_cache=False)
    assert [None if row.parent is None else row.parent.tolist() for row in tap.rows] == [None, [2, 1, 0], None]
    assert [row.step for row in tap.rows] == [0, 1, 0]  # a text that continues none is another one
    for batch, parents in ((2, [None, None]), (1, [None, [0]])):
        with regard.tap(model, heads=HEADS) as tap, torch.no_grad():
            for ids in (texts, longer):
                model(inputs_embeds=model.get_input_embeddings()(ids[:batch]), use_cache=False)
        assert [None if row.parent is None else row.parent.tolist() for row in tap.rows] == parents


@pytest.mark.parametrize("name", ["Llama", "Mistral"])
def test_rejected_tokens_of_an_assistant_are_never_delivered(name: str) -> None:
    model, given = made(name), prompt(6, batch=1)
    helper = made(name)
    with torch.no_grad():  # right now and then
        for one in helper.parameters():
            one.add_(0.02 * torch.randn(one.shape, generator=torch.Generator().manual_seed(3)))
    plain = model.generate(**given, max_new_tokens=20, do_sample=False, assistant_model=helper)
    delivered: list[Any] = []
    with regard.tap(model, heads=HEADS, on_row=delivered.append):
        text = model.generate(**given, max_new_tokens=20, do_sample=False, assistant_model=helper)
    assert torch.equal(plain, text)
    assert [row.position for row in delivered] == list(range(5, 25))
    assert len({row.step for row in delivered}) < 20  # several tokens of the helper were accepted at once
    weights = dense(model, text[:, :-1])
    assert max(furthest(row, weights) for row in delivered) < 1e-5
    assert all(row.ids[0] == text[0, row.position] for row in delivered)


def test_the_first_call_reads_the_prompt_with_what_an_assistant_proposes() -> None:
    """Models without `logits_to_keep` do not get the number of those tokens: the last of them had the prompt's row."""
    for case in sweep(itertools.product(["T5", "BART"], ["target", ("target", "source")], ["a model", "lookup"])):
        with case as (name, stream, helper):
            model, assistant = made(name), made(name)
            with torch.no_grad():
                for one in (*model.parameters(), *assistant.parameters()):
                    one.mul_(3 if one.ndim > 1 else 1)  # texts of several tokens
                for one in assistant.parameters():
                    one.add_(0.15 * one.std() * torch.randn_like(one) if one.numel() > 1 else 0)
            given = prompt(6, batch=1) | {"decoder_input_ids": torch.tensor([[1, 7, 9, 7, 9, 7]])}
            asked = GREEDY | (
                {"assistant_model": assistant} if helper == "a model" else {"prompt_lookup_num_tokens": 2}
            )
            with regard.tap(model, heads=["1.3"], stream=stream) as tap:
                text = model.generate(**given, **asked)[0]
            assert text[6:].unique().numel() > 1
            assert [row.position for row in tap.rows] == list(range(5, len(text) - 1))
            assert [int(row.ids) for row in tap.rows] == text[5:-1].tolist()
            set_attention(model, "eager")
            with torch.no_grad():
                output = model(**given | {"decoder_input_ids": text[None]}, output_attentions=True)
            theirs = (output.decoder_attentions if stream == "target" else output.cross_attentions)[1][:, 3]
            for row in tap.rows:
                assert (theirs[:, row.position, : row.weights.shape[-1]] - row.weights[:, 0]).abs().max() < 1e-5


def test_steps_are_counted_in_each_text_that_takes_its_turn() -> None:
    model, ids = made("Llama"), prompt(9, batch=1)["input_ids"]
    for order in ("ABABAB", "AABBAA", "ABBBA", "A-A-BA", "AaAaBaA"):
        caches: dict[str, Any] = {one: transformers.DynamicCache(config=model.config) for one in "AB"}
        expected, steps = [], dict.fromkeys("ABa", 0)
        with torch.no_grad(), regard.tap(model, heads=["1.3"]) as tap:
            for one in order:
                if one == "-":  # another text, without a cache
                    model(ids[:, :4], use_cache=False)
                    expected.append(0)
                    continue
                if one == "a" and one not in caches:  # a second course of the first text
                    caches["a"], steps["a"] = copy.deepcopy(caches["A"]), steps["A"]
                model(ids[:, :3] if steps[one] == 0 else ids[:, 3 + steps[one] :][:, :1], past_key_values=caches[one])
                expected.append(steps[one])
                steps[one] += 1
        assert [row.step for row in tap.rows] == expected, order


def test_two_prompts_whose_caches_the_model_makes_count_their_own_steps() -> None:
    model, ids = made("Llama"), prompt(9, batch=1)["input_ids"]
    with torch.no_grad(), regard.tap(model, heads=["1.3"]) as tap:
        first, second = (model(one, use_cache=True).past_key_values for one in (ids[:, :3], ids[:, 5:]))
        for at in range(4, 6):
            model(ids[:, at : at + 1], past_key_values=first)
            model(ids[:, at : at + 1], past_key_values=second)
    assert [(row.position, row.step) for row in tap.rows] == [(2, 0), (3, 0), (3, 1), (4, 1), (4, 2), (5, 2)]


def test_a_copied_cache_counts_from_where_it_was_copied_also_later() -> None:
    model, ids = made("Llama"), prompt(9, batch=1)["input_ids"]
    cache = transformers.DynamicCache(config=model.config)
    with torch.no_grad(), regard.tap(model, heads=["1.3"]) as tap:
        model(ids[:, :3], past_key_values=cache)
        copied = copy.deepcopy(cache)
        for at, one in enumerate((cache, cache, copied, cache, copied)):
            model(ids[:, 3 + at : 4 + at], past_key_values=one)
    assert [row.step for row in tap.rows] == [0, 1, 2, 1, 3, 2]


def test_rows_after_a_step_of_which_none_was_chosen_have_parents() -> None:
    model = made("Llama")
    with regard.tap(model, heads=["1.3"], queries=[2, 5, 7]) as tap:
        model.generate(**prompt(3), max_new_tokens=6, do_sample=False)
    rows = [(row.position, None if row.parent is None else row.parent.tolist()) for row in tap.rows]
    assert rows == [(2, None), (5, [0, 1]), (7, [0, 1])]


def test_rows_of_a_cache_that_is_repeated_or_selected_from_have_their_parents() -> None:
    model, ids = made("Llama"), prompt(6)["input_ids"]
    cache = transformers.DynamicCache(config=model.config)
    with torch.no_grad(), regard.tap(model, heads=["1.3"]) as tap:
        model(ids, past_key_values=cache)
        cache.batch_repeat_interleave(2)
        model(ids[:1, :1].expand(4, -1), past_key_values=cache)
        cache.batch_select_indices(torch.tensor([3, 0]))
        model(ids[:, :1], past_key_values=cache)
        model(ids[:, :1], past_key_values=cache)
    parents = [None if row.parent is None else row.parent.tolist() for row in tap.rows]
    assert parents == [None, [0, 0, 1, 1], [3, 0], [0, 1]]


def test_a_model_that_fills_no_cache_counts_its_steps() -> None:
    for case in sweep([None, True, False]):
        with case as use_cache:
            config = transformers.OpenAIGPTConfig(n_embd=8, n_head=2, n_layer=2, vocab_size=99)
            model, ids = transformers.OpenAIGPTLMHeadModel(config).eval(), prompt(4)["input_ids"]
            asked = {} if use_cache is None else {"use_cache": use_cache}
            with regard.tap(model, heads=["1.1"]) as tap:
                model.generate(ids, **asked, max_new_tokens=3, do_sample=False, eos_token_id=None, pad_token_id=0)
            assert [row.step for row in tap.rows] == [0, 1, 2]
            assert [row.parent is None or row.parent.tolist() for row in tap.rows] == [True, [0, 1], [0, 1]]


def test_named_spans_are_the_sums_of_the_dense_row() -> None:
    model, given = made("Mistral"), prompt(8)
    spans = {"front": (0, 3), "middle": range(3, 8), "odd": [1, 5, 9], "answer": (8, None)}
    with regard.tap(model, heads=HEADS) as whole:
        model.generate(**given, **GREEDY)
    with regard.tap(model, heads=HEADS, keys=spans) as tap:
        model.generate(**given, **GREEDY)
    assert tap.spans == tuple(spans)
    for summed, row in zip(tap.rows, whole.rows, strict=True):
        assert summed.weights.shape == (2, 3, 4)
        found = torch.zeros(2, 3, 4, dtype=torch.float64)
        for j in range(row.weights.shape[-1]):
            for at, inside in enumerate((j < 3, 3 <= j < 8, j in (1, 5, 9), j >= 8)):
                found[..., at] += row.weights[..., j].double() * inside
        assert (found - summed.weights).abs().max() < 1e-6


def test_queries_choose_the_positions_that_have_rows() -> None:
    for case in sweep([("new", range(12)), ([2, 8, 99], [2, 8]), (range(3, 9), range(3, 9))]):
        with case as (queries, positions):
            model, given = made("Llama"), prompt(6, batch=1)
            with regard.tap(model, heads=HEADS, queries=queries) as tap:
                text = model.generate(**given, max_new_tokens=7, do_sample=False)
            assert [row.position for row in tap.rows] == list(positions)
            weights = dense(model, text[:, :-1])
            assert max(furthest(row, weights) for row in tap.rows) < 1e-5


def test_a_loop_written_by_hand_with_pieces_of_text() -> None:
    model, text = made("Mistral"), prompt(14)["input_ids"]
    cache = transformers.DynamicCache(config=model.config)
    with torch.no_grad(), regard.tap(model, heads=HEADS, queries="new") as tap:
        for at, to in ((0, 6), (6, 9), (9, 10), (10, 14)):
            model(text[:, at:to], past_key_values=cache)
    assert [(row.step, row.position) for row in tap.rows] == [
        *((0, at) for at in range(6)), *((1, at) for at in range(6, 9)), (2, 9), *((3, at) for at in range(10, 14)),
    ]  # fmt: skip
    weights = dense(model, text)
    assert max(furthest(row, weights) for row in tap.rows) < 1e-5


def test_without_a_cache_each_step_is_the_last_row_of_a_pass() -> None:
    model, given = made("Llama"), prompt(6)
    with regard.tap(model, heads=HEADS) as tap:
        text = model.generate(**given, **GREEDY, use_cache=False)
    assert [(row.step, row.position) for row in tap.rows] == [(step, 5 + step) for step in range(8)]
    weights = dense(model, text[:, :-1])
    assert max(furthest(row, weights) for row in tap.rows) < 1e-5


class ByHand(nn.Module):
    """A model without numbered layers and with no cache: two attentions, one with PyTorch's kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(8, 8), nn.Linear(8, 8)
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        q, k = (one(x).unflatten(-1, (2, 4)).transpose(1, 2) for one in (self.q, self.k))
        weights = (q @ k.transpose(-2, -1) / 2).softmax(-1)
        self.seen = [weights, (2 * q @ k.transpose(-2, -1) / 2).softmax(-1)]
        y = weights @ k + functional.scaled_dot_product_attention(2 * q, k, k)
        return y.transpose(1, 2).flatten(2)


def test_layers_without_numbers_are_counted_in_the_order_of_their_calls() -> None:
    model, x = ByHand().eval(), torch.randn(3, 5, 8)
    with torch.no_grad():
        plain = model(x)
        with regard.tap(model, heads=["1.0", "0.1"], queries="new") as tap:
            for _ in range(2):
                assert torch.equal(model(x), plain)
    assert len(tap.rows) == 10
    for row in tap.rows:
        theirs = torch.stack([model.seen[1][:, 0, row.position], model.seen[0][:, 1, row.position]], 1)
        assert (row.weights - theirs).abs().max() < 1e-6


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_torchs_own_encoder_keeps_its_fast_path() -> None:
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    model, x = nn.TransformerEncoder(layer, 3).eval(), torch.randn(2, 5, 16)
    hidden = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    with torch.no_grad():
        plain = model(x, src_key_padding_mask=hidden)
        with regard.watch(model, keep="weights") as seen:
            model(x, src_key_padding_mask=hidden)
        with regard.tap(model, heads=["2.1", "0.3"], queries="new") as tap:
            for _ in range(2):
                assert torch.equal(model(x, src_key_padding_mask=hidden), plain)
    for row in tap.rows:
        for at, (number, head) in enumerate(tap.heads):
            ours = torch.from_numpy(seen.layer(number).weights[:, head, row.position])
            assert (row.weights[:, at] - ours).abs().max() < 1e-6


def test_our_own_decoder_generates_under_a_tap() -> None:
    from regard.models import Transformer, TransformerConfig, output_heads

    torch.manual_seed(0)
    sizes = {"vocab_size": 40, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
    model = Transformer(TransformerConfig(**sizes, decoder_layers=2, output_head=output_heads.LanguageModel())).eval()
    texts = [[5, 6, 7, 8], [9, 10]]
    plain = model.generate(texts, max_new_tokens=6, eos_token_id=[])
    with regard.tap(model, heads=HEADS) as tap:
        text = model.generate(texts, max_new_tokens=6, eos_token_id=[])
    assert torch.equal(plain, text)
    assert [row.position for row in tap.rows] == list(range(3, 9))
    with torch.no_grad(), regard.watch(model, keep="weights") as seen:
        model.generate(texts, max_new_tokens=6, eos_token_id=[])
    for row in tap.rows:
        for at, (number, head) in enumerate(PAIRS):
            ours = torch.from_numpy(seen.layer(number).weights[:, head, row.position])
            assert (row.weights[:, at] - ours[:, : row.position + 1]).abs().max() < 1e-6


def test_what_cannot_be_tapped_is_refused_with_the_way_out() -> None:
    model, given = made("Llama"), prompt(5)
    with pytest.raises(InputError, match=r"`layer` must be from 0 to 1, got 7"):
        regard.tap(model, heads=["7.0"])
    with (
        pytest.raises(InputError, match=r"`head` must be from 0 to 3 in layer 1, got 1\.9"),
        regard.tap(model, heads=["1.9"]),
    ):
        model(**given)
    with pytest.raises(InputError, match=r"`heads` must differ, got 1\.2 twice"):
        regard.tap(model, heads=["1.2", (1, 2)])
    with pytest.raises(InputError, match=r"`heads` must be a list of heads.*put it in"):
        regard.tap(model, heads="1.2")
    with pytest.raises(InputError, match="`keys` must be a dictionary of named spans"):
        regard.tap(model, heads=["1.2"], keys=[(0, 3)])
    with pytest.raises(InputError, match="start before stop"):
        regard.tap(model, heads=["1.2"], keys={"a": (3, 3)})
    with pytest.raises(InputError, match='`queries` must be "last"'):
        regard.tap(model, heads=["1.2"], queries="all")
    with pytest.raises(InputError, match=r"`queries` \(0, 3\) may be two positions or a span.*write \[0, 3\] or range"):
        regard.tap(model, heads=["1.2"], queries=(0, 3))
    with pytest.raises(InputError, match="`heads` needs a `stream` too"):
        regard.tap(made("T5"), heads=["1.2"])
    for heads, stream in ((["1.2"], "text"), (["1.2"], ("target", "text")), (regard.HeadSet([(1, 2)]), None)):
        with pytest.raises(InputError, match=r"`heads` needs a `stream` too.*, got .*text"):  # not the encoder's heads
            regard.tap(made("T5"), heads=heads, stream=stream)
    with pytest.raises(ObservationError, match="no attention call of this Llama"), regard.tap(model, heads=["1.2"]):
        pass
    with regard.tap(model, heads=["1.2"]):
        model(**given)
        model.set_attn_implementation("eager")
        with pytest.raises(ObservationError, match="no longer computes its attention"):
            model(**given)
    with (
        pytest.raises(ObservationError, match=r"the rows need more than the limit of 20 B.*`on_row`"),
        regard.tap(model, heads=["1.2"], max_bytes=20),
    ):
        model(**given)


class LeavesOut(nn.Module):
    """A model that does not call its second layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Attends(), Attends()])

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers[0](x)
        return out


class Attends(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(x, x, x)


@pytest.mark.parametrize(
    ("stream", "said"),
    [
        (None, "layer 1 did not attend in this call; seen: layers.0"),
        ("text", "layer 1 did not attend in this call, or not in the stream 'text'; seen: layers.0"),
    ],
)
def test_a_chosen_layer_that_a_call_leaves_out_is_named(stream: str | None, said: str) -> None:
    model = LeavesOut()
    with pytest.raises(ObservationError) as refused, regard.tap(model, heads=["0.0", "1.0"], stream=stream):
        model(torch.randn(1, 2, 4, 8))
    assert str(refused.value) == said


class AttendsTwice(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(x, x, x) + functional.scaled_dot_product_attention(x, x, -x)


def test_a_module_that_attends_twice_in_a_step_is_not_named_as_a_choice_of_two() -> None:
    model = LeavesOut()
    model.layers[0] = AttendsTwice()
    with (
        pytest.raises(InputError, match=r"layer 0 of `heads` attends 2 times in a step, always in 'layers\.0'"),
        regard.tap(model, heads=["0.0"]),
    ):
        model(torch.randn(1, 2, 4, 8))


def test_prompts_of_one_cache_that_is_emptied_between_have_their_rows() -> None:
    model = made("Llama")
    cache = cache_utils.StaticCache(model.config, max_cache_len=12)
    prompts = [prompt(length, batch=1)["input_ids"] for length in (6, 4, 5)]
    with torch.no_grad(), regard.tap(model, heads=HEADS, queries="new") as tap:
        for one in prompts:
            model(one, past_key_values=cache)
            cache.reset()
    assert [row.position for row in tap.rows] == [*range(6), *range(4), *range(5)]
    for text, rows in zip(prompts, (tap.rows[:6], tap.rows[6:10], tap.rows[10:]), strict=True):
        weights = dense(made("Llama"), text)
        assert max(furthest(row, weights) for row in rows) < 2e-5


def test_the_ids_of_rows_are_copies_of_a_loop_s_buffer() -> None:
    model, text, buffer = made("Llama"), prompt(5, batch=1)["input_ids"], torch.zeros(1, 1, dtype=torch.long)
    cache = cache_utils.DynamicCache()
    with torch.no_grad(), regard.tap(model, heads=HEADS, queries="new") as tap:
        for one in text[0]:
            model(buffer.fill_(one), past_key_values=cache)
    assert torch.equal(torch.stack([row.ids for row in tap.rows], 1), text)


def test_rows_of_a_target_made_from_labels_have_not_the_ids_of_the_source() -> None:
    for case in sweep(itertools.product(["BART", "T5"], ["target", ("target", "source"), "source"])):
        with case as (name, stream):
            model, ids = made(name), prompt(5, batch=1)["input_ids"]
            model.config.decoder_start_token_id = 1
            with torch.no_grad(), regard.tap(model, heads=["1.1"], stream=stream, queries="new") as tap:
                model(input_ids=ids, labels=ids + 1)
                model(input_ids=ids, decoder_input_ids=ids + 2)
            first, second = ([row.ids for row in tap.rows[at : at + 5]] for at in (0, 5))
            assert first == [*ids.T] if stream == "source" else first == [None] * 5
            assert torch.equal(torch.stack(second, 1), ids if stream == "source" else ids + 2)


def test_positions_are_counted_where_the_first_layer_keeps_no_keys() -> None:
    """MiniMax's first layer is linear attention, and the length of its cache is 0."""
    config = transformers.MiniMaxConfig(
        vocab_size=61, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=1, head_dim=8,
        intermediate_size=48, layer_types=["linear_attention", "full_attention"], num_local_experts=2, block_size=8,
        num_experts_per_tok=1, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with regard.tap(model, heads=[(1, 0)]) as tap:
        model.generate(torch.randint(3, 61, (1, 7)), max_new_tokens=4, do_sample=False, eos_token_id=None)
    assert [(row.step, row.position, row.weights.shape[-1]) for row in tap.rows] == [
        (step, 6 + step, 7 + step) for step in range(4)
    ]
