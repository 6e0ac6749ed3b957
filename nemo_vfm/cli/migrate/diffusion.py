# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Writes the facts of a video or image training into a recipe: data, model, objective."""

import re

from nemo_vfm.cli.migrate.draft import Draft
from nemo_vfm.cli.migrate.foreign_yaml import Value
from nemo_vfm.cli.migrate.language import FACTS as LANGUAGE

#: What a class or a checkpoint of theirs stands for: our preset, or width, depth and heads where we have none.
PRESETS = {"DiTConfig": "dit_s", "DiTBConfig": "dit_b", "DiTLConfig": "dit_l", "DiTXLConfig": "dit_xl"}
SIZES = {
    "DiT7BConfig": (3072, 32, 24),
    "DiTLlama1BConfig": (2048, 16, 32),
    "DiTLlama5BConfig": (3072, 32, 24),
    "DiTLlama30BConfig": (6144, 48, 48),
    "STDiTV3_XLConfig": (1152, 28, 16),
    "STDiTXLConfig": (1536, 24, 12),
    "STDiT3BConfig": (2048, 24, 16),
}
#: What their class names hold -> the width of the usual one: CLIP ViT-L/14, T5 11B.
_ENCODERS = {"clip": 768, "t5": 1024}
_CHECKPOINTS = {r"wan.*1[._]3b": (1536, 30, 12), r"wan.*14b": (5120, 40, 40)}
#: What writes shards that the stand-ins for their VAE and text encoder fit.
_ENCODED = "as recipes/curation/encode.yaml codec=haar text_encoder=hashed writes it"
_FOR_IMAGES = re.compile(r"flux|qwen.?image|hunyuan.?image|stable.?diffusion", re.IGNORECASE)
#: A path that its author left for the reader to fill in.
_PLACEHOLDER = re.compile(r"(?:.*/)?(?:PATH_TO|YOUR_|DATASET_FOLDER|<).*", re.IGNORECASE)


def diffusion(draft: Draft) -> None:
    """A recipe that trains a diffusion transformer on shards."""
    _data(draft)
    _shape(draft)
    _model(draft)
    _task(draft)
    for fact in LANGUAGE:
        draft.leave(fact, "an argument of a language model")
    if draft.get("objective") == "edm":
        _edm(draft)
    else:
        _flow(draft)


def _data(draft: Draft) -> None:
    draft.put("data._target_", "nemo_vfm.data.sources.shard_data.ShardData")
    _shards(draft)
    if size := draft.whole("batch_size"):
        draft.carry("batch_size", "data.batch_size", size)
    else:
        draft.put("data.batch_size", "???", "over all devices")
        draft.leave("batch_size", "it is not a number there, so you must set it: data.batch_size")
    draft.leave("micro_batch", "parallel.microbatches cuts a batch, where its sizes are known")
    workers = draft.get("num_workers")
    if isinstance(workers, int) and not isinstance(workers, bool) and workers >= 0:
        draft.carry("num_workers", "data.num_workers", workers)
    else:
        draft.leave("num_workers", "it is not a number, so shards are read in the training process")
    if isinstance(draft.get("shuffle"), bool):
        draft.carry("shuffle", "data.shuffle")
    else:
        draft.leave("shuffle", "samples are shuffled unless this is false")
    if draft.number("val_every"):
        draft.put("data.val_fraction", 0.01, "held out for validation; there is no second dataset")


def _shards(draft: Draft) -> None:
    data_path = draft.get("data_path")
    path = data_path[0] if isinstance(data_path, tuple) and len(data_path) == 1 else data_path
    draft.put("data.shards", "???", _ENCODED)
    if not isinstance(path, str) or _PLACEHOLDER.fullmatch(path):
        draft.leave("data_path", "set one folder of shards: data.shards=DIR")
    elif "${" in path:
        draft.change("data_path", "data.shards", "???", "it came from elsewhere, so you must set it: data.shards=DIR")
    else:
        draft.change("data_path", "data.shards", path, f"a folder of our shards has to be there, {_ENCODED}")


