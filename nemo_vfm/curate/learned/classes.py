"""Checks that the classes in a model folder's config.json are those that a task names."""

from collections.abc import Sequence
from pathlib import Path

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.storage.files import read_json


def classes_in(folder: Path, names: Sequence[str]) -> None:
    """Compare; an order that differs would put every clip under a wrong name in silence.

    Raises:
        UserError: the file is absent, names no classes, or names others.
    """
    try:
        content = read_json(folder / "config.json")
        class_names = content.get("classes") or [
            content["id2label"][key] for key in sorted(content["id2label"], key=int)
        ]
        found = [str(name) for name in class_names]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(
            f"{folder / 'config.json'} names no classes ({error!r}); expected id2label or classes in it"
        ) from error
    if found != list(names):
        raise UserError(
            f"{folder / 'config.json'} names the classes {found}, but the task names {list(names)}; make them the same"
        )
