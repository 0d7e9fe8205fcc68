"""The configuration of a run as frozen values; `config_file.py` makes them from a file and the command line."""

import math
from dataclasses import dataclass, field
from typing import Literal

from regard.data.tokenizer import LARGEST_VOCABULARY
from regard.errors import InputError
from regard.models.recurrent.config import AttentionKind
from regard.nn.blocks import Norm
from regard.nn.feed_forward import HiddenAct
from regard.train.optimization import Schedule, SchedulerKwargs, SchedulerType

__all__ = [
    "CausalLM",
    "Checkpoint",
    "Classification",
    "Config",
    "MaskedLM",
    "Model",
    "Recurrent",
    "Synthetic",
    "Task",
    "TokenizerConfig",
    "Training",
    "Transformer",
    "Translation",
]

MixedPrecision = Literal["no", "bf16", "fp16"]

# The largest counts that mean anything; `memory_check.py` checks what fits into this machine.
_ROWS, _LONGEST, _WIDEST, _DEEPEST = 10**9, 2**20, 2**20, 10_000


def _least(name: str, value: int, least: int) -> None:
    if value < least:
        raise InputError(f"`{name}` must be at least {least}, got {value}")


def _at_most(value: object, **most: int) -> None:
    """Refuse a count that is a slip of the finger, before something loops over it or reserves memory for it."""
    for name, largest in most.items():
        if (found := getattr(value, name)) is not None and found > largest:
            raise InputError(f"`{name}` must be at most {largest:,}, got {found:,}")


def _between(name: str, value: float, low: float, high: float, *, least: bool = False) -> None:
    if not (low < value < high or (least and value == low)):
        raise InputError(f"`{name}` must be {'at least' if least else 'above'} {low} and below {high}, got {value}")


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """The tokenizer that is trained for a run.

    Args:
        model_type: "bpe", "unigram" or "char" (as in sentencepiece); "char" suits Chinese, Japanese and Korean.
        vocab_size: Largest number of tokens.
        lowercase: Whether texts are lowercased.
    """

    model_type: Literal["bpe", "unigram", "char"] = "bpe"
    vocab_size: int = 8000
    lowercase: bool = False

    def __post_init__(self) -> None:
        _least("vocab_size", self.vocab_size, 8)
        _at_most(self, vocab_size=LARGEST_VOCABULARY)


@dataclass(frozen=True, kw_only=True)
class Translation:
    """Translation: sentence pairs, source language in the first column, target language in the second.

    Args:
        train_file: TSV, JSON Lines (`source`, `target`) or gzip of these.
        extra_train_file: A further file of pairs, none of which is held out.
        validation_size: Number of pairs held out of `train_file` for evaluation; their sources are not trained on.
        source_lang, target_lang: Languages as ISO 639-1 codes; BLEU's tokenizer depends on the target language.
        script: Script that all Chinese is converted to: "hans", "hant", or none for no conversion.
        src_tokenizer, tgt_tokenizer: The tokenizers; a target in Chinese, Japanese or Korean has characters by default.
        max_length: Tokens of either side, end token included; longer pairs are left out and counted.
        num_completions_to_print: Number of held-out sentences whose translations are printed at each evaluation.
        max_predict_samples: Number of held-out sentences translated for BLEU at each evaluation; all at the end.
    """

    train_file: str
    extra_train_file: str | None = None
    validation_size: int = 1000
    source_lang: str = "en"
    target_lang: str = "zh"
    script: Literal["hans", "hant"] | None = None
    src_tokenizer: TokenizerConfig = TokenizerConfig()
    tgt_tokenizer: TokenizerConfig | None = None
    max_length: int = 128
    num_completions_to_print: int = 3
    max_predict_samples: int = 200

    def __post_init__(self) -> None:
        least = {"validation_size": 1, "max_length": 2, "num_completions_to_print": 0, "max_predict_samples": 0}
        for name, value in least.items():
            _least(name, getattr(self, name), value)
        _at_most(
            self, validation_size=_ROWS, max_length=_LONGEST, num_completions_to_print=_ROWS, max_predict_samples=_ROWS
        )

    @property
    def target_tokenizer(self) -> TokenizerConfig:
        """The configured target tokenizer, or the default of its language."""
        spaced = self.target_lang not in ("zh", "ja", "ko")
        return self.tgt_tokenizer or (TokenizerConfig() if spaced else TokenizerConfig(model_type="char"))


