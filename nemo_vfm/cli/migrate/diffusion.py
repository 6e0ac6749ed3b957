"""Writes the facts of a video or image training into a recipe: data, model, objective."""

import re

from nemo_vfm.cli.migrate.adapters import FACTS as ADAPTERS
from nemo_vfm.cli.migrate.adapters import has_adapters
from nemo_vfm.cli.migrate.draft import RecipeDraft
from nemo_vfm.cli.migrate.language import FACTS as LANGUAGE
from nemo_vfm.cli.migrate.published_video import REDRAWN, pipeline_of, published_video

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
FLOW = ("shift", "sampling", "logit_mean", "logit_std", "mix_ratio", "sigma_noise", "loss_weighting", "loss_scheme",
        "timesteps")  # fmt: skip
#: What writes shards that the stand-ins for their VAE and text encoder fit, or that a published model reads.
_ENCODED = "as recipes/curation/encode.yaml codec=haar text_encoder=hashed writes it"
_ENCODED_BY = "as nemo-vfm run curation/encode buckets=... {} writes it"
_CODEC_AND_TEXT = ("codec=diffusers codec.folder={0} text_encoder=t5 text_encoder.folder={0}/text_encoder "
                   "+text_encoder.tokenizer={0}/tokenizer")  # fmt: skip
_PIXELS = "as recipes/curation/clips.yaml writes it: given frames are encoded from pixels"
_FOR_IMAGES = re.compile(r"flux|qwen.?image|hunyuan.?image|stable.?diffusion", re.IGNORECASE)
#: A path that its author left for the reader to fill in.
_PLACEHOLDER = re.compile(r"(?:.*/)?(?:PATH_TO|YOUR_|DATASET_FOLDER|<).*", re.IGNORECASE)


def diffusion(draft: RecipeDraft) -> None:
    """A recipe that trains a diffusion transformer on shards."""
    draft.put("task._target_", "nemo_vfm.diffusion.denoising_task.Denoise")
    published = pipeline_of(draft)
    if published:
        published_video(draft, published)
    else:
        _model(draft)
        draft.choices |= {"task.codec": "haar", "task.text_encoder": "hashed", "task.objective": "flow"}
        draft.differ("haar replaces their VAE, so latents differ; task.codec=diffusers reads one of Wan or "
                     "Cosmos from a folder (docs/how-to/video/video_models.md)")  # fmt: skip
        draft.leave("codec", "haar replaces it; task.codec=diffusers reads one of Wan or Cosmos from a folder")
        _text_encoder(draft)
    for fact in ("dataset_class", "answer_files"):
        draft.leave(fact, "the data is ShardData")
    dropout = draft.real("text_dropout")
    if dropout is not None and 0 <= dropout <= 1:
        draft.carry("text_dropout", "task.text_dropout", float(dropout))
    else:
        draft.leave("text_dropout", "it is not a fraction between 0 and 1")
        if published:
            draft.put("task.text_dropout", 0.0, "none by default, as their adapter `simple`")
    _data(draft)
    _shape(draft)
    for fact in LANGUAGE:
        draft.leave(fact, "an argument of a language model")
    if str(draft.values.get("task.objective._target_", draft.get("objective"))).endswith(("edm", ".EDM")):
        if not published:
            draft.choices["task.objective"] = "edm"
        for fact in ("sigma_data", "p_mean", "p_std", "sigma_min", "sigma_max", "rho"):
            if (value := draft.real(fact)) is not None:
                draft.carry(fact, f"task.objective.{fact}", float(value))
        for fact in FLOW:
            draft.leave(fact, "this network learns by EDM, not by flow matching")
    else:
        _flow(draft, published)


def _data(draft: RecipeDraft) -> None:
    draft.put("data._target_", "nemo_vfm.data.sources.shard_data.ShardData")
    data_path = draft.get("data_path")
    path = data_path[0] if isinstance(data_path, tuple) and len(data_path) == 1 else data_path
    written = _ENCODED  # what writes shards that the model reads
    if "InChannels" in str(draft.values.get("task.frame_conditioning._target_")) and "base" in draft.values:
        written = _PIXELS
    elif "base" in draft.values:
        written = _ENCODED_BY.format(_CODEC_AND_TEXT.format(draft.values["base"]))
    draft.put("data.shards", "???", written)
    if not isinstance(path, str) or _PLACEHOLDER.fullmatch(path):
        draft.leave("data_path", "set one folder of shards: data.shards=DIR")
    elif "${" in path:
        draft.change("data_path", "data.shards", "???", "another file sets it, so you must set it: data.shards=DIR")
    else:
        draft.change("data_path", "data.shards", path, f"it must be a folder of shards, {written}")
    if size := draft.integer("batch_size"):
        draft.carry("batch_size", "data.batch_size", size)
    else:
        draft.put("data.batch_size", "???", "over all devices")
        draft.leave("batch_size", "the original gives no number, so you must set it: data.batch_size")
    draft.leave("micro_batch", "parallel.microbatches splits a batch once its sizes are known")
    workers = draft.get("num_workers")
    workers = workers if isinstance(workers, int) and not isinstance(workers, bool) and workers >= 0 else None
    draft.carry_or_leave("num_workers", "data.num_workers", workers,
                         "it is not a number, so the training process reads the shards itself")  # fmt: skip
    draft.carry_or_leave("shuffle", "data.shuffle", draft.flag("shuffle"), "samples are shuffled unless this is false")
    if draft.number("val_every"):
        draft.put("data.val_fraction", 0.01, "held out for validation; there is no second dataset")


