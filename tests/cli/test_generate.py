"""`regard generate`: what it writes is what transformers writes, shown part by part and never wrong in between."""

import contextlib
import json
import os
import pty
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

import pytest

from regard.cli import main
from regard.cli.arguments import read_prompt
from regard.cli.generate import Detokenizer
from regard.errors import InputError
from sweeps import sweep

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", reason="transformers is not installed (the extra `models`)")
tokenizers = pytest.importorskip("tokenizers")
bundled = pytest.importorskip("regard.hub")

needs_models = [
    pytest.mark.models,
    pytest.mark.skipif(
        not all(map(bundled.is_installed, bundled.BUNDLED)), reason="the bundled models are missing: regard models get"
    ),
]

ENGLISH = "The animal didn't cross the street,  because it was too tired.\n\tIt slept ."
CHINESE = "貓追老鼠，因為它餓了。我爱你！龘靐"
EMOJI = "👩‍👩‍👧‍👦 🎉🇨🇳 👍🏽"
TEXTS = [ENGLISH, CHINESE, EMOJI, f"{CHINESE} means 🎉 {ENGLISH}{EMOJI}", "é ñ \ufffd end", " 　two spaces"]


def byte_level():
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=290,
        special_tokens=["<end>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([ENGLISH, "貓貓我我"], trainer)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>")


def byte_fallback():
    """SentencePiece's way in Llama: words with ▁, and <0xE4> for a byte of what has no piece."""
    pieces = ["<unk>", "<end>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcdefghijklmnopqrstuvwxyzTI.,我"]
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE({one: i for i, one in enumerate(pieces)}, [], unk_token="<unk>", byte_fallback=True)
    )
    backend.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.Prepend("▁"), tokenizers.normalizers.Replace(" ", "▁")]
    )
    of = tokenizers.decoders
    backend.decoder = of.Sequence([of.Replace("▁", " "), of.ByteFallback(), of.Fuse(), of.Strip(" ", 1, 0)])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", eos_token="<end>")


def real(name: str):
    return transformers.AutoTokenizer.from_pretrained(bundled.folder(name))


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(byte_level, id="bytes"),
        pytest.param(byte_fallback, id="fallback"),
        pytest.param(lambda: real("smollm2"), id="smollm2", marks=needs_models),
        pytest.param(lambda: real("me5"), id="me5", marks=[*needs_models, pytest.mark.slow]),
    ],
)
def tokenizer(request):
    return request.param()


def whole(tokenizer, tokens: list[int]) -> str:
    return tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def parts(detokenizer: Detokenizer, tokens: list[int]) -> list[str]:
    return [*(detokenizer.add(token) for token in tokens), detokenizer.end()]


def test_the_parts_are_the_text_decoded_at_once_and_none_is_broken(tokenizer) -> None:
    for case in sweep(TEXTS):
        with case as text:
            tokens = tokenizer(text)["input_ids"]
            shown = parts(Detokenizer(tokenizer), tokens)
            assert "".join(shown) == whole(tokenizer, tokens)
            if "\ufffd" not in text:
                assert "\ufffd" not in "".join(shown)


def test_what_goes_on_with_a_text_has_the_space_that_stands_between_them(tokenizer) -> None:
    for case in sweep(TEXTS):
        with case as text:
            tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
            for cut in range(1, len(tokens)):
                before = whole(tokenizer, tokens[:cut])
                if not before.endswith("\ufffd") and whole(tokenizer, tokens).startswith(before):
                    added = "".join(parts(Detokenizer(tokenizer, tokens[:cut]), tokens[cut:]))
                    assert before + added == whole(tokenizer, tokens), cut


def test_any_tokens_at_all_are_what_they_are_decoded_at_once(tokenizer) -> None:
    draw = random.Random(0)
    for _ in range(30):
        # every other one of the last pieces, which are no bytes, so that no row of bytes is longer than what is held
        tokens = [draw.randrange(draw.choice([0, len(tokenizer) - 30]), len(tokenizer)) for _ in range(60)]
        assert "".join(parts(Detokenizer(tokenizer), tokens)) == whole(tokenizer, tokens)


def test_a_chinese_character_appears_with_its_last_byte() -> None:
    tokenizer = byte_level()
    tokens = tokenizer("龘 a")["input_ids"]
    assert parts(Detokenizer(tokenizer), tokens) == ["", "", "龘", " ", "a", ""]
    assert parts(Detokenizer(tokenizer), tokens[:2]) == ["", "", "\ufffd"]