@dataclass(frozen=True, kw_only=True)
class Synthetic:
    """A synthetic task with known answers.

    Args:
        task_name: "copy", "reverse", "sort", or "recall" (of the value that follows a key).
        num_symbols: Number of different symbols.
        min_length, max_length: Symbols in a text; for "recall", pairs of key and value.
        num_examples, validation_size: Number of texts for training and for evaluation.
    """

    task_name: Literal["copy", "reverse", "sort", "recall"]
    num_symbols: int = 16
    min_length: int = 3
    max_length: int = 20
    num_examples: int = 20000
    validation_size: int = 500

    def __post_init__(self) -> None:
        for name, least in (("num_symbols", 2), ("min_length", 1), ("num_examples", 1), ("validation_size", 1)):
            _least(name, getattr(self, name), least)
        _least("max_length", self.max_length, self.min_length)
        _at_most(self, num_symbols=LARGEST_VOCABULARY, max_length=_LONGEST, num_examples=_ROWS, validation_size=_ROWS)


@dataclass(frozen=True, kw_only=True)
class CausalLM:
    """Causal language modeling: predict the next token of running text.

    Args:
        train_file: Plain text, JSON Lines (`text`) or gzip of these; a line is a document.
        validation_size: Number of documents held out for evaluation.
        tokenizer: The tokenizer to train; a checkpoint has its own.
        block_size: Tokens in a row of a batch.
        packing: Whether documents are packed into rows in which none attends to another; otherwise the running text is
            cut into rows.
    """

    train_file: str
    validation_size: int = 200
    tokenizer: TokenizerConfig = TokenizerConfig()
    block_size: int = 128
    packing: bool = False

    def __post_init__(self) -> None:
        _least("validation_size", self.validation_size, 1)
        _least("block_size", self.block_size, 2)
        _at_most(self, validation_size=_ROWS, block_size=_LONGEST)


@dataclass(frozen=True, kw_only=True)
class MaskedLM:
    """Masked language modeling (Devlin et al. 2019, arXiv:1810.04805): 80 % masked, 10 % random, 10 % unchanged.

    Args:
        train_file: As for causal language modeling.
        validation_size: Number of documents held out for evaluation.
        tokenizer: The tokenizer to train; a checkpoint has its own.
        block_size: Tokens in a row of a batch.
        mlm_probability: Fraction of the tokens that are predicted.
    """

    train_file: str
    validation_size: int = 200
    tokenizer: TokenizerConfig = TokenizerConfig()
    block_size: int = 128
    mlm_probability: float = 0.15

    def __post_init__(self) -> None:
        _least("validation_size", self.validation_size, 1)
        _least("block_size", self.block_size, 2)
        _at_most(self, validation_size=_ROWS, block_size=_LONGEST)
        _between("mlm_probability", self.mlm_probability, 0, 1)


@dataclass(frozen=True, kw_only=True)
class Classification:
    """Text classification: TSV of text and label, or JSON Lines with `text` and `label`.

    Args:
        train_file: The file.
        validation_size: Number of texts held out for evaluation.
        tokenizer: The tokenizer to train; a checkpoint has its own.
        max_length: Tokens of a text; longer texts are truncated, and counted.
    """

    train_file: str
    validation_size: int = 200
    tokenizer: TokenizerConfig = TokenizerConfig()
    max_length: int = 128

    def __post_init__(self) -> None:
        _least("validation_size", self.validation_size, 1)
        _least("max_length", self.max_length, 2)
        _at_most(self, validation_size=_ROWS, max_length=_LONGEST)


Task = Translation | Synthetic | CausalLM | MaskedLM | Classification


