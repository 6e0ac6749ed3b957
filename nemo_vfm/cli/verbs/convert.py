"""Convert .nemo, .ckpt, .pt, .distcp and our checkpoints to safetensors, and models from and to other libraries.

Files of other frameworks are read as data: no code in them is run, and a file's bytes determine its type, not its name.
A run's averaged weights are taken if it has any. OUT is written completely or not at all (docs/how-to/weights.md).

Examples:
  nemo-vfm convert runs/mine out                        # one file, for weights.start_from: out; any layout of devices
  nemo-vfm convert runs/mine out --key model --dtype bf16  # the raw weights, in another precision
  nemo-vfm convert asr_small.nemo asr_small             # also .ckpt, .pt, .pth, .bin, folders of .distcp files
  nemo-vfm convert models/llama mine          # weights.start_from: mine; model=converted with --conf mine/conf
  nemo-vfm convert runs/mine out --to transformers      # for AutoModelForCausalLM and AutoTokenizer
  nemo-vfm convert models/wan mine                      # a video model, from a diffusers pipeline or transformer folder
  nemo-vfm convert runs/mine out --to diffusers --pipeline models/wan  # a complete pipeline
  nemo-vfm convert model.pt mine --key net              # a Cosmos in NVIDIA's format, its trained weights
  nemo-vfm convert wan.safetensors mine                 # a Wan under its own names or ComfyUI's
  nemo-vfm convert runs/mine out --to comfyui           # one file under ComfyUI's names; native: its own programs'
  nemo-vfm convert runs/lora mine --adapter diffusers   # a run's adapter
  nemo-vfm convert FILE mine --adapter ours --base models/wan            # another program's adapter
  nemo-vfm convert FILE whole --to transformers --base models/llama      # an adapter merged into its model
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from nemo_vfm.cli.arguments import add_allow_host, add_trust

_PASSED_ON = ("PATH", "PYTHONPATH", "LANG", "LC_ALL", "TMPDIR", "HOME", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
_FILES = (".nemo", ".ckpt", ".pt", ".pth", ".bin", ".safetensors")
_TIMEOUT_S = 6 * 3600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the input, the output folder and the options."""
    parser.add_argument("file", metavar="FILE", type=Path,
                        help="a .nemo archive, a torch.save file, a folder of .distcp files, a run or checkpoint of "
                             "ours, a transformers folder of a language model, or a diffusers folder of a video "
                             "model")  # fmt: skip
    parser.add_argument("out", metavar="OUT", type=Path, help="folder to create; it must not exist")
    parser.add_argument("--key", metavar="NAME", help="which weights, such as state_dict or ema")
    parser.add_argument("--leave-out", action="store_true",
                        help="continue if the file refers to code beside its weights; the code is listed, never "
                             "run")  # fmt: skip
    parser.add_argument("--to", choices=("ours", "transformers", "diffusers", "native", "comfyui", "exported"),
                        default="ours",
                        help="write a folder that this library can load, from a run of a language model or a video "
                             "model; native: one file of a Cosmos or Wan under the names of its original code; "
                             "comfyui: under ComfyUI's; exported: a ranker as a torch.export program")  # fmt: skip
    parser.add_argument("--adapter", choices=("ours", "peft", "diffusers", "comfyui", "cosmos"),
                        help="write the low-rank adapter of a run, or of a file (with --base), in this program's "
                             "format")  # fmt: skip
    parser.add_argument("--base", metavar="DIR", type=Path,
                        help="folder of the pretrained model that FILE, an adapter, belongs to; with --to "
                             "transformers or diffusers the adapter is merged into it")  # fmt: skip
    parser.add_argument("--alpha", metavar="NUMBER", type=float,
                        help="with --base: alpha of every linear, instead of the file's")  # fmt: skip
    parser.add_argument("--pipeline", metavar="DIR", type=Path,
                        help="with --to diffusers: pipeline folder whose other parts are copied next to the "
                             "transformer")  # fmt: skip
    parser.add_argument("--replaces", choices=("transformer", "transformer_2"),
                        help="with --to diffusers: which network of a --pipeline with two (Wan 2.2 A14B) is "
                             "replaced")  # fmt: skip
    parser.add_argument("--tokenizer", metavar="DIR", type=Path,
                        help="with --to transformers: tokenizer folder, if the run's data does not name it"
                        )  # fmt: skip
    parser.add_argument("--max-tokens", metavar="N", type=int,
                        help="with --to transformers: longest text that the model was trained on")  # fmt: skip
    parser.add_argument("--rope-scale", metavar="T,H,W", type=_three,
                        help="for a Cosmos in NVIDIA's own files without a published size: scale of its rotary "
                             "positions")  # fmt: skip
    parser.add_argument("--heads", metavar="N", type=_heads,
                        help="for a Wan under its own or ComfyUI's names, if its heads are not 128 wide")  # fmt: skip
    parser.add_argument("--dtype", choices=("fp32", "bf16", "int8"),
                        help="with --to: dtype of the weights; int8 only for a ranker's rows")  # fmt: skip
    add_trust(parser, "the run's recipe may name")
    add_allow_host(parser)


