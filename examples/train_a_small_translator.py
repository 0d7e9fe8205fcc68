"""Train the small translator of other examples, English to Chinese about one small world, and find its heads.

It takes about half a minute on two cores, once: the run and the HeadSet for alignment are kept in the cache folder.
"""

import json

import regard
from regard.files import cache_folder
from regard_lab.cat_and_mat import LEXICON, content_words, pairs

FOLDER = cache_folder() / "examples" / "small-translator-seed-0"
HELD_OUT = pairs(60, seed=10_000)


def train() -> None:
    """Train on pairs of seed 0, and find the heads on sentences that are not among them."""
    from regard.train import train
    from regard.train.config import Config

    FOLDER.mkdir(parents=True, exist_ok=True)
    held_out = {english for english, _ in HELD_OUT}
    lines = (f"{english}\t{chinese}\n" for english, chinese in pairs(3000, seed=0) if english not in held_out)
    (FOLDER / "pairs.tsv").write_text("".join(lines), encoding="utf-8")
    task = {"type": "translation", "train_file": str(FOLDER / "pairs.tsv"), "validation_size": 20}
    task |= {"src_tokenizer": {"model_type": "bpe", "vocab_size": 400, "lowercase": True}}
    task |= {"num_completions_to_print": 0, "max_predict_samples": 0}
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128, "num_hidden_layers": 2}
    steps = {"num_train_epochs": 8, "learning_rate": 3e-3, "lr_scheduler_type": "cosine", "warmup_steps": 50}
    steps |= {"label_smoothing": 0.1, "max_tokens_per_batch": 1024, "eval_steps": 10**6, "num_threads": 1, "seed": 0}
    training = steps | {"output_dir": str(FOLDER / "run")}
    train(Config.from_dict({"task": task, "model": {"type": "transformer", **sizes}, "training": training}))
    found = []
    for english, chinese in HELD_OUT:
        words = [(word, LEXICON[word][0]) for word in content_words(english) if chinese.count(LEXICON[word][0]) == 1]
        if words:
            word, translation = words[len(found) % len(words)]
            found.append({"source": english, "target": chinese, "pairs": f"{word}>{translation}"})
    (FOLDER / "pairs.jsonl").write_text("\n".join(map(json.dumps, found)), encoding="utf-8")
    heads = regard.find_heads(str(FOLDER / "run"), job="alignment", examples=FOLDER / "pairs.jsonl")
    heads.save(FOLDER / "heads.json")


def translator():
    """Return the translator and its heads for alignment, trained if they are not there."""
    if not (FOLDER / "heads.json").exists():
        train()
    return regard.load_model(str(FOLDER / "run")), regard.HeadSet.load(FOLDER / "heads.json")


if __name__ == "__main__":
    _, alignment = translator()
    print(alignment.heads, alignment.held_out)