@dataclass(frozen=True, kw_only=True)
class Transformer:
    """A Transformer trained from scratch; names as in `models.TransformerConfig`.

    Args:
        hidden_size: Dimension of the embeddings and of the blocks' outputs.
        num_attention_heads: Number of heads of each attention.
        intermediate_size: Dimension of the feed-forward layer's hidden layer.
        num_hidden_layers: Blocks of each side that the task needs: encoder and decoder for pairs, else one of them.
        num_key_value_heads: Number of heads of keys and values; all by default.
        positions: Position encoding or position bias.
        norm: "layer" (LayerNorm) or "rms" (RMSNorm).
        norm_first: Whether norms come before attention and feed-forward.
        hidden_act, is_gated_act: Activation of the feed-forward layer, and whether it is gated.
        dropout: Probability of dropout.
    """

    hidden_size: int = 256
    num_attention_heads: int = 4
    intermediate_size: int = 1024
    num_hidden_layers: int = 3
    num_key_value_heads: int | None = None
    positions: Literal["sinusoidal", "learned", "t5", "alibi", "shaw", "rope", "none"] = "sinusoidal"
    norm: Norm = "layer"
    norm_first: bool = True
    hidden_act: HiddenAct = "relu"
    is_gated_act: bool = False
    dropout: float = 0.1

    def __post_init__(self) -> None:
        for name in ("hidden_size", "num_attention_heads", "intermediate_size", "num_hidden_layers"):
            _least(name, getattr(self, name), 1)
        _at_most(self, hidden_size=_WIDEST, num_attention_heads=_WIDEST, intermediate_size=_WIDEST)
        _at_most(self, num_hidden_layers=_DEEPEST, num_key_value_heads=_WIDEST)
        if self.num_key_value_heads is not None:
            _least("num_key_value_heads", self.num_key_value_heads, 1)
            if self.num_attention_heads % self.num_key_value_heads:
                raise InputError(
                    "`num_attention_heads` must be a multiple of `num_key_value_heads`, got "
                    f"{self.num_attention_heads} and {self.num_key_value_heads}: take {self.num_attention_heads}, for "
                    "example"
                )
        _between("dropout", self.dropout, 0, 1, least=True)
        if self.hidden_size % self.num_attention_heads:
            nearest = max(1, round(self.hidden_size / self.num_attention_heads)) * self.num_attention_heads
            raise InputError(
                f"`hidden_size` must be a multiple of `num_attention_heads`, got {self.hidden_size} and "
                f"{self.num_attention_heads}: take {nearest}, for example"
            )


