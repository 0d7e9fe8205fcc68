"""Write what regard 0.2 wrote to disk, with its own code: that of commit 52d2168, which no later release may change.

    git clone . /tmp/w52 && git -C /tmp/w52 checkout 52d2168
    cd tests/fixtures_0_2 && PYTHONPATH=/tmp/w52/src python write.py

Beside each file stands what it means, in plain numbers, computed by the same code in other ways: weights by
`regard.attention` in float64 instead of from an atlas, masks as dense matrices, losses of a run that was not stopped.
"""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import torch
from torch import nn

import regard
from regard import masks, models, normalizers, positions, scores
from regard.models import output_heads
from regard.models.config import KINDS as CONFIG_KINDS
from regard.serialization import KINDS, write
from regard.train import read_log, train
from regard.train.callbacks import JsonlLog
from regard.train.config import Config

HERE = Path(__file__).parent
BATCH, HEADS, N, DIM = 2, 2, 6, 4
NUMBERS = torch.Generator().manual_seed(52)


def randn(*shape, dtype=torch.float32):
    return torch.randn(*shape, generator=NUMBERS).to(dtype)


def flags(*shape):
    found = torch.rand(*shape, generator=NUMBERS) < 0.6
    found[..., 0] = True
    return found


def parts():
    """For each role in the equation values of every kind, by name; a name may stand for several kinds together."""
    ids = torch.tensor([[0, 0, 1, 1, 1, -1], [3, 2, 2, 2, 3, 3]])
    center = torch.rand(BATCH, N, generator=NUMBERS) * N
    lengths = torch.tensor([2, 4])
    relative = randn(HEADS, DIM), randn(HEADS, DIM), randn(HEADS, DIM, 6)
    xl = scores.TransformerXL(*relative)
    return {
        "mask": {
            "causal": masks.Causal(),
            "causal from the start": masks.Causal("start"),
            "window": masks.Window(3),
            "window to both sides": masks.Window(left=2, right=1),
            "dilated": masks.DilatedWindow(left=1, right=1, dilation=2),
            "strided": masks.Strided(2),
            "sinks": masks.Causal() & masks.Window(2) | masks.Sinks(1),
            "blocks": masks.BlockLocal(2, look_backward=1),
            "prefix": masks.Causal() | masks.Prefix(3),
            "prefix of each sequence": masks.Causal() | masks.Prefix(torch.tensor([2, 4])),
            "dense": masks.Dense(flags(BATCH, HEADS, N, N)),
            "dense matrix": masks.Dense(flags(N, N)),
            "padding": masks.Padding(torch.tensor([[False, True, True, True, True, True], [True] * 4 + [False] * 2])),
            "padding of integers": masks.Padding(torch.tensor([[1, 1, 1, 1, 0, 0], [0, 1, 1, 1, 1, 1]])),
            "global positions": masks.Window(1) | masks.Global((0, 3)),
            "global flags": masks.Window(1) | masks.Global(torch.tensor([[True] + [False] * 5, [False] * 5 + [True]])),
            "documents": masks.Document(ids),
            "documents of queries": masks.Document(ids[0], query_ids=torch.tensor([1, 0, 1, 1, 0, 0])),
            "inside documents": masks.Document.from_lengths(lengths, within=masks.Causal() & masks.Window(3)),
            "inside documents of queries": masks.Document.from_lengths(
                lengths, query_lengths=torch.tensor([1, 3]), within=masks.Causal()
            ),
            "random blocks": masks.RandomBlocks(1, block=2, seed=5, heads=HEADS),
            "table of blocks": masks.RandomBlocks(block=2, table=torch.tensor([[[0], [2], [1]]])),
            "monotonic": masks.LocalMonotonic(1),
            "predictive": masks.LocalPredictive(center, radius=1),
            "neighborhood": masks.Neighborhood((2, 3), (1, 3)),
            "cropped neighborhood": masks.Neighborhood((2, 3), 3, boundary="crop"),
            "axial": masks.Axial((2, 3), axis=1),
            "ends": masks.bigbird(1, 1, 0, block=1),
            "bigbird": masks.bigbird(1, 1, 1, seed=3, block=1, heads=HEADS),
            "and, or, not": (masks.Causal() & ~(masks.Window(2) | masks.Padding(flags(BATCH, N)))) | ~masks.Strided(3),
        },
        "bias": {
            "alibi": positions.ALiBi(HEADS),
            "alibi of slopes": positions.ALiBi(HEADS, slopes=torch.tensor([0.5, 0.125]), bidirectional=True),
            "dense bias": positions.DenseBias(randn(1, HEADS, N, N)),
            "table": positions.RelativePositionBias(randn(5, HEADS)),
            "table of a grid": positions.RelativePositionBiasND(randn(15, HEADS), (2, 3)),
            "t5": positions.T5Bias(randn(8, HEADS), bidirectional=True, max_distance=20),
            "t5 in bfloat16": positions.T5Bias(randn(4, HEADS, dtype=torch.bfloat16), bidirectional=False),
        },
        "weight_factor": {"gaussian": positions.Gaussian(center, radius=2.0)},
        "score": {
            "additive": scores.Additive(randn(3, DIM), randn(3, DIM), randn(HEADS, 3), bias=randn(3)),
            "additive without matrices": scores.Additive(None, None, randn(DIM)),
            "bilinear": scores.Bilinear(randn(HEADS, DIM, DIM)),
            "concat": scores.Concat(randn(3, 2 * DIM), randn(3), softcap=1.5),
            "cosine": scores.Cosine(torch.tensor([0.5, 0.25])),
            "cosine of a number": scores.Cosine(0.5),
            "deberta": scores.DeBERTa(randn(HEADS, 6, DIM), randn(HEADS, 6, DIM)),
            "deberta of buckets": scores.DeBERTa(randn(HEADS, 4, DIM), None, 2, 5),
            "dot": scores.Dot(),
            "relative key query": scores.RelativeKeyQuery(randn(HEADS, 4, DIM), left=1, right=2),
            "scaled dot": scores.ScaledDot(softcap=0.75),
            "shaw": scores.Shaw(randn(5, DIM), randn(5, DIM)),
            "transformer-xl": xl,
            "transformer-xl prepared": xl.prepare(torch.zeros(1, HEADS, N, DIM), torch.zeros(1, HEADS, N, DIM), 0)[2],
        },
        "normalizer": {
            "softmax": normalizers.Softmax(),
            "softmax with sinks": normalizers.Softmax(torch.tensor([0.5, -1.0])),
            "sigmoid": normalizers.Sigmoid(),
            "sigmoid with a shift": normalizers.Sigmoid(shift=-1.0),
        },
    }


