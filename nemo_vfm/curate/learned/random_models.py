"""Writes tiny models that have learnt nothing, laid out as pretrained ones are, to try recipes without downloads."""

import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from nemo_vfm.core.optional import needs_packages, require
from nemo_vfm.core.types.job import Outcome, Run, makes

_PURPOSE = "models of random weights"
_SPECIAL = ["<pad>", "<s>", "</s>", "<unk>", "<image>"]
_WIDTH = 16
_TWO_LAYERS = {"hidden_size": _WIDTH, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
_PICTURE = {"image_size": 28, "patch_size": 14}
_HEAD = (_WIDTH, 1024, 128, 64, 16, 1)  # the layers of the public aesthetic head, on a narrower CLIP
_CHAT = (
    "{% for m in messages %}{{ m['role'] }}: {% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for c in m['content'] %}{% if c['type'] == 'image' %}<image>{% else %}{{ c['text'] }}{% endif %}{% endfor %}"
    "{% endif %}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)


@needs_packages("transformers", "tokenizers")
@makes("aesthetic_head.safetensors", "transnet", "clip", "vlm")
class RandomModels:
    """Writes `clip/`, `aesthetic_head.safetensors`, `vlm/` and `transnet/` into the run folder."""

    def run(self, run: Run) -> Outcome:
        """Write the models that are not there yet."""
        hf = require("transformers", purpose=_PURPOSE)
        missing = [name for name in _MODELS if not (run.folder / name).exists()]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(run.seed)
            for name in missing:
                unfinished = run.folder / f".{name}.unfinished"
                if unfinished.is_dir():  # a file is written over
                    shutil.rmtree(unfinished)
                _MODELS[name](unfinished, hf)
                unfinished.rename(run.folder / name)
        text = f"{', '.join(_MODELS)} with random weights in {run.folder}"
        return Outcome(text, {"models": len(_MODELS)}, did_nothing=not missing)


def _tokenizer(hf: ModuleType, max_tokens: int, *, ends: bool) -> Any:
    """Every byte is a token; `ends` puts `</s>` behind each text."""
    library = require("tokenizers", purpose=_PURPOSE)
    level = library.pre_tokenizers.ByteLevel
    words = {word: number for number, word in enumerate([*_SPECIAL, *sorted(level.alphabet())])}
    made = library.Tokenizer(library.models.BPE(vocab=words, merges=[], unk_token=_SPECIAL[3]))
    made.pre_tokenizer, made.decoder = level(add_prefix_space=False), library.decoders.ByteLevel()
    if ends:
        made.post_processor = library.processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", words["</s>"])])
    names = dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), _SPECIAL, strict=False))
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=made, additional_special_tokens=_SPECIAL[4:], model_max_length=max_tokens, **names
    )


def _pictures(hf: ModuleType) -> Any:
    side = _PICTURE["image_size"]
    return hf.CLIPImageProcessorPil(size={"shortest_edge": side}, crop_size={"height": side, "width": side})


def _clip(folder: Path, hf: ModuleType) -> None:
    words = _tokenizer(hf, 77, ends=True)
    text = {"vocab_size": len(words), "max_position_embeddings": 77, "pad_token_id": 0, "bos_token_id": 1,
            "eos_token_id": 2, **_TWO_LAYERS}  # fmt: skip
    config = hf.CLIPConfig(text_config=text, vision_config=_PICTURE | _TWO_LAYERS, projection_dim=_WIDTH)
    hf.CLIPModel(config).save_pretrained(folder)
    hf.CLIPProcessor(_pictures(hf), words).save_pretrained(folder)
    _pictures(hf).save_pretrained(folder)  # a file of its own, as the published ones have


def _vlm(folder: Path, hf: ModuleType) -> None:
    """A LLaVA."""
    words = _tokenizer(hf, 4096, ends=False)
    text = hf.LlamaConfig(vocab_size=len(words), num_key_value_heads=2, max_position_embeddings=4096, pad_token_id=0,
                          bos_token_id=1, eos_token_id=2, **_TWO_LAYERS)  # fmt: skip
    vision = hf.CLIPVisionConfig(**_PICTURE, **_TWO_LAYERS)
    image_token = _SPECIAL.index("<image>")
    config = hf.LlavaConfig(vision_config=vision, text_config=text, image_token_id=image_token)
    hf.LlavaForConditionalGeneration(config).save_pretrained(folder)
    hf.LlavaProcessor(
        _pictures(hf), words, patch_size=_PICTURE["patch_size"], vision_feature_select_strategy="default",
        chat_template=_CHAT, num_additional_image_tokens=1,
    ).save_pretrained(folder)  # fmt: skip


def _head(path: Path, hf: ModuleType) -> None:
    from safetensors.torch import save_file

    layers = [torch.nn.Linear(before, after) for before, after in pairwise(_HEAD)]
    save_file(torch.nn.ModuleDict({"layers": torch.nn.ModuleList(layers)}).state_dict(), path)


def _transnet(folder: Path, hf: ModuleType) -> None:
    from safetensors.torch import save_file

    from nemo_vfm.models.transnet import TransNetV2

    folder.mkdir()
    save_file(TransNetV2().state_dict(), folder / "model.safetensors")


_MODELS: dict[str, Callable[[Path, ModuleType], None]] = {
    "clip": _clip,
    "aesthetic_head.safetensors": _head,
    "vlm": _vlm,
    "transnet": _transnet,
}
