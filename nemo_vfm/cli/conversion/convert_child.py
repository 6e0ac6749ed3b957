# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Converts a foreign file to safetensors and JSON in a process of its own, which `convert` starts.

Limits on memory, time and file size are set before anything heavy is imported. A file that asks for too much ends
this process only.
"""

import argparse
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_vfm.core.errors import DataError, NemoVfmError

if TYPE_CHECKING:
    from nemo_vfm.core.types.json_value import Json
    from nemo_vfm.models.convert.foreign import Foreign

GB = 1 << 30
MODEL, CONFIG, ABOUT = "model.safetensors", "config.json", "convert.json"


def limit(size: int) -> None:
    """Bound this process by the file's size, in bytes.

    RLIMIT_DATA and not RLIMIT_AS: torch maps gigabytes of libraries that take no memory.
    """
    gigabytes = size // GB + 1
    _at_most(resource.RLIMIT_DATA, 4 * GB + 12 * size)  # the file, its tensors one by one, and their copies
    _at_most(resource.RLIMIT_CPU, 60 + 60 * gigabytes)
    _at_most(resource.RLIMIT_FSIZE, 5 * size + (64 << 20))
    _at_most(resource.RLIMIT_CORE, 0)


def _at_most(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (bound, bound))


def convert(source: Path, target: Path, *, key: str | None, leave_out: bool) -> str:
    """Write what the file holds into the folder `target`; one sentence about it."""
    from safetensors.torch import save_file

    from nemo_vfm.config import read_values
    from nemo_vfm.core.storage.files import sha256_file, write_json
    from nemo_vfm.models.convert.foreign import read_foreign

    found = read_foreign(source, key=key, leave_out=leave_out)
    config = found.values if found.config is None else read_values(found.config, "model_config.yaml")
    try:
        # Tied weights become one tensor each: safetensors holds no views.
        save_file({name: tensor.clone().contiguous() for name, tensor in found.weights.items()}, target / MODEL)
        write_json(target / CONFIG, config)
    except (KeyError, ValueError) as error:  # a dtype it does not know, half a character in a name, NaN in a setting
        raise DataError(f"safetensors and JSON cannot hold what is in it ({error})") from error
    write_json(target / ABOUT, _about(found, source, sha256_file(target / MODEL)))
    numbers = sum(tensor.numel() for tensor in found.weights.values())
    left = f"; not carried over: {', '.join(found.others[:8])}" if found.others else ""
    return f"{len(found.weights)} tensor{'s' * (len(found.weights) != 1)}, {numbers:,} numbers{left}"


def _about(found: "Foreign", source: Path, model_sha256: str) -> "Json":
    from nemo_vfm.core.storage.files import sha256_file

    return {
        "schema": "nemo_vfm.convert/1",
        "source": {"name": source.name, "format": found.format, "sha256": sha256_file(source)},
        "model_sha256": model_sha256,
        "not_carried_over": list(found.others),
    }


def main() -> int:
    """Convert as the arguments say; a reason on standard error where it cannot be done."""
    parser = argparse.ArgumentParser()
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--key")
    parser.add_argument("--leave-out", action="store_true")
    given = parser.parse_args()
    limit(given.source.stat().st_size)
    try:
        sys.stdout.write(f"{convert(given.source, given.target, key=given.key, leave_out=given.leave_out)}\n")
    except (NemoVfmError, OSError, MemoryError) as error:
        reason = "it asks for more memory than a file of its size may" if isinstance(error, MemoryError) else error
        sys.stderr.write(f"{given.source}: {reason}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
