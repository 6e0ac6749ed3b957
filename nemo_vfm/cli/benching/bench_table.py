"""Shows what a bench measured as a table, and two sides beside each other."""

import statistics
from collections.abc import Mapping, Sequence

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.runtime.terminal import Terminal


def show_figures(found: Json, title: str) -> None:
    """A line a figure; the time by kind and the largest operations where the steps were profiled."""
    paper = Terminal()
    low, high = found["spread_s"]
    rows = [
        ("seconds a step", f"{found['step_s']:.4g} (half of {found['steps']} steps: {low:.4g} to {high:.4g})"),
        ("samples a second", f"{found['samples_per_s']:.4g}"),
    ]
    if found["tokens_per_s"]:
        rows.append(("tokens a second", f"{found['tokens_per_s']:,.0f}"))
    if found["mfu"] is not None:
        again = f"; with repeated arithmetic {found['hfu']:.1%}" if found["hfu"] > found["mfu"] else ""
        rows.append(("MFU", f"{found['mfu']:.1%} of {found['peak']}{again}"))
    said = found["planned_bytes"]
    planned = f"; plan says {_size(said)}" if said else ""
    rows.append(("peak memory", f"{_size(found['peak_bytes'])} of tensors{planned}"))
    parts = ", ".join(f"{name} {seconds:.2f}" for name, seconds in found["start_parts_s"].items())
    rows.append(("seconds to the first step", f"{found['start_s']:.2f} ({parts})"))
    paper.line(f"{title}: {found['parameters'] / 1e6:.1f} M parameters on {found['devices']} x {found['device']}")
    paper.table(rows, {})
    if not found["kinds_s"]:
        return
    paper.line()
    paper.line("the time of a step by kind")
    paper.table([(kind.replace("_", " "), f"{seconds:.4g} s", f"{seconds / found['step_s']:.1%}")
                 for kind, seconds in found["kinds_s"].items()], {})  # fmt: skip
    paper.line()
    paper.line("what takes most")
    paper.table([(f"{one['s'] / found['step_s']:.1%}", one["kind"].replace("_", " "), one["name"][:200])
                 for one in found["largest"]], {})  # fmt: skip


def _size(num_bytes: float) -> str:
    """In GB (10^9 bytes), or MB where it is little."""
    return f"{num_bytes / 1e9:.3f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:.2f} MB"


def compared(sides: Mapping[str, Sequence[Json]]) -> Json:
    """The two sides' medians over their rounds, and how much quicker the second is."""
    first, second = sides.values()
    ratios = [one["step_s"] / other["step_s"] for one, other in zip(first, second, strict=True)]
    named = dict(zip(("a", "b"), sides.items(), strict=True))
    return {
        "speedup": statistics.median(ratios), "speedups": ratios,
        **{f"{side}_{figure}": statistics.median(one[figure] for one in rounds)
           for side, (_, rounds) in named.items() for figure in ("step_s", "peak_bytes")},
        **{f"{side}_is": name for side, (name, _) in named.items()},
    }  # fmt: skip


def show_sides(found: Json) -> None:
    """Both sides and their ratio."""
    paper = Terminal()
    paper.table([(found[f"{side}_is"], f"{found[f'{side}_step_s']:.4g} s a step",
                  _size(found[f"{side}_peak_bytes"])) for side in ("a", "b")], {})  # fmt: skip
    rounds = ", ".join(f"{one:.3f}" for one in found["speedups"])
    paper.line(f"the second is {found['speedup']:.3f} times as quick (rounds: {rounds})")
