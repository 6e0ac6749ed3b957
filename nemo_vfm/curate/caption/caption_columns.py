"""Names the columns that captions have, and refuses captioners that read a column which the curation will not have."""

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Protocol, get_args, runtime_checkable

from nemo_vfm.core.nested_error import PartRefused
from nemo_vfm.curate.caption.caption_types import Status

#: What rules may read once a clip has its caption: the words that may stand there, () where any may; None for numbers.
CAPTION_COLUMNS: Mapping[str, Collection[str] | None] = {
    "caption_by": (), "caption_status": get_args(Status), "caption_words": None,
}  # fmt: skip


@runtime_checkable
class ReadsColumns(Protocol):
    """A captioner that tells scores: a wrong name of one is said before anything is measured."""

    def reads(self) -> Mapping[tuple[str, ...], str]:
        """The columns that it reads, by the address of the setting that names each, such as `("facts", "motion")`."""
        ...


def check_captions(captions: Mapping[str, object], known: Collection[str]) -> None:
    """Refuse captioners that read what nobody measures.

    Args:
        captions: who says what a clip shows, by name.
        known: the columns there will be.

    Raises:
        PartRefused: such a column, at the setting that names it.
    """
    for name, voice in captions.items():
        for address, column in voice.reads().items() if isinstance(voice, ReadsColumns) else ():
            if column not in known:
                raise PartRefused(_unknown(column, known), "captions", name, *address)


def _unknown(column: str, known: Collection[str]) -> str:
    near = get_close_matches(column, known, n=1, cutoff=0.6)
    message = f"captions should mention {column!r}, which no stage gives; "
    if near:
        return f"{message}did you mean {near[0]!r}?"
    return f"{message}add its stage or remove this. There are {', '.join(sorted(known))}"
