"""Does `regard.sources` find the document that has the answer, and does it say when none has?

    python benchmarks/sources.py [--prompts 200] [--leave-one-out-every 5] [--results benchmarks/results/sources.json]

Prompts of 8 to 16 documents in English, German or Spanish, whose names, facts and questions are not among those that
the heads were found on (src/regard/interpret/source_examples.py). For each prompt: the first document by the heads that
come with SmolLM2, by the mean of all heads and by the words that it shares with question and answer; and how much is
read (`Sources.strength`) with the document that has the answer, and with other sentences of about its length in its
place. For every fifth prompt, the text of each document is also left out, one at a time, and the prompt tokenized
again: by a forward of the model here, not by `verify`. The results are written after each prompt; a stopped run
resumes.
"""

import argparse
import itertools
import json
import platform
import random
import re
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers

from regard import HeadSet, load_model, sources, tap
from regard.files import write_atomically
from regard.heads.answer_sources import mean_by_reading
from regard.heads.head_set import ReadoutScore
from regard.interpret.source_prompt import joined, prompt_of, token_ranges

NAMES = (
    "Abelard Brunhilde Casimir Dorothea Evander Fiorella Gustavo Henrietta Ignatius Jadwiga Kazuo Leopoldine Mbali "
    "Nikolai Ottilie Percival Quentin Rosalind Sigmund Theodora Ulrich Valentina Wolfram Xiomara Yevgenia Zacharias"
).split()


@dataclass(frozen=True)
class Language:
    """Facts (text, question, answer, values), further sentences, and the name of a document."""

    name: str
    facts: tuple[tuple[str, str, str, str], ...]
    more: tuple[str, ...]
    document: str


ENGLISH = Language(
    "English",
    (
        ("{n} arrived at the harbour in {v} and stayed for the winter.", "In which month did {n} reach the harbour?",
         "{n} reached the harbour in {v}.", "January,February,March,April,May,June,July,August,October,November"),
        ("According to the ledger, the mill cost {n} {v} crowns.", "How much did {n} pay for the mill?",
         "{n} paid {v} crowns.", "twelve,thirty,forty,ninety,seventy,fifteen,eleven,sixty,eighty"),
        ("The expedition led by {n} was looking for {v} in the hills.", "What was {n} searching for?",
         "{n} was searching for {v}.", "copper,silver,amber,salt,pearls,coal,tin,ivory,silk"),
        ("After the concert a glass of {v} was brought to {n}.", "What did {n} drink?", "{n} drank {v}.",
         "milk,water,cider,wine,lemonade,tea,coffee,rum"),
        ("The letters of {n} are kept in a box made of {v}.", "What is the box of {n} made of?", "It is made of {v}.",
         "oak,glass,iron,marble,bamboo,leather,brass,cedar"),
    ),
    ("The seller kept the keys until spring.", "Two lines about it appeared in the local paper.",
     "After three years it was forgotten.", "Only a few visitors knew the reason."),
    "Report {i}",
)  # fmt: skip
GERMAN = Language(
    "German",
    (
        ("{n} kam im {v} mit dem Zug in die Stadt.", "Wann kam {n} in die Stadt?", "{n} kam im {v}.",
         "Januar,Februar,April,Mai,Juni,Juli,August,Oktober,November,Dezember"),
        ("Die Bibliothek schenkte {n} ein Buch über {v}.", "Worüber ist das Buch von {n}?", "Es ist ein Buch über {v}.",
         "Vögel,Bienen,Brücken,Sterne,Pilze,Schiffe,Glocken,Inseln"),
        ("Im Garten von {n} steht eine alte {v}.", "Was steht im Garten von {n}?", "Dort steht eine alte {v}.",
         "Linde,Eiche,Birke,Tanne,Mauer,Bank,Hütte,Statue"),
    ),
    ("Davon erfuhr niemand etwas.", "Das Wetter war schlecht.", "Die Nachbarn redeten lange darüber."),
    "Bericht {i}",
)  # fmt: skip
SPANISH = Language(
    "Spanish",
    (
        ("{n} vendió su casa por culpa de {v}.", "¿Por qué vendió {n} su casa?", "La vendió por culpa de {v}.",
         "la lluvia,el ruido,los ratones,la guerra,el frío,los vecinos"),
        ("El abuelo de {n} era {v} en un pueblo pequeño.", "¿Qué era el abuelo de {n}?", "El abuelo de {n} era {v}.",
         "herrero,pescador,médico,zapatero,músico,pastor,panadero"),
        ("Para su cumpleaños {n} recibió {v} de regalo.", "¿Qué recibió {n} para su cumpleaños?", "{n} recibió {v}.",
         "un sombrero,una guitarra,un caballo,dos libros,una pulsera,un reloj"),
    ),
    ("Nadie lo sabía entonces.", "Hacía mucho calor ese día.", "Todo cambió después."),
    "Nota {i}",
)  # fmt: skip


