"""Writes the folder of a pretrained model as `base`, by a local path or by where `nemo-vfm get` puts it."""

from pathlib import Path

from nemo_vfm.cli.migrate.draft import Draft
from nemo_vfm.cli.migrate.foreign_yaml import Value
from nemo_vfm.cli.migrate.language_data import is_path
from nemo_vfm.models.hub.hub_names import hub_address


def put_folder(draft: Draft, kind: str) -> None:
    """The fact `pretrained` as a folder.

    Args:
        kind: whose folder it has to be, for the note.
    """
    name = draft.get("pretrained")
    if not is_path(name):
        draft.put("base", "???", f"a folder {kind}")
        draft.leave("pretrained", f"it names no model, so you must set it: base=FOLDER, a folder {kind}")
    elif (here := downloaded(name)) is None:
        draft.carry("pretrained", "base", name)
    else:
        draft.change("pretrained", "base", here, f"where `nemo-vfm get hf://{name}` puts it")
        draft.notes["base"] = f"nemo-vfm get hf://{name}"


def downloaded(name: Value) -> str | None:
    """Where a model of a hub lies after `nemo-vfm get`; None for a path."""
    if not isinstance(name, str) or name.startswith((".", "/")) or Path(name).exists():
        return None
    try:
        return f"models/{hub_address(f'hf://{name}').name}"
    except ValueError:
        return None