def _shape(draft: Draft) -> None:
    size, frames = _pair(draft.get("resolution")), draft.whole("num_frames")
    images = _FOR_IMAGES.search(f"{draft.get('model_class')} {draft.get('pretrained')} {draft.get('adapter')}")
    if size is None:
        draft.choices["data.buckets"] = "256p"
        for fact in ("resolution", "num_frames", "fps"):
            draft.leave(fact, "a bucket is width, height and frames together; 256p stands in: data.buckets=720p")
        return
    draft.put("data.buckets._target_", "nemo_vfm.data.batching.bucket.Buckets")
    draft.put("data.buckets.buckets.all._target_", "nemo_vfm.data.batching.bucket.Bucket")
    draft.put("data.buckets.buckets.all.width", size[0])
    draft.put("data.buckets.buckets.all.height", size[1])
    draft.origins["data.buckets.buckets.all.width"] = "resolution"
    draft.agree("resolution", "data.buckets", "a bucket; add others for other aspect ratios")
    draft.put("data.buckets.buckets.all.num_frames", 1 if images else "???", "" if images else "frames of a sample")
    if frames:
        draft.carry("num_frames", "data.buckets.buckets.all.num_frames", frames)
    else:
        draft.leave("num_frames", "how many frames is a whole number")
    if draft.number("fps"):
        draft.carry("fps", "data.buckets.buckets.all.fps")


def _pair(value: Value) -> tuple[int, int] | None:
    """Width and height; NeMo also writes them as the text "512, 512"."""
    if isinstance(value, str) and (match := re.fullmatch(r"\s*(\d{1,5})\s*,\s*(\d{1,5})\s*", value)):
        value = (int(match[1]), int(match[2]))
    if isinstance(value, int) and not isinstance(value, bool):
        value = (value, value)
    sides = value if isinstance(value, tuple) else ()
    whole = [side for side in sides if isinstance(side, int) and not isinstance(side, bool) and side > 0]
    return (whole[0], whole[1]) if len(whole) == 2 == len(sides) else None


def _model(draft: Draft) -> None:
    draft.choices["model"] = "dit_s"
    draft.put("model.in_channels", 48, "of conf/codec/haar.yaml, which replaces the VAE")
    draft.put("model.text_dim", 256, "of conf/text_encoder/hashed.yaml, which replaces the text encoder")
    _known_size(draft)
    for fact, address in (("width", "model.width"), ("depth", "model.depth"), ("heads", "model.heads")):
        if draft.whole(fact):
            draft.carry(fact, address, draft.whole(fact))
    if (ffn := draft.number("ffn")) and (width := draft.number("width")):
        draft.change("ffn", "model.mlp_ratio", float(f"{ffn / width:.6g}"), "as a multiple of the width")
    else:
        draft.leave("ffn", "the perceptron is a multiple of a width that is not given: model.mlp_ratio")
    if patch := draft.whole("patch"):
        draft.change("patch", "model.patch", (1, patch, patch), "frames, rows and columns of a token")
    draft.leave("seq_length", "the number of tokens follows from the bucket and the patches")
    draft.leave("adapter", "our models need no adapter")
    draft.leave("in_channels", "it follows from the codec; haar replaces the VAE and has 48")
    draft.leave("text_dim", "it follows from the text encoder; hashed stands in and has 256")


def _known_size(draft: Draft) -> None:
    name = str(draft.get("model_class")).rpartition(".")[2]
    if name in PRESETS:
        draft.choose("model_class", "model", PRESETS[name])
    elif name in SIZES:
        _put_size(draft, SIZES[name])
        draft.agree(
            "model_class", "model.width, depth, heads", "a DiT of that width, depth and heads, with blocks of ours"
        )
    else:
        draft.leave("model_class", "this model is not supported; dit_s is used instead, and model=dit_xl is larger")
    where = str(draft.get("pretrained"))
    known = next((size for like, size in _CHECKPOINTS.items() if re.search(like, where, re.IGNORECASE)), None)
    if known is not None:
        _put_size(draft, known)
        draft.agree(
            "pretrained", "model.width, depth, heads", "a DiT of that width, depth and heads; its weights are not read"
        )
    else:
        draft.leave("pretrained", "weights of other frameworks are not read here; the model begins with random ones")


def _put_size(draft: Draft, size: tuple[int, int, int]) -> None:
    for key, value in zip(("width", "depth", "heads"), size, strict=True):
        draft.put(f"model.{key}", value)


def _task(draft: Draft) -> None:
    draft.put("task._target_", "nemo_vfm.diffusion.denoising_task.Denoise")
    draft.choices |= {"task.codec": "haar", "task.text_encoder": "hashed"}
    dropout = draft.get("text_dropout")
    if isinstance(dropout, int | float) and not isinstance(dropout, bool) and 0 <= dropout <= 1:
        draft.carry("text_dropout", "task.text_dropout", float(dropout))
    draft.leave("codec", "haar replaces it: a codec that loads their weights is not supported")
    _text_encoder(draft)


