# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Shows samples of the same prompts and noise at rising training steps."""

import re
from collections.abc import Iterator
from pathlib import Path

from nemo_vfm.report.media import Media
from nemo_vfm.report.run_values import RunFolder, Step
from nemo_vfm.report.section import Section, fragment
from nemo_vfm.report.sections.contact_sheet import spread

ORDER = 5
BUDGET_MB = 2.0
MAX_SHOWN = 8

_STRIP = """
<div class="previews" style="--columns: {{ columns }}">{% for item in shown %}
<figure>{{ medium(item.medium, "Samples at step " ~ item.step) }}<figcaption>step {{ item.step }}</figcaption></figure>
{% endfor %}</div>"""


def sections(run: RunFolder, media: Media) -> Iterator[Section]:
    """One strip a step that drew samples while it trained; the last one moves where there is a video of it."""
    for step in run.steps:
        if found := _previews(step):
            places = spread(sorted(found), MAX_SHOWN)
            if (moving := found[places[-1]].with_suffix(".mp4")).is_file():
                found[places[-1]] = moving
            shown = [{"step": f"{place:,}", "medium": media.embed(found[place])} for place in places]
            lead = "The same prompts from the same noise, sampled during training."
            body = fragment(_STRIP, {"shown": shown, "columns": _columns(len(shown))})
            yield Section("While training", body, lead, step.name)


def _previews(step: Step) -> dict[int, Path]:
    """The file of each step; a still picture wins over the video beside it."""
    files: dict[int, Path] = {}
    for suffix in ("mp4", "png"):
        for path in sorted((step.folder / "samples").glob(f"step-*.{suffix}")):
            if match := re.fullmatch(r"step-(\d{1,12})", path.stem):
                files[int(match[1])] = path
    return files


def _columns(count: int) -> int:
    """Three, four or five in a row, whichever leaves the smallest gap in the last one."""
    return min((4, 3, 5), key=lambda columns: -count % columns)
