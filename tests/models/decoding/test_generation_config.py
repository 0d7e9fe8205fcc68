"""What a checkpoint's generation_config.json asks for: obeyed as transformers does, row by row, or named once."""

import json
import math
import re
import shutil
import warnings

import pytest
import torch

pytest.importorskip("transformers")
import transformers as hf

import checkpoints
from regard.errors import InputError
from regard.models import GenerationConfig, Transformer, UnsupportedGenerationWarning, decoding
from regard.models.decoding import GenerationLimits, Markov, Sampling
from sweeps import sweep

IDS = torch.tensor([[5, 6, 7, 8]])


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """A folder, and transformers' model of it; `loaded` puts a generation_config.json there."""
    folder = tmp_path_factory.mktemp("llama")
    theirs = checkpoints.checkpoint("llama", folder, max_position_embeddings=64)
    return folder, theirs


def loaded(llama, file):
    folder, theirs = llama
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 2, "pad_token_id": 0} | file))
    theirs.generation_config = hf.GenerationConfig.from_pretrained(folder)
    return Transformer.from_pretrained(folder), theirs


def loaded_ours(llama, file):
    (llama[0] / "generation_config.json").write_text(json.dumps(file))
    return Transformer.from_pretrained(llama[0])


def test_rules_of_the_file_hold_until_the_caller_says_otherwise(llama):
    file = {"num_beams": 3, "no_repeat_ngram_size": 2, "max_length": 12, "min_length": 9, "bad_words_ids": [[9]]}
    ours, theirs = loaded(llama, file)
    asked = [{}, {"num_beams": 1}, {"no_repeat_ngram_size": 0, "repetition_penalty": 1.5}, {"max_new_tokens": 6}]
    for case in sweep([*asked, {"bad_words_ids": [[7, 8], [11]]}, {"length_penalty": 3.0}, {"min_length": 0}]):
        with case as options:
            assert ours.generate(IDS, **options).tolist() == theirs.generate(IDS, **options).tolist()


def test_an_old_checkpoint_has_its_rules_in_config_json(llama, tmp_path):
    folder, _ = llama
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    raw = json.loads((folder / "config.json").read_text())
    raw |= {"num_beams": 2, "max_length": 9, "no_repeat_ngram_size": 1, "eos_token_id": 2, "pad_token_id": 0}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    theirs = hf.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert theirs.generation_config.num_beams == 2
    ours = Transformer.from_pretrained(tmp_path)
    assert ours.generate(IDS).tolist() == theirs.generate(IDS).tolist()
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 2, "pad_token_id": 0}))
    ours = Transformer.from_pretrained(tmp_path)
    assert ours.config.generation_config == GenerationConfig()  # beside that file, config.json says nothing of it
    assert ours.generate(IDS).shape == (1, 24)
    (tmp_path / "generation_config.json").write_text("{}")
    assert Transformer.from_pretrained(tmp_path).config.generation_config == GenerationConfig()


def test_a_bad_word_that_ends_texts_is_none(llama):
    ours, theirs = loaded(llama, {"bad_words_ids": [list(range(3, 30)), [31]], "eos_token_id": [31, 32]})
    first = int(theirs.generate(IDS, max_new_tokens=1, bad_words_ids=[[0]])[0, -1])
    options = {"max_new_tokens": 4, "bad_words_ids": [[first]], "eos_token_id": [first, 2]}
    expected = theirs.generate(IDS, **options)
    assert expected[0, 4] == first
    assert torch.equal(ours.generate(IDS, **options), expected)


def test_a_saved_model_keeps_its_rules(llama, tmp_path):
    ours, _ = loaded(llama, {"repetition_penalty": 3.0, "bad_words_ids": [[9], [7, 8]], "typical_p": 0.5})
    ours.save_pretrained(tmp_path)
    again = Transformer.from_pretrained(tmp_path)
    assert again.config == ours.config
    assert again.config.generation_config.bad_words_ids == ((9,), (7, 8))
    assert torch.equal(again.generate(IDS), ours.generate(IDS))
    assert not torch.equal(again.generate(IDS, max_new_tokens=20), ours.generate(IDS, repetition_penalty=1.0))
    free = Transformer.from_pretrained(tmp_path, generation_config=GenerationConfig())
    assert torch.equal(free.generate(IDS), ours.generate(IDS, repetition_penalty=1.0, bad_words_ids=[]))