def _three(text: str) -> list[float]:
    numbers = [float(word) for word in text.split(",")]
    if len(numbers) != 3 or not all(0 < number < 1000 for number in numbers):
        raise argparse.ArgumentTypeError(f"{text} is not three numbers above zero; give time, height, width, such as "
                                         f"1,3,3")  # fmt: skip
    return numbers


def _heads(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= 1024:
        raise argparse.ArgumentTypeError(f"{text} is not a number of heads, such as 12")
    return int(text)


def run(arguments: argparse.Namespace) -> int:
    """Convert FILE; the output folder appears only when it is complete."""
    import shutil

    from nemo_vfm.core.errors import UserError
    from nemo_vfm.core.storage.files import sync

    if not arguments.file.is_file() and not arguments.file.is_dir():
        from nemo_vfm.models.hub.hub_names import get_hint

        hint = "" if arguments.file.suffix in _FILES else f"; {get_hint(arguments.file)} downloads a model"
        raise UserError(f"there is no file {arguments.file}{hint}")
    if arguments.out.exists() or arguments.out.is_symlink():
        raise UserError(f"{arguments.out} already exists and is never overwritten; choose another name")
    _require_meant(arguments)
    if arguments.file.is_dir() and arguments.adapter is None and arguments.base is None:
        from nemo_vfm.models.convert.video.other_library import require_read

        require_read(arguments.file)
    out = arguments.out.absolute()
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    temporary.mkdir(parents=True)
    try:
        summary = _convert_folder(arguments, temporary)
        for path in (*temporary.rglob("*"), temporary):
            sync(path)
        temporary.rename(out)
        sync(out.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    sys.stdout.write(f"{summary}\n{arguments.out}\n")
    return 0


def _require_meant(arguments: argparse.Namespace) -> None:
    from nemo_vfm.core.errors import UserError

    meant = {"transformers": ("tokenizer", "max_tokens", "dtype"), "diffusers": ("pipeline", "replaces", "dtype"),
             "native": ("dtype",), "comfyui": ("dtype",), "exported": ("dtype",),
             "ours": ("rope_scale", "heads")}  # fmt: skip
    if arguments.dtype == "int8" and arguments.to != "exported":
        raise UserError("--dtype int8 needs --to exported")
    if arguments.replaces is not None and arguments.pipeline is None and arguments.to == "diffusers":
        raise UserError("--replaces names a network of a pipeline; give --pipeline DIR, too")
    if arguments.adapter is not None and (arguments.to != "ours" or arguments.leave_out):
        raise UserError("--adapter cannot be combined with --to or --leave-out, because it writes only the adapter; "
                        "for the whole model with the adapter merged in, use --to diffusers")  # fmt: skip
    merges = arguments.base is not None and arguments.to in ("transformers", "diffusers")
    if arguments.base is not None and arguments.adapter is None and not merges:
        raise UserError("--base needs --adapter, or --to transformers or diffusers to merge an adapter")
    if arguments.alpha is not None and arguments.base is None:
        raise UserError("--alpha needs --base")
    for name in ("key", "tokenizer", "max_tokens", "pipeline", "replaces") if merges else ():
        if getattr(arguments, name) is not None:
            raise UserError(f"--{name.replace('_', '-')} has no effect with --base, whose files are kept; leave it "
                            f"out")  # fmt: skip
    for name in ("tokenizer", "max_tokens", "pipeline", "replaces", "dtype", "rope_scale", "heads"):
        if getattr(arguments, name) is not None and name not in meant[arguments.to]:
            libraries = " or ".join(f"--to {library}" for library, names in meant.items() if name in names)
            raise UserError(f"--{name.replace('_', '-')} needs {libraries}")


def _convert_folder(arguments: argparse.Namespace, folder: Path) -> str:
    """Convert, and return a summary. Foreign pickles are read in a limited child process.

    Our own checkpoints contain no code and may be larger than memory, so they are read here.
    """
    from nemo_vfm.core.errors import UserError
    from nemo_vfm.models.convert.dcp_folder import checkpoint_in, is_zarr

    if arguments.adapter is not None:
        from nemo_vfm.cli.conversion.adapter import convert_adapter

        return convert_adapter(arguments.file, folder, arguments.adapter, base=arguments.base, alpha=arguments.alpha,
                               key=arguments.key, trust=arguments.trust, allow_host=arguments.allow_host)  # fmt: skip
    if arguments.base is not None:
        from nemo_vfm.cli.conversion.adapter import merge_adapter

        return merge_adapter(arguments.file, folder, arguments.base, alpha=arguments.alpha, dtype=arguments.dtype)
    if arguments.to == "transformers":
        from nemo_vfm.cli.conversion.language_model import convert_out

        return convert_out(arguments.file, folder, key=arguments.key, tokenizer=arguments.tokenizer,
                           trust=arguments.trust, allow_host=arguments.allow_host,
                           max_tokens=arguments.max_tokens, dtype=arguments.dtype)  # fmt: skip
    if arguments.to == "exported":
        from nemo_vfm.cli.conversion.run_weights import export_ranker

        return export_ranker(arguments.file, folder, key=arguments.key, dtype=arguments.dtype, trust=arguments.trust,
                             allow_host=arguments.allow_host)  # fmt: skip
    if arguments.to in ("diffusers", "native", "comfyui"):
        from nemo_vfm.cli.conversion import video_model

        return video_model.convert_out(arguments.file, folder, arguments.to, key=arguments.key,
                                       pipeline=arguments.pipeline, replaces=arguments.replaces,
                                       trust=arguments.trust, allow_host=arguments.allow_host,
                                       dtype=arguments.dtype)  # fmt: skip
    if arguments.file.is_dir() and checkpoint_in(arguments.file) is None and not is_zarr(arguments.file):
        if arguments.rope_scale is not None or arguments.heads is not None:
            raise UserError("--rope-scale and --heads are for files of a Cosmos or Wan; this folder is not one")
        return _of_folder(arguments.file, folder, arguments.key)
    words = ["--leave-out"] * arguments.leave_out + ([f"--key={arguments.key}"] if arguments.key else [])
    if arguments.rope_scale is not None:
        words += ["--rope-scale", *map(str, arguments.rope_scale)]
    if arguments.heads is not None:
        words.append(f"--heads={arguments.heads}")
    return _child(arguments.file, [*words, "--", str(arguments.file), str(folder)])


def _of_folder(source: Path, folder: Path, key: str | None) -> str:
    from nemo_vfm.models.convert.gpt_source import is_language_model

    if is_language_model(source):
        from nemo_vfm.cli.conversion.language_model import convert_in

        return convert_in(source, folder)
    from nemo_vfm.models.convert.video.transformer_folder import transformer_in
    from nemo_vfm.models.convert.video.wan_native import is_wan_folder

    if transformer_in(source) is not None or is_wan_folder(source):
        from nemo_vfm.cli.conversion import video_model

        return video_model.convert_in(source, folder)
    from nemo_vfm.cli.conversion.run_weights import write_one_file

    return write_one_file(source, folder, key)


def _child(source: Path, words: Sequence[str]) -> str:
    """What the converting process says; it gets no secrets from our environment."""
    from nemo_vfm.core.errors import DataError
    from nemo_vfm.core.process import how_it_ended, run_module

    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ} | {"OMP_NUM_THREADS": "1"}
    try:
        done = run_module("nemo_vfm.cli.conversion.convert_child", words, env=environment, timeout_s=_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise DataError(f"{source}: converting took longer than {_TIMEOUT_S:.0f} s and was ended") from error
    if done.returncode < 0:
        raise DataError(f"{source}: the converting process {how_it_ended(done.returncode)}: the file asks for more "
                        f"time or memory than one of its size may")  # fmt: skip
    if done.returncode:
        raise DataError(done.stderr.strip() if done.returncode == 2 else f"{source}: {done.stderr.strip()[-500:]}")
    return done.stdout.strip()
