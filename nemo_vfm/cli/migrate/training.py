"""Writes the facts of any training into a recipe: length, optimizer, precision, checkpoints, loggers."""

from nemo_vfm.cli.migrate.draft import RecipeDraft
from nemo_vfm.cli.migrate.foreign_yaml import Value
from nemo_vfm.config.compose import MAX_SEED

_TRAIN = "nemo_vfm.train."
_COSINE = {"cosine", "cosineannealing", "cosineannealingscheduler"}
_CONSTANT = {"constant", "none", "warmuppolicy", "warmuppolicyscheduler", "warmupholdpolicy",
             "warmupholdpolicyscheduler"}  # fmt: skip
_ADAMW = {"adamw": "", "fused_adam": "PyTorch's AdamW instead of Apex's, the same update",
          "distributed_fused_adam": "PyTorch's AdamW instead of the distributed one, the same update",
          "megatron_fused_adam": "PyTorch's AdamW instead of Megatron's, the same update",
          "adam": "AdamW: Megatron's adam decouples weight decay, as AdamW does",
          "fusedadam": "PyTorch's AdamW instead of a fused one; options of the fused one are dropped"}  # fmt: skip
_BF16 = {"bf16", "bf16-mixed", "bf16_mixed", "bfloat16", "torch.bfloat16"}
_FP32 = {"32", "32-true", "float32", "fp32", "torch.float32"}


def migrate_training(draft: RecipeDraft) -> None:
    """Everything that does not depend on what is trained."""
    seed = draft.get("seed")
    if isinstance(seed, int) and not isinstance(seed, bool) and 0 <= seed < MAX_SEED:
        draft.carry("seed", "seed")
    else:
        draft.leave("seed", "a seed must be a whole number, at least 0 and below 2^63")
    _length(draft)
    _optimizer(draft)
    _schedule(draft)
    if draft.number("clip"):
        draft.carry("clip", "engine.clip_norm", float(draft.number("clip") or 0))
    elif draft.get("clip") == 0:
        draft.put("engine.clip_norm", None)
        draft.agree("clip", "engine.clip_norm", "write null for no clipping")
    else:
        draft.leave("clip", "gradients are clipped to a norm of 1 by default")
    draft.carry_or_leave("compile", "engine.compile", draft.flag("compile"), "it must be true or false: engine.compile")
    draft.choices["precision"] = "auto"
    for fact in ("precision", "bf16", "fp16"):  # the last that speaks is the one that says most
        _arithmetic(draft, fact)
    dtype = str(draft.get("param_dtype"))
    if dtype in _FP32:
        draft.agree("param_dtype", "precision: parameters are always fp32")
    else:
        draft.leave("param_dtype", "parameters are always fp32, and the arithmetic follows precision")
    _fp8(draft)
    _average(draft)
    _checkpoints(draft)
    _validation(draft)
    draft.put("callbacks.throughput._target_", f"{_TRAIN}callbacks.throughput.Throughput")
    if draft.get("tensorboard") is not False:
        draft.put("loggers.tensorboard._target_", f"{_TRAIN}loggers.TensorBoard")
        draft.agree("tensorboard", "loggers.tensorboard")
    else:
        draft.leave("tensorboard", "it is disabled in the original, and left out here")
    _wandb(draft)
    # The weights that theirs begins with, where they are a checkpoint of its own.
    named = draft.get("restored")
    if isinstance(named, str) and named and "weights.start_from" not in draft.values:
        draft.differ("the original begins with a checkpoint's weights, this recipe with random ones: convert the "
                     "checkpoint with `nemo-vfm convert` and set weights.start_from=DIR")  # fmt: skip
    draft.leave("restored", "weights.start_from takes runs of ours, and folders of transformers and diffusers; "
                "`nemo-vfm convert` reads other files")  # fmt: skip


def _length(draft: RecipeDraft) -> None:
    steps, epochs = draft.integer("max_steps"), draft.number("epochs")
    draft.put("loop.duration", "???", "such as 400_000 steps, 10 epochs or 12 h")
    if epochs:
        draft.change(
            "epochs", "loop.duration", f"{epochs:g} {'epoch' if epochs == 1 else 'epochs'}", "a length and its unit"
        )
    if steps:
        draft.change("max_steps", "loop.duration", f"{steps} steps", "a length and its unit")
        draft.leave("epochs", "a recipe has one duration, and the number of steps is given")
    elif "max_steps" in draft.facts:
        draft.leave("max_steps", "leave it out for no limit")
    if "epochs" in draft.facts and not epochs:
        draft.leave("epochs", "leave it out for no limit")
    draft.leave("max_time", "a duration is in steps, epochs or hours; the cluster's time limit does not change what is "
                "learned")  # fmt: skip