def test_bytes_appear_when_no_byte_can_follow_that_would_break_them() -> None:
    tokenizer = byte_fallback()
    tokens = tokenizer("龘a")["input_ids"]
    assert parts(Detokenizer(tokenizer), tokens) == ["", "", "", "", "龘a", ""]
    assert tokenizer.decode(tokens[:4]) + tokenizer.decode([*tokens[:4], tokens[2]]) == "龘\ufffd\ufffd\ufffd\ufffd"


def test_special_tokens_are_not_shown_and_split_no_character() -> None:
    tokenizer = byte_level()
    first, *others = tokenizer("龘")["input_ids"]
    end = tokenizer.eos_token_id
    assert "".join(parts(Detokenizer(tokenizer), [end, first, end, *others, end])) == "龘"


class Counted:
    """A tokenizer that counts the tokens it decodes."""

    def __init__(self, tokenizer) -> None:
        self.tokenizer, self.counts = tokenizer, []

    def __getattr__(self, name: str):
        return getattr(self.tokenizer, name)

    def __call__(self, text: str):
        return self.tokenizer(text)

    def decode(self, tokens, **options):
        self.counts.append(len(tokens))
        return self.tokenizer.decode(tokens, **options)


def test_only_a_tail_is_decoded_however_long_the_text() -> None:
    for case in sweep(["text", "bytes", "unknown"]):
        with case as kind:
            counted = Counted(byte_fallback())
            unit = {"text": counted("the cat 龘 ")["input_ids"], "bytes": [130], "unknown": [9999]}[kind]
            tokens = (unit * 2000)[:2000]
            detokenizer = Detokenizer(counted, tokens[:500])
            for token in tokens[500:]:
                detokenizer.add(token)
            assert max(counted.counts[200:]) <= 70 or kind == "unknown"
            assert max(counted.counts) <= 500 + 40
            assert len(counted.counts) <= 2 * 1500 + 10


@pytest.fixture(scope="module")
def writes(tmp_path_factory) -> Path:
    """A tiny GPT-2 with random weights."""
    folder, tokenizer = tmp_path_factory.mktemp("gpt2"), byte_level()
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=len(tokenizer), n_embd=32, n_layer=2, n_head=4, n_positions=200, bos_token_id=0, eos_token_id=0
    )
    return save(transformers.GPT2LMHeadModel(config), tokenizer, folder)


@pytest.fixture(scope="module")
def endless(tmp_path_factory) -> Path:
    """A tiny Llama with random weights that never stops."""
    folder, tokenizer = tmp_path_factory.mktemp("llama"), byte_level()
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4
    )
    config.bos_token_id = config.eos_token_id = None
    return save(transformers.LlamaForCausalLM(config), tokenizer, folder)


@pytest.fixture(scope="module")
def answers(tmp_path_factory) -> Path:
    """A tiny T5 with random weights."""
    folder, tokenizer = tmp_path_factory.mktemp("t5"), byte_level()
    torch.manual_seed(0)
    sizes = {"d_model": 32, "d_kv": 8, "num_layers": 2, "num_heads": 4, "d_ff": 48, "vocab_size": len(tokenizer)}
    config = transformers.T5Config(**sizes, decoder_start_token_id=0, eos_token_id=0, pad_token_id=0)
    return save(transformers.T5ForConditionalGeneration(config), tokenizer, folder)