@dataclass(frozen=True)
class Asked:
    """A prompt, and the same `absent` the answer; `repeated`: another document has the same fact of somebody else."""

    documents: dict[str, str]
    absent: dict[str, str]
    question: str
    answer: str
    source: int
    language: str
    repeated: bool


def prompt(seed: int) -> Asked:
    """The prompt of a seed."""
    draw = random.Random(f"prompt {seed}")
    language = draw.choices((ENGLISH, GERMAN, SPANISH), (2, 1, 1))[0]
    people = draw.sample(NAMES, draw.randrange(8, 17))
    chosen = [draw.choice(language.facts) for _ in people]
    values = [draw.choice(one[3].split(",")) for one in chosen]
    source = draw.randrange(len(people))
    documents, absent = {}, {}
    others = [" ".join(one) for n in (1, 2, 3) for one in itertools.permutations(language.more, n)]
    draw.shuffle(others)
    for at, (person, fact, value) in enumerate(zip(people, chosen, values, strict=True)):
        name, text = language.document.format(i=at + 1), fact[0].format(n=person, v=value)
        instead = min(others, key=lambda one: abs(len(one) - len(text)))
        more = draw.choice(language.more) if draw.random() < 0.7 else ""
        said, other = ((more, text), (more, instead)) if draw.random() < 0.5 else ((text, more), (instead, more))
        documents[name] = " ".join(filter(None, said))
        absent[name] = " ".join(filter(None, other)) if at == source else documents[name]
    _, question, answer, _ = chosen[source]
    asked = (one.format(n=people[source], v=values[source]) for one in (question, answer))
    alike = zip(chosen, values, strict=True)
    repeated = sum(one == (chosen[source], values[source]) for one in alike) > 1
    return Asked(documents, absent, *asked, source, language.name, repeated)


def without_each(loaded: Any, documents: dict[str, str], question: str, answer: str) -> list[float]:
    """What the answer loses without the text of each document."""

    def ids(left_out: str | None, answer: str) -> list[int]:
        text = "Answer the question from these documents.\n\n"
        for number, (name, one) in enumerate(documents.items(), 1):
            text += f"[{number}] {name}\n" + (f"{one}\n\n" if name != left_out else "\n")
        asked = [{"role": "user", "content": f"{text}Question: {question}"}]
        chat = loaded.tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
        return list(loaded.tokenizer(chat + answer, add_special_tokens=False)["input_ids"])

    new = len(ids(None, answer)) - len(ids(None, ""))
    cache, whole = transformers.DynamicCache(), ids(None, answer)

    def log_prob(left_out: str | None) -> float:
        """The log-probability of the answer, where the cache keeps what the prompt has in common with the whole."""
        text = ids(left_out, answer)
        same = next((at for at, (one, other) in enumerate(zip(text, whole)) if one != other), 0)  # noqa: B905
        if drop := cache.get_seq_length() - same:
            cache.crop(-drop)
        with torch.no_grad():
            given = torch.tensor([text[same:]])
            logits = loaded.model(given, past_key_values=cache, logits_to_keep=new + 1).logits[0, :-1]
        return float(logits.double().log_softmax(-1).gather(1, given[0, -new:, None]).sum())

    total = log_prob(None)
    return [total - log_prob(name) for name in reversed(documents)][::-1]


def one_pass(
    loaded: Any, heads: HeadSet, documents: dict[str, str], question: str, answer: str
) -> tuple[npt.NDArray[np.float64], float]:
    """The weight of each head on each document while each token of the answer is predicted, (tokens, heads, documents),
    and the mean log-probability of the tokens.
    """
    made = prompt_of(
        loaded.tokenizer, prompt=None, documents=documents, question=question, messages=None, parts="document"
    )
    ids, spans, first = joined(loaded.tokenizer, made.text, answer, typed=made.typed)
    keys = {str(at): one for at, one in enumerate(token_ranges(made.text, spans, made.places))}
    new = torch.tensor(ids[first:])[:, None]
    with torch.no_grad(), tap(loaded.model, heads=heads, keys=keys, queries=range(first - 1, len(ids) - 1)) as rows:
        logits = loaded.model(torch.tensor([ids]), use_cache=False, logits_to_keep=len(new) + 1).logits[0, :-1]
    order = [rows.heads.index(one) for one in heads.heads]
    weights = torch.stack([row.weights[0] for row in rows.rows])[:, order].double()
    return weights.numpy(), float(logits.double().log_softmax(-1).gather(1, new).mean())


