"""Formats layouts and numbers as the texts of a table."""

from nemo_vfm.parallel.plan.plan import AXES, ParallelPlan

_GIB = 2.0**30


def layout(plan: ParallelPlan) -> str:
    """`tensor 2 + sequence, context 4 ring, shard 8`; closest axis first, as ranks are counted."""
    beside = {"tensor": " + sequence" if plan.sequence else "", "context": f" {plan.attention}", "pipeline": ""}
    if plan.attention == "ring_ulysses":
        beside["context"] += f" of {plan.ulysses}"
    if plan.virtual > 1:
        beside["pipeline"] = f" x {plan.virtual}{' zero_bubble' if plan.schedule == 'zero_bubble' else ''}"
    sizes = reversed([*zip(AXES, plan.sizes, strict=True)])
    return ", ".join(f"{axis} {size}{beside.get(axis, '')}" for axis, size in sizes if size > 1) or "one device"


def gib(num_bytes: float) -> str:
    """`51.8`."""
    return f"{num_bytes / _GIB:.1f}"


def binary(num_bytes: float) -> str:
    """`51.8 GiB`; what is below half of one in MiB."""
    return f"{gib(num_bytes)} GiB" if num_bytes >= _GIB / 2 else f"{num_bytes / 2**20:.1f} MiB"


def digits(value: float) -> str:
    """Three that count, `0.408` and `16.9`; whole from a thousand on, `1,912`."""
    return f"{value:,.0f}" if value >= 999.5 else f"{value:.3g}"


def percent(share: float) -> str:
    """`41.2`; small ones with a digit more."""
    return f"{100 * share:.1f}"


def shorten(value: float) -> str:
    """`1,234,000` with three digits that count, `11.6 M` from a million on."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if value >= size:
            return f"{value / size:.3g} {letter}"
    return f"{round(value, -1) if value >= 1000 else value:,.0f}"


def size(num_bytes: float) -> str:
    """Decimal, as disks are sold."""
    for unit, letters in ((1e12, "TB"), (1e9, "GB")):
        if num_bytes >= unit:
            return f"{num_bytes / unit:.2f} {letters}"
    return f"{num_bytes / 1e6:.0f} MB"


def count(number: int, one: str, more: str) -> str:
    """`1 layout`, `2,000 layouts`."""
    return f"{number:,} {one if number == 1 else more}"