def _shape(draft: RecipeDraft) -> None:
    value = draft.get("resolution")  # width and height; NeMo also writes them as the text "512, 512"
    if isinstance(value, str) and (match := re.fullmatch(r"\s*(\d{1,5})\s*,\s*(\d{1,5})\s*", value)):
        value = (int(match[1]), int(match[2]))
    if isinstance(value, int) and not isinstance(value, bool):
        value = (value, value)
    sides = value if isinstance(value, tuple) else ()
    whole = [side for side in sides if isinstance(side, int) and not isinstance(side, bool) and side > 0]
    size = (whole[0], whole[1]) if len(whole) == 2 == len(sides) else None
    frames = draft.integer("num_frames")
    images = _FOR_IMAGES.search(f"{draft.get('model_class')} {draft.get('pretrained')} {draft.get('adapter')}")
    if size is None:
        draft.choices["data.buckets"] = "256p"
        for fact in ("resolution", "num_frames", "fps"):
            draft.leave(
                fact, "a bucket is width, height and frames together; 256p is used: data.buckets=720p chooses another"
            )
        return
    draft.put("data.buckets._target_", "nemo_vfm.data.batching.bucket.Buckets")
    draft.put("data.buckets.buckets.all._target_", "nemo_vfm.data.batching.bucket.Bucket")
    draft.put("data.buckets.buckets.all.width", size[0])
    draft.put("data.buckets.buckets.all.height", size[1])
    draft.origins["data.buckets.buckets.all.width"] = "resolution"
    draft.agree("resolution", "data.buckets", "a bucket; add others for other aspect ratios")
    draft.put("data.buckets.buckets.all.num_frames", 1 if images else "???", "" if images else "frames of a sample")
    draft.carry_or_leave("num_frames", "data.buckets.buckets.all.num_frames", frames,
                         "the number of frames must be a whole number")  # fmt: skip
    if draft.number("fps"):
        draft.carry("fps", "data.buckets.buckets.all.fps")


def _model(draft: RecipeDraft) -> None:
    """A DiT with random weights, where no published model of ours is named."""
    draft.choices["model"] = "dit_s"
    draft.put("model.in_channels", 48, "of conf/codec/haar.yaml, which stands in for the VAE")
    draft.put("model.text_dim", 256, "of conf/text_encoder/hashed.yaml, which stands in for the text encoder")
    name = str(draft.get("model_class")).rpartition(".")[2]
    if name in PRESETS:
        draft.choose("model_class", "model", PRESETS[name])
    elif name in SIZES:
        for key, value in zip(("width", "depth", "heads"), SIZES[name], strict=True):
            draft.put(f"model.{key}", value)
        why = "a DiT of that width, depth and number of heads, with our blocks"
        draft.agree("model_class", "model.width, depth, heads", why)
    else:
        draft.leave("model_class", "dit_s replaces their model; model=dit_xl is larger")
    if "pretrained" in draft.facts:
        draft.differ("by its name their pretrained model is neither a Wan nor a Cosmos, and no other video or image "
                     "model is read: one of our DiTs replaces it, with random weights")  # fmt: skip
    elif name not in PRESETS:
        draft.differ("one of our DiTs replaces their network")
    draft.leave("pretrained", "only pretrained weights of Wan and Cosmos are read, and this name is neither; if it is "
                "one of them, see recipes/world_model/full.yaml")  # fmt: skip
    for fact, address in (("width", "model.width"), ("depth", "model.depth"), ("heads", "model.heads")):
        if draft.integer(fact):
            draft.carry(fact, address, draft.integer(fact))
    if (ffn := draft.number("ffn")) and (width := draft.number("width")):
        draft.change("ffn", "model.mlp_ratio", float(f"{ffn / width:.6g}"), "as a multiple of the width")
    else:
        draft.leave("ffn", "the MLP's size is a multiple of the width, which is not given: model.mlp_ratio")
    if patch := draft.integer("patch"):
        draft.change("patch", "model.patch", (1, patch, patch), "frames, rows and columns of a token")
    draft.leave("seq_length", "the number of tokens follows from the bucket and the patches")
    draft.leave("adapter", "the task prepares the inputs of each network; there is nothing to choose")
    draft.leave("in_channels", "the codec sets it; haar replaces the VAE and has 48")
    draft.leave("text_dim", "the text encoder sets it; hashed replaces it and has 256")
    for fact in ("mode", "model_builder", "stage", "boundary", "image_share", *ADAPTERS):
        draft.leave(fact, "it concerns pretrained weights, and the DiT used instead begins with random ones")
    if has_adapters(draft):
        draft.differ("adapters need pretrained weights, so all weights of the DiT are trained")