def _optimizer(draft: RecipeDraft) -> None:
    named = draft.get("optimizer")
    name = named.rpartition(".")[2].lower() if isinstance(named, str) else ""
    draft.choices["optimizer"] = "adamw"
    draft.choices["engine"] = "torch"
    if isinstance(named, str) and named in ("torch.optim.Adam", "torch.optim.SGD"):
        del draft.choices["optimizer"]
        draft.carry("optimizer", "optimizer._target_")
    elif name in _ADAMW:
        draft.choose("optimizer", "optimizer", "adamw", _ADAMW[name])
    else:
        draft.leave("optimizer", "a recipe may not name this optimizer without --trust; AdamW is used")
        if "optimizer" in draft.facts:
            draft.differ("AdamW replaces their optimizer")
    if draft.number("lr"):
        draft.carry("lr", "optimizer.lr")
    else:
        draft.put("optimizer.lr", "???")
        draft.leave("lr", "the original gives no number, so you must set it: optimizer.lr")
    betas, first, second = draft.get("betas"), draft.number("beta1"), draft.number("beta2")
    if isinstance(betas, tuple) and len(betas) == 2:
        draft.carry("betas", "optimizer.betas")
    elif first or second:
        draft.put("optimizer.betas", (first or 0.9, second or 0.999))
        for fact in ("beta1", "beta2"):
            if fact in draft.facts:
                draft.origins.setdefault("optimizer.betas", fact)
                draft.agree(fact, "optimizer.betas")
    draft.leave("momentum", "AdamW has betas instead")
    for fact in ("eps", "weight_decay"):
        value = draft.real(fact)
        value = None if value is None or not value >= 0 else float(value)
        draft.carry_or_leave(fact, f"optimizer.{fact}", value, "it is not a number")
    for fact in ("fused", "foreach"):
        draft.carry_or_leave(fact, f"optimizer.{fact}", draft.flag(fact), "it must be true or false")


def spare_norms(draft: RecipeDraft) -> None:
    """No decay of norms and biases: Megatron's way, which no key of its formats says."""
    if draft.choices.get("optimizer") == "adamw":
        patterns = ("*norm.weight", "*.bias")
        draft.put("optimizer.groups.no_decay.parameters", patterns, "Megatron decays no norms and biases")
        draft.put("optimizer.groups.no_decay.weight_decay", 0.0)


def _schedule(draft: RecipeDraft) -> None:
    named = draft.get("decay")
    style = named.rpartition(".")[2].lower() if isinstance(named, str) else ""
    if not {"decay", "warmup_steps", "warmup_ratio", "min_lr"} & draft.facts.keys():
        return
    cosine = style in _COSINE
    draft.choices["schedule"] = "cosine" if cosine else "constant"
    if cosine or style in _CONSTANT:
        draft.choose("decay", "schedule", draft.choices["schedule"])
    else:
        draft.leave("decay", "after the warm-up the rate is constant or a cosine; constant is used")
        if "decay" in draft.facts:
            draft.differ("a constant learning rate replaces their schedule")
    steps, ratio, length = draft.get("warmup_steps"), draft.number("warmup_ratio"), draft.integer("max_steps")
    if isinstance(steps, int) and not isinstance(steps, bool) and steps >= 0:
        draft.carry("warmup_steps", "schedule.warmup_steps", steps)
        draft.leave("warmup_ratio", "the warm-up is given in steps")
    else:
        draft.put("schedule.warmup_steps", 0)
        draft.leave("warmup_steps", "zero means none")
        draft.leave("warmup_ratio", "a warm-up is in steps, and the total number of steps is not known: "
                    "schedule.warmup_steps")  # fmt: skip
        if ratio and length:
            why = f"in steps: {ratio:g} of {length}"
            draft.change("warmup_ratio", "schedule.warmup_steps", round(ratio * length), why)
    lr, floor = draft.number("lr"), draft.real("min_lr")
    if cosine and lr and floor is not None and 0 <= floor <= lr:
        draft.change("min_lr", "schedule.final_fraction", float(f"{floor / lr:.6g}"), "as a fraction of optimizer.lr")
    else:
        draft.leave("min_lr", "only a cosine decays to it, as a fraction of a known rate")
    total = draft.integer("decay_steps")
    total = total if cosine and total and total > (draft.integer("warmup_steps") or 0) else None
    why = "the cosine lasts as long as the run" if cosine else "a constant rate does not end"
    draft.carry_or_leave("decay_steps", "schedule.total_steps", total, why)
    draft.leave("hold_steps", "a constant rate lasts to the end; a cosine begins after the warm-up")


#: Megatron-Core's and torchao's words for ours.
_SCALES = {"delayed": "delayed", "tensorwise": "current", "rowwise": "rowwise", "blockwise": "block", "mxfp8": "mxfp8"}


def _fp8(draft: RecipeDraft) -> None:
    value, scales = draft.get("fp8"), str(draft.get("fp8_recipe")).lower()
    if value in (None, False, "", "null"):
        draft.leave("fp8", "the original uses no FP8")
        draft.leave("fp8_recipe", "the original uses no FP8")
        return
    draft.choose("fp8", "precision", "fp8", "the large linears of the blocks; `check` names those that are too narrow")
    if value in ("e4m3", "hybrid"):
        draft.put("precision.fp8.format", value)
    if scales in _SCALES:
        draft.change("fp8_recipe", "precision.fp8.recipe", _SCALES[scales], "our name for it")
    else:
        draft.leave("fp8_recipe", "current scaling is used")


