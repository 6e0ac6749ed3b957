"""Writes every clip's caption with the recipe's captioners, records who wrote it and how, and keeps successful ones."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from nemo_vfm.asking.journal import Journal, OpenJournal
from nemo_vfm.core.errors import DataError, NemoVfmError
from nemo_vfm.core.log import bar, info, warn
from nemo_vfm.core.sanitize import MAX_CHARS, clean
from nemo_vfm.core.secret import conceal
from nemo_vfm.core.storage.files import sha256_text
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.curate.caption.caption_types import Caption, CaptionDraft, Editor, View, Viewer
from nemo_vfm.curate.caption.description import DESCRIPTION
from nemo_vfm.curate.record.ledger import ClipRecord
from nemo_vfm.curate.record.stage import Captioner

MAX_FAILURES_IN_A_ROW = 20
#: Of a caption that was there before: fewer than the 131,072 that Python's csv reads, and 1 MiB that training reads
MAX_GIVEN_CHARS = 100_000
_Question = TypeVar("_Question", View, CaptionDraft)
Voice = Captioner | Viewer | Editor
_TEXTS = ("text", "by", "model", "revision", "prompt_hash")
_NUMBERS = ("tokens_in", "tokens_out")


@dataclass(slots=True)
class CaptionReport:
    """The outcome of captioning."""

    by: Counter[str] = field(default_factory=Counter)  #: clips by the author of their caption; `nobody` without one
    truncated: int = 0  #: clips whose caption was truncated by a model's limit of tokens or our limit of characters
    failures: dict[str, Counter[str]] = field(default_factory=dict)  #: `{captioner: {reason: windows}}`
    asked: int = 0  #: windows and texts given to models, without those answered in an earlier run
    tokens_in: int = 0  #: tokens of all questions of the captions in use, also of those kept from earlier runs
    tokens_out: int = 0  #: tokens of their answers

    def to_json(self) -> Json:
        """As the run folder has it."""
        failures = {name: dict(reasons.most_common(100)) for name, reasons in self.failures.items()}
        return {
            "by": dict(sorted(self.by.items())), "truncated": self.truncated, "failures": failures,
            "asked": self.asked, "tokens_in": self.tokens_in, "tokens_out": self.tokens_out,
        }  # fmt: skip


class KeptCaptions:
    """The stored captions of one captioner.

    Args:
        journal: of all captioners, so that earlier ones are remembered; None if no captioner stores anything.
        fingerprint: of the captioner; empty keeps nothing.
    """

    def __init__(self, journal: OpenJournal | None, fingerprint: str) -> None:
        self._journal, self._prefix = journal if fingerprint else None, sha256_text(fingerprint)[:32]

    def get(self, key: str) -> Caption | None:
        """The caption stored under this key, or None."""
        entry: Json = None if self._journal is None else self._journal.get(f"{self._prefix} {key}")
        match entry:
            case {"key": str(own), "status": "success" | "truncated" as status} if own == key:
                text, by, model, revision, prompt_hash = (clean(str(entry.get(name, ""))) for name in _TEXTS)
                num_in, num_out = (value if isinstance(value := entry.get(name), int) else 0 for name in _NUMBERS)
                return (
                    Caption(key, text, status, None, by, model, revision, prompt_hash, num_in, num_out)
                    if text
                    else None
                )
        return None

    def put(self, caption: Caption) -> None:
        """Store a success. A failure is not stored: the next run tries again."""
        if self._journal is not None and caption.has_text:
            self._journal.put(f"{self._prefix} {caption.key}", asdict(caption))

    def forget(self, key: str) -> None:
        """Delete a stored caption."""
        if self._journal is not None:
            self._journal.forget(f"{self._prefix} {key}")


def write_captions(
    records: Sequence[ClipRecord],
    captioners: Mapping[str, Voice],
    media_path: Callable[[ClipRecord], Path],
    folder: Path,
    journal_name: str = "answers",
) -> CaptionReport:
    """Fill in `caption`, `caption_by` and `caption_facts` of every record, and of kept ones the columns for rules.

    Call it after `decide` and transcoding and before the state is hashed and anything is written. What the source
    itself says of a clip wins, else the first captioner, in the order given, with something to say; editors then work
    on what was said, in their order. Viewers and editors work for kept clips only, and only on what `folder` does not
    hold from an earlier run: killed at any time, it goes on where it was. Nothing of them is loaded where nothing is
    missing.

    Args:
        records: all clips; of those that are kept the media must exist.
        captioners: by name, as the recipe has them.
        media_path: where a kept clip's mp4 lies.
        folder: for what is kept between runs, such as `work/captions`.
        journal_name: of this process's file there; those who work at the same time have different ones.
    """
    report = CaptionReport()
    for record in records:
        record.caption, record.caption_by, record.caption_facts = "", "nobody", {"caption_status": "skipped"}
        if text := clean(record.source_caption):
            record.caption, record.caption_by, record.caption_facts = text, "table", {"caption_status": "success"}
    keeps = any(isinstance(voice, Viewer | Editor) and voice.fingerprint() for voice in captioners.values())
    # Parts of a job write at the same time, so each has a journal of its own; what the others hold is known, too.
    file = folder / f"{journal_name}.jsonl"
    others = [other for other in sorted(folder.glob("*.jsonl")) if other != file]
    with Journal(file=file, others=others).open() if keeps else nullcontext() as journal:
        for name, voice in captioners.items():
            silent = [record for record in records if not record.caption]
            if isinstance(voice, Viewer):
                _see(name, voice, [r for r in silent if r.decision == "kept"], media_path, journal, report)
            elif isinstance(voice, Captioner):
                _say(name, voice, silent, report)
        for name, voice in captioners.items():
            if isinstance(voice, Editor):
                _edit(name, voice, [r for r in records if r.caption and r.decision == "kept"], journal, report)
    kept = [record for record in records if record.decision == "kept"]
    for record in kept:
        words = float(len(record.caption.split()))
        status = record.caption_facts["caption_status"]
        record.scores |= {"caption_by": record.caption_by, "caption_status": status, "caption_words": words}
    report.by.update(record.caption_by for record in records)
    if kept:
        # A text made from a clip's numbers is no caption.
        numbers = sum(record.caption_by == DESCRIPTION for record in kept)
        without = sum(not record.caption for record in kept) + numbers
        instead = f"; {numbers:,} of them get a line of numbers instead, such as size and length" if numbers else ""
        advice = ". rules=captioned drops them" if without else ""
        (warn if without else info)(f"{without:,} of {len(kept):,} kept clips have no caption{instead}{advice}")
    report.truncated = sum(record.caption_facts["caption_status"] == "truncated" for record in records)
    if report.truncated:
        warn(f"{report.truncated} of {len(records)} captions were cut at a limit (caption_status: truncated)")
    for name, reasons in report.failures.items():
        warn(f"{name} failed {reasons.total()} times, most often: {reasons.most_common(1)[0][0]}")
    return report


def _say(name: str, captioner: Captioner, records: Iterable[ClipRecord], report: CaptionReport) -> None:
    """Take its caption of each clip; after an error the clip has none yet, and the next captioner is tried."""
    in_a_row = 0
    for record in records:
        captions, failure = None, None
        try:
            captions = captioner.caption(record)
            if captions is not None and not (
                isinstance(captions, tuple) and len(captions) == 2 and all(isinstance(part, str) for part in captions)
            ):
                failure = f"it returned {type(captions).__name__} instead of a text and its author"
        except NemoVfmError:  # it affects every clip, such as a missing file
            raise
        except Exception as error:
            failure = _one_line(f"{type(error).__name__} ({error})")
        if failure is not None:
            in_a_row += 1
            failures = {**record.caption_facts.get("caption_failures", {}), name: f"error: {failure}"}
            record.caption_facts = {**record.caption_facts, "caption_status": "error", "caption_failures": failures}
            _count(name, Caption(record.clip.id, status="error", failure=failure), in_a_row, report)
            continue
        in_a_row = 0
        text, is_cut = _truncate(captions[0], MAX_GIVEN_CHARS) if captions is not None else ("", False)
        if captions is not None and text:
            facts = {**record.caption_facts, "caption_status": "truncated" if is_cut else "success"}
            record.caption, record.caption_by, record.caption_facts = text, captions[1], facts


def _see(
    name: str,
    viewer: Viewer,
    records: Sequence[ClipRecord],
    media_path: Callable[[ClipRecord], Path],
    journal: OpenJournal | None,
    report: CaptionReport,
) -> None:
    """Show a viewer the clips that have no caption yet, and fill in what it says."""
    if not records:
        return
    views = {}
    for record in records:
        clip_id, media = record.clip.id, media_path(record)
        spans = [(0, 1)] if record.is_image else viewer.windows(record.clip.num_frames)
        views[clip_id] = [View(f"{clip_id}-{s[0]}-{s[1]}", media, s, len(spans) == 1, record.fps) for s in spans]
    kept = KeptCaptions(journal, viewer.fingerprint())
    known = {view.key: kept.get(view.key) for group in views.values() for view in group}
    missing = [view for group in views.values() for view in group if known[view.key] is None]
    answers = _answers(name, viewer.describe, missing, kept, report) if missing else {}
    for record in records:
        captions = [known[view.key] or answers[view.key] for view in views[record.clip.id]]
        _fill(record, captions, views[record.clip.id], name, report)


def _fill(
    record: ClipRecord, captions: Sequence[Caption], views: Sequence[View], name: str, report: CaptionReport
) -> None:
    """Use all windows or none: half a caption would be worse than the next captioner's."""
    bad = next((caption for caption in captions if not caption.has_text), None)
    if bad is not None or not captions:
        reason = f"{bad.status}: {bad.failure}" if bad else "skipped: the clip is too short for it"
        failures = {**record.caption_facts.get("caption_failures", {}), name: reason}
        status = bad.status if bad else "skipped"
        record.caption_facts = {**record.caption_facts, "caption_status": status, "caption_failures": failures}
        return
    first = captions[0]
    record.caption, is_cut = _truncate(" ".join(caption.text for caption in captions))
    is_cut = is_cut or any(caption.status == "truncated" for caption in captions)
    status = "truncated" if is_cut else "success"
    record.caption_by = first.by or name
    tokens_in, tokens_out = sum(c.tokens_in for c in captions), sum(c.tokens_out for c in captions)
    report.tokens_in += tokens_in
    report.tokens_out += tokens_out
    windows = [
        {"first_frame": v.span[0], "last_frame": v.span[1], "caption": c.text, "status": c.status}
        for v, c in zip(views, captions, strict=True)
    ]
    record.caption_facts = {
        **record.caption_facts, "caption_status": status, **_origin(first),
        "caption_tokens_in": tokens_in, "caption_tokens_out": tokens_out,
        "caption_windows": windows,
    }  # fmt: skip


