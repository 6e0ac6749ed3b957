"""Holds small configurations in the formats of other frameworks, written for these tests."""

AUTOMODEL = """
seed: 7
step_scheduler: {global_batch_size: 16, local_batch_size: 2, ckpt_every_steps: 500, num_epochs: 3, max_steps: 9000}
model: {pretrained_model_name_or_path: some-org/Wan2.1-T2V-1.3B, torch_dtype: float32, compute_dtype: bfloat16}
optimizer: {_target_: torch.optim.AdamW, lr: 2e-5, weight_decay: 0.05, betas: [0.9, 0.95]}
lr_scheduler: {lr_decay_style: cosine, lr_warmup_steps: 100, min_lr: 2e-6}
flow_matching:
  adapter_type: simple
  use_sigma_noise: true
  timestep_sampling: logit_normal
  logit_mean: 0.5
  logit_std: 1.5
  flow_shift: 2.5
  mix_uniform_ratio: 0.2
  use_loss_weighting: false
  num_train_timesteps: 1000
data:
  dataloader:
    _target_: nemo_automodel.components.datasets.diffusion.build_video_multiresolution_dataloader
    cache_dir: films/cache
    base_resolution: [640, 384]
    num_workers: 3
    shuffle: true
fsdp: {tp_size: 2, cp_size: 1, dp_size: none}
checkpoint: {enabled: true, checkpoint_dir: out, restore_from: null}
wandb: {project: films, name: first, mode: online, api_key: abcdef0123456789}
something: {of: their own}
"""

AUTOMODEL_LANGUAGE = """
recipe: TrainFinetuneRecipeForNextTokenPrediction
step_scheduler: {global_batch_size: 64, local_batch_size: 8, ckpt_every_steps: 1000, val_every_steps: 10, num_epochs: 1}
rng: {_target_: nemo_automodel.components.training.rng.StatefulRNG, seed: 1111, ranked: true}
model: {_target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained, pretrained_model_name_or_path: some/llm}
distributed: {strategy: fsdp2, tp_size: 1}
dataset: {_target_: nemo_automodel.components.datasets.llm.squad.make_squad_dataset, dataset_name: some/squad}
packed_sequence: {packed_sequence_size: 0}
optimizer: {_target_: torch.optim.Adam, betas: [0.9, 0.999], eps: 1e-8, lr: 1.0e-5, weight_decay: 0}
lr_scheduler: {lr_decay_style: linear, min_lr: 1e-6}
clip_grad_norm: {max_norm: 0.5}
"""

DFM = """
model:
  tensor_model_parallel_size: 4
  hidden_size: 1152
  num_layers: 28
  num_attention_heads: 16
  ffn_hidden_size: 4608
  qkv_format: thd
train: {train_iters: 5000, eval_interval: 250, eval_iters: 8, global_batch_size: 32, micro_batch_size: 1}
dataset: {path: "${oc.env:FILMS,null}", num_workers: 4, packing_buffer_size: 50, global_batch_size: 16}
optimizer: {lr: 1.0e-4, min_lr: 1.0e-5, weight_decay: 0.1, adam_beta2: 0.95, clip_grad: 1.0}
scheduler: {lr_decay_style: cosine, lr_warmup_iters: 200}
mixed_precision: bf16_mixed
checkpoint: {save: out, load: out, save_interval: 1000}
logger: {log_interval: 10, wandb_project: films}
rng: {seed: 1234}
"""

NEMO2 = """
_target_: nemo.collections.llm.api.train
_partial_: true
data:
  _target_: nemo.collections.diffusion.data.diffusion_energon_datamodule.DiffusionDataModule
  path: films/energon
  global_batch_size: 48
  micro_batch_size: 3
  num_workers: 15
  seq_length: 2048
  task_encoder: &encoder
    _target_: nemo.collections.diffusion.data.diffusion_taskencoder.BasicDiffusionTaskEncoder
    seq_length: 2048
log:
  _target_: nemo.lightning.nemo_logger.NeMoLogger
  log_dir: out
  wandb: null
model:
  _target_: nemo.collections.diffusion.models.model.DiTModel
  config:
    _target_: nemo.collections.diffusion.models.model.DiT7BConfig
    sigma_data: 0.5
    seq_length: 2048
    vae_path: weights/vae
optim:
  _target_: nemo.lightning.pytorch.optim.megatron.MegatronOptimizerModule
  config:
    _target_: megatron.core.optimizer.optimizer_config.OptimizerConfig
    optimizer: adam
    lr: 0.0001
    adam_beta1: 0.9
    adam_beta2: 0.95
    weight_decay: 0.1
    bf16: true
    params_dtype: {_call_: false, _target_: torch.bfloat16}
    use_distributed_optimizer: true
  lr_scheduler:
    _target_: nemo.lightning.pytorch.optim.lr_scheduler.WarmupHoldPolicyScheduler
    warmup_steps: 100
    hold_steps: 1000000000.0
resume: {_target_: nemo.lightning.resume.AutoResume, resume_if_exists: true}
tokenizer: null
trainer:
  _target_: nemo.lightning.pytorch.trainer.Trainer
  devices: 8
  num_nodes: 4
  max_epochs: 10000
  max_steps: -1
  val_check_interval: 1000
  limit_val_batches: 1
  callbacks:
  - _target_: nemo.lightning.pytorch.callbacks.model_checkpoint.ModelCheckpoint
    every_n_train_steps: 1000
    save_top_k: 3
  - {_target_: nemo.utils.exp_manager.TimingCallback}
  plugins:
    _target_: nemo.lightning.pytorch.plugins.mixed_precision.MegatronMixedPrecision
    precision: bf16-mixed
  strategy:
    _target_: nemo.lightning.pytorch.strategies.megatron_strategy.MegatronStrategy
    tensor_model_parallel_size: 2
    ddp: {grad_reduce_in_fp32: true}
"""

