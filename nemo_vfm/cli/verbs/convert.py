# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Convert .nemo, .ckpt, .pt and our checkpoints to safetensors, and models from and to transformers and diffusers."""

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from nemo_vfm.cli.arguments import add_allow_host, add_trust

_PASSED_ON = ("PATH", "PYTHONPATH", "LANG", "LC_ALL", "TMPDIR", "HOME", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
_TIMEOUT_S = 6 * 3600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The file, the folder to make, and where the weights are."""
    parser.add_argument("file", metavar="FILE", type=Path,
                        help="a .nemo archive, what torch.save wrote, a run or checkpoint of ours, or a folder of "
                             "transformers with a language model, or of diffusers with a video model")  # fmt: skip
    parser.add_argument("out", metavar="OUT", type=Path, help="folder to create; it must not exist")
    parser.add_argument("--key", metavar="NAME", help="which weights, such as state_dict or ema")
    parser.add_argument("--leave-out", action="store_true",
                        help="continue if the file refers to code beside its weights; the code is listed, never "
                             "run")  # fmt: skip
    parser.add_argument("--to", choices=("ours", "transformers", "diffusers"), default="ours",
                        help="write a folder that this library loads, from a run of a language model or of a video "
                             "model")  # fmt: skip
    parser.add_argument("--adapter", choices=("ours", "peft", "diffusers", "comfyui", "cosmos"),
                        help="write the low-rank adapter of a run, or of a file with --base, in the style of this "
                             "program")  # fmt: skip
    parser.add_argument(
        "--base",
        metavar="DIR",
        type=Path,
        help="with --adapter: folder of the pretrained model that an adapter's file is for",
    )
    parser.add_argument(
        "--alpha",
        metavar="NUMBER",
        type=float,
        help="with --adapter: alpha of every linear, of a file that does not say it",
    )
    parser.add_argument("--pipeline", metavar="DIR", type=Path,
                        help="with --to diffusers: pipeline folder whose other parts are copied beside the "
                             "transformer")  # fmt: skip
    parser.add_argument("--replaces", choices=("transformer", "transformer_2"),
                        help="with --to diffusers: which network of a --pipeline with two (Wan 2.2 A14B) is "
                             "replaced")  # fmt: skip
    parser.add_argument(
        "--tokenizer",
        metavar="DIR",
        type=Path,
        help="with --to transformers: tokenizer folder, if the run's data does not name it",
    )
    parser.add_argument("--most-tokens", metavar="N", type=int,
                        help="with --to transformers: longest text that the model was trained on")  # fmt: skip
    parser.add_argument("--dtype", choices=("fp32", "bf16"), help="with --to: dtype of the weights")
    add_trust(parser, "the run's recipe may name")
    add_allow_host(parser)


def run(arguments: argparse.Namespace) -> int:
    """Make the folder whole, or not at all."""
    from nemo_vfm.core.errors import UserError

    if not arguments.file.is_file() and not arguments.file.is_dir():
        raise UserError(f"there is no file {arguments.file}")
    if arguments.out.exists() or arguments.out.is_symlink():
        raise UserError(f"{arguments.out} already exists and is never overwritten; choose another name")
    _require_meant(arguments)
    said = _made(arguments.out.absolute(), lambda folder: _converted(arguments, folder))
    sys.stdout.write(f"{said}\n{arguments.out}\n")
    return 0


def _require_meant(arguments: argparse.Namespace) -> None:
    """An option that nobody reads is a lie that the user believes."""
    from nemo_vfm.core.errors import UserError

    meant = {
        "transformers": ("tokenizer", "most_tokens", "dtype"),
        "diffusers": ("pipeline", "replaces", "dtype"),
        "ours": (),
    }
    if arguments.replaces is not None and arguments.pipeline is None and arguments.to == "diffusers":
        raise UserError("--replaces names a network of a pipeline; give --pipeline DIR, too")
    if arguments.adapter is not None and (arguments.to != "ours" or arguments.leave_out):
        raise UserError("--adapter writes an adapter alone, without --to and --leave-out; --to diffusers of the run "
                        "writes the whole model with the adapter merged into its weights")  # fmt: skip
    for name in ("base", "alpha"):
        if getattr(arguments, name) is not None and arguments.adapter is None:
            raise UserError(f"--{name} is for --adapter")
    for name in ("tokenizer", "most_tokens", "pipeline", "replaces", "dtype"):
        if getattr(arguments, name) is not None and name not in meant[arguments.to]:
            libraries = " or ".join(f"--to {library}" for library, names in meant.items() if name in names)
            raise UserError(f"--{name.replace('_', '-')} is for {libraries}")


def _converted(arguments: argparse.Namespace, folder: Path) -> str:
    """A file of others is read in a process apart; our own checkpoints hold no code, and may be larger than memory."""
    if arguments.adapter is not None:
        from nemo_vfm.cli.conversion.adapter import convert_adapter

        return convert_adapter(arguments.file, folder, arguments.adapter, base=arguments.base, alpha=arguments.alpha,
                               key=arguments.key, trust=arguments.trust, allow_host=arguments.allow_host)  # fmt: skip
    if arguments.to == "transformers":
        from nemo_vfm.cli.conversion.language_model import convert_out

        return convert_out(arguments.file, folder, key=arguments.key, tokenizer=arguments.tokenizer,
                           trust=arguments.trust, allow_host=arguments.allow_host,
                           most_tokens=arguments.most_tokens, dtype=arguments.dtype)  # fmt: skip
    if arguments.to == "diffusers":
        from nemo_vfm.cli.conversion import video_model

        return video_model.convert_out(arguments.file, folder, key=arguments.key, pipeline=arguments.pipeline,
                                       replaces=arguments.replaces, trust=arguments.trust,
                                       allow_host=arguments.allow_host, dtype=arguments.dtype)  # fmt: skip
    if arguments.file.is_dir():
        return _of_folder(arguments.file, folder, arguments.key)
    words = ["--leave-out"] * arguments.leave_out + ([f"--key={arguments.key}"] if arguments.key else [])
    return _child(arguments.file, [*words, "--", str(arguments.file), str(folder)])


def _of_folder(source: Path, folder: Path, key: str | None) -> str:
    from nemo_vfm.models.convert.gpt_source import is_language_model

    if is_language_model(source):
        from nemo_vfm.cli.conversion.language_model import convert_in

        return convert_in(source, folder)
    from nemo_vfm.models.convert.video.transformer_folder import transformer_in

    if transformer_in(source) is not None:
        from nemo_vfm.cli.conversion import video_model

        return video_model.convert_in(source, folder)
    from nemo_vfm.cli.conversion.single_file import convert

    return convert(source, folder, key)


def _made(out: Path, work: Callable[[Path], str]) -> str:
    """What `work` puts into a folder, made beside `out`, then renamed."""
    import shutil

    from nemo_vfm.core.storage.files import sync

    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    temporary.mkdir(parents=True)
    try:
        said = work(temporary)
        for path in (*temporary.rglob("*"), temporary):
            sync(path)
        temporary.rename(out)
        sync(out.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return said


def _child(source: Path, words: Sequence[str]) -> str:
    """What the converting process says; it gets no secrets from our environment."""
    from nemo_vfm.core.errors import DataError

    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ} | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "nemo_vfm.cli.conversion.convert_child", *words]
    try:
        # Our own interpreter and module; the file's name is an argument and never a command.
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S)  # noqa: S603
    except subprocess.TimeoutExpired as error:
        raise DataError(f"{source}: converting took longer than {_TIMEOUT_S:.0f} s and was ended") from error
    if done.returncode < 0:
        raise DataError(f"{source}: the converting process was ended by signal {-done.returncode}: the file asks for "
                        f"more time or memory than one of its size may")  # fmt: skip
    if done.returncode:
        raise DataError(done.stderr.strip() if done.returncode == 2 else f"{source}: {done.stderr.strip()[-500:]}")
    return done.stdout.strip()