def _text_encoder(draft: Draft) -> None:
    """CLIP's text tower or a T5, from a local folder that the user gives."""
    found = next((known for known in _ENCODERS if known in str(draft.get("text_encoder")).lower()), None)
    if found is None:
        draft.leave("text_encoder", "hashed stands in for it; task.text_encoder=t5 or clip reads a local folder of "
                    "theirs, and model.text_dim is its width")  # fmt: skip
        return
    width = draft.whole("text_dim") or _ENCODERS[found]
    draft.choose("text_encoder", "task.text_encoder", found, "from a local folder: task.text_encoder.folder=DIR")
    draft.put("model.text_dim", width, f"the width of a {found.upper()}, by which shards have to be encoded, too")
    if draft.whole("text_dim"):
        draft.carry("text_dim", "model.text_dim", width)


def _edm(draft: Draft) -> None:
    draft.choices["task.objective"] = "edm"
    for fact in ("sigma_data", "p_mean", "p_std", "sigma_min", "sigma_max", "rho"):
        value = draft.get(fact)
        if isinstance(value, int | float) and not isinstance(value, bool):
            draft.carry(fact, f"task.objective.{fact}", float(value))


def _flow(draft: Draft) -> None:
    draft.choices["task.objective"] = "flow"
    plain = draft.get("sigma_noise") is False
    _draws(draft, uniform=plain or draft.get("sampling") == "uniform", plain=plain)
    _weights(draft)
    for fact, end in (("sigma_min", 0), ("sigma_max", 1)):
        if draft.get(fact) == end:
            draft.agree(fact, "task.objective: the whole path")
        else:
            draft.leave(fact, "the whole path from 0 to 1 is learned")
    draft.leave("timesteps", "noise levels are continuous, not numbered")
    draft.leave("parameterization", "flow matching learns the velocity; predicting noise is not an objective here")


def _draws(draft: Draft, *, uniform: bool, plain: bool) -> None:
    """Which noise levels are drawn."""
    if plain:
        draft.change("sigma_noise", "task.objective.shift", 1.0, "without it, draws are uniform and not shifted")
        draft.leave("shift", "without sigma noise it has no effect there")
    else:
        draft.agree("sigma_noise", "task.objective.shift")
        if draft.number("shift"):
            draft.carry("shift", "task.objective.shift", float(draft.number("shift") or 1))
    if uniform:
        draft.put("task.objective.uniform_fraction", 1.0)
        draft.agree("sampling", "task.objective.uniform_fraction", "all draws are uniform")
        for fact in ("logit_mean", "logit_std", "mix_ratio"):
            draft.leave(fact, "it has no effect where all draws are uniform")
        return
    _logit_normal(draft)


def _logit_normal(draft: Draft) -> None:
    sampling = draft.get("sampling")
    if sampling in ("mix", "lognorm"):
        draft.agree(
            "sampling", "task.objective.logit_mean", "logit-normal with mean 0 and deviation 1, which is what it draws"
        )
        for fact in ("logit_mean", "logit_std"):
            draft.leave(fact, f"{sampling} does not read it there")
    else:
        for fact in ("logit_mean", "logit_std"):
            value = draft.get(fact)
            if isinstance(value, int | float) and not isinstance(value, bool):
                draft.carry(fact, f"task.objective.{fact}", float(value))
        if sampling in (None, "logit_normal"):
            draft.agree("sampling", "task.objective.logit_mean")
        else:
            draft.leave("sampling", "this sampling of noise levels is not supported; logit-normal is used")
    ratio = draft.get("mix_ratio")
    if isinstance(ratio, int | float) and not isinstance(ratio, bool) and 0 <= ratio <= 1:
        draft.carry("mix_ratio", "task.objective.uniform_fraction", float(ratio))


def _weights(draft: Draft) -> None:
    """How the loss is weighed; the linear weight is 1 + shift sigma there, and 1 + noise_weight sigma here."""
    weighted, scheme, shift = draft.get("loss_weighting"), draft.get("loss_scheme"), draft.number("shift")
    if weighted is True and scheme in (None, "linear") and shift:
        draft.change(
            "loss_weighting", "task.objective.noise_weight", float(shift), "the weight 1 + shift sigma, spelled out"
        )
        draft.agree("loss_scheme", "task.objective.noise_weight")
    elif weighted is False:
        draft.put("task.objective.noise_weight", 0.0)
        draft.agree("loss_weighting", "task.objective.noise_weight", "a weight of zero means no weighting")
        draft.leave("loss_scheme", "it has no effect there without loss weighting")
    else:
        draft.leave("loss_weighting", "this weighting is not supported; the loss is not weighted by noise level")
        draft.leave("loss_scheme", "this weighting is not supported; the loss is not weighted by noise level")
