"""Draw the pictures of docs/seeing.md: `python docs/seeing_pictures.py` (two minutes on two cores; the bundled models).

The translator and the vision transformer are small ones, trained here from nothing, so that their attention has been
learned: numbers from English to Chinese, and the colour of a disc in noise.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from torch.nn.functional import cross_entropy

import regard
from regard.interpret.observation import Observation
from regard.models.recurrent import RecurrentConfig, RecurrentSeq2Seq
from regard.record.records import Record
from regard.record.tokens import Token
from regard.render.mpl_figure import write_figure

IMAGES = Path(__file__).parent / "images"
ONES = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen".split()
ONES += "seventeen eighteen nineteen".split()
TENS = "zero ten twenty thirty forty fifty sixty seventy eighty ninety".split()
DIGITS = "零一二三四五六七八九"
COLOURS = ((230, 60, 60), (60, 200, 80), (60, 90, 230), (230, 200, 40))
START, STOP = 1, 2


def english(number: int) -> list[str]:
    """3042 → three thousand and forty two."""
    if number < 20:
        return [ONES[number]]
    if number < 100:
        return [TENS[number // 10], *(english(number % 10) if number % 10 else [])]
    size, name = (1000, "thousand") if number >= 1000 else (100, "hundred")
    rest = number % size
    return [*english(number // size), name, *(["and"] if 0 < rest < 100 else []), *(english(rest) if rest else [])]


def chinese(number: int) -> list[str]:
    """3042 → 三 千 零 四 十 二."""
    text, gap = [], False
    for size, name in ((1000, "千"), (100, "百"), (10, "十"), (1, "")):
        digit = number // size % 10
        if digit:
            text += (["零"] if gap and text else []) + [DIGITS[digit], *([name] if name else [])]
        gap = not digit
    return text


def alignment(path: Path) -> None:
    """Train Bahdanau's translator on numbers, and see what it looks at for each word that it writes."""
    torch.manual_seed(0)
    numbers = range(100, 1_000)
    sources, targets = [english(one) for one in numbers], [chinese(one) for one in numbers]
    words = {word: 3 + at for at, word in enumerate(sorted({word for text in sources for word in text}))}
    signs = {sign: 3 + at for at, sign in enumerate(sorted({sign for text in targets for sign in text}))}

    def batch(which: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = [[words[word] for word in sources[one]] + [STOP] for one in which.tolist()]
        others = [[START, *(signs[sign] for sign in targets[one]), STOP] for one in which.tolist()]
        return padded(rows), padded(others)

    config = RecurrentConfig(
        src_vocab_size=3 + len(words),
        tgt_vocab_size=3 + len(signs),
        embedding_dim=32,
        hidden_size=48,
        attention="bahdanau",
    )
    model = RecurrentSeq2Seq(config)
    steps = torch.optim.Adam(model.parameters(), 8e-3)
    for _ in range(250):
        source, target = batch(torch.randint(len(numbers), (32,)))
        loss = cross_entropy(
            model(source, decoder_input_ids=target[:, :-1]).logits.transpose(1, 2), target[:, 1:], ignore_index=0
        )
        steps.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        steps.step()
    sys.stderr.write(f"numbers: loss {loss.item():.4f}\n")
    one = 372 - 100
    source, target = batch(torch.tensor([one]))
    with torch.no_grad(), regard.watch(model.eval()) as seen:
        model(source, decoder_input_ids=target[:, :-1])
    tokens = {
        "source": (spelled([*sources[one], "</s>"]),),
        "target": (spelled(["<s>", *targets[one], "</s>"]),),
    }
    named = Observation((Record(seen.record.layers, tokens, "numbers"),))
    write_figure(named.plot_alignment(rows="written"), path)


def padded(rows: list[list[int]]) -> torch.Tensor:
    """Rows of one length, filled up with 0."""
    longest = max(map(len, rows))
    return torch.tensor([row + [0] * (longest - len(row)) for row in rows])


def spelled(words: list[str]) -> tuple[Token, ...]:
    """A token for each word, the ends special."""
    return tuple(Token(word, special=word[0] == "<", word=at, space=True) for at, word in enumerate(words))


def discs(count: int, generator: np.random.Generator) -> tuple[np.ndarray, torch.Tensor]:
    """Images of 64 × 64 with a disc of one of four colours somewhere in noise."""
    y, x = np.mgrid[:64, :64]
    images = generator.integers(60, 180, (count, 64, 64, 3))
    colours, places = generator.integers(0, 4, count), generator.integers(10, 54, (count, 2))
    for image, colour, (row, column) in zip(images, colours, places, strict=True):
        image[(y - row) ** 2 + (x - column) ** 2 < 49] = COLOURS[colour]
    return images.astype(np.uint8), torch.from_numpy(colours)


def pixels(images: np.ndarray) -> torch.Tensor:
    """What a vision transformer reads."""
    return torch.from_numpy(images).permute(0, 3, 1, 2).float() / 127.5 - 1


def patches(path: Path) -> None:
    """Train a vision transformer to name the disc's colour, and see where its [CLS] looks."""
    torch.manual_seed(0)
    generator = np.random.default_rng(0)
    sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
    config = transformers.ViTConfig(**sizes, image_size=64, patch_size=8, num_labels=4)
    model = transformers.ViTForImageClassification(config)
    steps = torch.optim.Adam(model.parameters(), 2e-3)
    for _ in range(150):
        images, colours = discs(32, generator)
        loss = cross_entropy(model(pixels(images)).logits, colours)
        steps.zero_grad()
        loss.backward()
        steps.step()
    sys.stderr.write(f"discs: loss {loss.item():.4f}\n")
    images, _ = discs(1, generator)
    with torch.no_grad(), regard.watch(model.eval()) as seen:
        model(pixels(images))
    sharpest = [seen.weights(layer=1, head=head)[0, 0, 1:].max() for head in range(4)]
    write_figure(seen.plot_patches(images[0], model, layer=1, head=int(np.argmax(sharpest)), patch="cls"), path)


def notebook(path: Path) -> None:
    """A photograph of what a notebook shows, in Chromium."""
    from playwright.sync_api import sync_playwright

    looked = regard.look("The animal didn't cross the street because it was too tired", model="minilm")
    seen = Observation((looked.record,))
    seen.export(IMAGES / "seeing-entropy.png", "entropy", layer=2)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as running:
        page = Path(folder) / "notebook.html"
        page.write_text(f'<!doctype html><meta charset="utf-8">{seen._repr_html_()}', encoding="utf-8")
        browser = running.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-gpu"])
        tab = browser.new_page(viewport={"width": 1000, "height": 830})
        tab.goto(page.as_uri())
        tab.wait_for_timeout(2000)
        tab.screenshot(path=str(path))
        browser.close()


if __name__ == "__main__":
    torch.set_num_threads(1)  # for small matrices threads wait for each other longer than they work
    made = {"alignment": alignment, "patches": patches, "notebook": notebook}
    for name in sys.argv[1:] or made:
        made[name](IMAGES / f"seeing-{name}.png")
