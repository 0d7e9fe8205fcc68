"""Does `regard.sources` find the document that has the answer, and does it say when none has?

    python benchmarks/sources.py [--prompts 200] [--leave-one-out 20] [--results benchmarks/results/sources.json]

Prompts of 8 to 16 documents in English, German or Spanish, whose names, facts and questions are not among those that
the heads were found on (src/regard/interpret/source_examples.py). For each, the first document by the heads that come
with SmolLM2 and by the mean of all heads, and the largest score with the document that has the answer and with another
sentence of about its length in its place. For the first prompts, every document is also left out, one at a time. The
results are written after each prompt; a run that was stopped resumes.
"""

import argparse
import json
import platform
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regard import HeadSet, load_model, sources
from regard.files import write_atomically

NAMES = (
    "Abelard Brunhilde Casimir Dorothea Evander Fiorella Gustavo Henrietta Ignatius Jadwiga Kazuo Leopoldine Mbali "
    "Nikolai Ottilie Percival Quentin Rosalind Sigmund Theodora Ulrich Valentina Wolfram Xiomara Yevgenia Zacharias"
).split()


@dataclass(frozen=True)
class Language:
    """Facts (text, question, answer, values), further sentences, and the name of a document."""

    facts: tuple[tuple[str, str, str, str], ...]
    more: tuple[str, ...]
    document: str


ENGLISH = Language(
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


def prompt(seed: int) -> tuple[dict[str, str], dict[str, str], str, str, int]:
    """The documents, the same without the answer, the question, the answer, and the document that has it."""
    draw = random.Random(f"prompt {seed}")
    language = draw.choices((ENGLISH, GERMAN, SPANISH), (2, 1, 1))[0]
    people = draw.sample(NAMES, draw.randrange(8, 17))
    chosen = [draw.choice(language.facts) for _ in people]
    values = [draw.choice(one[3].split(",")) for one in chosen]
    source = draw.randrange(len(people))
    documents, absent = {}, {}
    for at, (person, fact, value) in enumerate(zip(people, chosen, values, strict=True)):
        name, text = language.document.format(i=at + 1), fact[0].format(n=person, v=value)
        instead = " ".join(draw.sample(language.more, 2))
        more = draw.choice(language.more) if draw.random() < 0.7 else ""
        said, other = ((more, text), (more, instead)) if draw.random() < 0.5 else ((text, more), (instead, more))
        documents[name] = " ".join(filter(None, said))
        absent[name] = " ".join(filter(None, other)) if at == source else documents[name]
    _, question, answer, _ = chosen[source]
    asked = (one.format(n=people[source], v=values[source]) for one in (question, answer))
    return documents, absent, *asked, source


def measured(loaded: Any, everywhere: HeadSet, seed: int, *, leave_out: bool) -> dict[str, Any]:
    """What is found in one prompt."""
    documents, absent, question, answer, source = prompt(seed)
    asked = {"question": question, "answer": answer, "parts": "document"}
    begun = time.perf_counter()
    found = sources(loaded, documents=documents, verify=leave_out, num_removals=len(documents), **asked)
    mean = sources(loaded, documents=documents, heads=everywhere, **asked)
    nowhere = sources(loaded, documents=absent, **asked)
    one: dict[str, Any] = {
        "seed": seed,
        "source": source,
        "found": int(found.scores.argmax()),
        "mean_of_heads": int(mean.scores.argmax()),
        "strength": found.strength,
        "strength_without": nowhere.strength,
        "seconds": time.perf_counter() - begun,
    }
    if leave_out:
        drops = {removal.part: removal.drop for removal in found.removals}
        one["drops"] = [drops[part.id] for part in found.parts]
    return one


def summary(rows: list[dict[str, Any]], threshold: float) -> dict[str, Any]:
    """The figures over all prompts; intervals of shares are Wilson's."""
    from regard.heads.head_set import ReadoutScore

    there, gone = (np.array([row[name] for row in rows]) for name in ("strength", "strength_without"))
    left_out = [row for row in rows if "drops" in row]
    best = [int(np.argmax(row["drops"])) for row in left_out]
    shares = [row["drops"][row["found"]] / max(row["drops"]) for row in left_out]
    clear = [at for at, row in enumerate(left_out) if np.subtract(*sorted(row["drops"])[:-3:-1]) > 0.1]
    return {
        "prompts": len(rows),
        "source found": str(ReadoutScore.of(sum(row["found"] == row["source"] for row in rows), len(rows))),
        "by the mean of all heads": str(
            ReadoutScore.of(sum(row["mean_of_heads"] == row["source"] for row in rows), len(rows))
        ),
        "AUROC of answers from nowhere": float(np.mean(there[:, None] > gone[None])),
        "error rate at the shipped threshold": float(((there < threshold).mean() + (gone >= threshold).mean()) / 2),
        "left one out": len(left_out),
        "drop of the first, as a share of the largest": float(np.mean(shares)) if shares else None,
        "same first as leave-one-out, where that is clear by 0.1 nats": [
            sum(left_out[at]["found"] == best[at] for at in clear), len(clear),
        ],
        "leave-one-out finds the source": sum(row["source"] == one for row, one in zip(left_out, best, strict=True)),
    }  # fmt: skip


def main() -> None:
    """Measure, or go on measuring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--leave-one-out", type=int, default=20)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/sources.json"))
    given = parser.parse_args()
    known = json.loads(given.results.read_text("utf-8")) if given.results.exists() else {"rows": []}
    rows = {row["seed"]: row for row in known["rows"]}
    loaded = load_model("smollm2")
    config = loaded.model.config
    layers, heads = config.num_hidden_layers, config.num_attention_heads
    everywhere = HeadSet([(layer, head) for layer in range(layers) for head in range(heads)])
    used = sources(loaded, "It rains.", "It rains.").heads
    for seed in range(given.prompts):
        leave_out = seed < given.leave_one_out
        if seed in rows and ("drops" in rows[seed] or not leave_out):
            continue
        rows[seed] = measured(loaded, everywhere, seed, leave_out=leave_out)
        about = {
            "machine": platform.processor() or platform.machine(),
            "torch": torch.__version__,
            "date": time.strftime("%Y-%m-%d"),
            "heads": used.names,
        }
        done = [rows[at] for at in sorted(rows)]
        content = {**about, **summary(done, used.threshold or 0), "rows": done}
        write_atomically(given.results, (json.dumps(content, indent=1) + "\n").encode())
        print(f"{len(done)} of {given.prompts}: {content['source found']}", flush=True)


if __name__ == "__main__":
    main()
