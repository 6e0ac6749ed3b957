"""Draws a histogram of each score, with the rule's threshold and how many clips it dropped."""

from collections.abc import Iterator

from nemo_vfm.report.parts.chart import HistogramGroup, grid, histogram
from nemo_vfm.report.parts.media import SectionMedia
from nemo_vfm.report.parts.plain_text import clean, number, words
from nemo_vfm.report.parts.run_values import RunFolder
from nemo_vfm.report.parts.section import Section

ORDER = 20
OPEN_CHARTS = 16
NOT_SCORES = frozenset({"fps", "width", "height", "first_frame", "last_frame", "pts_start", "pts_end", "num_frames"})


def sections(run: RunFolder, media: SectionMedia) -> Iterator[Section]:
    """One section a step that scored clips."""
    for step in run.steps_with("scores.parquet"):
        rows = run.read_rows(step.folder / "scores.parquet")
        if not rows:
            continue
        rules = run.rules(step)
        ruled = [(name, str(rule.get("score"))) for name, rule in rules.items() if str(rule.get("score")) in rows[0]]
        # The other columns of floats that vary and do not describe the clip.
        names = [name for name in rows[0] if name not in NOT_SCORES and name not in {score for _, score in ruled}]
        floats = [name for name in names if any(isinstance(row.get(name), float) for row in rows)]
        free = [("", name) for name in floats if len({row[name] for row in rows if row.get(name) is not None}) > 1]
        charts = []
        for rule, column in [*ruled, *free]:
            values: dict[str, list[float]] = {"kept": [], "dropped": [], "other": [], "failed": []}
            for row in rows:
                if (value := number(row.get(column))) is not None:
                    fell = "dropped" if rule and row.get("rule") == rule else "other"
                    decision = str(row.get("decision"))
                    values[decision if decision in ("kept", "failed") else fell].append(value)
            threshold, side = number(rules.get(rule, {}).get("threshold")), str(rules.get(rule, {}).get("op"))
            others = "by other rules" if rule else "dropped"
            legend = {"kept": "kept", "dropped": "dropped", "other": others, "failed": "failed"}
            groups = [HistogramGroup(name, values[tone], tone) for tone, name in legend.items()]
            title = words(clean(column, 60)) + (f" · rule {words(clean(rule, 60))}" if rule and rule != column else "")
            limit = (side, threshold) if threshold is not None and side in ("<", ">") else None
            charts.append(histogram(title, groups, limit=limit))
        unscored = sum(all(number(row.get(column)) is None for _, column in [*ruled, *free]) for row in rows)
        if unscored:
            run.note(f"{unscored:,} of {len(rows):,} clips have no scores, because they failed before scoring.")
        lead = (
            f"The scores of {len(rows):,} clips. The dashed line is the rule's threshold; the shaded side is dropped. "
            f"Outliers are collected in the outermost bars."
        )
        if any(row.get("duplicate_of") for row in rows):
            lead += " One of each group of duplicates is kept, so kept clips appear on the shaded side, too."
        yield Section("Scores and thresholds", grid(charts, OPEN_CHARTS), lead, step.name, folded=True)