def strength(heads: HeadSet, weights: npt.NDArray[np.float64]) -> float:
    """`Sources.strength` of the weights of these heads, (tokens, heads, documents)."""
    return float(np.einsum("h,thd->td", heads.strength_weights, weights).max(1).mean())


def words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


def of_readout(used: HeadSet, there: npt.NDArray[np.float64], gone: npt.NDArray[np.float64]) -> dict[str, Any]:
    """What depends on the heads, of their weights with the answer's document and without it."""
    scores = mean_by_reading(np.einsum("h,thd->td", used.weights, there))
    return {
        "found": int(scores.argmax()),
        "strength": [strength(used, one) for one in (there, gone)],
        "each head": there.mean(0).round(6).tolist(),
        "readout": checksum(used),
    }


def measured(loaded: Any, everywhere: HeadSet, used: HeadSet, seed: int, *, leave_out: bool) -> dict[str, Any]:
    """What is found in one prompt."""
    made = prompt(seed)
    documents, question, answer = made.documents, made.question, made.answer
    asked = {"question": question, "answer": answer, "parts": "document"}
    shared = [len(words(text) & words(question + " " + answer)) for text in documents.values()]
    rows, log_prob = one_pass(loaded, everywhere, documents, question, answer)
    gone, log_prob_without = one_pass(loaded, used, made.absent, question, answer)
    there = rows[:, [everywhere.heads.index(one) for one in used.heads]]
    one: dict[str, Any] = {
        "seed": seed,
        "source": made.source,
        "documents": len(documents),
        "language": made.language,
        "repeated": made.repeated,
        "mean of heads": int(rows.mean((0, 1)).argmax()),
        "words in common": int(np.argmax(shared)),
        "log-probability per token": [log_prob, log_prob_without],
        "characters": [sum(map(len, one.values())) for one in (documents, made.absent)],
        **of_readout(used, there, gone),
    }
    if leave_out:
        begun = time.perf_counter()
        found = sources(loaded, documents=documents, **asked)
        one["seconds"] = time.perf_counter() - begun
        check(found, used, there)
        begun = time.perf_counter()
        one["drops"] = without_each(loaded, documents, question, answer)
        one["seconds of leave-one-out"] = time.perf_counter() - begun
    return one


def measured_again(loaded: Any, used: HeadSet, row: dict[str, Any]) -> dict[str, Any]:
    """A row with what other heads find.

    Raises:
        AssertionError: The answer has another log-probability, with its document or without: it is another prompt.
    """
    made = prompt(row["seed"])
    there, log_prob = one_pass(loaded, used, made.documents, made.question, made.answer)
    gone, log_prob_without = one_pass(loaded, used, made.absent, made.question, made.answer)
    np.testing.assert_allclose([log_prob, log_prob_without], row["log-probability per token"], atol=1e-4)
    assert (made.source, made.language, made.repeated) == (row["source"], row["language"], row["repeated"])
    if "drops" in row:
        asked = {"question": made.question, "answer": made.answer, "parts": "document"}
        check(sources(loaded, documents=made.documents, **asked), used, there)
    return row | of_readout(used, there, gone)


def check(found: Any, used: HeadSet, weights: npt.NDArray[np.float64]) -> None:
    """Compare what `sources` gives with the weights of one forward, (tokens, heads, documents)."""
    np.testing.assert_allclose(found.token_scores, np.einsum("h,thd->td", used.weights, weights), atol=1e-5)
    np.testing.assert_allclose(found.scores, mean_by_reading(found.token_scores), atol=1e-9)
    np.testing.assert_allclose(found.strength, strength(used, weights), atol=1e-5)


def checksum(used: HeadSet) -> int:
    """A number that other heads or another readout would change."""
    return zlib.crc32(repr((used.heads, used.weights, used.head_scores)).encode())


def shuffled_readout(rows: list[dict[str, Any]], repeats: int = 20) -> str:
    """How often a readout of the heads is right that is fitted and tested with labels drawn at random."""
    draw, correct = np.random.default_rng(0), []
    features = [np.array(row["each head"]).T for row in rows]
    tested = range(1, len(rows), 2)
    for _ in range(repeats):
        labels = [int(draw.integers(len(one))) for one in features]
        weights = np.zeros(features[0].shape[1])
        for _ in range(200):
            for at in range(0, len(rows), 2):  # multinomial logistic regression
                shares = np.exp(features[at] @ weights)
                weights += 0.5 / len(rows) * (features[at][labels[at]] - shares @ features[at] / shares.sum())
        correct.append(sum(int((features[at] @ weights).argmax()) == labels[at] for at in tested))
    return str(ReadoutScore.of(float(np.mean(correct)), len(tested)))


