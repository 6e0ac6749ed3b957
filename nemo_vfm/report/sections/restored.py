"""Shows restored clips and images, each before and after."""

from collections.abc import Iterator

from nemo_vfm.report.parts.media import SectionMedia
from nemo_vfm.report.parts.plain_text import as_mapping, clean, exact, figure, number, words
from nemo_vfm.report.parts.run_values import RunFolder
from nemo_vfm.report.parts.section import Section, fragment

ORDER = 35
BUDGET_MB = 3.0
MAX_CLIPS = 12
_SHEET = """
<div class="{{ "pairs" if kind == "clips" else "previews stacked" }}">
{% for c in clips %}
<figure class="clip wide">{{ medium(c.medium, c.alt, "strip" if kind == "clips" else "") }}
<figcaption><span class="fact tone-kept">{{ c.what }}</span>
<span class="caption">{{ c.facts }}</span>
<span class="source">{{ c.source }}</span></figcaption></figure>
{% endfor %}
</div>
"""
_LEADS = {
    "clips": "before (left) and after (right). All other clips are unchanged.",
    "images": "shown by the centre of its most striped page: before, after, and the difference at higher contrast "
    "(grey is no change). All other pages are unchanged.",
}


def sections(run: RunFolder, media: SectionMedia) -> Iterator[Section]:
    """One section a step that mended clips or images."""
    for step, found in run.each("restored.json"):
        for kind, what_is_shown in _LEADS.items():
            mended = {str(key): as_mapping(fact) for key, fact in as_mapping(found.get(kind)).items()}
            if mended:
                shown = []
                for key, fact in list(mended.items())[:MAX_CLIPS]:
                    names = fact.get("restored")
                    what = ", ".join(clean(str(name), 40) for name in names) if isinstance(names, list) else ""
                    numbers = ((str(name), number(value)) for name, value in as_mapping(fact.get("facts")).items())
                    facts = [f"{words(clean(name, 40))} {figure(n)}" for name, n in numbers if n is not None]
                    picture = media.embed(step.folder / "restored" / f"{key}.jpg")
                    shown.append({"medium": picture, "alt": f"before and after {what}", "what": what,
                                  "facts": ", ".join(facts), "source": clean(str(fact.get("source")), 80)})  # fmt: skip
                if len(mended) > MAX_CLIPS:
                    run.note(f"{len(mended) - MAX_CLIPS:,} more repaired {kind} are not shown.")
                count = f"One {kind[:-1]}" if len(mended) == 1 else f"{exact(len(mended))} {kind}, each"
                body = fragment(_SHEET, {"clips": shown, "kind": kind})
                yield Section("Repairs", body, f"{count} {what_is_shown}", step.name)
