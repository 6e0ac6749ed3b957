"""Finds members of samples that a training's data is asked for by name and that its task or model cannot take."""

from collections.abc import Iterator

from torch import nn

from nemo_vfm.core.types.task import HandsMembers, Task
from nemo_vfm.core.types.training_data import sources_in
from nemo_vfm.data.loader.listed_data import ListedData


def unusable_members(data: object, task: Task, model: nn.Module) -> Iterator[tuple[tuple[str, ...], str]]:
    """The address of what a source is asked for, and why it cannot be used, as a sentence.

    Nothing is read: names alone are compared. `check` says it of a recipe, and a training before its first step.
    """
    asked = {
        at: one.members if isinstance(one, ListedData) else ()
        for one, at in sources_in(data)
        if not hasattr(one, "data") and not hasattr(one, "sources")  # what packs or blends others gives theirs
    }
    every = dict.fromkeys(name for members in asked.values() for name in members)
    for at, members in asked.items() if every else ():
        text = ""
        if isinstance(task, HandsMembers):
            text = task.member_objection(model, members, [name for name in every if name not in members])
        elif members:
            text = (
                f"samples come with {', '.join(members)}, but {type(task).__name__} hands no members to the model; "
                f"leave `members` out, or use a task that does, such as Denoise"
            )
        if text:
            yield (*at, "members"), text
