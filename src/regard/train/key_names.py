"""Keys of other libraries that a configuration here does not have, each with what to do instead."""

from collections.abc import Container

from regard.models.standard_names import CONFIG, RECURRENT_CONFIG

__all__ = ["INSTEAD", "model_key"]

_TOKENS = "a batch is measured in tokens, padding included: set `training.max_tokens_per_batch`"
_PRECISION = 'set `training.mixed_precision` = "{}"'
_EVALUATION = "set `training.eval_steps`, or leave it out for an evaluation after each epoch"
_BEST = "the best model is always kept, by `training.metric_for_best_model`: leave it out"
_HELD_OUT = "held-out rows are taken from `task.train_file`: set `task.validation_size`"
_DEVICE = "the device is chosen by accelerate: leave it out, or run `accelerate config`"
_ADAMW = "AdamW is the only optimizer: leave it out, and set `training.adam_beta1`, `adam_beta2`, `adam_epsilon`"
_LOGGED = "each step is logged in log.jsonl, each evaluation printed: leave it out"
_TIED = "each side has its own embedding, and a Transformer's output layer is that of its target: leave it out"

# TrainingArguments, and the arguments of run_clm.py, run_mlm.py and run_translation.py.
_TRANSFORMERS = {
    "per_device_train_batch_size": _TOKENS,
    "per_device_eval_batch_size": _TOKENS,
    "per_gpu_train_batch_size": _TOKENS,
    "train_batch_size": _TOKENS,
    "batch_size": _TOKENS,
    "auto_find_batch_size": _TOKENS,
    "fp16": _PRECISION.format("fp16"),
    "bf16": _PRECISION.format("bf16"),
    "label_smoothing_factor": "set `training.label_smoothing`",
    "warmup_ratio": "set `training.warmup_steps`, where a number below 1 is a fraction of all steps",
    "eval_strategy": _EVALUATION,
    "evaluation_strategy": _EVALUATION,
    "eval_on_start": _EVALUATION,
    "eval_delay": _EVALUATION,
    "save_strategy": "each evaluation saves a checkpoint: set `training.save_steps` for further ones",
    "load_best_model_at_end": _BEST,
    "greater_is_better": _BEST,
    "optim": _ADAMW,
    "optim_args": _ADAMW,
    "logging_steps": _LOGGED,
    "logging_strategy": _LOGGED,
    "logging_dir": _LOGGED,
    "logging_first_step": _LOGGED,
    "report_to": "set no such key: pass a function of your own as `callbacks=` to `regard.train.train`",
    "data_seed": "one seed draws the weights, the order of the data and dropout: set `training.seed`",
    "resume_from_checkpoint": "a run resumes by itself from the last checkpoint in `training.output_dir`: leave it out",
    "overwrite_output_dir": "a run resumes by itself: name another folder as `training.output_dir`",
    "do_train": "`regard train` trains and evaluates: leave it out",
    "do_eval": "`regard train` trains and evaluates: leave it out",
    "do_predict": "use `regard translate` or `regard generate` with the final model",
    "use_cpu": _DEVICE,
    "no_cuda": _DEVICE,
    "fsdp": _DEVICE,
    "deepspeed": _DEVICE,
    "parallelism_config": "set `training.context_parallel_size` for processes that share the tokens of each row",
    "gradient_checkpointing": "activations are not recomputed here: leave it out, and lower `max_tokens_per_batch`",
    "dataloader_num_workers": "batches are made from rows in memory: leave it out",
    "push_to_hub": "call `push_to_hub` of the final model",
    "early_stopping_threshold": "any improvement counts: set `training.early_stopping_patience` only",
    "tie_word_embeddings": _TIED,
    "validation_split_percentage": _HELD_OUT,
    "max_source_length": "one limit holds for both sides: set `task.max_length`",
    "max_target_length": "one limit holds for both sides: set `task.max_length`",
    "max_seq_length": "set `task.block_size` for language models, `task.max_length` for other tasks",
    "tokenizer_name": "a tokenizer is trained for the run, or is the checkpoint's: set the table `task.tokenizer`",
    "dataset_name": "data are files: set `task.train_file`",
    "max_train_samples": "make the file shorter: `task.train_file`",
    "max_eval_samples": "set `task.validation_size`",
}