def _edit(
    name: str, editor: Editor, records: Sequence[ClipRecord], journal: OpenJournal | None, report: CaptionReport
) -> None:
    drafts = {r.clip.id: CaptionDraft(f"{r.clip.id}-{sha256_text(r.caption)[:16]}", r, r.caption) for r in records}
    kept = KeptCaptions(journal, editor.fingerprint())
    known = {draft.key: kept.get(draft.key) for draft in drafts.values()}
    missing = [draft for draft in drafts.values() if known[draft.key] is None]
    answers = _answers(name, editor.edit, missing, kept, report) if missing else {}
    for record in records:
        key = drafts[record.clip.id].key
        edited = known[key] or answers[key]
        if edited.has_text:
            edit = {"by": edited.by or name, "instead_of": record.caption, **_origin(edited)}
            edits = [*record.caption_facts.get("caption_edits", []), edit]
            record.caption, record.caption_facts = edited.text, {**record.caption_facts, "caption_edits": edits}
            record.caption_facts["caption_status"] = edited.status
            report.tokens_in += edited.tokens_in
            report.tokens_out += edited.tokens_out


def _answers(
    name: str,
    ask: Callable[[Iterable[_Question]], Iterator[Caption]],
    questions: Sequence[_Question],
    kept: KeptCaptions,
    report: CaptionReport,
) -> dict[str, Caption]:
    """Every question's answer, by key; each is kept on disk as soon as it is there."""
    open_keys = {question.key for question in questions}
    found: dict[str, Caption] = {}
    in_a_row = 0
    with bar(f"caption: {name}", len(questions), unit="questions") as line:
        for answer in ask(iter(questions)):
            # As plain text, without secrets; an empty text is a failure.
            text, is_cut = _truncate(conceal(answer.text)) if answer.has_text else ("", False)
            status, failure = answer.status, None if answer.failure is None else _one_line(answer.failure)
            if answer.has_text and not text:
                status, failure = "error", "it returned an empty text"
            caption = replace(
                answer, text=text, status="truncated" if is_cut else status, failure=failure, by=_one_line(answer.by),
                model=_one_line(answer.model), revision=_one_line(answer.revision),
            )  # fmt: skip
            if caption.key not in open_keys:
                for key in found:
                    kept.forget(key)
                what = "a second time" if caption.key in found else "without being asked"
                raise DataError(
                    f"{name} answered {clean(caption.key)[:80]!r} {what}. Its answers cannot be matched to "
                    f"clips, so none of this run is used: check how it batches, or use another captioner"
                )
            open_keys.remove(caption.key)
            found[caption.key] = caption
            kept.put(caption)
            report.asked += 1
            in_a_row = 0 if caption.has_text else in_a_row + 1
            _count(name, caption, in_a_row, report)
            line.advance()
    for key in open_keys:
        found[key] = Caption(key, status="error", failure="it did not answer")
        _count(name, found[key], 0, report)
    return found


def _truncate(text: str, max_chars: int = MAX_CHARS) -> tuple[str, bool]:
    """A plain text of at most `max_chars` characters, and whether it was truncated."""
    longer = clean(text, 2 * max_chars)
    return clean(longer, max_chars), len(longer) > max_chars


def _one_line(text: str) -> str:
    return clean(conceal(text))[:500]


def _count(name: str, caption: Caption, in_a_row: int, report: CaptionReport) -> None:
    if caption.has_text:
        return
    report.failures.setdefault(name, Counter())[f"{caption.status}: {caption.failure}"] += 1
    if in_a_row >= MAX_FAILURES_IN_A_ROW:
        raise DataError(
            f"{name} failed {in_a_row} times in a row; the last error: {caption.failure}. Earlier captions are "
            f"kept; run again once this is fixed"
        )


def _origin(caption: Caption) -> dict[str, Json]:
    """The model that answered; empty if there is none."""
    known = {"model": caption.model, "revision": caption.revision, "prompt_hash": caption.prompt_hash}
    return {f"caption_{name}": value for name, value in known.items() if value}
