"""Keys that a configuration cannot have: those of format 1, and those of TrainingArguments that have no counterpart."""

__all__ = ["FORMAT", "INSTEAD", "OLD_TYPES", "RENAMED"]

FORMAT = 2  # of configurations and run.json; format 1 had the keys of RENAMED

_TOKENIZER = {"words": "tokenizer", "source_words": "src_tokenizer", "target_words": "tgt_tokenizer"}
# Dotted keys of format 1, each with its name in format 2.
RENAMED: dict[str, str] = {
    "out": "training.output_dir",
    "seed": "training.seed",
    "optimizer.rate": "training.learning_rate",
    "optimizer.schedule": "training.lr_scheduler_type",
    "optimizer.schedule.kind": "training.lr_scheduler_type",
    "optimizer.schedule.warmup": "training.warmup_steps",
    "optimizer.schedule.floor": "training.lr_scheduler_kwargs.min_lr_rate",
    "optimizer.schedule.decay": "training.lr_scheduler_kwargs.num_decay_steps",
    "optimizer.betas": "training.adam_beta1 and training.adam_beta2",
    "optimizer.eps": "training.adam_epsilon",
    "optimizer.decay": "training.weight_decay",
    "optimizer.clip": "training.max_grad_norm",
    "optimizer.smoothing": "training.label_smoothing",
    "run.steps": "training.max_steps",
    "run.epochs": "training.num_train_epochs",
    "run.tokens": "training.max_tokens_per_batch",
    "run.parts": "training.gradient_accumulation_steps",
    "run.precision": "training.mixed_precision",
    "run.compiled": "training.torch_compile",
    "run.evaluate": "training.eval_steps",
    "run.save": "training.save_steps",
    "run.patience": "training.early_stopping_patience",
    "run.metric": "training.metric_for_best_model",
    "run.keep": "training.save_total_limit",
    "run.average": "training.num_averaged_checkpoints",
    "run.threads": "training.num_threads",
    "task.kind": "task.type",
    "model.kind": "model.type",
    "task.data": "task.train_file",
    "task.also": "task.extra_train_file",
    "task.held_out": "task.validation_size",
    "task.source": "task.source_lang",
    "task.target": "task.target_lang",
    **{f"task.{old}": f"task.{new}" for old, new in _TOKENIZER.items()},
    **{f"task.{old}.kind": f"task.{new}.model_type" for old, new in _TOKENIZER.items()},
    **{f"task.{old}.size": f"task.{new}.vocab_size" for old, new in _TOKENIZER.items()},
    "task.longest": "task.max_length",
    "task.shortest": "task.min_length",
    "task.length": "task.block_size",
    "task.shown": "task.num_completions_to_print",
    "task.scored": "task.max_predict_samples",
    "task.task": "task.task_name",
    "task.symbols": "task.num_symbols",
    "task.examples": "task.num_examples",
    "task.packed": "task.packing",
    "task.share": "task.mlm_probability",
    "model.name": "model.model_name_or_path",
    "model.width": "model.hidden_size (embedding_dim of a recurrent model)",
    "model.heads": "model.num_attention_heads",
    "model.kv_heads": "model.num_key_value_heads",
    "model.hidden": "model.intermediate_size (hidden_size of a recurrent model)",
    "model.layers": "model.num_hidden_layers (num_layers of a recurrent model)",
    "model.activation": "model.hidden_act and model.is_gated_act",
}

# Values of `kind` in format 1, each with that of `type` or `model_type` in format 2.
OLD_TYPES = {
    "causal language": "clm",
    "masked language": "mlm",
    "noam": "inverse_sqrt",
    "stable": "warmup_stable_decay",
}

_TOKENS = "a batch is measured in tokens, padding included: set `training.max_tokens_per_batch`"
_PRECISION = 'set `training.mixed_precision` = "{}"'
_EVALUATION = "set `training.eval_steps`, or leave it out for an evaluation after each epoch"
_BEST = "the best model is always kept, by `training.metric_for_best_model`: leave it out"
_HELD_OUT = "held-out rows are taken from `task.train_file`: set `task.validation_size`"
_DEVICE = "the device is chosen by accelerate: leave it out, or run `accelerate config`"
_ADAMW = "AdamW is the only optimizer: leave it out, and set `training.adam_beta1`, `adam_beta2`, `adam_epsilon`"
_LOGGED = "each step is logged in log.jsonl, each evaluation printed: leave it out"
# Words of TrainingArguments and of transformers' run_*.py that have no key here, with what to do.
INSTEAD: dict[str, str] = {
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
    "validation_split_percentage": _HELD_OUT,
    "max_source_length": "one limit holds for both sides: set `task.max_length`",
    "max_target_length": "one limit holds for both sides: set `task.max_length`",
    "max_seq_length": "set `task.block_size` for language models, `task.max_length` for other tasks",
    "tokenizer_name": "a tokenizer is trained for the run, or is the checkpoint's: set the table `task.tokenizer`",
    "dataset_name": "data are files: set `task.train_file`",
    "max_train_samples": "make the file shorter: `task.train_file`",
    "max_eval_samples": "set `task.validation_size`",
}