def save(model, tokenizer, folder: Path) -> Path:
    with torch.no_grad():  # far apart, so that no token is likeliest by a rounding
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.normal_(std=0.3)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def theirs(folder: Path, text: str, stop: Sequence[int] = (0,), **asked) -> str:
    """What transformers' own `generate` writes."""
    config = transformers.AutoConfig.from_pretrained(folder)
    kind = transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM
    model, tokenizer = kind.from_pretrained(folder).eval(), transformers.AutoTokenizer.from_pretrained(folder)
    given = tokenizer(text, return_tensors="pt")
    given.pop("token_type_ids", None)
    found = model.generate(**given, do_sample=False, **asked)[0]
    start = 1 if config.is_encoder_decoder else given["input_ids"].shape[1]
    return whole(tokenizer, list(takewhile(lambda token: token not in stop, found[start:].tolist())))


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["regard", "generate", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setenv("NO_COLOR", "1")
        capsys.readouterr()  # the progress bars of models that a test has made
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return call


def test_a_pipe_gets_what_transformers_writes_and_a_newline_and_no_more(run, writes: Path) -> None:
    for case in sweep(["The animal", CHINESE]):
        with case as text:
            code, out, err = run(text, "--model", writes, "--max-new-tokens", 30)
            assert code == 0, err
            assert out == theirs(writes, text, max_new_tokens=30) + "\n"
            assert re.fullmatch(
                r"\d+ tokens in \d+\.\d s \(\d+\.\d/s\), (cut at --max-new-tokens 30|ended by the model)\n", err
            ), err


def test_an_encoder_decoder_answers_the_text(run, answers: Path) -> None:
    code, out, err = run("The animal", "--model", answers, "--max-new-tokens", 12)
    assert code == 0, err
    assert out == theirs(answers, "The animal", max_new_tokens=12) + "\n"


def test_beams_find_what_transformers_finds(run, answers: Path, writes: Path, tmp_path: Path) -> None:
    often = list(range(150))  # tokens that end a text: without them all texts would be of one length
    for name, folder in (("t5", answers), ("gpt2", writes)):
        copy, found = shutil.copytree(folder, tmp_path / name), []
        said = copy / "generation_config.json"
        said.write_text(json.dumps(json.loads(said.read_text()) | {"eos_token_id": often, "pad_token_id": 0}))
        for penalty in (None, -4.0, 4.0):
            option = () if penalty is None else ("--length-penalty", penalty)
            code, out, err = run("It slept", "--model", copy, "--max-new-tokens", 12, "--num-beams", 3, *option)
            assert code == 0, err
            asked = {} if penalty is None else {"length_penalty": penalty}
            expected = theirs(copy, "It slept", stop=often, max_new_tokens=12, num_beams=3, **asked)
            assert out == expected + "\n"
            found.append(out)
        assert len(set(found)) > 1


def with_rules(folder: Path, copy: Path, **rules) -> Path:
    shutil.copytree(folder, copy)
    said = copy / "generation_config.json"
    said.write_text(json.dumps(json.loads(said.read_text()) | rules))
    return copy


def test_rules_of_the_checkpoint_hold(run, writes: Path, answers: Path, tmp_path: Path) -> None:
    rules = {"no_repeat_ngram_size": 1, "repetition_penalty": 1.7, "num_beams": 2, "max_length": 7}
    for name, folder in (("gpt2", writes), ("t5", answers)):
        copy = with_rules(folder, tmp_path / name, **rules)
        code, out, err = run("It slept", "--model", copy, "--max-new-tokens", 12)
        assert code == 0, err
        assert out == theirs(copy, "It slept", max_new_tokens=12) + "\n"
        assert len(err.splitlines()) == 1
        greedy = run("It slept", "--model", copy, "--max-new-tokens", 12, "--greedy")[1]
        assert greedy == theirs(copy, "It slept", max_new_tokens=12, num_beams=1) + "\n"
    code, _, err = run("It", "--model", copy, "--greedy", "--num-beams", 2)
    assert (code, "`--greedy` takes the most likely token at each step" in " ".join(err.split())) == (2, True)


def test_a_checkpoint_that_draws_names_its_seed(run, writes: Path, tmp_path: Path) -> None:
    copy = with_rules(writes, tmp_path / "copy", do_sample=True, temperature=1.5, top_k=0)
    base = ("The animal", "--model", copy, "--max-new-tokens", 20)
    _, first, said = run(*base)
    seed = re.search(r"--seed (\d+) repeats it", said).group(1)
    assert run(*base, "--seed", seed)[1] == first
    assert run(*base, "--seed", seed, "--temperature", 1e-9)[1] != first
    assert run(*base, "--greedy")[1] == run("The animal", "--model", writes, "--max-new-tokens", 20)[1]


def test_a_seed_repeats_what_the_checkpoint_draws_from_its_usual_number_of_tokens(run, writes: Path, tmp_path) -> None:
    copy = with_rules(writes, tmp_path / "copy", do_sample=True, temperature=5.0, top_k=None)
    base = ("The animal", "--model", copy, "--max-new-tokens", 30)
    _, first, said = run(*base)
    seed = re.search(r"--seed (\d+) repeats it", said).group(1)
    assert run(*base, "--seed", seed)[1] == first
    assert run(*base, "--seed", seed, "--top-k", 50)[1] == first
    assert run(*base, "--seed", seed, "--top-k", 290)[1] != first


def test_a_least_length_of_the_checkpoint_is_cut_to_the_limit(run, writes: Path, tmp_path: Path) -> None:
    expected = theirs(writes, "The animal", max_new_tokens=12, min_new_tokens=12)
    for case in sweep([{"min_new_tokens": 200}, {"min_length": 200}, {"min_new_tokens": 200, "max_new_tokens": 5}]):
        with case as rules:
            copy = with_rules(writes, tmp_path / "-".join(rules), **rules)
            code, out, err = run("The animal", "--model", copy, "--max-new-tokens", 12)
            assert (code, out) == (0, expected + "\n"), err


def test_drawing_with_beams_names_the_options_that_lead_out(run, writes: Path, tmp_path: Path) -> None:
    copy = with_rules(writes, tmp_path / "copy", do_sample=True, num_beams=4)
    base = ("The animal", "--model", copy, "--max-new-tokens", 5)
    code, out, err = run(*base)
    assert (code, out) == (2, "")
    assert "give `--greedy`, `--num-beams 4` or `--seed 1`" in " ".join(err.split())
    for option in (("--greedy",), ("--num-beams", 4), ("--seed", 1)):
        assert run(*base, *option)[0] == 0


def test_a_rule_that_is_not_obeyed_is_a_line_of_its_own(run, writes: Path, tmp_path: Path) -> None:
    copy = with_rules(writes, tmp_path / "copy", guidance_scale=1.5, typical_p=0.5)
    code, out, err = run("The animal", "--model", copy, "--max-new-tokens", 5)
    assert (code, out) == (0, run("The animal", "--model", writes, "--max-new-tokens", 5)[1])
    warning = "warning: generation_config.json asks for `guidance_scale=1.5`, which regard does not obey: .*"
    assert re.fullmatch(warning, err.splitlines()[1])
    assert len(err.splitlines()) == 2


def test_a_dynamic_rope_goes_on_beyond_its_training(run, tmp_path: Path) -> None:
    tokenizer = byte_level()
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=12, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4},
        eos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    folder = save(transformers.LlamaForCausalLM(config), tokenizer, tmp_path / "dynamic")
    code, out, err = run("The animal", "--model", folder, "--max-new-tokens", 40)
    assert code == 0, err
    assert out == theirs(folder, "The animal", max_new_tokens=40) + "\n"