def test_what_is_not_obeyed_is_named_once_for_a_model(llama):
    ours, _ = loaded(llama, {"guidance_scale": 1.5, "typical_p": 0.3, "encoder_repetition_penalty": 1.0, "max_time": 9})
    with pytest.warns(UnsupportedGenerationWarning, match=r"`guidance_scale=1.5`, `max_time=9`, which regard does not"):
        ours.generate(IDS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours.generate(IDS, do_sample=True)
        list(ours.stream([5, 6]))
    ours, _ = loaded(llama, {"typical_p": 0.3, "use_cache": True, "output_scores": False, "some_key_of_a_fork": [1]})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours.generate(IDS)  # nothing is drawn, so nothing differs
    with pytest.warns(UnsupportedGenerationWarning, match="`typical_p=0.3`") as caught:
        list(ours.stream([5, 6], do_sample=True))
    assert caught[0].filename == __file__


def test_a_checkpoint_that_draws_draws(llama):
    ours, _ = loaded(llama, {"do_sample": True, "temperature": 0.5, "top_k": 0, "top_p": 0.9, "min_p": 0.01})

    def seeded():
        return torch.Generator().manual_seed(3)

    chosen = Sampling(0.5, None, 0.9, seeded(), min_p=0.01)
    expected = ours.generate(IDS, search_strategy=chosen)
    assert torch.equal(ours.generate(IDS, generator=seeded()), expected)
    assert list(ours.stream(IDS[0], generator=seeded())) == expected[0, 4:].tolist()
    greedy = ours.generate(IDS, search_strategy=decoding.Greedy())
    assert torch.equal(ours.generate(IDS, do_sample=False), greedy)
    assert not torch.equal(greedy, expected)
    with pytest.raises(
        InputError, match=r"`do_sample` with num_beams=2 \(the model's .* one\) is not here: .*num_beams=1"
    ):
        ours.generate(IDS, num_beams=2)


def test_a_checkpoint_that_searches_is_streamed_by_another_strategy(llama):
    ours, _ = loaded(llama, {"num_beams": 2})
    with pytest.raises(InputError, match=r"BeamSearch knows its text when it has ended: .*num_beams=1"):
        ours.stream([5, 6])
    assert list(ours.stream([5, 6], num_beams=1)) == ours.generate([[5, 6]], num_beams=1)[0, 2:].tolist()
    assert len(list(ours.stream([5, 6], search_strategy=decoding.Greedy(), max_new_tokens=3))) == 3


def test_limits_are_those_of_each_row(llama):
    """In transformers a row beside a longer one has as few tokens as that one: the length counts the padding."""
    ours, theirs = loaded(llama, {})
    rows = [[5, 6, 7, 8, 9, 10], [11], [12, 13, 14]]
    asked = [{"max_length": 9}, {"max_length": 9, "num_beams": 3, "early_stopping": "never"}]
    asked += [{"max_length": 12, "min_length": 8, "eos_token_id": list(range(3, 30))}]
    asked += [{"max_length": 9, "forced_eos_token_id": 4}, {"max_length": 9, "forced_bos_token_id": 4, "num_beams": 2}]
    asked += [{"max_new_tokens": 6, "begin_suppress_tokens": list(range(3, 40)), "forced_bos_token_id": 41}]
    asked += [{"max_new_tokens": 9, "repetition_penalty": 2.0}, {"max_new_tokens": 9, "no_repeat_ngram_size": 1}]
    for case in sweep(asked):
        with case as options:
            found = ours.generate(rows, **options, return_dict_in_generate=True).new_tokens
            for row, tokens in zip(rows, found, strict=True):
                alone = theirs.generate(torch.tensor([row]), **options)[0, len(row) :].tolist()
                assert tokens == alone


def test_the_last_position_of_a_row_is_that_of_its_own_tokens(tmp_path):
    theirs = checkpoints.checkpoint("gpt2", tmp_path, n_positions=12, eos_token_id=None)
    ours, rows = Transformer.from_pretrained(tmp_path), [list(range(3, 13)), [4, 5]]
    for case in sweep([{}, {"num_beams": 2}, {"use_cache": False}]):
        with case as options:
            found = ours.generate(rows, max_new_tokens=50, **options, return_dict_in_generate=True).new_tokens
            assert [len(tokens) for tokens in found] == [2, 10]
            alone = theirs.generate(torch.tensor(rows[1:]), max_new_tokens=10, pad_token_id=0, **options)
            assert found[1] == alone[0, 2:].tolist()
    import regard

    with regard.watch(ours):  # rows that have ended stay, and take no position that the model lacks
        assert (
            ours.generate(rows, max_new_tokens=50, return_dict_in_generate=True).new_tokens
            == ours.generate(rows, max_new_tokens=50, return_dict_in_generate=True).new_tokens
        )


def test_two_lengths_for_one_limit_are_refused(llama):
    ours, _ = loaded(llama, {"max_new_tokens": 5, "min_new_tokens": 2})
    cases = [
        ({"max_length": 9}, r"`max_length` and `max_new_tokens` are one limit, and the model's generation_config has"),
        ({"max_length": 9, "max_new_tokens": 4}, r"are one limit, and max_new_tokens=4: give `max_new_tokens`"),
        ({"min_length": 3}, r"`min_length` and `min_new_tokens` are one limit"),
    ]
    for case in sweep(cases):
        with case as (options, words), pytest.raises(InputError, match=words):
            ours.generate(IDS, **options)
    ours, _ = loaded(llama, {"max_length": 4})
    with pytest.raises(
        InputError, match=r"`max_length` is 4 \(by the model's .*\) and the prompt has 4 .*max_new_tokens="
    ):
        ours.generate(IDS)


def test_least_lengths_of_a_file_are_cut_and_a_contradiction_of_the_caller_is_refused(llama):
    ours, theirs = loaded(llama, {"min_new_tokens": 60, "eos_token_id": list(range(3, 30))})
    expected = theirs.generate(IDS, max_new_tokens=7, min_new_tokens=7)
    assert torch.equal(ours.generate(IDS, max_new_tokens=7), expected)
    with pytest.raises(InputError, match=r"`min_new_tokens` \(8\) cannot be above `max_new_tokens` \(7\)"):
        ours.generate(IDS, max_new_tokens=7, min_new_tokens=8)
    ours, _ = loaded(llama, {"min_new_tokens": 60, "max_new_tokens": 7, "eos_token_id": list(range(3, 30))})
    assert torch.equal(ours.generate(IDS), expected)


def test_several_tokens_at_the_limit_are_named_and_one_is_forced(llama):
    ours, theirs = loaded(llama, {"forced_eos_token_id": [3]})
    assert ours.generate(IDS, max_new_tokens=4).tolist() == theirs.generate(IDS, max_new_tokens=4).tolist()
    ours, _ = loaded(llama, {"forced_eos_token_id": [2, 3]})
    with pytest.warns(UnsupportedGenerationWarning, match=re.escape("forced_eos_token_id=[2, 3]")):
        ours.generate(IDS, max_new_tokens=4)


@pytest.mark.parametrize("name", ["pad_token_id", "bos_token_id", "decoder_start_token_id", "forced_bos_token_id"])
@pytest.mark.parametrize("value", [[1, 2], "x", 1.5])
def test_a_wrong_token_is_named_with_its_file(llama, tmp_path, name, value):
    said = f"`{name}` must be a token, an integer from 0 to 2³¹ − 1, got {value!r}"
    with pytest.raises(InputError, match=re.escape(f"cannot read the generation_config.json of '{llama[0]}': {said}")):
        loaded_ours(llama, {name: value})
    for file in ("model.safetensors", "config.json"):
        shutil.copy(llama[0] / file, tmp_path / file)
    raw = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(raw | {name: value}))
    with pytest.raises(InputError, match=re.escape(f"cannot read the config.json of '{tmp_path}': {said}")):
        Transformer.from_pretrained(tmp_path)


