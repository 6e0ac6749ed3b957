"""Converts another library's model to our weights and a `model` ingredient for a recipe.

Weights are read one at a time, so a whole model never has to fit into memory.
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nemo_vfm.core.types.json_value import Json
    from nemo_vfm.models.convert.source_folder import SourceFolder

#: Path of the model's YAML below the output folder; a recipe takes it by `--conf OUT/conf model=converted`.
INGREDIENT = Path("conf/model/converted.yaml")
#: What `--dtype` takes, and torch's names.
DTYPES = {"fp32": "float32", "bf16": "bfloat16"}


def write_in(
    weights: "SourceFolder", target: Path, arguments: Mapping[str, "Json"], library: str, name: str, **extra: "Json"
) -> str:
    """Write the weights, `convert.json` and the ingredient; return a summary of what happened to the tensors.

    Args:
        arguments: the model's constructor arguments.
        library: the library that wrote the source, such as `diffusers`.
        name: the name of the source folder or file, shown to readers.
        extra: further keys of `convert.json`.
    """
    from nemo_vfm.core.errors import UserError
    from nemo_vfm.core.storage.files import write_json, write_text
    from nemo_vfm.parallel.checkpoint import checkpoint, checkpoint_one_file

    checkpoint.require_room(target, weights.num_bytes())
    about = {"group": "model", "step": "0", "run": ""}
    with ThreadPoolExecutor(1) as other:
        source = other.submit(weights.fingerprint)  # reads all bytes again, while the disk writes
        try:
            written = checkpoint_one_file.write(target / checkpoint_one_file.NAME, weights, about)
        except OSError as error:
            raise UserError(f"{target.parent} cannot hold the weights ({error.strerror or error}).") from error
    kind = f"{type(weights.model).__module__}.{type(weights.model).__qualname__}"
    lines = [f"_target_: {kind}", *_lines(arguments, "")]
    printable = "".join(letter for letter in name if letter.isprintable())
    write_text(target / INGREDIENT, "\n".join([f"# Converted from {printable} ({library}).", *lines, ""]))
    tensors = report(weights)
    write_json(target / checkpoint_one_file.ABOUT, {
        "schema": "nemo_vfm.convert/1",
        "source": {"name": name, "format": library, "sha256": source.result(), **about},
        "model_sha256": written["sha256"], "not_carried_over": [], "tensors": tensors, **extra,
    })  # fmt: skip
    renamed, joined = len(tensors["renamed"]), len(tensors["joined"])
    return (f"{tensors['taken']} tensors taken: {renamed} renamed, {tensors['taken'] - renamed} joined into {joined}; "
            f"{len(tensors['left'])} left, {len(tensors['missing'])} missing")  # fmt: skip


def report(weights: "SourceFolder") -> dict[str, "Json"]:
    """What happened to each source tensor. Leftover or missing tensors were refused when the folder was opened."""
    sources = weights.sources()
    one = {names[0]: own for own, names in sources.items() if len(names) == 1}
    return {
        "taken": len({name for names in sources.values() for name in names}),
        "renamed": {name: own for name, own in one.items() if name != own},
        "joined": {own: list(names) for own, names in sources.items() if len(names) > 1},
        "left": weights.unused_names(), "missing": [],
    }  # fmt: skip


def _lines(values: Mapping[str, "Json"], indent: str) -> Iterator[str]:
    from nemo_vfm.config.emit import text_of

    for name, value in values.items():
        if is_dataclass(value) and not isinstance(value, type):
            yield f"{indent}{name}:"
            yield f"{indent}  _target_: {type(value).__module__}.{type(value).__qualname__}"
            inner = {key: getattr(value, key) for key in asdict(value)}
            yield from _lines(inner, f"{indent}  ")
        else:
            words = ", ".join(map(text_of, value)) if isinstance(value, tuple | list) else None
            yield f"{indent}{name}: {text_of(value) if words is None else f'[{words}]'}"