def test_a_seed_repeats_a_text_and_without_one_texts_differ(run, writes: Path) -> None:
    base = ("The animal", "--model", writes, "--max-new-tokens", 40)
    _, first, said = run(*base, "--temperature", 1.5)
    seed = re.search(r"--seed (\d+) repeats it", said).group(1)
    assert run(*base, "--temperature", 1.5, "--seed", seed)[1] == first
    assert run(*base, "--temperature", 1.5)[1] != first
    assert run(*base, "--seed", 7)[1] == run(*base, "--seed", 7, "--temperature", 1)[1]


def test_each_option_of_drawing_narrows_what_is_drawn(run, writes: Path) -> None:
    base = ("The animal", "--model", writes, "--max-new-tokens", 20)
    greedy = run(*base)[1]
    assert run(*base, "--top-k", 1)[1] == greedy
    assert run(*base, "--top-p", 1e-6)[1] == greedy
    assert run(*base, "--temperature", 1e-4)[1] == greedy
    assert run(*base, "--seed", 1)[1] != greedy


def always(text: str, folder: Path) -> Path:
    """A GPT-2 that writes one token for ever: its last norm gives (1, 0, …), of which that embedding has most."""
    tokenizer = byte_level()
    (token,) = tokenizer(text)["input_ids"]
    config = transformers.GPT2Config(
        vocab_size=len(tokenizer), n_embd=8, n_layer=1, n_head=1, n_positions=100, eos_token_id=0, bos_token_id=0
    )
    model = transformers.GPT2LMHeadModel(config)
    with torch.no_grad():
        model.transformer.ln_f.weight.zero_()
        model.transformer.ln_f.bias.copy_(torch.eye(8)[0])
        model.transformer.wte.weight.zero_()[token, 0] = 5.0
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_a_stop_token_ends_the_text_and_is_not_shown(run, tmp_path: Path) -> None:
    code, out, err = run("The animal", "--model", always("<end>", tmp_path))
    assert (code, out) == (0, "\n"), err
    assert err.startswith("1 token in ")
    assert "ended by the model" in err
    config = transformers.AutoConfig.from_pretrained(always("s", tmp_path))
    config.eos_token_id = byte_level()("s")["input_ids"][0]
    config.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    assert run("The animal", "--model", tmp_path)[:2] == (0, "\n")  # though the tokenizer takes it for a letter