def _arithmetic(draft: RecipeDraft, fact: str) -> None:
    value = draft.get(fact)
    word = {True: fact, False: ""}.get(value, "") if isinstance(value, bool) else str(value).lower()
    if word in _BF16:
        draft.choose(fact, "precision", "bf16")
    elif word in _FP32:
        draft.choose(fact, "precision", "fp32")
    elif word in ("16", "16-mixed", "fp16", "float16", "bf16-true", "fp16_mixed"):
        draft.choose(fact, "precision", "bf16", "fp32 parameters and bf16 arithmetic, which needs no loss scaling")
    else:
        why = "arithmetic is in bf16 or fp32, with FP8 in large linears; auto is used"
        draft.leave(fact, "it means nothing on its own" if value in (False, None) else why)


def _average(draft: RecipeDraft) -> None:
    decay = draft.number("ema_decay")
    if draft.get("ema") is False or not {"ema", "ema_decay"} & draft.facts.keys():
        draft.leave("ema", "leave it out for no weight averaging")
        draft.leave("ema_decay", "the original disables weight averaging")
        return
    draft.choices["callbacks.ema"] = "standard"
    draft.agree("ema", "callbacks.ema: standard")
    decay = float(decay) if decay and decay < 1 else None
    draft.carry_or_leave("ema_decay", "callbacks.ema.decay", decay, "a decay must lie between 0 and 1")


def _checkpoints(draft: RecipeDraft) -> None:
    draft.put("loop.checkpoint._target_", f"{_TRAIN}callbacks.checkpointing.SaveCheckpoints")
    draft.carry_or_leave("save_every", "loop.checkpoint.every_steps", draft.integer("save_every"),
                         "checkpoints are written every N optimizer steps: loop.checkpoint.every_steps")  # fmt: skip
    every, count = draft.integer("val_every"), draft.integer("keep")
    if draft.get("monitor") == "val_loss" and count and every:  # measured where a checkpoint is written
        draft.change("keep", "loop.checkpoint.keep_best", count, "the best by val_loss, and the newest as well")
        draft.agree("monitor", "loop.checkpoint.keep_best")
        mode = draft.get("monitor_mode") if draft.get("monitor_mode") in ("min", "max") else None
        draft.carry_or_leave("monitor_mode", "loop.checkpoint.mode", mode, "it must be min or max")
        if "save_every" not in draft.facts:
            draft.put("loop.checkpoint.every_steps", every, "at each validation, the original's default")
        return
    draft.leave("monitor", "the newest checkpoints are kept; so are the best by val_loss where it is measured")
    draft.leave("monitor_mode", "it defines the best, and here the newest are kept")
    if count:
        why = "the newest are kept; loop.checkpoint.keep_best also keeps the best"
        draft.change("keep", "loop.checkpoint.keep_last", count, why)
    elif draft.get("keep") == -1:
        draft.put("loop.checkpoint.keep_last", None)
        draft.agree("keep", "loop.checkpoint.keep_last", "write null to keep all")
    else:
        draft.leave("keep", "the number to keep must be a whole number: loop.checkpoint.keep_last")


def _validation(draft: RecipeDraft) -> None:
    every = draft.get("val_every")
    if not isinstance(every, int) or isinstance(every, bool) or every < 1:  # 1.0 means once an epoch to Lightning
        draft.leave("val_every", "held-out loss is measured every N steps: loop.validation.every_steps")
        return
    draft.put("loop.validation._target_", f"{_TRAIN}callbacks.validation.Validate")
    draft.carry("val_every", "loop.validation.every_steps", every)


def _wandb(draft: RecipeDraft) -> None:
    """Weights & Biases where it was on; a key is never read, it comes from the environment when the recipe runs."""
    on = draft.get("wandb") is not False and (draft.get("wandb") is True or _is_name(draft.get("wandb_project")))
    if on:
        draft.put("loggers.wandb._target_", f"{_TRAIN}loggers.WeightsAndBiases")
        draft.agree("wandb", "loggers.wandb")
    else:
        draft.leave("wandb", "it is disabled in the original; loggers=wandb enables it")
    for word in ("project", "name", "entity", "mode"):
        value = draft.get(f"wandb_{word}")
        if on and _is_name(value) and (word != "mode" or value in ("online", "offline")):
            draft.carry(f"wandb_{word}", f"loggers.wandb.{word}")
        else:
            draft.leave(
                f"wandb_{word}", "the original disables Weights & Biases" if not on else "it is not a plain name"
            )


def _is_name(value: Value) -> bool:
    return isinstance(value, str) and value.isprintable() and "${" not in value and 0 < len(value) <= 128
