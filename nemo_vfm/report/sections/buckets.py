"""Shows how many kept clips each bucket would receive, why others fit none, and what those lack."""

from collections.abc import Iterator
from typing import Any

from nemo_vfm.report.parts.media import SectionMedia
from nemo_vfm.report.parts.plain_text import as_mapping, as_sequence, clean, exact, number, span
from nemo_vfm.report.parts.run_values import RunFolder
from nemo_vfm.report.parts.section import Section, fragment

ORDER = 36
MAX_BUCKETS, MAX_REASONS, MAX_MISSES = 40, 12, 10
_BODY = """
<div class="scroll"><table class="counts">
<thead><tr><th scope="col">bucket</th><th scope="col" class="n">clips</th><th scope="col" class="n">length</th>
<th scope="col"><span class="hidden">share</span></th></tr></thead>
<tbody>
{% for row in buckets %}
<tr><th scope="row">{{ row.name }}</th><td class="n">{{ row.clips }}</td><td class="n">{{ row.lasts }}</td>
<td class="wide"><span class="track">
{% if row.share %}
<span class="bar tone-kept" style="width:{{ row.share }}%"></span>
{% endif %}
</span></td></tr>
{% endfor %}
</tbody></table></div>
{% if unbinned %}
<h3>No bucket fits</h3>
<div class="scroll"><table class="counts">
<thead><tr><th scope="col">reason</th><th scope="col" class="n">clips</th><th scope="col" class="n">length</th>
<th scope="col">nearest bucket</th><th scope="col" class="n">frames missing</th></tr></thead>
<tbody>
{% for row in unbinned %}
<tr><th scope="row">{{ row.name }}</th><td class="n">{{ row.clips }}</td><td class="n">{{ row.lasts }}</td>
<td>{{ row.nearest }}</td><td class="n">{{ row.frames }}</td></tr>
{% endfor %}
</tbody></table></div>
{% endif %}
{% if misses %}
<h3>Closest misses</h3>
<div class="scroll"><table class="counts">
<thead><tr><th scope="col">clip</th><th scope="col">bucket</th><th scope="col">needs</th></tr></thead>
<tbody>
{% for row in misses %}
<tr><th scope="row">{{ row.clip }}</th><td>{{ row.bucket }}</td><td>{{ row.needs }}</td></tr>
{% endfor %}
</tbody></table></div>
{% endif %}
"""


def sections(run: RunFolder, media: SectionMedia) -> Iterator[Section]:
    """One section a step that counted buckets."""
    for step, counts in run.each("buckets.json"):
        buckets, unbinned = as_mapping(counts.get("buckets")), as_mapping(counts.get("unbinned"))
        if buckets:
            # In the order of the recipe; of very many, those that receive most.
            most = max(_amount(found)[0] for found in buckets.values()) or 1.0
            shown = list(buckets)
            if len(shown) > MAX_BUCKETS:
                fullest = set(sorted(shown, key=lambda name: -_amount(buckets[name])[0])[:MAX_BUCKETS])
                shown = [name for name in shown if name in fullest]
                run.note(f"Only the {MAX_BUCKETS} fullest of {len(buckets):,} buckets are shown.")
            share = {name: round(100 * _amount(buckets[name])[0] / most, 1) for name in shown}
            reasons = []  # the most frequent first
            for reason in sorted(unbinned, key=lambda name: -_amount(unbinned[name])[0])[:MAX_REASONS]:
                found = as_mapping(unbinned[reason])
                near = sorted(as_mapping(found.get("nearest")).items(), key=lambda item: -(number(item[1]) or 0.0))[:4]
                short = as_mapping(found.get("more_frames"))
                least, middle, largest = (number(short.get(key)) for key in ("least", "median", "most"))
                several = f"{exact(least)} to {exact(largest)}, median {exact(middle)}"
                frames = "–" if largest is None else exact(largest) if least == largest else several
                names = ", ".join(f"{clean(str(name), 40)} ({exact(number(count))})" for name, count in near)
                reasons.append(_row(reason, found) | {"nearest": names or "–", "frames": frames})
            values = {
                "buckets": [_row(name, buckets[name]) | {"share": share[name]} for name in shown],
                "unbinned": reasons,
                "misses": [
                    {"clip": clean(str(miss.get("clip_id") or ""), 100)[:8],
                     "needs": clean(str(miss.get("needs") or "–"), 120),
                     "bucket": clean(str(miss.get("bucket") or "–"), 40)}
                    for miss in map(as_mapping, as_sequence(counts.get("nearest_misses"))[:MAX_MISSES]) if miss
                ],
            }  # fmt: skip
            inside, outside = (sum(_amount(one)[0] for one in part.values()) for part in (buckets, unbinned))
            lead = (
                f"{exact(inside)} of {exact(inside + outside)} kept clips fit a bucket when resized and cropped as "
                f"in training. Clips that fit none are not dropped here."
            )
            yield Section("Clips by bucket", fragment(_BODY, values), lead, step.name, folded=True)


def _amount(found: Any) -> tuple[float, float]:
    """Clips and seconds."""
    counts = as_mapping(found)
    return max(number(counts.get("clips")) or 0.0, 0.0), max(number(counts.get("seconds")) or 0.0, 0.0)


def _row(name: Any, found: Any) -> dict[str, Any]:
    clips, seconds = _amount(found)
    return {"name": clean(str(name), 80), "clips": exact(clips), "lasts": span(seconds) if clips else "–"}