def test_it_says_when_the_model_has_no_position_left(run, tmp_path: Path) -> None:
    folder, room = always("s", tmp_path), 100 - len(byte_level()("It")["input_ids"])
    code, out, err = run("It", "--model", folder)
    assert (code, out) == (0, "s" * room + "\n"), err
    assert "cut at the model's last position, 100" in err
    code, _, err = run("It", "--model", folder, "--max-new-tokens", room)
    assert f"cut at --max-new-tokens {room}" in err
    code, _, err = run("龘" * 50, "--model", folder)
    assert code == 2
    assert "which leaves none to generate: shorten it" in err


def test_rotary_positions_end_where_training_ended_though_they_could_turn_on(run, tmp_path: Path) -> None:
    tokenizer = byte_level()
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8,
        max_position_embeddings=40, eos_token_id=None, bos_token_id=0, pad_token_id=None,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    prompt = len(tokenizer("The animal slept")["input_ids"])
    code, _, err = run("The animal slept", "--model", tmp_path)
    assert code == 0, err
    assert err.startswith(f"{40 - prompt} tokens in ")
    assert "cut at the model's last position, 40" in err
    code, out, err = run("龘" * 50, "--model", tmp_path)
    assert (code, out) == (2, "")
    assert "positions for 40, which leaves none to generate: shorten it" in err


def test_a_stop_token_that_was_forced_at_the_limit_is_not_said_to_be_the_models_own(run, tmp_path: Path) -> None:
    tokenizer = byte_level()
    sizes = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in (("layers", 1), ("ffn_dim", 8))}
    sizes |= {"encoder_attention_heads": 1, "decoder_attention_heads": 1}
    config = transformers.BartConfig(
        vocab_size=290, d_model=8, **sizes, eos_token_id=0, forced_eos_token_id=0, decoder_start_token_id=1
    )
    torch.manual_seed(0)
    save(transformers.BartForConditionalGeneration(config), tokenizer, tmp_path)
    code, _, err = run("It slept", "--model", tmp_path, "--max-new-tokens", 5)
    assert code == 0
    assert "5 tokens in" in err
    assert "cut at --max-new-tokens 5" in err


def test_a_chat_template_makes_a_turn_of_the_text(run, writes: Path, tmp_path: Path) -> None:
    tokenizer = byte_level()
    begins = tokenizers.processors.TemplateProcessing(single="<end> $A", special_tokens=[("<end>", 0)])
    tokenizer.backend_tokenizer.post_processor = begins  # for a text, not for a turn, whose template would say it
    tokenizer.chat_template = (
        "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}[bot]{% endif %}"
    )
    transformers.AutoModelForCausalLM.from_pretrained(writes).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    code, out, err = run("It slept", "--model", tmp_path, "--chat", "--max-new-tokens", 20)
    assert code == 0, err
    assert out == theirs(writes, "[user] It slept\n[bot]", max_new_tokens=20) + "\n"
    tokenizer.chat_template = "{{ raise_exception('system first') }}"
    tokenizer.save_pretrained(tmp_path)
    code, out, err = run("It slept", "--model", tmp_path, "--chat")
    assert (code, out) == (2, "")
    assert "leave `--chat` out (system first)" in err


def test_a_file_is_read_without_the_newline_at_its_end(run, writes: Path, tmp_path: Path) -> None:
    file = tmp_path / "it.txt"
    file.write_text(f"{CHINESE}\n", encoding="utf-8")
    assert run(file, "--model", writes, "--max-new-tokens", 9)[1] == theirs(writes, CHINESE, max_new_tokens=9) + "\n"
    assert read_prompt("typed\n") == "typed\n"
    with pytest.raises(InputError, match="the text is empty"):
        read_prompt(" \n")


