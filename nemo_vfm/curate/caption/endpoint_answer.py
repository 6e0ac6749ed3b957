"""Turns the end of a question to an endpoint into a caption, or into the reason why there is none."""

from dataclasses import replace

from nemo_vfm.asking.question import Failure, Reply
from nemo_vfm.curate.caption.caption_types import Caption


def answered(blank: Caption, end: Reply | Failure) -> Caption:
    """The caption.

    Args:
        blank: what is known before: key, author, model.
        end: how the question ended.
    """
    if isinstance(end, Failure):
        return replace(blank, status="blocked" if end.blocked else "error", failure=end.reason)
    said = end.said
    return replace(
        blank, text=said.text, status=said.ending, model=said.model or blank.model, revision=said.revision,
        tokens_in=said.tokens_in, tokens_out=said.tokens_out,
    )  # fmt: skip
