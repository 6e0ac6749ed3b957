"""Shows what a training drew at rising steps: samples of the same prompts, and pictures that a module logged."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote

from markupsafe import Markup

from nemo_vfm.report.parts.media import SectionMedia
from nemo_vfm.report.parts.plain_text import as_sequence, clean, words
from nemo_vfm.report.parts.run_values import RunFolder
from nemo_vfm.report.parts.section import Section, fragment
from nemo_vfm.report.sections.contact_sheet import shown_of, spread

ORDER = 5
BUDGET_MB = 3.0
MAX_SHOWN, MAX_PROMPTS = 8, 40
MAX_NAMES = 12  # of pictures that a module logged
_STRIP = """
<div class="previews {{ kind }}" style="--columns: {{ columns }}">{% for item in shown %}
<figure>{{ medium(item.medium, alt ~ " " ~ item.step) }}<figcaption>{{ label }} {{ item.step }}</figcaption></figure>
{% endfor %}</div>
{% if prompts %}
<p class="aside">{{ "From the top left, row by row" if prompts | length > 1 else "Prompt" }}:
{% for one in prompts %}<q>{{ one }}</q>{{ "" if loop.last else ", " }}
{%- endfor %}</p>
{% endif %}"""
_STRIPS = """
{% for strip in strips %}
<h3>{{ strip.name }} <span class="count">{{ strip.count }}</span></h3>
{{ strip.body }}
{% endfor %}"""


def sections(run: RunFolder, media: SectionMedia) -> Iterator[Section]:
    """One strip a step that drew samples while it trained; the last one moves where there is a video of it."""
    for step in run.steps:
        if found := _files_by_step(step.folder / "samples"):
            last = max(found)
            if (moving := found[last].with_suffix(".mp4")).is_file():
                found[last] = moving
            lead = "The same prompts from the same noise, sampled during training."
            prompts = [
                clean(str(one), 200) for one in as_sequence(run.read_json(step.folder / "samples" / "prompts.json"))
            ]
            body = _strip(found, media, "", "step", "Samples at step", prompts[:MAX_PROMPTS])
            yield Section("Samples during training", body, lead, step.name)
        # The pictures of each name; a folder is called by it as `quote` writes it.
        folders = sorted(path for path in (step.folder / "pictures").glob("*") if path.is_dir())
        pictures = {clean(unquote(folder.name), 80): _files_by_step(folder) for folder in folders}
        if named := {name: numbered for name, numbered in pictures.items() if numbered}:
            if len(named) > MAX_NAMES:
                run.note(f"Pictures of the first {MAX_NAMES} of {len(named)} names are shown; all are in pictures/.")
            strips = [
                {"name": words(name), "count": shown_of(MAX_SHOWN, len(one)),
                 "body": _strip(one, media, "pictures", "", f"{name} at")}
                for name, one in list(named.items())[:MAX_NAMES]
            ]  # fmt: skip
            lead = "Images that the module logged with logger.experiment, each with its step."
            yield Section("Pictures", fragment(_STRIPS, {"strips": strips}), lead, step.name)


def _strip(
    found: dict[int, Path], media: SectionMedia, kind: str, label: str, alt: str, prompts: Sequence[str] = ()
) -> Markup:
    places = spread(sorted(found), MAX_SHOWN)
    shown = [{"step": f"{place:,}", "medium": media.embed(found[place])} for place in places]
    # Three, four or five in a row, whichever leaves the smallest gap in the last one.
    columns = min((4, 3, 5), key=lambda columns: -len(shown) % columns)
    values = {"shown": shown, "columns": columns, "kind": kind, "label": label, "alt": alt,
              "prompts": prompts}  # fmt: skip
    return fragment(_STRIP, values)


def _files_by_step(folder: Path) -> dict[int, Path]:
    """The file of each step; a still picture wins over the video beside it."""
    files: dict[int, Path] = {}
    for suffix in ("mp4", "png"):
        for path in sorted(folder.glob(f"step-*.{suffix}")):
            if match := re.fullmatch(r"step-(\d{1,12})", path.stem):
                files[int(match[1])] = path
    return files
