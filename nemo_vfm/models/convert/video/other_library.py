"""Opens a folder of another library whose weights a model here can begin with, or says what it is."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from nemo_vfm.core.errors import CorruptCheckpoint, UserError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.models.convert.dcp_folder import checkpoint_in
from nemo_vfm.models.convert.gpt_source import GptFolder, has_architecture, is_language_model
from nemo_vfm.models.convert.language import gpt_families
from nemo_vfm.models.convert.reward_folder import is_reward_model
from nemo_vfm.models.convert.source_folder import SourceFolder
from nemo_vfm.models.convert.video.native_keys import prefixes_of
from nemo_vfm.models.convert.video.transformer_folder import FAMILIES, TRANSFORMER, TransformerFolder, transformer_in
from nemo_vfm.models.convert.video.wan_native import is_wan, is_wan_folder
from nemo_vfm.models.diffusers_codec import KINDS
from nemo_vfm.models.pretrained import PIPELINE, told_mapping
from nemo_vfm.parallel.checkpoint import checkpoint_index, tensor_file

_PICKLED = frozenset({".pt", ".pth", ".ckpt", ".bin", ".nemo"})


def is_other_librarys(folder: Path) -> bool:
    """Whether it is a language model of transformers or a video model of diffusers, to be opened as such."""
    return is_language_model(folder) or transformer_in(folder) is not None


def opened_folder(folder: Path) -> SourceFolder:
    """Its parameters by our names, to be used in a `with`; see `GptFolder` and `TransformerFolder`."""
    return GptFolder(folder) if is_language_model(folder) else TransformerFolder(folder)


def require_read(folder: Path) -> None:
    """UserError, which says what a folder is and who reads it, where it is of another library and no model of ours."""
    known = any(has_architecture(folder, name) for name in gpt_families.FAMILIES)
    if known or is_reward_model(folder) or transformer_in(folder) is not None or is_wan_folder(folder):
        return
    if found := _foreign_library(folder):
        read = ", ".join(name.removesuffix("ForCausalLM") for name in gpt_families.FAMILIES)
        video = ", ".join(name.removesuffix("Transformer3DModel") for name in FAMILIES)
        raise UserError(f"{folder} is {found}. Read are runs of ours, language models of transformers ({read}) and "
                        f"video models of diffusers ({video}).")  # fmt: skip


def _foreign_library(folder: Path) -> str:
    """What a folder is that we do not read, and who does; empty where it is of no library that is known."""
    index, config = told_mapping(folder / PIPELINE), told_mapping(folder / "config.json")
    if kind := _text(index, "_class_name"):
        network = _text(told_mapping(folder / TRANSFORMER / "config.json"), "_class_name")
        inside = f" with a {network}" if network else ""
        return f"a pipeline of diffusers, {kind}{inside}, which is not read; diffusers.{kind} loads it"
    if kind := _text(config, "_class_name"):
        use = "task.codec.folder takes it" if kind in KINDS else f"diffusers.{kind} loads it"
        return f"a model of diffusers, {kind}, from which no training starts; {use}"
    if (folder / "adapter_config.json").is_file():
        return "an adapter of PEFT, which `nemo-vfm convert FILE OUT --adapter ours --base DIR` reads"
    names = config.get("architectures")
    if isinstance(names, list) and names and isinstance(names[0], str):
        use = "task.text_encoder.folder takes it" if names[0].endswith("EncoderModel") else "transformers loads it"
        return f"a model of transformers, {names[0][:80]}, from which no training starts; {use}"
    if kind := _text(config, "model_type"):
        return f"a model of transformers of the type {kind}, which is not read; transformers.AutoModel loads it"
    if (folder / "modules.json").is_file():
        return "a model of sentence-transformers, which is not read; that library loads it"
    if list(folder.glob("*.gguf")):
        return "a folder of GGUF files, which are not read; llama.cpp loads them"
    return ""


def _text(config: Mapping[str, Json], key: str) -> str:
    value = config.get(key)
    return value[:80] if isinstance(value, str) and value.isprintable() else ""


def require_converted(path: Path) -> None:
    """UserError where only `nemo-vfm convert` reads what is at a path, or nothing does."""
    names: Iterable[str] = ()
    if path.is_dir():
        require_read(path)
    elif path.is_file() and path.suffix == checkpoint_index.SUFFIX:
        with suppress(CorruptCheckpoint):
            names = tensor_file.read_header(path).shapes
    if path.is_dir() and checkpoint_in(path) is not None:
        what = "a distributed checkpoint of torch"
    elif is_wan_folder(path):
        what = "a Wan under its original names"
    elif path.is_file() and path.suffix in _PICKLED:
        what = "a file of another program"
    elif prefixes_of([*names]):
        what = "a Cosmos under the names of NVIDIA's programs"
    elif is_wan([*names]):
        what = "a Wan under its original or ComfyUI's names"
    else:
        return
    raise UserError(f"{path} is {what}, which is converted first: `nemo-vfm convert {path} OUT`, then "
                    f"weights.start_from=OUT")  # fmt: skip
