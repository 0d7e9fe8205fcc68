"""Tokens with their rows from a worker thread: the same tokens, exceptions cross over, and a reader may stop."""

import threading
from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from regard.errors import InputError, ObservationError
from sweeps import sweep

transformers = pytest.importorskip("transformers")

SIZES = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
IDS = torch.randint(3, 99, (1, 6), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def model() -> Any:
    torch.manual_seed(1)
    made = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, max_position_embeddings=64)).eval()
    made.generation_config.pad_token_id, made.generation_config.eos_token_id = 0, None
    return made


def workers() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name == "regard-tap"]


@pytest.mark.parametrize("assisted", [False, True])
def test_each_token_comes_with_the_row_that_predicted_it(model: Any, assisted: bool) -> None:
    asked: dict[str, Any] = {"max_new_tokens": 9, "do_sample": False}
    if assisted:
        asked["prompt_lookup_num_tokens"] = 3
    plain = model.generate(IDS, **asked)
    with regard.tap(model, heads=["1.3"]) as once:
        model.generate(IDS, **asked)
    with regard.tap(model, heads=["1.3"]) as tap:
        found = list(tap.stream({"input_ids": IDS}, **asked))
        again = list(tap.stream(IDS, **asked))
    assert [token for token, _ in found] == [token for token, _ in again] == plain[0, 6:].tolist()
    for (_, row), other in zip(found, once.rows, strict=True):
        assert row.position == other.position
        assert torch.equal(row.weights, other.weights)
    assert [row.position for _, row in found] == list(range(5, 14))
    assert workers() == []


def test_a_prompt_in_chunks_pairs_the_first_token_with_its_last_position(model: Any) -> None:
    asked: dict[str, Any] = {"max_new_tokens": 4, "do_sample": False}
    with regard.tap(model, heads=["1.3"]) as tap:
        whole = list(tap.stream(IDS, **asked))
        found = list(tap.stream(IDS, **asked, prefill_chunk_size=2))
        embedded = list(tap.stream({"inputs_embeds": model.get_input_embeddings()(IDS)}, **asked))
    for pairs in (found, embedded):
        assert [(token, row.position) for token, row in pairs] == [(token, row.position) for token, row in whole]
        for (_, row), (_, other) in zip(pairs, whole, strict=True):
            assert (row.weights - other.weights).abs().max() < 1e-6


def test_tokens_without_rows_are_an_error() -> None:
    torch.manual_seed(0)
    sizes = {"vocab_size": 40, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 1, "num_heads": 4}
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, decoder_start_token_id=0)).eval()
    with regard.tap(model, heads=["0.3"], stream="source") as tap:
        with pytest.raises(ObservationError, match="3 tokens have no row"):
            list(tap.stream(IDS % 40, max_new_tokens=3, eos_token_id=None, pad_token_id=0))
        model.generate(IDS % 40, max_new_tokens=1)
    assert workers() == []


def test_a_batch_streams_tensors_and_sampling_draws_the_same_numbers(model: Any) -> None:
    ids = IDS.expand(2, -1)
    torch.manual_seed(3)
    plain = model.generate(ids, max_new_tokens=5, do_sample=True)
    with regard.tap(model, heads=["1.3"], keys={"front": (0, 3), "rest": (3, None)}) as tap:
        torch.manual_seed(3)
        found = list(tap.stream(ids, max_new_tokens=5, do_sample=True))
    assert torch.equal(torch.stack([token for token, _ in found], 1), plain[:, 6:])
    assert all(torch.allclose(row.weights.sum(-1), torch.ones(2, 1)) for _, row in found)


def test_break_ends_the_generation_at_its_next_token(model: Any) -> None:
    calls: list[int] = []
    hook = model.register_forward_pre_hook(lambda *_: calls.append(1))
    with regard.tap(model, heads=["1.3"]) as tap:
        for _, row in tap.stream(IDS, max_new_tokens=50, do_sample=False):
            if row.step == 2:
                break
        assert workers() == []
        assert len(calls) < 20
        plain = model.generate(IDS, max_new_tokens=3, do_sample=False)  # the block goes on in its own thread
    hook.remove()
    assert [row.position for row in tap.rows] == [5, 6, 7]
    assert plain.shape == (1, 9)


