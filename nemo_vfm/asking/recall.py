"""Reads an answer back from a journal, which may be damaged or written by something else."""

from dataclasses import replace

from nemo_vfm.asking.journal import OpenJournal
from nemo_vfm.core.network.chat import Said
from nemo_vfm.core.network.thought import split_thought
from nemo_vfm.core.secret import conceal
from nemo_vfm.core.types.json_value import Json


def concealed(said: Said) -> Said:
    """An answer without secrets, which a model may repeat."""
    return replace(said, text=conceal(said.text), model=conceal(said.model), revision=conceal(said.revision),
                   thought=conceal(said.thought))  # fmt: skip


def recalled(journal: OpenJournal, key: str) -> Said | None:
    """What was said under this key; None where nothing was, or nothing that is an answer."""
    entry: Json = journal.get(key)
    match entry:
        case {"text": str(text), "ending": ("success" | "truncated") as ending, "model": str(model),
              "revision": str(revision), "tokens_in": int(tokens_in), "tokens_out": int(tokens_out),
              "seconds": float(seconds)}:  # fmt: skip
            # Journals of before 2026-12 have thoughts in the text.
            thought, text = (str(entry["thought"]), text) if "thought" in entry else split_thought(text)
            if text.strip():
                return Said(text, ending, model, revision, tokens_in, tokens_out, seconds, thought)
    return None
