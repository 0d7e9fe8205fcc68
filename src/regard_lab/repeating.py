"""Sentences said again through one vector of fixed size, and with attention: which words come back, by length.

A sentence is a row of clauses such as "old farmers paint red boats": an adjective, a noun, a verb, an adjective and a
noun, each drawn at random from sixteen known words. So a model that has learned the grammar and nothing of the sentence
guesses one word of sixteen. Both models are those of `regard_lab.seq2seq` (Cho et al. 2014, arXiv:1406.1078; Bahdanau
et al. 2015, arXiv:1409.0473): GRUs with about as many parameters, trained on sentences of all lengths alike.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import mean
from typing import Any

import torch
from torch import Generator

from regard.data import Copy
from regard.models import RecurrentSeq2Seq
from regard_lab.measuring import one_thread
from regard_lab.seq2seq import Lesson, config_of, learned, without

__all__ = ["GROUPS", "PATTERN", "WORDS", "Clauses", "Repeating", "measured", "summary"]

GROUPS = {
    "adjective": {
        "old": "年老的", "young": "年轻的", "red": "红色的", "blue": "蓝色的", "small": "小小的", "tall": "高高的",
        "happy": "快乐的", "tired": "疲倦的", "quiet": "安静的", "loud": "吵闹的", "clever": "聪明的",
        "strange": "奇怪的", "brave": "勇敢的", "lazy": "懒惰的", "kind": "善良的", "hungry": "饥饿的",
    },
    "noun": {
        "farmers": "农民", "teachers": "老师", "children": "孩子", "doctors": "医生", "singers": "歌手", "cats": "猫",
        "dogs": "狗", "birds": "鸟", "horses": "马", "foxes": "狐狸", "bears": "熊", "sailors": "水手",
        "painters": "画家", "bakers": "面包师", "kings": "国王", "robots": "机器人",
    },
    "verb": {
        "see": "看见", "hear": "听见", "follow": "跟着", "help": "帮助", "love": "爱", "paint": "画", "visit": "拜访",
        "call": "呼叫", "know": "认识", "teach": "教", "feed": "喂", "find": "找到", "thank": "感谢", "greet": "问候",
        "chase": "追赶", "lead": "带领",
    },
}  # fmt: skip
PATTERN = (0, 1, 2, 0, 1)  # the group of each word of a clause
WORDS = [pair for group in GROUPS.values() for pair in group.items()]  # (English, Chinese), by the number of the symbol
SIZE = len(GROUPS["noun"])  # words of each group

# A letter for each symbol: outputs are kept as texts. What is no word of a sentence (a special token) is a hyphen.
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuv"
_OTHER = "-"


@dataclass(frozen=True)
class Clauses(Copy):
    """The target is the source, a sentence of clauses; a sentence may end within one.

    >>> (source,), _ = Clauses().sample(1, length_range=(7, 7), generator=Generator().manual_seed(0))
    >>> [WORDS[symbol - Clauses.first_symbol][0] for symbol in source]
    ['small', 'bears', 'paint', 'quiet', 'farmers', 'quiet', 'painters']
    """

    num_symbols: int = len(WORDS)

    def sample(
        self, num_samples: int, *, length_range: tuple[int, int] | None = None, generator: Generator
    ) -> tuple[list[list[int]], list[list[int]]]:
        """Return random sentences, each as source and target."""
        rows, _ = super().sample(num_samples, length_range=length_range, generator=generator)
        words = [
            [
                self.first_symbol + SIZE * PATTERN[place % len(PATTERN)] + symbol % SIZE
                for place, symbol in enumerate(row)
            ]
            for row in rows
        ]
        return words, [self.target(row) for row in words]


@dataclass(frozen=True, kw_only=True)
class Repeating:
    """The settings of the experiment: sizes, training, and what is measured.

    `examples` sentences of each length are shown word by word, by the first seed: those of which one vector keeps a
    number of words that is nearest to the mean of all sentences and seeds.
    """

    hidden: int = 64
    steps: int = 1500
    batch: int = 64
    learning_rate: float = 3e-3
    longest: int = 50
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    lengths: tuple[int, ...] = (5, 10, 20, 30, 40, 50)
    sentences: int = 60
    examples: int = 2


def measured(settings: Repeating, progress: Callable[[str], None]) -> dict[str, Any]:
    """Train both models with each seed, and return what they say of the same new sentences of each length.

    The result is JSON: `sources` has texts of a letter for each word by length, `models` the outputs by model, seed and
    length, the number of parameters, the width of the decoder's states, and of the vector that a sentence goes through.
    `strongest` has for each word of the examples (`Repeating`) the place in the source that has the largest weight.
    """
    task = Clauses()
    generator = Generator().manual_seed(10_000)
    drawn = {
        length: task.sample(settings.sentences, length_range=(length, length), generator=generator)[0]
        for length in settings.lengths
    }
    sources = {str(length): [_letters(row) for row in rows] for length, rows in drawn.items()}
    lesson = Lesson(
        task=task, shortest=1, longest=settings.longest, steps=settings.steps, texts=settings.batch,
        rate=settings.learning_rate,
    )  # fmt: skip
    attention = config_of(task, settings.hidden)
    models: dict[str, Any] = {}
    strongest: dict[str, list[list[int]]] = {}
    for name, config in (("fixed", without(attention)), ("attention", attention)):
        outputs = {}
        for seed in settings.seeds:
            progress(f"{name}, seed {seed}: {settings.steps:,} steps")
            model = learned(config, lesson, seed)
            with one_thread():
                outputs[str(seed)] = {str(length): _said(model, rows) for length, rows in drawn.items()}
                if name == "attention" and seed == settings.seeds[0]:
                    strongest = {
                        length: [_strongest(model, drawn[int(length)][number]) for number in numbers]
                        for length, numbers in _examples(models["fixed"]["outputs"], sources, settings.examples).items()
                    }
        models[name] = {
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "state": config.hidden_size,
            "vector": config.encoder_output_size,
            "outputs": outputs,
        }
    return {"settings": asdict(settings), "sources": sources, "models": models, "strongest": strongest}


def summary(results: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a page shows of the results of `measured`, as JSON.

    For each model and length there is a number for each seed: the share of words that are right, in their own places,
    and of sentences that are right as a whole. Words are numbers of the vocabulary, −1 for what is none.
    """
    settings, sources = results["settings"], results["sources"]
    models = {}
    for name, model in results["models"].items():
        outputs = list(model["outputs"].values())
        models[name] = {
            **{size: model[size] for size in ("parameters", "state", "vector")},
            "words_right": {
                length: [round(_words_right(output[length], rows), 4) for output in outputs]
                for length, rows in sources.items()
            },
            "sentences_right": {
                length: [round(mean(map(str.__eq__, output[length], rows)), 4) for output in outputs]
                for length, rows in sources.items()
            },
        }
    first = str(settings["seeds"][0])
    numbers = _examples(results["models"]["fixed"]["outputs"], sources, settings["examples"])
    examples = [
        {
            "length": int(length),
            "source": _numbers(rows[number]),
            "fixed": _numbers(results["models"]["fixed"]["outputs"][first][length][number]),
            "attention": _numbers(results["models"]["attention"]["outputs"][first][length][number]),
            "strongest": strongest,
        }
        for length, rows in sources.items()
        for number, strongest in zip(numbers[length], results["strongest"][length], strict=True)
    ]
    vocabulary = {"en": [english for english, _ in WORDS], "zh": [chinese for _, chinese in WORDS]}
    return {"settings": settings, "guess": 1 / SIZE, "vocabulary": vocabulary, "models": models, "examples": examples}


