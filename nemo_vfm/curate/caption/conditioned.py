"""Appends scores to captions, so that a model trained on them can be asked for scores.

This is the alternative to dropping clips with low scores, as Open-Sora 1.2 did in its third stage.
"""

from collections.abc import Iterable, Iterator, Mapping

from nemo_vfm.core.log import warn_once
from nemo_vfm.core.network.permission import SentText
from nemo_vfm.curate.caption.caption_types import Caption, CaptionDraft
from nemo_vfm.curate.record.ledger import FACTS

DEFAULT = "{caption}. {facts}."
_ENDS = (".", "!", "?", "…")


class ScoreConditioned:
    """Adds what stages found to captions: "... aesthetic score: 5.5, motion score: 10, camera motion: pan left."

    Args:
        facts: what is said, and the column it is taken from, in the order in which it is said; a column for which a
            clip has no value is left out of its caption, one that no stage gives is refused.
        template: `{caption}` and `{facts}` are replaced, all else stays as it is; a full stop behind a caption that
            ends in one, or in ! or ?, is left out.
        digits: significant digits of numbers.
    """

    def __init__(self, *, facts: Mapping[str, str], template: SentText = DEFAULT, digits: int = 2) -> None:
        if not facts or digits < 1:
            raise ValueError(f"facts {dict(facts)} must name at least one column, and digits, {digits}, be at least 1")
        if "{facts}" not in template or "{caption}" not in template:
            raise ValueError(f"the template {template!r} needs {{caption}} and {{facts}}")
        self.facts, self.template, self.digits = dict(facts), template, digits

    def edit(self, drafts: Iterable[CaptionDraft]) -> Iterator[Caption]:
        """Every text with its clip's scores."""
        for draft in drafts:
            facts = {name: value for name in FACTS if (value := draft.record.value(name)) == value}
            scores = {**facts, **draft.record.scores}
            present = {name: scores[column] for name, column in self.facts.items() if column in scores}
            if len(present) < len(self.facts):
                missing = [column for column in self.facts.values() if column not in scores]
                warn_once(f"captions do not mention {', '.join(missing)}: some clips have no such score")
            if not present:
                yield Caption(draft.key, draft.text)
                continue
            shown = {
                name: value if isinstance(value, str) else f"{float(f'{value:.{self.digits}g}'):.12g}"  # no 5.4e+02
                for name, value in present.items()
            }
            listed = ", ".join(f"{name}: {value}" for name, value in shown.items())
            # Piece by piece: a caption that holds "{facts}" is text and no template.
            first, *pieces = self.template.split("{caption}")
            if draft.text.endswith(_ENDS):
                pieces = [piece.removeprefix(".") for piece in pieces]
            yield Caption(draft.key, draft.text.join(piece.replace("{facts}", listed) for piece in (first, *pieces)))

    def fingerprint(self) -> str:
        """Nothing is kept: it depends on scores, and is quick."""
        return ""

    def reads(self) -> Mapping[tuple[str, ...], str]:
        return {("facts", name): column for name, column in self.facts.items()}