def from_question(rows: list[dict[str, Any]], repeats: int = 20) -> str:
    """How often a logistic regression on the words of question and answer tells which of the two prompts it saw."""
    draw, correct = np.random.default_rng(0), []
    made = [prompt(row["seed"]) for row in rows]
    bags = [words(f"{one.question} {one.answer}") for one in made]
    known = sorted(set().union(*bags))
    features = np.array([[word in bag for word in known] for bag in bags], dtype=float)
    for _ in range(repeats):
        labels = draw.integers(2, size=len(rows))
        weights = np.zeros(len(known))
        for _ in range(200):
            error = labels[::2] - 1 / (1 + np.exp(-features[::2] @ weights))
            weights += 0.1 * (features[::2].T @ error / len(error) - 0.01 * weights)
        correct.append(((features[1::2] @ weights > 0) == labels[1::2]).sum())
    return str(ReadoutScore.of(float(np.mean(correct)), len(rows) // 2))


def interval(statistic: Any, count: int) -> dict[str, Any]:
    """A statistic of chosen rows, with the 95 % interval of 2,000 bootstraps."""
    draw = np.random.default_rng(0)
    found = [statistic(draw.integers(count, size=count)) for _ in range(2000)]
    return {
        "value": round(float(statistic(np.arange(count))), 4),
        "95 %": [round(float(one), 4) for one in np.quantile(found, (0.025, 0.975))],
    }


def auroc(rows: list[dict[str, Any]], name: str) -> dict[str, Any]:
    there, gone = np.array([row[name] for row in rows], dtype=float).T

    def of(at: Any) -> float:
        wins = there[at][:, None] - gone[at][None]
        return float(((wins > 0) + 0.5 * (wins == 0)).mean())

    return interval(of, len(rows))


def thresholds(rows: list[dict[str, Any]], shipped: float) -> dict[str, Any]:
    """The error rates of answers from nowhere: at the shipped threshold, and at one chosen on every other prompt."""
    pairs = np.array([row["strength"] for row in rows])

    def errors(threshold: float, some: Any) -> tuple[int, int]:
        return int((some[:, 0] < threshold).sum()), int((some[:, 1] >= threshold).sum())

    ends = np.sort(pairs[::2].ravel())
    middles = (ends[1:] + ends[:-1]) / 2
    wrong = [sum(errors(one, pairs[::2])) for one in middles]
    best = np.flatnonzero(np.array(wrong) == min(wrong))
    chosen = float(middles[best[len(best) // 2]])
    other = pairs[1::2]
    return {
        "shipped": {
            "threshold": shipped,
            "error rate": str(ReadoutScore.of(sum(errors(shipped, pairs)), 2 * len(pairs))),
            "missed, invented": errors(shipped, pairs),
        },
        "chosen on the even prompts": {
            "threshold": chosen,
            "error rate on the odd": str(ReadoutScore.of(sum(errors(chosen, other)), 2 * len(other))),
            "missed, invented": errors(chosen, other),
        },
    }


def from_nowhere(rows: list[dict[str, Any]], threshold: float) -> dict[str, Any]:
    """How well prompts with and without the answer's document are told apart."""
    return {
        "AUROC of the strength": auroc(rows, "strength"),
        "AUROC of the answer's log-probability": auroc(rows, "log-probability per token"),
        "AUROC of the prompt's length": auroc(rows, "characters"),
        "words of question and answer alone": from_question(rows),
        **thresholds(rows, threshold),
    }


def against_leaving_out(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How the first document compares with leaving out each."""
    drops = [np.array(row["drops"]) for row in rows]
    best, source = np.array([one.argmax() for one in drops]), np.array([row["source"] for row in rows])
    largest = np.array([one.max() for one in drops])
    clear = [at for at, one in enumerate(drops) if np.subtract(*np.sort(one)[:-3:-1]) > 0.1]
    found: dict[str, Any] = {
        "prompts": len(rows),
        "finds the source": str(ReadoutScore.of(int((best == source).sum()), len(rows))),
        "seconds": round(float(np.median([row["seconds of leave-one-out"] for row in rows])), 2),
        "seconds of sources": round(float(np.median([row["seconds"] for row in rows])), 2),
        "its best exceeds its second by 0.1 nats": len(clear),
    }
    for name in ("found", "mean of heads"):
        first = np.array([row[name] for row in rows])
        mine = np.array([one[at] for one, at in zip(drops, first, strict=True)])
        found[name] = {
            "drop, as a share of the largest": interval(
                lambda at, mine=mine: mine[at].sum() / largest[at].sum(), len(rows)
            ),
            "the same first where that is clear": str(ReadoutScore.of(int((first == best)[clear].sum()), len(clear))),
        }
    return found


def summary(rows: list[dict[str, Any]], threshold: float) -> dict[str, Any]:
    """The figures over all prompts; intervals of shares are Wilson's."""
    found: dict[str, Any] = {"prompts": len(rows), "chance": float(np.mean([1 / row["documents"] for row in rows]))}
    languages = sorted({row["language"] for row in rows})
    kinds: dict[str, Any] = {
        "all": lambda _: True,
        "no other document has the same fact": lambda row: not row["repeated"],
        "another document has the same fact of somebody else": lambda row: row["repeated"],
        **{name: lambda row, name=name: row["language"] == name for name in languages},
    }
    for kind, chosen in kinds.items():
        some = [row for row in rows if chosen(row)]
        found[kind] = {
            name: str(ReadoutScore.of(sum(row[name] == row["source"] for row in some), len(some)))
            for name in ("found", "mean of heads", "words in common")
            if some
        }
    left_out = [row for row in rows if "drops" in row]
    if len(rows) < 10:
        return found
    return found | {
        "shuffled labels": shuffled_readout(rows),
        "from nowhere": {
            name: from_nowhere(some, threshold)
            for name, chosen in kinds.items()
            if name in (*list(kinds)[:2], *languages) and len(some := [row for row in rows if chosen(row)]) > 9
        },
        "leave one out": {
            name: against_leaving_out(some)
            for name, chosen in kinds.items()
            if name in ("all", *languages) and (some := [row for row in left_out if chosen(row)])
        },
    }


def main() -> None:
    """Measure, or go on measuring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--first", type=int, default=200, help="first seed; 0 to 70 were looked at before")
    parser.add_argument("--leave-one-out-every", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after the prompt at this time")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/sources.json"))
    parser.add_argument("--readout-only", action="store_true", help="measure again only what depends on the heads")
    given = parser.parse_args()
    begun = time.perf_counter()
    known = json.loads(given.results.read_text("utf-8")) if given.results.exists() else {"rows": []}
    rows = {row["seed"]: row for row in known["rows"]}
    loaded = load_model("smollm2")
    config = loaded.model.config
    layers, heads = config.num_hidden_layers, config.num_attention_heads
    everywhere = HeadSet([(layer, head) for layer in range(layers) for head in range(heads)])
    used = sources(loaded, "It rains.", "It rains.").heads
    for seed in range(given.first, given.first + given.prompts):
        leave_out = seed % given.leave_one_out_every == 0
        same = rows.get(seed, {}).get("readout") == checksum(used)
        if seed in rows and same and (given.readout_only or "drops" in rows[seed] or not leave_out):
            continue
        if time.perf_counter() - begun > given.seconds:
            break
        if given.readout_only and seed in rows:
            rows[seed] = measured_again(loaded, used, rows[seed])
        else:
            rows[seed] = measured(loaded, everywhere, used, seed, leave_out=leave_out)
        done = [rows[at] for at in sorted(rows)]
        save(given.results, {"rows": done})
        print(f"{len(done)} of {given.prompts}: {done[-1]['found'] == done[-1]['source']}", flush=True)
    done = [rows[at] for at in sorted(rows)]
    about = {
        "machine": f"{processor()}, {torch.get_num_threads()} threads",
        "versions": {"python": platform.python_version(), "torch": torch.__version__,
                     "transformers": transformers.__version__},
        "date": time.strftime("%Y-%m-%d"),
        "model": loaded.name,
        "heads": used.names,
    }  # fmt: skip
    found = summary(done, used.threshold or 0)
    save(given.results, {**about, **found, "rows": done})
    print(json.dumps(found, indent=1, ensure_ascii=False))


def processor() -> str:
    """The name of the processor, where Linux tells it."""
    cpus = Path("/proc/cpuinfo")
    lines = cpus.read_text().splitlines() if cpus.exists() else []
    return next((line.split(": ")[1] for line in lines if line.startswith("model name")), platform.machine())


def save(path: Path, content: dict[str, Any]) -> None:
    text = json.dumps(content, indent=1, ensure_ascii=False)
    flat = re.sub(r"\[[^][{}]*\]", lambda found: " ".join(found[0].split()), text)  # a list of numbers on one line
    write_atomically(path, (flat + "\n").encode())


if __name__ == "__main__":
    main()