def calls(held):
    """The options of each call of the watched model: together every kind that a call can leave in an atlas."""
    mask, bias, score, normalizer = (held[role] for role in ("mask", "bias", "score", "normalizer"))
    gaussian = held["weight_factor"]["gaussian"]
    return {
        "nested": {
            "mask": mask["and, or, not"], "bias": bias["t5 in bfloat16"], "score": score["scaled dot"],
            "normalizer": normalizer["softmax with sinks"],
        },
        "blocks": {
            "mask": mask["blocks"] | mask["sinks"], "bias": bias["alibi"], "score": score["dot"],
        },
        "prefix": {
            "mask": mask["prefix of each sequence"] & mask["padding"], "bias": bias["t5"], "score": score["additive"],
        },
        "dense": {"mask": mask["dense"], "bias": bias["dense bias"], "score": score["shaw"]},
        "inside documents": {"mask": mask["inside documents"], "bias": bias["table"], "score": score["deberta"]},
        "documents": {
            "mask": mask["documents"] & mask["random blocks"] | mask["global flags"],
            "score": score["relative key query"],
        },
        "predictive": {"mask": mask["predictive"], "weight_factor": gaussian, "score": score["concat"]},
        "monotonic": {
            "mask": mask["monotonic"], "normalizer": normalizer["sigmoid"], "score": score["transformer-xl"],
        },
        "grid": {
            "mask": mask["axial"] | mask["cropped neighborhood"], "bias": bias["table of a grid"],
            "score": score["cosine"],
        },
        "bigbird": {"mask": mask["bigbird"] & ~mask["dilated"], "score": score["bilinear"]},
        "global positions": {
            "mask": masks.Strided(3) | masks.Global((1, 4)), "normalizer": normalizer["sigmoid with a shift"],
        },
        "last queries": {
            "queries": 4, "mask": mask["inside documents of queries"].bind(4, N, q_offset=1),
            "bias": positions.DenseBias(randn(1, 1, 4, N), q_offset=1),
        },
        "a rule of one's own": {
            "queries": 4, "mask": masks.MaskMod(lambda batch, head, i, j: (i + j + head) % 3 != batch),
        },
        "grouped heads in bfloat16": {
            "dtype": torch.bfloat16, "kv_heads": 1, "mask": masks.Causal(), "bias": bias["alibi of slopes"],
        },
    }  # fmt: skip