REFUSALS = [
    (["  "], "the text is empty"),
    (["a", "--max-new-tokens", 0], "`--max-new-tokens` must be at least 1, got 0"),
    (["a", "--threads", 0], "`--threads` must be at least 1, got 0"),
    (["a", "--threads", 100_000], "`--threads` must be at most 4,096, got 100,000"),
    (["a", "--num-beams", 0], "`--num-beams` must be at least 1, got 0"),
    (["a", "--top-k", 0], "`--top-k` must be at least 1, got 0"),
    (["a", "--top-p", 1.5], "`--top-p` must be above 0 and at most 1, got 1.5"),
    (["a", "--top-p", 0], "`--top-p` must be above 0"),
    (["a", "--temperature", 0], "leave it out to take the most likely token at each step"),
    (["a", "--temperature", "nan"], "`--temperature` must be a number above 0, got nan"),
    (["a", "--seed", -1], "`--seed` must be from 0"),
    (["a", "--num-beams", 2, "--temperature", 1], "`--temperature` samples: leave one of them out"),
    (["a", "--num-beams", 2, "--top-k", 3], "`--top-k` samples"),
    (["a", "--num-beams", 2, "--top-p", 0.5], "`--top-p` samples"),
    (["a", "--num-beams", 2, "--seed", 3], "`--seed` samples"),
    (["a", "--length-penalty", 2], "`--length-penalty` is for `--num-beams`"),
    (["a", "--num-beams", 2, "--length-penalty", "inf"], "`--length-penalty` must be a finite number"),
    (["a", "--model", "minilm"], "'minilm' is an encoder: take smollm2"),
    (["a", "--model", "me5"], "regard look --model me5"),
    (["a", "--model", "./no-such-folder"], "there is no folder './no-such-folder'"),
    (["a", "--model", ""], "the name of a model must not be empty"),
]


def test_bad_input_is_one_sentence_and_exit_code_2(run) -> None:
    for case in sweep(REFUSALS):
        with case as (arguments, words):
            code, out, err = run(*arguments)
            assert (code, out) == (2, "")
            assert words in err
            assert len(err.strip().splitlines()) == 1


def test_a_folder_that_cannot_write_is_refused_with_the_way_out(run, writes: Path, tmp_path: Path) -> None:
    def refused(*arguments: object) -> str:
        code, out, err = run("a", "--model", tmp_path, *arguments)
        assert (code, out) == (2, "")
        assert len(err.strip().splitlines()) == 1
        return err

    transformers.AutoModelForCausalLM.from_pretrained(writes).save_pretrained(tmp_path)
    assert "put it beside the weights with tokenizer.save_pretrained (there is none)" in refused()
    (tmp_path / "tokenizer.json").write_text("{")
    assert "put it beside the weights with tokenizer.save_pretrained" in refused()
    byte_level().save_pretrained(tmp_path)
    assert "`--chat` needs a chat template" in refused("--chat")
    sizes = {"vocab_size": 290, "n_embd": 8, "n_layer": 1, "n_head": 1}
    transformers.GPT2Model(transformers.GPT2Config(**sizes)).save_pretrained(tmp_path)
    assert "has no language-modeling head" in refused()
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    transformers.BertModel(transformers.BertConfig(vocab_size=290, **sizes)).save_pretrained(tmp_path)
    assert "is an encoder: take" in refused()


ESC = "\x1b"
# Who was started in the background ignores Ctrl-C, and so do its children, unless they say otherwise.
HEARS = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
COMMAND = [sys.executable, "-c", f"{HEARS}from regard.cli import main; main()", "generate"]


def in_terminal(*arguments: object, until: bytes = b"", width: int = 80) -> tuple[int, str]:
    """Run it in a pseudo-terminal, press Ctrl-C when `until` has been shown, and give what was shown."""
    ours, its = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(width), "TERM": "xterm-256color", "PYTHONUTF8": "1"}
    environment.pop("NO_COLOR", None)
    started = subprocess.Popen(
        [*COMMAND, *map(str, arguments)], stdin=its, stdout=its, stderr=its, env=environment, start_new_session=True
    )
    os.close(its)
    shown, pressed, limit = b"", False, time.monotonic() + 240
    while time.monotonic() < limit:
        ready, _, _ = select.select([ours], [], [], 1.0)
        if not ready:
            continue
        try:
            new = os.read(ours, 65536)
        except OSError:  # Linux's way to say that the other side has closed
            break
        shown += new
        if until and until in shown and not pressed:
            pressed = True
            started.send_signal(signal.SIGINT)
    code = started.wait(timeout=30)
    os.close(ours)
    return code, shown.decode("utf-8")


def last_of(shown: str) -> str:
    """What stays on the screen: the spinner is erased before anything else is written."""
    return re.sub(r"\x1b\[\?25[hl]", "", shown).rpartition("\x1b[2K")[2]