def _examples(
    outputs: Mapping[str, Mapping[str, Sequence[str]]], sources: Mapping[str, Sequence[str]], count: int
) -> dict[str, list[int]]:
    """Return by length the numbers of the sentences whose share of right words is nearest to the mean of all.

    `outputs` are those of the model with one vector, by seed; the share of a sentence is that of the first seed.
    """
    first = next(iter(outputs.values()))
    numbers = {}
    for length, rows in sources.items():
        typical = mean(_words_right(output[length], rows) for output in outputs.values())
        distances = [abs(_words_right([said], [row]) - typical) for said, row in zip(first[length], rows, strict=True)]
        numbers[length] = sorted(range(len(rows)), key=distances.__getitem__)[:count]
    return numbers


def _said(model: RecurrentSeq2Seq, sources: list[list[int]]) -> list[str]:
    """Return what a model makes of sentences of one length; longer than twice the sentence it is wrong anyhow."""
    with torch.inference_mode():
        rows = model.generate(sources, max_new_tokens=2 * len(sources[0]), return_dict_in_generate=True).new_tokens
    return [_letters(row[:-1] if row[-1] == Copy.eos_token_id else row) for row in rows]


def _strongest(model: RecurrentSeq2Seq, source: list[int]) -> list[int]:
    """Return for each word that the model says the place of the source with the largest weight."""
    row = model.generate([source], max_new_tokens=2 * len(source), return_dict_in_generate=True).new_tokens[0]
    inputs = torch.tensor([[Copy.bos_token_id, *row[:-1]]])
    with torch.inference_mode():
        weights = model(torch.tensor([source]), decoder_input_ids=inputs, return_weights=True).weights
    assert weights is not None
    places: list[int] = weights[0].argmax(-1).tolist()
    return places[:-1] if row[-1] == Copy.eos_token_id else places


def _letters(tokens: Sequence[int]) -> str:
    """Return tokens as a text with a letter for each."""
    first = Copy.first_symbol
    return "".join(LETTERS[token - first] if token >= first else _OTHER for token in tokens)


def _numbers(letters: str) -> list[int]:
    return [LETTERS.find(letter) for letter in letters]


def _words_right(outputs: Sequence[str], sources: Sequence[str]) -> float:
    """Return the share of the words of the sources that the outputs have at the same places."""
    right = sum(
        a == b for said, source in zip(outputs, sources, strict=True) for a, b in zip(said, source, strict=False)
    )
    return right / sum(map(len, sources))
