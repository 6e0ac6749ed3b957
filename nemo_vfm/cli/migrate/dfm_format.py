# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Maps the keys of DFM's YAML: Megatron-Bridge's containers (`train`, `dataset`) or AutoModel's with `dfm.` classes."""

from nemo_vfm.cli.migrate.automodel import (
    AUTOMODEL,
    DEVICES,
    FORMAT,
    KERNELS,
    METRICS,
    NO_RESTORE,
    OTHER_AXES,
    PACKED,
    RUN_FOLDER,
)
from nemo_vfm.cli.migrate.formats import Format

#: Degrees in Megatron's words.
MEGATRON = {
    "tensor_model_parallel_size": "tensor", "pipeline_model_parallel_size": "pipeline",
    "context_parallel_size": "context",
    "virtual_pipeline_model_parallel_size": "virtual",
    "sequence_parallel": "sequence",
}  # fmt: skip
#: What of them has no place in a plan.
OTHERS = ("expert_model_parallel_size", "expert_tensor_parallel_size", "pipeline_dtype")
MEMORY = "whole blocks are run again or none (engine.recompute); there is nothing else to choose"

DFM = Format(
    name="dfm",
    title="DFM",
    always={"objective": "edm"},
    taken={
        "rng.seed": "seed",
        "train.train_iters": "max_steps",
        "train.global_batch_size": "batch_size",
        "train.micro_batch_size": "micro_batch",
        "train.eval_interval": "val_every",
        "optimizer.optimizer": "optimizer",
        "optimizer.lr": "lr",
        "optimizer.min_lr": "min_lr",
        "optimizer.adam_beta1": "beta1",
        "optimizer.adam_beta2": "beta2",
        "optimizer.adam_eps": "eps",
        "optimizer.weight_decay": "weight_decay",
        "optimizer.clip_grad": "clip",
        "scheduler.lr_decay_style": "decay",
        "scheduler.lr_warmup_iters": "warmup_steps",
        "scheduler.lr_decay_iters": "decay_steps",
        "mixed_precision": "precision",
        "checkpoint.save_interval": "save_every",
        "checkpoint.pretrained_checkpoint": "restored",
        "dataset.path": "data_path",
        "dataset.num_workers": "num_workers",
        "dataset.global_batch_size": "batch_size",
        "dataset.micro_batch_size": "micro_batch",
        "model.hidden_size": "width",
        "model.num_layers": "depth",
        "model.num_attention_heads": "heads",
        "model.ffn_hidden_size": "ffn",
        "model.patch_spatial": "patch",
        "model.in_channels": "in_channels",
        "model.crossattn_emb_size": "text_dim",
        "model.context_dim": "text_dim",
        "model.sigma_data": "sigma_data",
        "model.vae_path": "codec",
        **{f"model.{name}": fact for name, fact in MEGATRON.items()},
        "model.recompute_granularity": "recompute",
        "ddp.use_distributed_optimizer": "zero",
        "ddp.use_megatron_fsdp": "zero",
        "logger.wandb_project": "wandb_project",
        "logger.wandb_exp_name": "wandb_name",
        "logger.wandb_entity": "wandb_entity",
        "logger.tensorboard_dir": "tensorboard",
        **AUTOMODEL.taken,
    },
    left={
        **{f"model.{name}": OTHER_AXES for name in OTHERS},
        **{f"dataset.{name}": PACKED for name in
           ("seq_length", "task_encoder_seq_length", "packing_buffer_size")},
        "ddp.**": OTHER_AXES,
        "comm_overlap.**": OTHER_AXES,
        "dist.**": DEVICES,
        "model.recompute_*": MEMORY,
        "model.qkv_format": FORMAT,
        "model.seq_length": "the length follows from the bucket",
        "model.vae_cache_folder": "haar stands in for the VAE, and has no weights",
        "model.guidance_*": "guidance belongs to sampling",
        "train.eval_iters": "the whole held-out part is measured",
        "train.manual_gc*": KERNELS,
        "train.empty_unused_memory_level": KERNELS,
        "scheduler.**": "this schedule is cosine or constant, after a linear warm-up",
        "checkpoint.save": RUN_FOLDER,
        "checkpoint.load": NO_RESTORE,
        "checkpoint.load_optim": NO_RESTORE,
        "logger.log_interval": METRICS,
        "logger.**": METRICS,
        "profiling.**": KERNELS,
        **AUTOMODEL.left,
    },
)  # fmt: skip