class Call(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.options = dict(options)
        dtype = self.options.pop("dtype", torch.float32)
        self.q = randn(BATCH, HEADS, self.options.pop("queries", N), DIM, dtype=dtype)
        self.k = randn(BATCH, self.options.pop("kv_heads", HEADS), N, DIM, dtype=dtype)

    def forward(self):
        return regard.attention(self.q, self.k, self.k, **self.options)

    def weights(self, **instead):
        """What the reference computes in float64."""
        q, k, options = self.q.double(), self.k.double(), {**self.options, **instead}
        return regard.attention(q, k, k, return_weights=True, backend="reference", **options)[1].numpy()


def write_atlas(held, expected):
    model = nn.ModuleDict({name: Call(options) for name, options in calls(held).items()})
    model.forward = lambda: [call() for call in model.values()]
    with torch.no_grad(), regard.watch(model, keep="qk") as seen:
        model()
    seen.save(HERE / "calls.atlas")
    for layer, (name, call) in zip(regard.load_atlas(HERE / "calls.atlas").layers, model.items(), strict=True):
        assert layer.name == name
        wanted = call.weights()
        for batch_index in range(BATCH):
            for head in range(HEADS):
                found = layer.qk.whole(batch_index, head, layer.queries, layer.keys)
                np.testing.assert_allclose(found, wanted[batch_index, head], atol=1e-5)
        for part in call.options:  # each is more than nothing
            assert abs(call.weights(**{part: None}) - wanted).max() > 1e-3, (name, part)
        expected[f"atlas/{name}"] = wanted.astype(np.float32)
    return [segment.form for layer in seen.layers for segment in layer.qk.segments]


def write_values(held, expected):
    """Values as an atlas stores them, the others too that no call leaves in one: JSON, and arrays by name."""
    arrays, forms = {}, {}

    def put(array):
        arrays[name := f"held{len(arrays)}"] = array
        return name

    q, k = randn(BATCH, HEADS, N, DIM), randn(BATCH, HEADS, N, DIM)
    expected["values/q"], expected["values/k"] = q.numpy(), k.numpy()
    plain = regard.attention(q.double(), k.double(), k.double(), return_weights=True, backend="reference")[1]
    for role, values in held.items():
        for name, value in values.items():
            forms[name] = {"role": role, "form": write(value, put)}
            if role == "mask":
                rows = 4 if name == "inside documents of queries" else N
                forms[name]["queries"] = rows
                found = value.bind(rows, N).dense(BATCH, HEADS).numpy()
                assert found.any(), name
                assert not found.all(), name
            else:
                asked = {role: value, "return_weights": True, "backend": "reference"}
                found = regard.attention(q.double(), k.double(), k.double(), **asked)[1].numpy().astype(np.float32)
                assert name == "softmax" or abs(found - plain.numpy()).max() > 1e-3, name
            expected[f"values/{name}"] = found
    (HERE / "values.json").write_text(json.dumps(forms, separators=(",", ":")).replace('},"', '},\n"') + "\n", "utf-8")
    np.savez_compressed(HERE / "values.npz", **arrays)
    return [one["form"] for one in forms.values()]


def kinds_in(form):
    """The names of all kinds in a form."""
    if isinstance(form, dict):
        return {form["kind"], *kinds_in(form["fields"])} if "kind" in form else kinds_in(list(form.values()))
    return {name for one in form for name in kinds_in(one)} if isinstance(form, list) else set()


def configs():
    """Models whose configurations have every kind of value that a Transformer's can have."""
    sizes = {"vocab_size": 7, "hidden_size": 4, "num_attention_heads": 1, "intermediate_size": 3}
    decoder = {**sizes, "decoder_layers": 1, "norm": "rms", "bias": False, "hidden_act": "silu", "is_gated_act": True}
    tokens = models.SpecialTokens(pad_token_id=0, bos_token_id=1, eos_token_id=[2, 3], suppress_tokens=(4,))
    rope = positions.RoPE
    return {
        "yarn": models.TransformerConfig(
            **{**decoder, "decoder_layers": 2}, positions=rope(4, scaling=positions.YaRN(4.0, 8)), sliding_window=3,
            layer_types=("sliding_attention", "full_attention"), special_tokens=tokens,
            output_head=output_heads.LanguageModel(tie_word_embeddings=False, scale=0.5),
        ),
        "llama3": models.TransformerConfig(
            **decoder, positions=rope(4, scaling=positions.Llama3(original_max_position_embeddings=4)),
            output_head=output_heads.TokenClassification(3),
        ),
        "dynamic": models.TransformerConfig(
            **decoder, positions=rope(4, scaling=positions.DynamicNTK(2.0, 4)), special_tokens=tokens,
            output_head=output_heads.SequenceClassification(3, pooling="last", use_tanh_layer=False, bias=False),
        ),
        "ntk": models.TransformerConfig(**decoder, positions=rope(4, interleaved=True, scaling=positions.NTK(2.0))),
        "linear": models.TransformerConfig(
            **decoder, positions=rope(4, 100.0, rotary_dim=2, scaling=positions.LinearScaling(2.0))
        ),
        "learned": models.TransformerConfig(
            **sizes, encoder_layers=1, positions=models.Learned(8), type_vocab_size=2, normalize_embedding=True,
            output_head=output_heads.MaskedLanguageModel(),
        ),
        "sinusoidal": models.TransformerConfig(
            **sizes, encoder_layers=1, positions=models.Sinusoidal(8, "tensor2tensor"),
            output_head=output_heads.SentenceEmbedding(),
        ),
        "t5": models.TransformerConfig(
            **sizes, encoder_layers=1, decoder_layers=1, position_bias="t5", relative_attention_num_buckets=4,
            relative_attention_max_distance=8, scale=1.0, output_head=output_heads.LanguageModel(),
        ),
        "shaw": models.TransformerConfig(**decoder, position_bias="shaw", max_relative_position=2),
        "recurrent": models.RecurrentConfig(
            src_vocab_size=7, tgt_vocab_size=7, embedding_dim=2, hidden_size=2, attention="local-p", radius=2
        ),
    }  # fmt: skip


def write_models(expected):
    ids = torch.tensor([[1, 5, 4, 6, 2], [1, 3, 3, 5, 2]])
    expected["models/ids"] = ids.numpy()
    for name, config in configs().items():
        torch.manual_seed(7)
        kind = models.RecurrentSeq2Seq if isinstance(config, models.RecurrentConfig) else models.Transformer
        model = kind(config).eval()
        with torch.no_grad():
            for one in model.parameters():
                one.add_(torch.randn(one.shape) * 0.3)
            two = isinstance(config, models.RecurrentConfig) or config.kind == "encoder-decoder"
            output = model(ids, decoder_input_ids=ids) if two else model(ids)
        model.save_pretrained(HERE / "models" / name)
        # The numbers of the last states where nothing follows them.
        found = output.logits if output.logits is not None else output.last_hidden_state
        expected[f"models/{name}"] = found.numpy()
    text = "".join(path.read_text("utf-8") for path in (HERE / "models").glob("*/config.json"))
    assert all(f'"kind": "{kind.__name__}"' in text for kind in CONFIG_KINDS)


def write_run(expected):
    """A run of six steps that was stopped after four, and the losses of all six; made where git tells the revision."""
    os.chdir(Path(regard.__file__).parents[2])

    def config(out):
        return Config.from_dict({
            "task": {
                "type": "synthetic", "task_name": "copy", "num_symbols": 4, "min_length": 1, "max_length": 3,
                "num_examples": 60, "validation_size": 5,
            },
            "model": {
                "type": "transformer", "hidden_size": 4, "num_attention_heads": 1, "intermediate_size": 4,
                "num_hidden_layers": 1, "dropout": 0.0, "positions": "t5",
            },
            "training": {
                "output_dir": str(out), "learning_rate": 3e-2, "warmup_steps": 2, "max_steps": 6,
                "max_tokens_per_batch": 40, "eval_steps": 2, "num_threads": 1, "save_total_limit": 1,
            },
        })  # fmt: skip

    whole = Path("whole")
    train(config(whole), [JsonlLog(whole / "log.jsonl")])
    events = read_log(whole / "log.jsonl")
    expected["run/losses"] = np.array([one["loss"] for one in events if one["event"] == "stepped"], np.float32)
    shutil.rmtree(whole)
    asked = iter([False] * 3 + [True])
    run = Path("run")
    ended = train(config(run), [JsonlLog(run / "log.jsonl")], should_stop=lambda: next(asked))
    assert (ended.step, ended.model) == (4, None)
    (run / ".lock").unlink()
    shutil.move(run, HERE / "run")


def main():
    assert "w52" in regard.__file__, f"not the code of 52d2168: {regard.__file__}"
    for old in ("models", "run"):
        shutil.rmtree(HERE / old, ignore_errors=True)
    expected = {}
    held = parts()
    found = write_atlas(held, expected)
    assert set(KINDS) - kinds_in(found) == {"Bilinear", "Concat", "Cosine", "TransformerXL", "_Ends"}
    found += write_values(held, expected)
    assert kinds_in(found) == set(KINDS)
    write_models(expected)
    write_run(expected)
    np.savez_compressed(HERE / "expected.npz", **expected)


if __name__ == "__main__":
    main()