@pytest.mark.parametrize("file", [{"suppress_tokens": 3}, {"suppress_tokens": ["a"]}, {"eos_token_id": "a"},
                                  {"bad_words_ids": [3]}, {"begin_suppress_tokens": 3}])  # fmt: skip
def test_wrong_lists_of_tokens_are_named_with_their_file(llama, file):
    said = f"cannot read the generation_config.json of '{llama[0]}': `{next(iter(file))}` must be "
    with pytest.raises(InputError, match=re.escape(said)):
        loaded_ours(llama, file)


def test_values_of_a_file_that_mean_nothing_are_refused(llama):
    cases = {
        "bad_words_ids": ([[]], 5, [["a"]], [[-1]]),
        "begin_suppress_tokens": (3, ["a"]),
    }
    for case in sweep([(name, value) for name, values in cases.items() for value in values]):
        with case as (name, value):
            folder, _ = llama
            (folder / "generation_config.json").write_text(json.dumps({name: value}))
            with pytest.raises(InputError, match=f"`{name}`"):
                Transformer.from_pretrained(folder)


SCORES = torch.tensor([[1.0, 3.0, 2.0, 3.0, -math.inf], [0.0, -80.0, 1e-30, 0.0, -5.0]])


def draws(choose, dtype=torch.float32, rows=SCORES, count=400):
    torch.manual_seed(0)
    table = torch.zeros(5, 5, dtype=dtype)
    table[: len(rows)] = rows.to(dtype)
    for row in range(len(rows)):
        prompt = torch.full((count, 1), row)
        found = choose.search(Markov(table), prompt, GenerationLimits(max_new_tokens=1))
        yield {one.tokens[0] for one in found}