NEMO2_LANGUAGE = """
_target_: nemo.collections.llm.api.pretrain
data:
  _target_: nemo.collections.llm.gpt.data.pre_training.PreTrainingDataModule
  global_batch_size: 512
  micro_batch_size: 1
  paths: &paths [one/text, two/text]
  seq_length: 8192
model:
  _target_: nemo.collections.llm.gpt.model.llama.LlamaModel
  config: {_target_: nemo.collections.llm.gpt.model.llama.Llama3Config8B}
optim:
  config: {optimizer: adam, lr: 3e-4, adam_beta1: 0.9, adam_beta2: 0.95, clip_grad: 1.0}
  lr_scheduler:
    _target_: nemo.lightning.pytorch.optim.lr_scheduler.CosineAnnealingScheduler
    warmup_steps: 2000
    min_lr: 3e-5
trainer:
  max_steps: 10000
  callbacks:
  - {_target_: their.FLOPs, data_config: {paths: *paths}}
  plugins: {precision: bf16-mixed, fp8: hybrid}
"""

NEMO1 = """
name: pictures
trainer: {devices: 8, precision: 16, max_epochs: 2, max_steps: -1, gradient_clip_val: 0.5, log_every_n_steps: 10}
exp_manager:
  exp_dir: null
  create_wandb_logger: False
  create_tensorboard_logger: True
  wandb_logger_kwargs: {project: pictures, name: "${name}"}
  checkpoint_callback_params: {every_n_train_steps: 1000, save_top_k: -1, monitor: reduced_train_loss}
  resume_if_exists: True
  ema: {enable: True, decay: 0.999, cpu_offload: False}
model:
  precision: ${trainer.precision}
  micro_batch_size: 4
  global_batch_size: 32
  parameterization: eps
  timesteps: 1000
  linear_start: 0.00085
  text_embedding_dropout_rate: 0.1
  seed: 1234
  unet_config:
    _target_: nemo.collections.multimodal.modules.stable_diffusion.diffusionmodules.openaimodel.UNetModel
    model_channels: 320
  first_stage_config:
    _target_: nemo.collections.multimodal.models.text_to_image.stable_diffusion.ldm.autoencoder.AutoencoderKL
  cond_stage_config: {_target_: their.FrozenCLIPEmbedder, device: cuda}
  optim:
    name: fused_adam
    lr: 1e-4
    betas: [0.9, 0.999]
    sched: {name: WarmupHoldPolicy, warmup_steps: 10000, hold_steps: 10000000000000}
  data:
    num_workers: 16
    train:
      dataset_path: [/datasets/pictures]
      augmentations: {resize_smallest_side: 512, center_crop_h_w: "512, 512"}
"""

NEMO1_GPT = """
name: stories
restore_from_path: null
trainer: {devices: 8, num_nodes: 2, accelerator: gpu, precision: bf16, logger: False, enable_checkpointing: False,
          max_epochs: -1, max_steps: 3000, log_every_n_steps: 10, val_check_interval: 200, limit_val_batches: 8,
          accumulate_grad_batches: 1, gradient_clip_val: 0.8}
exp_manager:
  create_wandb_logger: True
  wandb_logger_kwargs: {project: stories, name: third}
  resume_if_exists: True
  checkpoint_callback_params: {monitor: val_loss, save_top_k: 4, mode: min, filename: "x-{step}"}
model:
  mcore_gpt: True
  micro_batch_size: 2
  global_batch_size: 64
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 2
  virtual_pipeline_model_parallel_size: null
  context_parallel_size: 2
  sequence_parallel: True
  encoder_seq_length: 1024
  max_position_embeddings: ${.encoder_seq_length}
  num_layers: 6
  hidden_size: 512
  ffn_hidden_size: 1408
  num_attention_heads: 8
  num_query_groups: 4
  kv_channels: null
  init_method_std: 0.01
  hidden_dropout: 0.0
  attention_dropout: 0.0
  normalization: rmsnorm
  layernorm_epsilon: 1e-6
  activation: fast-swiglu
  bias: False
  position_embedding_type: rope
  rotary_percentage: 0.5
  rotary_base: 500000
  share_embeddings_and_output_weights: False
  make_vocab_size_divisible_by: 128
  override_vocab_size: 32000
  apply_query_key_layer_scaling: False
  activations_checkpoint_granularity: full
  activations_checkpoint_num_layers: null
  native_amp_init_scale: 4294967296
  megatron_amp_O2: True
  seed: 7
  tokenizer: {library: sentencepiece, type: null, model: /texts/tokenizer/tokenizer.model, vocab_file: null}
  data:
    data_prefix: [0.3, /texts/web_text_document, 0.7, /texts/books_text_document]
    index_mapping_dir: null
    data_impl: mmap
    splits_string: 980,15,5
    seq_length: ${model.encoder_seq_length}
    num_workers: 2
    reset_position_ids: False
    reset_attention_mask: True
    eod_mask_loss: False
  optim:
    name: distributed_fused_adam
    lr: 3e-4
    weight_decay: 0.1
    betas: [0.9, 0.95]
    sched: {name: CosineAnnealing, warmup_steps: 100, constant_steps: 0, min_lr: 3e-5}
"""

ALL = {
    "automodel": AUTOMODEL,
    "automodel_language": AUTOMODEL_LANGUAGE,
    "dfm": DFM,
    "nemo2": NEMO2,
    "nemo2_language": NEMO2_LANGUAGE,
    "nemo1": NEMO1,
    "nemo1_gpt_language": NEMO1_GPT,
}
