"""Write runs of texts that regard 0.2 trained, with its own code: that of commit 52d2168.

    git clone . /tmp/w52 && git -C /tmp/w52 checkout 52d2168
    cd tests/fixtures_0_2 && PYTHONPATH=/tmp/w52/src python write_texts.py

Beside each model is what 0.2 made of it: the translations, the ids of a source, and the rows held out of
its training.
"""

import json
import shutil
import tempfile
from pathlib import Path

import tokenizers
import torch
import transformers

import regard
from regard.train import Translator, train
from regard.train.config import Config, task_of

HERE = Path(__file__).parent / "texts"
TEXTS = [f"{one} {other}{one}" for one in "abcdef" for other in ("g", "hi", "jkl")]
SIZES = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "num_hidden_layers": 1}
TINY = {"vocab_size": 40, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
CHARACTERS = {"model_type": "char", "vocab_size": 40}


def checkpoint(folder, kind):
    """A checkpoint of transformers whose tokenizer is of characters, with a template."""
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    vocabulary = {one: index for index, one in enumerate([*special, *"abcdefghijkl. "])}
    letters = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    letters.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex("."), "isolated")
    letters.decoder = tokenizers.decoders.Fuse()
    letters.add_special_tokens(special)
    letters.post_processor = tokenizers.processors.TemplateProcessing(
        "<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    tokens = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
    if kind == "bart":
        sizes = {"vocab_size": 40, "d_model": 8, "max_position_embeddings": 64, "decoder_start_token_id": 2} | {
            f"{side}_{name}": value
            for side in ("encoder", "decoder")
            for name, value in (("layers", 1), ("attention_heads", 2), ("ffn_dim", 8))
        }
        model = transformers.BartForConditionalGeneration(transformers.BartConfig(**sizes, **tokens))
    else:
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**TINY, **tokens))
    model.save_pretrained(folder)
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=letters, **names).save_pretrained(folder)
    return {"type": "checkpoint", "model_name_or_path": str(folder)}


def main():
    assert "w52" in regard.__file__, f"not the code of 52d2168: {regard.__file__}"
    torch.manual_seed(0)
    torch.set_num_threads(1)
    shutil.rmtree(HERE, ignore_errors=True)
    expected = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = {"pairs": folder / "pairs.tsv", "texts": folder / "texts.txt", "labels": folder / "labels.tsv"}
        files["pairs"].write_text("".join(f"{text}\t{text[::-1]}.\n" for text in TEXTS), "utf-8")
        files["texts"].write_text("".join(f"{text}\n" for text in TEXTS), "utf-8")
        files["labels"].write_text("".join(f"{text}\t{text < 'd'}\n" for text in TEXTS), "utf-8")
        pairs = {"type": "translation", "train_file": str(files["pairs"]), "target_lang": "de"}
        pairs |= {"num_completions_to_print": 0, "max_predict_samples": 0}
        scratch = pairs | {"src_tokenizer": CHARACTERS, "tgt_tokenizer": CHARACTERS}
        text = {"type": "clm", "train_file": str(files["texts"]), "block_size": 16, "tokenizer": CHARACTERS}
        labels = {"type": "classification", "train_file": str(files["labels"]), "tokenizer": CHARACTERS}
        masked = text | {"type": "mlm"}
        runs = {
            "translation": (scratch, SIZES | {"type": "transformer"}),
            "recurrent": (scratch, {"type": "recurrent", "embedding_dim": 8, "hidden_size": 8}),
            "clm": (text, SIZES | {"type": "transformer"}),
            "mlm": (masked, SIZES | {"type": "transformer"}),
            "classification": (labels, SIZES | {"type": "transformer"}),
            "bart": (pairs, checkpoint(folder / "bart", "bart")),
            "llama": (text, checkpoint(folder / "llama", "llama")),
        }
        for run, (task, model) in runs.items():
            out = folder / "runs" / run
            training = {"output_dir": str(out), "learning_rate": 2e-2, "warmup_steps": 5, "max_steps": 200}
            training |= {"max_tokens_per_batch": 200, "eval_steps": 200, "save_steps": 200, "num_threads": 1}
            config = Config.from_dict({"task": task | {"validation_size": 4}, "model": model, "training": training})
            train(config)
            made = task_of(config, out / "vocabulary")
            shutil.copytree(out / "model", HERE / run)
            expected[run] = {"rows": made.held}
            if task["type"] == "translation":
                translator = Translator.load(out)
                expected[run] |= {
                    "source": translator.encode(TEXTS[0]),
                    "translations": translator.translate(TEXTS, num_beams=2),
                }
    (HERE / "expected.json").write_text(json.dumps(expected) + "\n", "utf-8")


if __name__ == "__main__":
    main()