_HIDDEN = "set `model.hidden_size`"
_LAYERS = "set `model.num_hidden_layers` (`num_layers` of a recurrent model)"
_HEADS = "set `model.num_attention_heads`"
_FEED_FORWARD = "set `model.intermediate_size`"
_RATE = "set `training.learning_rate`"
_SCHEDULE = 'set `training.lr_scheduler_type`, such as "inverse_sqrt" (noam) with `training.warmup_steps`'
_LOWEST = 'set `training.lr_scheduler_type` = "cosine_with_min_lr" and `training.lr_scheduler_kwargs.min_lr_rate`'
_WARM_UP = "set `training.warmup_steps`"
_STEPS = "set `training.max_steps`"
_EPOCHS = "set `training.num_train_epochs`"
_ACCUMULATION = "set `training.gradient_accumulation_steps`"
_CLIP = "set `training.max_grad_norm`"
_EVAL_STEPS = "set `training.eval_steps`"
_SAVE_STEPS = "set `training.save_steps`"
_LIMIT = "set `training.save_total_limit`"
_FOLDER = "set `training.output_dir`"
_PATIENCE = "set `training.early_stopping_patience`"
_METRIC = "set `training.metric_for_best_model`"
_BETAS = "set `training.adam_beta1` and `training.adam_beta2`"
_EPSILON = "set `training.adam_epsilon`"
_SIDES = "both sides have one width and one number of layers: set the keys of `model` itself"
_PER_TOKEN = "the loss is the mean over the tokens of a step: leave it out"
_PROCESSES = "start as many processes by `torchrun --nproc-per-node` or `accelerate launch`"
_SEED = "set `training.seed`"
_FILE = "set `task.train_file`, a table of both languages in two columns"
_VOCABULARY = "a tokenizer is trained for the run: set `task.src_tokenizer` and `task.tgt_tokenizer`"
_LENGTH = "set `task.max_length`"