@pytest.mark.slow
def test_a_terminal_shows_the_text_dim_and_behind_it_what_is_new_and_obeys_neither(run, tmp_path: Path) -> None:
    given = (f"{CHINESE}\x1b[31m", "--model", always("\x1b", tmp_path), "--max-new-tokens", 3)
    code, shown = in_terminal(*given)
    assert code == 0, shown
    text, said, rest = last_of(shown).split("\r\n")
    assert text == rf"{ESC}[2m{CHINESE}\x1b[31m{ESC}[0m\x1b\x1b\x1b"
    assert re.search(r"3 tokens in \S+ s \(\S+/s\), cut at --max-new-tokens 3\x1b", said)
    assert rest == ""
    assert shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l")  # the cursor is there again
    assert "loading the libraries" in shown
    assert run(*given)[1] == "\x1b\x1b\x1b\n"  # a pipe gets it as it is


def test_a_terminal_shows_an_answer_without_the_text_before_it(run, monkeypatch, answers: Path, tmp_path: Path) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert "It slept" not in run("It slept", "--model", answers, "--max-new-tokens", 5)[1]
    tokenizer = byte_level()
    tokenizer.chat_template = "{{ messages[0].content }}"
    always("s", tmp_path)
    assert run("It slept", "--model", tmp_path, "--max-new-tokens", 5)[1] == f"{ESC}[2mIt slept{ESC}[0msssss\n"
    tokenizer.save_pretrained(tmp_path)
    assert run("It slept", "--model", tmp_path, "--max-new-tokens", 5, "--chat")[1] == "sssss\n"


def test_each_token_is_sent_off_at_once(run, monkeypatch, tmp_path: Path) -> None:
    folder, calls = always("s", tmp_path), []
    with monkeypatch.context() as patched:
        patched.setattr(sys.stdout, "flush", lambda: calls.append("flush"))
        patched.setattr(sys.stdout, "write", calls.append)
        run("It slept", "--model", folder, "--max-new-tokens", 3)
    assert calls[calls.index("s") :][:6] == ["s", "flush"] * 3


def test_a_long_text_is_shown_from_near_its_end(run, monkeypatch, endless: Path) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    out = run("a" + "我" * 2000, "--model", endless, "--max-new-tokens", 1)[1]
    assert out.startswith(f"{ESC}[2m…{'我' * 2000}{ESC}[0m")


@pytest.mark.slow
def test_ctrl_c_leaves_what_was_written_and_a_clean_terminal(endless: Path) -> None:
    code, shown = in_terminal(
        "The animal", "--model", endless, "--max-new-tokens", 1_000_000, until=b"The animal\x1b[0m"
    )
    assert code == 130, shown
    assert "Traceback" not in shown
    assert shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l")
    written, newline, said = last_of(shown).replace("\r\n", "\n").rstrip("\n").rpartition("\n")
    assert written.startswith("\x1b[2mThe animal\x1b[0m")
    assert newline
    assert said.startswith("regard: interrupted")


@pytest.mark.slow
def test_a_closed_pipe_ends_it_in_silence(endless: Path) -> None:
    arguments = ["The animal", "--model", str(endless), "--max-new-tokens", "1000000"]
    started = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert len(started.stdout.read(20)) == 20
    started.stdout.close()
    with contextlib.closing(started.stderr):
        assert started.stderr.read() == b""
    assert started.wait(timeout=30) in (0, 1, 141)


@pytest.mark.models
@pytest.mark.skipif(not bundled.is_installed("smollm2"), reason="smollm2 is missing: regard models get smollm2")
@pytest.mark.slow
@pytest.mark.parametrize("text", ["The capital of France is", "我爱你，"])
def test_smollm2_writes_what_transformers_makes_it_write(run, text: str) -> None:
    code, out, err = run(text, "--max-new-tokens", 12)
    assert code == 0, err
    assert out == theirs(bundled.folder("smollm2"), text, stop=(2,), max_new_tokens=12) + "\n"


@pytest.mark.slow
@pytest.mark.models
@pytest.mark.skipif(not bundled.is_installed("smollm2"), reason="smollm2 is missing: regard models get smollm2")
def test_smollm2_answers_a_message(run) -> None:
    code, out, err = run("What is the capital of France?", "--chat", "--max-new-tokens", 20)
    assert code == 0, err
    assert "Paris" in out
    assert "<|im_end|>" not in out
