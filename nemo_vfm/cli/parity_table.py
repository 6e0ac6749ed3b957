"""Prints the rows of a parity table as they are measured."""

from collections import Counter
from collections.abc import Sequence

from torch import nn

from nemo_vfm.core.fp8 import Fp8
from nemo_vfm.parallel.plan.layout_cases import Layout
from nemo_vfm.parallel.verify.parity import GRADIENT, LOSS, Row
from nemo_vfm.parallel.verify.tiny_training import SAMPLES
from nemo_vfm.runtime.terminal import Terminal

_STYLES = {"equal": "green", "seen": "green", "refused": "yellow"}


class Table:
    """A table whose widths are known before its rows.

    Args:
        layouts: all that will come.
    """

    def __init__(self, layouts: Sequence[Layout]) -> None:
        self._width = max([len(str(layout)) for layout in layouts] + [20])
        self._paper, self._ranks = Terminal(), 0

    def begin(self, recipe: str, model: nn.Module, fp8: Fp8 | None) -> None:
        """What is tried, and the head of the columns."""
        numbers = "fp32" if fp8 is None else f"FP8 (recipe {fp8.recipe}) and float64"
        count = sum(parameter.numel() for parameter in model.parameters())
        paper = self._paper
        paper.line(f"{recipe}, made small", "bold")
        paper.prose(f"{type(model).__name__} of {count:,} parameters, two steps of {SAMPLES} samples in {numbers}, "
                    f"each rank with its own. Each layout against one device: losses may differ by {LOSS:g}, each "
                    f"parameter's gradient by {GRADIENT:g}, relative (L2).", 2)  # fmt: skip
        paper.line()
        paper.line(f"  ranks  {'layout':<{self._width}}  verdict       loss  gradient  of", "bold")

    def add(self, row: Row) -> None:
        """One more; a line between numbers of ranks."""
        if row.left_out and self._ranks:
            self._paper.line()
            self._paper.line(f"  control, {row.left_out}: it must be detected", "bold")
            self._ranks = 0
        elif not row.left_out and row.ranks != self._ranks:
            if self._ranks:
                self._paper.line()
            self._ranks = row.ranks
        head = f"  {row.ranks:>5}  {row.layout!s:<{self._width}}  "
        self._paper.line(
            f"{head}{row.verdict:<8}  {self._figures(row, len(head) + 10)}", _STYLES.get(row.verdict, "red")
        )

    def _figures(self, row: Row, used: int) -> str:
        if row.loss is None or row.gradient is None:
            return _cut(row.reason, max(40, self._paper.width - used), "")
        numbers = f"{_figure(row.loss):>8}  {_figure(row.gradient):>8}  "
        name = row.parameter.removesuffix(".weight")
        return numbers + _cut(name, max(24, self._paper.width - used - len(numbers)), name.rpartition(".")[2])

    def end(self, rows: Sequence[Row], seconds: float) -> None:
        """The verdict of all, and each reason in full."""
        counts = Counter(row.verdict for row in rows if not row.left_out)
        controls = [row for row in rows if row.left_out]
        verdicts = [f"{count} {verdict}" for verdict, count in sorted(counts.items())]
        if controls:
            verdicts.append(f"{sum(row.is_good for row in controls)} of {len(controls)} controls detected")
        self._paper.line()
        for reason, count in Counter(row.reason for row in rows if row.reason).items():
            self._paper.prose(f"{count} x {reason}", 2)
        good = all(row.is_good for row in rows)
        self._paper.line(f"{'All as expected' if good else 'NOT as expected'}: {', '.join(verdicts)} ({seconds:.0f} s)",
                         "green" if good else "red")  # fmt: skip


def _figure(value: float) -> str:
    return f"{value:.0e}" if 0 < value < 0.01 else f"{value:.2g}"


def _cut(text: str, width: int, last: str) -> str:
    """A text cut to a width before its last words."""
    return text if len(text) <= width else f"{text[: max(8, width - 3 - len(last))]}...{last}"