@dataclass(frozen=True, kw_only=True)
class Recurrent:
    """A GRU or LSTM encoder–decoder; names as in `models.RecurrentConfig`, where `attention` may be "none"."""

    embedding_dim: int = 256
    hidden_size: int = 256
    num_layers: int = 1
    cell: Literal["gru", "lstm"] = "gru"
    attention: AttentionKind | Literal["none"] = "bahdanau"
    bidirectional: bool = True
    dropout: float = 0.1

    def __post_init__(self) -> None:
        for name in ("embedding_dim", "hidden_size", "num_layers"):
            _least(name, getattr(self, name), 1)
        _at_most(self, embedding_dim=_WIDEST, hidden_size=_WIDEST, num_layers=_DEEPEST)
        _between("dropout", self.dropout, 0, 1, least=True)


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A model to fine-tune: a folder, an id of the hub, or a bundled model (minilm, smollm2, me5)."""

    model_name_or_path: str
    dropout: float | None = None

    def __post_init__(self) -> None:
        if self.dropout is not None:
            _between("dropout", self.dropout, 0, 1, least=True)


Model = Transformer | Recurrent | Checkpoint


@dataclass(frozen=True, kw_only=True)
class Training:
    """How a model is trained; names and meanings are those of `transformers.TrainingArguments` where it has them.

    Args:
        output_dir: Folder of the run: checkpoints, log, figure, and the final model.
        max_steps: Number of optimizer steps.
        num_train_epochs: Number of epochs, which may end within one; either this or `max_steps`.
        learning_rate: Peak learning rate of AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101).
        lr_scheduler_type: How the learning rate changes over the steps, see `schedules.Schedule`.
        warmup_steps: Steps of a linear rise from 0; below 1 a fraction of all steps.
        lr_scheduler_kwargs: Options of the schedule.
        weight_decay: AdamW's, for matrices only: neither biases nor norms decay.
        adam_beta1, adam_beta2, adam_epsilon: AdamW's.
        max_grad_norm: Norm that the gradient is clipped to; 0 for no clipping.
        label_smoothing: Fraction of the target that is spread over all classes, as in `torch.nn.CrossEntropyLoss`.
        max_tokens_per_batch: Tokens of a batch, padding included, for each process and accumulation step.
        gradient_accumulation_steps: Batches whose gradients are added before an optimizer step.
        mixed_precision: "bf16" or "fp16" for autocast, as in accelerate; weights stay in float32.
        torch_compile: Whether the model is compiled by torch.compile.
        eval_steps: Steps between evaluations, each of which saves a checkpoint; None for one after each epoch.
        save_steps: Steps between further checkpoints; None for no further ones.
        save_total_limit: Number of checkpoints that are kept; the best and the last always are.
        num_averaged_checkpoints: The final model is the mean of this many of the last evaluated checkpoints; 1 for the
            best one.
        early_stopping_patience: Evaluations without improvement after which training ends; None for no such end.
        metric_for_best_model: Name of the score that measures improvement, with or without "eval_"; None for the loss.
        num_threads: Threads of the processor; None for PyTorch's choice. Sums depend on it in their last bits.
        seed: Seed of the weights, the order of the data, and dropout.
    """

    output_dir: str
    max_steps: int | None = None
    num_train_epochs: float | None = None
    learning_rate: float = 1e-3
    lr_scheduler_type: SchedulerType = "inverse_sqrt"
    warmup_steps: float = 1000
    lr_scheduler_kwargs: SchedulerKwargs = field(default_factory=SchedulerKwargs)
    weight_decay: float = 0.01
    adam_beta1: float = 0.9
    adam_beta2: float = 0.98
    adam_epsilon: float = 1e-9
    max_grad_norm: float = 1.0
    label_smoothing: float = 0.0
    max_tokens_per_batch: int = 4096
    gradient_accumulation_steps: int = 1
    mixed_precision: MixedPrecision = "no"
    torch_compile: bool = False
    eval_steps: int | None = None
    save_steps: int | None = None
    save_total_limit: int = 3
    num_averaged_checkpoints: int = 1
    early_stopping_patience: int | None = None
    metric_for_best_model: str | None = None
    num_threads: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.output_dir.strip():
            raise InputError("`output_dir` must name the folder of the run, got an empty text")
        if (self.max_steps is None) == (self.num_train_epochs is None):
            raise InputError("training ends after `max_steps` or after `num_train_epochs`: give one of them")
        for name in _COUNTS:
            if getattr(self, name) is not None:
                _least(name, getattr(self, name), 1)
        _at_most(
            self,
            max_steps=10**12,
            num_train_epochs=10_000,
            max_tokens_per_batch=2**31,
            gradient_accumulation_steps=10_000,
            num_threads=4096,
        )
        if self.num_train_epochs is not None:
            _between("num_train_epochs", self.num_train_epochs, 0, math.inf)
        self._check_optimizer()
        _ = self.schedule  # which checks its arguments
        if self.num_averaged_checkpoints > self.save_total_limit:
            raise InputError(
                f"`num_averaged_checkpoints` is {self.num_averaged_checkpoints}, more than `save_total_limit`, "
                f"{self.save_total_limit}: raise `save_total_limit`"
            )
        if not 0 <= self.seed < 2**31:
            raise InputError(f"`seed` must be from 0 to 2³¹ − 1, got {self.seed}")

    def _check_optimizer(self) -> None:
        _between("learning_rate", self.learning_rate, 0, 10)
        for name in ("label_smoothing", "adam_beta1", "adam_beta2"):
            _between(name, getattr(self, name), 0, 1, least=True)
        _between("adam_epsilon", self.adam_epsilon, 0, math.inf)
        _between("weight_decay", self.weight_decay, 0, math.inf, least=True)
        if not self.max_grad_norm >= 0:  # nor is it nan
            raise InputError(f"`max_grad_norm` must be at least 0, which is no clipping, got {self.max_grad_norm}")

    @property
    def schedule(self) -> Schedule:
        """The learning-rate schedule."""
        return Schedule(self.lr_scheduler_type, self.warmup_steps, self.lr_scheduler_kwargs)


_COUNTS = (
    "max_steps",
    "max_tokens_per_batch",
    "gradient_accumulation_steps",
    "eval_steps",
    "save_steps",
    "save_total_limit",
    "num_averaged_checkpoints",
    "early_stopping_patience",
    "num_threads",
)


@dataclass(frozen=True, kw_only=True)
class Config:
    """The configuration of a run.

    Args:
        task: The task and its data.
        training: Its optimizer, length and output folder.
        model: The model.
    """

    task: Task
    training: Training
    model: Model = Transformer()