def _text_encoder(draft: RecipeDraft) -> None:
    """CLIP's text tower or a T5, from a local folder that the user gives."""
    found = next((known for known in _ENCODERS if known in str(draft.get("text_encoder")).lower()), None)
    if found is None:
        draft.leave("text_encoder", "hashed replaces it; task.text_encoder=t5 or clip reads theirs from a local "
                    "folder, and model.text_dim is its width")  # fmt: skip
        return
    width = draft.integer("text_dim") or _ENCODERS[found]
    draft.choose("text_encoder", "task.text_encoder", found, "from a local folder: task.text_encoder.folder=DIR")
    draft.put(
        "model.text_dim", width, f"the width of a {found.upper()}; the shards must be encoded with the same encoder"
    )
    if draft.integer("text_dim"):
        draft.carry("text_dim", "model.text_dim", width)


def _flow(draft: RecipeDraft, published: str) -> None:
    if published:  # theirs passes sigma as it is
        draft.values.pop("task.objective.timesteps", None)
        draft.values.pop("task.objective.shift", None)
    else:
        draft.choices["task.objective"] = "flow"
    plain = draft.get("sigma_noise") is False
    _draws(draft, uniform=plain or draft.get("sampling") == "uniform", plain=plain)
    # The linear weight is 1 + shift sigma in the original, and 1 + noise_weight sigma here.
    weighted, scheme, shift = draft.get("loss_weighting"), draft.get("loss_scheme"), draft.number("shift")
    if weighted is True and scheme in (None, "linear") and shift:
        why = "the weight 1 + shift sigma, spelled out"
        draft.change("loss_weighting", "task.objective.noise_weight", float(shift), why)
        draft.notes["task.objective.noise_weight"] = why
        draft.agree("loss_scheme", "task.objective.noise_weight")
    elif weighted is False:
        draft.put("task.objective.noise_weight", 0.0)
        draft.agree("loss_weighting", "task.objective.noise_weight", "a weight of zero means no weighting")
        draft.leave("loss_scheme", "it has no effect in the original without loss weighting")
    elif {"loss_weighting", "loss_scheme"} & draft.facts.keys():
        draft.differ("their loss weight by noise level does not exist here, so the loss is not weighted")
        for fact in ("loss_weighting", "loss_scheme"):
            draft.leave(fact, "loss weights are linear or absent here, so the loss is not weighted by noise level")
    if "task.objective.drawn" not in draft.values:  # a part of the path; a stage says it itself
        ends = [end for end in (draft.facts.get("sigma_min", 0), draft.facts.get("sigma_max", 1))
                if isinstance(end, int | float) and not isinstance(end, bool)]  # fmt: skip
        part = len(ends) == 2 and 0 <= ends[0] < ends[1] <= 1
        if part and ends != [0, 1]:
            draft.differ(REDRAWN)
            draft.put("task.objective.drawn", (float(ends[0]), float(ends[1])))
        for fact in ("sigma_min", "sigma_max"):
            if part:
                draft.agree(fact, "task.objective.drawn")
            else:
                draft.leave(fact, "they are not two values between 0 and 1, so the whole path is learned")
    draft.leave("timesteps", "noise levels are continuous, not numbered")
    draft.leave("parameterization", "flow matching learns the velocity; no objective here predicts noise")


def _draws(draft: RecipeDraft, *, uniform: bool, plain: bool) -> None:
    """Which noise levels are drawn."""
    if plain:
        draft.change("sigma_noise", "task.objective.shift", 1.0, "without it, draws are uniform and not shifted")
        draft.leave("shift", "it has no effect in the original without sigma noise")
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
    sampling = draft.get("sampling")
    if sampling in ("mix", "lognorm"):
        draft.agree(
            "sampling", "task.objective.logit_mean", "logit-normal with mean 0 and deviation 1, which is what it draws"
        )
        for fact in ("logit_mean", "logit_std"):
            draft.leave(fact, f"{sampling} does not read it there")
    else:
        for fact in ("logit_mean", "logit_std"):
            if (value := draft.real(fact)) is not None:
                draft.carry(fact, f"task.objective.{fact}", float(value))
        if sampling in (None, "logit_normal"):
            draft.agree("sampling", "task.objective.logit_mean")
        else:
            draft.leave("sampling", "noise levels are drawn logit-normal or uniform here; logit-normal is used")
            draft.differ("their distribution of noise levels does not exist here; logit-normal is used")
    ratio = draft.real("mix_ratio")
    if ratio is not None and 0 <= ratio <= 1:
        draft.carry("mix_ratio", "task.objective.uniform_fraction", float(ratio))