def test_what_the_generation_raises_is_raised_in_the_reader(model: Any) -> None:
    def fail(*_: Any) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise ArithmeticError("the third step")

    calls: list[int] = []
    hook = model.register_forward_pre_hook(fail)
    with regard.tap(model, heads=["1.3"]) as tap:
        reading = tap.stream(IDS, max_new_tokens=9, do_sample=False)
        assert [next(reading)[1].position for _ in range(2)] == [5, 6]
        with pytest.raises(ArithmeticError, match="the third step"):
            next(reading)
    hook.remove()
    assert workers() == []


def interrupted(model: Any) -> None:
    with regard.tap(model, heads=["1.3"]) as tap:
        for _ in tap.stream(IDS, max_new_tokens=50, do_sample=False):
            raise KeyboardInterrupt


def test_an_interrupt_of_the_reader_ends_both(model: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupted(model)
    assert workers() == []
    assert "_compiled_call_impl" not in vars(model)


def test_a_slow_reader_holds_the_generation_back(model: Any) -> None:
    calls: list[int] = []
    hook = model.register_forward_pre_hook(lambda *_: calls.append(1))
    with regard.tap(model, heads=["1.3"]) as tap:
        reading = tap.stream(IDS, max_new_tokens=50, do_sample=False)
        next(reading)
        threading.Event().wait(0.4)
        assert len(calls) <= 11
    hook.remove()
    assert workers() == []  # the block has ended what was still read


def test_our_own_models_stream() -> None:
    from regard.models import Transformer, TransformerConfig, output_heads

    torch.manual_seed(0)
    sizes = {"vocab_size": 40, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
    ours = Transformer(TransformerConfig(**sizes, decoder_layers=2, output_head=output_heads.LanguageModel())).eval()
    plain = list(ours.stream([5, 6, 7], max_new_tokens=4, eos_token_id=[]))
    with regard.tap(ours, heads=["1.3"]) as tap:
        found = list(tap.stream([5, 6, 7], max_new_tokens=4, eos_token_id=[]))
    assert [token for token, _ in found] == plain
    assert [row.position for _, row in found] == [2, 3, 4, 5]
    assert all(isinstance(row.weights, Tensor) for _, row in found)


def test_a_stream_needs_an_open_tap_and_rows_of_the_last_query(model: Any) -> None:
    tap = regard.tap(model, heads=["1.3"])
    with pytest.raises(InputError, match="`stream` needs an open tap"):
        tap.stream(IDS)
    with regard.tap(model, heads=["1.3"], queries="new") as tap:
        with pytest.raises(InputError, match="leave out `on_row` and `queries`"):
            tap.stream(IDS)
        model(IDS)
    with regard.tap(model, heads=["1.3"]) as tap:
        with pytest.raises(InputError, match="those of beams are not"):
            tap.stream(IDS, num_beams=2)
        with pytest.raises(InputError, match="leave out `streamer`"):
            tap.stream(IDS, streamer=None)
        settings = transformers.GenerationConfig(guidance_scale=1.5)
        for asked in ({"guidance_scale": 1.5}, {"generation_config": settings}):
            with pytest.raises(InputError, match="a token comes from two rows"):
                tap.stream(IDS, **asked)
        assert len(list(tap.stream(IDS, max_new_tokens=2, guidance_scale=1.0))) == 2


def test_rejected_tokens_are_never_delivered(model: Any) -> None:
    """A chosen position may be that of a proposed token, also of the first ones, which are read with the prompt."""
    for case in sweep(["last", "new", "odd", "few"]):
        with case as name:
            delivered = 0
            for seed in range(6):
                ids = torch.randint(3, 6, (1, 5), generator=torch.Generator().manual_seed(seed))
                queries: Any = {"odd": range(1, 40, 2), "few": [5, 7, 9]}.get(name, name)
                with regard.tap(model, heads=["1.3"], queries=queries) as tap:
                    text = model.generate(ids, max_new_tokens=9, do_sample=False, prompt_lookup_num_tokens=3)[
                        0
                    ].tolist()
                rows = [
                    row for row in tap.rows if row.position < len(text) - 1
                ]  # the last token may be read beside others
                wanted = {"last": range(4, 13), "new": range(13)}.get(name, queries)
                assert [row.position for row in rows] == [at for at in wanted if at < len(text) - 1]
                assert [int(row.ids[0]) for row in rows] == [text[row.position] for row in rows]
                delivered += len(rows)
            assert delivered
