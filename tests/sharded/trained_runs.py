"""Small runs of training whose rows are sharded over ranks: their configurations, on one process and on several."""

import os
import random
from pathlib import Path

from regard.train import JsonlLog, train
from regard.train.config import Config

WORDS = "the animal did not cross the street because it was too tired and too wide for it today".split()
STEPS = 4
RESUMING = 2  # ranks that resume what one process has begun
_MODEL = {"type": "transformer", "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64,
          "num_hidden_layers": 2}  # fmt: skip
_CLM = {"type": "clm", "block_size": 45, "packing": False}
_MLM = {"type": "mlm", "block_size": 45}
# Dropout is 0.1 where nothing else is written; a batch of 8 rows draws both PyTorch's numbers and our own.
CASES = {
    "causal": (_CLM, {}, {"max_tokens_per_batch": 360}),
    # Smooth, since rounding turned a gradient of 0 at the kink of a ReLU into one of 1.
    "packed, rotary, grouped queries": (
        _CLM | {"packing": True},
        {"positions": "rope", "num_key_value_heads": 1, "dropout": 0.0, "attention_dropout": 0.2, "hidden_act": "gelu"},
        {"gradient_accumulation_steps": 2, "max_tokens_per_batch": 90},
    ),
    "masked, padded, T5's bias": (_MLM, {"positions": "t5", "norm": "rms", "is_gated_act": True}, {}),
    "masked, learned positions": (_MLM, {"positions": "learned", "norm_first": False}, {"label_smoothing": 0.1}),
    "ALiBi and a window": (_CLM, {"positions": "alibi", "sliding_window": 7}, {"num_averaged_checkpoints": 2}),
    "Shaw's positions": (_CLM, {"positions": "shaw"}, {}),
    "no dropout": (_CLM, {"dropout": 0.0}, {}),
}


def write_corpus(folder):
    """Lines of 1 to 30 words: rows that are padded, and documents that are packed."""
    chosen = random.Random(0)
    lines = [" ".join(chosen.choices(WORDS, k=chosen.randint(1, 30))) for _ in range(100)]
    (folder / "text.txt").write_text("\n".join(lines), "utf-8")


def configuration(name, corpus, output_dir, **changes):
    """Return the configuration of a run over a corpus, with other keys of its table `training`."""
    task, model, training = CASES[name]
    return Config.from_dict(
        {
            "task": {"train_file": str(corpus), "validation_size": 8} | task
            | {"tokenizer": {"model_type": "char", "vocab_size": 40}},
            "model": _MODEL | model,
            "training": {"output_dir": str(output_dir), "learning_rate": 1e-3, "warmup_steps": 2, "num_threads": 1}
            | {"max_tokens_per_batch": 180, "max_steps": STEPS, "save_steps": 1, "eval_steps": 2}
            | {"save_total_limit": 9} | training | changes,
        }
    )  # fmt: skip


def run(name, folder, **changes):
    """Train a run of a folder that has the corpus, up to its last step."""
    out = Path(folder, changes.pop("into", name))
    train(configuration(name, Path(folder, "text.txt"), out, **changes), [JsonlLog(out / "log.jsonl")])


def runs_on(ranks):
    """Return the runs for so many ranks: the folder, the case, and its keys."""
    every = [name for name in CASES if name not in ("causal", "no dropout")] if ranks == 3 else ["causal"]
    found = [(name, name, {"context_parallel_size": ranks}) for name in every]
    found += [("resumed", "causal", {"context_parallel_size": ranks})] if ranks == RESUMING else []
    return found + ([("no dropout", "no dropout", {"context_parallel_size": 2})] if ranks == 4 else [])


def compute_trained(mesh, folder):
    """Train over all ranks; of four, also over two that have other rows × two that share them."""
    rank, ranks = str(mesh.get_rank()), str(mesh.size())
    os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    os.environ |= {"MASTER_ADDR": "127.0.0.1"}  # accelerate reads these; the process group is initialized already
    for into, name, changes in runs_on(mesh.size()):
        run(name, folder, into=into, **changes)
