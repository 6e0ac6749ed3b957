# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Writes what `start_from` takes from a model of another library, with the model as an ingredient.

Weights are read one by one, so it does not take the memory of a whole model.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nemo_vfm.core.types.json_value import Json
    from nemo_vfm.models.convert.source_folder import SourceFolder

#: Where the model's own words lie in what is made: `--conf OUT/conf model=converted`.
INGREDIENT = Path("conf/model/converted.yaml")


def write_in(
    weights: "SourceFolder", target: Path, arguments: Mapping[str, "Json"], library: str, name: str, **said: "Json"
) -> str:
    """Write the weights, `convert.json` and the ingredient; what became of the tensors, as the end of a sentence.

    Args:
        weights: all parameters of the model.
        target: where they are to lie.
        arguments: of the model.
        library: that wrote it.
        name: of the folder or the file, for a reader.
        said: more for `convert.json`.

    Raises:
        UserError: the disk is too small.
    """
    from nemo_vfm.core.errors import UserError
    from nemo_vfm.core.storage.files import write_json, write_text
    from nemo_vfm.parallel.checkpoint import checkpoint, checkpoint_one_file

    checkpoint.require_room(target, sum(weights.num_bytes(name) for name in weights))
    about = {"group": "model", "step": "0", "run": ""}
    with ThreadPoolExecutor(1) as other:
        source = other.submit(weights.fingerprint)  # reads all bytes again, while the disk writes
        try:
            written = checkpoint_one_file.write(target / checkpoint_one_file.NAME, weights, about)
        except OSError as error:
            raise UserError(f"{target.parent} cannot hold the weights ({error.strerror or error}).") from error
    kind = f"{type(weights.model).__module__}.{type(weights.model).__qualname__}"
    write_text(target / INGREDIENT, _ingredient(kind, arguments, name, library))
    write_json(target / checkpoint_one_file.ABOUT, {
        "schema": "nemo_vfm.convert/1",
        "source": {"name": name, "format": library, "sha256": source.result(), **about},
        "model_sha256": written["sha256"], "not_carried_over": [], "tensors": report(weights), **said,
    })  # fmt: skip
    return counted(report(weights))


def report(weights: "SourceFolder") -> dict[str, "Json"]:
    """What became of the tensors there: nothing is left over and nothing is missing, or it would have been refused."""
    sources = weights.sources()
    one = {names[0]: own for own, names in sources.items() if len(names) == 1}
    return {
        "taken": len({name for names in sources.values() for name in names}),
        "renamed": {name: own for name, own in one.items() if name != own},
        "joined": {own: list(names) for own, names in sources.items() if len(names) > 1},
        "left": weights.left(), "missing": [],
    }  # fmt: skip


def counted(told: Mapping[str, "Json"]) -> str:
    """The report as words."""
    numbers = Counter({key: len(told[key]) for key in ("renamed", "joined", "left", "missing")})
    return (f"{told['taken']} tensors taken: {numbers['renamed']} renamed, {told['taken'] - numbers['renamed']} joined "
            f"into {numbers['joined']}; {numbers['left']} left, {numbers['missing']} missing")  # fmt: skip


def _ingredient(kind: str, arguments: Mapping[str, "Json"], name: str, library: str) -> str:
    """The model as a recipe takes it."""
    lines = [f"_target_: {kind}", *_lines(arguments, "")]
    return "\n".join([f"# Of {''.join(letter for letter in name if letter.isprintable())} ({library}).",
                      *lines, ""])  # fmt: skip


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