_JOEYNMT = {
    "batch_size": _TOKENS,
    "batch_type": _TOKENS,
    "batch_multiplier": _ACCUMULATION,
    "optimizer": _ADAMW,
    "scheduling": _SCHEDULE,
    "learning_rate_warmup": _WARM_UP,
    "learning_rate_min": "training ends by `training.early_stopping_patience`: leave it out",
    "patience": _PATIENCE,
    "epochs": _EPOCHS,
    "updates": _STEPS,
    "validation_freq": _EVAL_STEPS,
    "logging_freq": _LOGGED,
    "early_stopping_metric": _METRIC,
    "eval_metric": "the scores belong to the task: leave it out",
    "keep_best_ckpts": _LIMIT,
    "keep_last_ckpts": _LIMIT,
    "model_dir": _FOLDER,
    "overwrite": "a run resumes by itself: name another folder as `training.output_dir`",
    "load_model": 'a run resumes by itself; to fine-tune, set `model.type` = "checkpoint"',
    "normalization": _PER_TOKEN,
    "loss": "the loss is the cross-entropy: leave it out",
    "clip_grad_norm": _CLIP,
    "clip_grad_val": _CLIP,
    "adam_betas": _BETAS,
    "eps": _EPSILON,
    "random_seed": _SEED,
    "encoder": _SIDES,
    "decoder": _SIDES,
    "ff_size": _FEED_FORWARD,
    "num_heads": _HEADS,
    "embeddings": "set `model.hidden_size` (`embedding_dim` of a recurrent model)",
    "layer_norm": "set `model.norm_first`",
    "tied_embeddings": _TIED,
    "tied_softmax": _TIED,
    "train": _FILE,
    "sample_train_subset": "make the file shorter: `task.train_file`",
    "max_sent_length": _LENGTH,
    "print_valid_sents": "set `task.num_completions_to_print`",
}
_OPENNMT = {
    "batch_size": _TOKENS,
    "batch_type": _TOKENS,
    "valid_batch_size": _TOKENS,
    "accum_count": _ACCUMULATION,
    "optim": _ADAMW,
    "decay_method": _SCHEDULE,
    "train_steps": _STEPS,
    "valid_steps": _EVAL_STEPS,
    "save_checkpoint_steps": _SAVE_STEPS,
    "keep_checkpoint": _LIMIT,
    "save_model": _FOLDER,
    "early_stopping": _PATIENCE,
    "early_stopping_criteria": _METRIC,
    "average_decay": "set `training.num_averaged_checkpoints`",
    "report_every": _LOGGED,
    "normalization": _PER_TOKEN,
    "rnn_size": _HIDDEN,
    "word_vec_size": "set `model.hidden_size` (`embedding_dim` of a recurrent model)",
    "transformer_ff": _FEED_FORWARD,
    "heads": _HEADS,
    "layers": _LAYERS,
    "enc_layers": _LAYERS,
    "dec_layers": _LAYERS,
    "encoder_type": "set `model.type`",
    "decoder_type": "set `model.type`",
    "world_size": _PROCESSES,
    "gpu_ranks": _PROCESSES,
    "src_vocab": _VOCABULARY,
    "tgt_vocab": _VOCABULARY,
    "src_vocab_size": _VOCABULARY,
    "tgt_vocab_size": _VOCABULARY,
    "share_vocab": _VOCABULARY,
    "share_embeddings": _TIED,
    "share_decoder_embeddings": _TIED,
    "src_seq_length": _LENGTH,
    "tgt_seq_length": _LENGTH,
    "path_src": _FILE,
    "path_tgt": _FILE,
}
_FAIRSEQ = {
    "lr": _RATE,
    "lr_scheduler": _SCHEDULE,
    "warmup_updates": _WARM_UP,
    "warmup_init_lr": "the warm-up begins at 0: leave it out",
    "min_lr": _LOWEST,
    "stop_min_lr": "training ends by `training.early_stopping_patience`: leave it out",
    "max_tokens": _TOKENS,
    "max_tokens_valid": _TOKENS,
    "max_sentences": _TOKENS,
    "update_freq": _ACCUMULATION,
    "clip_norm": _CLIP,
    "max_epoch": _EPOCHS,
    "max_update": _STEPS,
    "validate_interval": _EVALUATION,
    "validate_interval_updates": _EVAL_STEPS,
    "save_interval": _SAVE_STEPS,
    "save_interval_updates": _SAVE_STEPS,
    "save_dir": _FOLDER,
    "keep_last_epochs": _LIMIT,
    "keep_interval_updates": _LIMIT,
    "best_checkpoint_metric": _METRIC,
    "maximize_best_checkpoint_metric": _BEST,
    "restore_file": "a run resumes by itself from the last checkpoint in `training.output_dir`: leave it out",
    "log_interval": _LOGGED,
    "criterion": "the loss is the cross-entropy, smoothed by `training.label_smoothing`: leave it out",
    "adam_betas": _BETAS,
    "adam_eps": _EPSILON,
    "arch": "set `model.type` and the keys of `model`",
    "encoder_embed_dim": _HIDDEN,
    "decoder_embed_dim": _HIDDEN,
    "encoder_ffn_embed_dim": _FEED_FORWARD,
    "decoder_ffn_embed_dim": _FEED_FORWARD,
    "encoder_layers": _LAYERS,
    "decoder_layers": _LAYERS,
    "encoder_attention_heads": _HEADS,
    "decoder_attention_heads": _HEADS,
    "encoder_normalize_before": "set `model.norm_first`",
    "decoder_normalize_before": "set `model.norm_first`",
    "share_all_embeddings": _TIED,
    "share_decoder_input_output_embed": _TIED,
    "max_source_positions": _LENGTH,
    "max_target_positions": _LENGTH,
    "distributed_world_size": _PROCESSES,
    "cpu": _DEVICE,
}
_STACKS = (CONFIG["num_layers"], "encoder_layers", "decoder_layers")  # all of one number of layers in a run


def model_key(name: str, names: Container[str]) -> str | None:
    """Return the key of [model], one of these names, that is meant by another word for it in configurations."""
    is_recurrent = "num_layers" in names and "num_hidden_layers" not in names
    way = (RECURRENT_CONFIG if is_recurrent else CONFIG).get(name)
    way = "num_hidden_layers" if way in _STACKS else way
    return way if way in names else None


# By library.
INSTEAD: dict[str, dict[str, str]] = {
    "transformers": _TRANSFORMERS,
    "JoeyNMT": _JOEYNMT,
    "OpenNMT": _OPENNMT,
    "fairseq": _FAIRSEQ,
}