def test_any_temperature_above_0_takes_the_likeliest_tokens_or_all_alike():
    types = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
    for case in sweep([(value, dtype) for value in (1e-32, 1e-39, 5e-324) for dtype in types]):
        with case as (temperature, dtype):
            limit = [{1, 3}, {0, 2, 3} if dtype == torch.float16 else {2}]  # which has no 1e-30
            assert list(draws(Sampling(temperature), dtype)) == limit
            assert list(draws(Sampling(temperature, top_k=2), dtype)) == limit
    for case in sweep([1e30, 1e39, 1.7e308]):
        with case as temperature:
            assert list(draws(Sampling(temperature))) == [{0, 1, 2, 3}, {0, 1, 2, 3, 4}]
    for case in sweep([0, -1.0, math.inf, math.nan]):
        with case as temperature, pytest.raises(InputError, match="`temperature`"):
            Sampling(temperature)


def test_the_smallest_mass_and_the_largest_count_are_taken_at_their_word():
    for case in sweep([(top_p, top_k) for top_p in (5e-324, 1e-39, 1e-8) for top_k in (None, 3)]):
        with case as (top_p, top_k):
            assert [len(found) for found in draws(Sampling(top_p=top_p, top_k=top_k))] == [1, 1]
    for case in sweep([5, 6, 10**9]):
        with case as top_k:
            assert list(draws(Sampling(1e9, top_k=top_k))) == [{0, 1, 2, 3}, {0, 1, 2, 3, 4}]
            assert list(draws(Sampling(top_k=top_k, min_p=1.0))) == [{1, 3}, {0, 2, 3}]


def test_a_length_penalty_beyond_numbers_is_refused():
    table, limits = torch.eye(4), GenerationLimits(max_new_tokens=20)
    for case in sweep([1e10, -1e10, 50.0]):
        with case as penalty, pytest.raises(InputError, match=r"`length_penalty` .* choose one from -20 to 20"):
            decoding.BeamSearch(2, penalty).search(Markov(table), torch.tensor([[0]]), limits)
    assert decoding.BeamSearch(2, 19.0).search(Markov(table), torch.tensor([[0]]), limits)[0].score < 0
