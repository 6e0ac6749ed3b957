"""Writes a run's `report.html`: one file, no script, nothing downloaded, all text from the run escaped."""

import pkgutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from markupsafe import Markup

from nemo_vfm.core.secret import conceal
from nemo_vfm.core.storage.files import write_text
from nemo_vfm.core.types.job import REPORT
from nemo_vfm.report import sections
from nemo_vfm.report.parts.head import Head, head
from nemo_vfm.report.parts.media import SectionMedia
from nemo_vfm.report.parts.run_values import RunFolder
from nemo_vfm.report.parts.section import ENVIRONMENT, Card, Section, fragment

MEDIA_BYTES = 10_500_000  # base64 makes it 14 MB, still quick to open and small enough to mail


def write(folder: Path) -> Path:
    """Write the page of a run, finished or not, and say where it is.

    Raises:
        NotADirectoryError: there is no such folder.
        OSError: the page cannot be written.
    """
    path = folder / REPORT
    write_text(path, conceal(render(folder)))
    return path


def render(folder: Path) -> str:
    """The page as text, a pure function of the folder's files."""
    run = RunFolder.open(folder)
    parts = sorted(all_sections(run), key=lambda section: section.folded)
    cards = [card for part in parts for card in part.cards]
    return page_text(head(run), parts, cards, run.take_notes(), kind="run report")


def page_text(top: Head, parts: Sequence[Section], cards: Sequence[Card], notes: Sequence[str], *, kind: str) -> str:
    """A page of sections under its head and headline figures."""
    here = Path(__file__).parent
    style = Markup((here / "page.css").read_text(encoding="utf-8"))  # noqa: S704 - our own file
    values = {"head": top, "sections": parts, "cards": cards, "style": style, "notes": notes, "kind": kind}
    html = ENVIRONMENT.from_string((here / "page.html").read_text(encoding="utf-8")).render(values)
    return html.encode("utf-8", "replace").decode("utf-8")


def all_sections(run: RunFolder) -> Iterator[Section]:
    """Every section of every file in sections/, in order; one that fails says so in its place."""
    left_bytes = MEDIA_BYTES
    for name, module in _modules():
        media = SectionMedia(run, min(left_bytes, int(getattr(module, "BUDGET_MB", 0.0) * 1e6)))
        run.take_notes()
        last: Section | None = None
        try:
            for section in module.sections(run, media):
                if last:
                    yield last
                last = replace(section, notes=section.notes + run.take_notes())
        except Exception as error:  # a page that misses a part is better than no page; the part says what happened
            run.note(f"This section failed: {type(error).__name__}: {error}")
            last = last or Section(name.replace("_", " ").capitalize(), fragment("", {}))
        notes = run.take_notes() + tuple(filter(None, [media.note()]))
        if last or notes:
            last = last or Section(name.replace("_", " ").capitalize(), fragment("", {}))
            yield replace(last, notes=last.notes + notes)
        left_bytes -= media.used_bytes


def _modules() -> list[tuple[str, ModuleType]]:
    names = [info.name for info in pkgutil.iter_modules(sections.__path__)]
    found = [(name, pkgutil.resolve_name(f"{sections.__name__}.{name}")) for name in names]
    return sorted(found, key=lambda pair: (pair[1].ORDER, pair[0]))
