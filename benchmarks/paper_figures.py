"""Writes docs/reference/performance.md: each figure of arXiv 2503.12964 beside our prediction, and published FLOPs.

    python benchmarks/paper_figures.py [--write]      or: make perf

Nothing is run: models are built without memory and layouts are planned. So the page is the same on every machine.
"""

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path

import published_mfu
from paper import figures

PAGE = Path(__file__).parents[1] / "docs/reference/performance.md"
HEAD = """# Performance beside published figures

<!-- `make perf` writes this page from benchmarks/paper_figures.py; edit that. -->

Each cell is *measured*, *predicted* by the model of [planning](../how-to/training/planning.md), or *not known*. No GPU
was at hand, so
nothing of ours here is measured: every number in the columns "ours" is predicted, or counted from shapes where it is
FLOPs. What was measured on a CPU stands in
[FLOPs, MFU and memory](../design/counting.md#model-compared-with-measurement). All
predictions are for H100 80 GB in DGX H100 machines, bf16 unless a line says FP8. Deviation is ours over theirs, less
one. The paper draws most of its figures without numbers: those cells are not known.
"""


LOW_RANK = """\
The step with full modulations over that of rank 256, at the same width and layout. The paper says up to 1.2,
for the 7B on 8k. It compares models of as many parameters, of which the low-rank one is wider; so ours is not
the same comparison. In the last row tensor ranks each have full modulations whole, and gathering them takes
2.06 of 3.47 s, instead of 0.02."""
FAST_DIT = """\
Shared weights alone, which is what Fast-DiT has with FSDP, over the best layout that fits. They recompute where
they do not fit without. The paper says up to 1.85 for the 7B, without naming the context, and that the 28B runs
out of memory. Both sides here are our engine: nothing of Fast-DiT itself is modelled, so what is left of the
1.85 is not explained. At 8k our model has the 28B fit with recomputation, where the paper has it fail."""
ALONE = "shared weights alone, without and with recomputation; the best layout"
SCALING = """\
Four times the GPUs on the same global batch, in percent of four times the speed. The paper says at least 95 %,
most above 98 %. Its batches are not published; a pipeline with 16 microbatches instead of 64 waits more, which
is the one row below."""
BEST = """\
On 64 GPUs. The paper draws which strategy is best at each context and gives no numbers; it says that none is
best everywhere, and so does our model."""
EXCHANGE = """\
All self-attentions of a layer in rings of keys and values, over the step that exchanges frames for temporal
attention and keeps spatial attention local. Numbers of blocks and microbatches are ours. The jump at 74k is
that tensor times context ranks are more than a machine: on one machine of 64 GPUs the model gives 1.05."""
INFERENCE = """\
Efficiency against one GPU. The paper says 80 to 90 % at 32 with context and tensor ranks (85 below); it names
no degrees, so ours are the quickest. Its context ranks form a ring, so the ring is what compares, and it comes
out too low; a ring without tensor ranks far lower. Ulysses is no scheme of the paper."""
FP8_ATTENTION = """\
A forward pass in bf16 over one with attention in FP8: at the FP8 peak, with no casts counted and keys sent in
bf16. The layout is the quickest in bf16. Our model has quicker attention gain less where exchanges do not hide;
the paper gains more on 32 GPUs than on one, which it does not explain."""
FP8_LINEARS = """\
A step in bf16 over one with linears in FP8 (`precision=fp8`, current scaling, compiled). Sequences of 8,192 are
assumed; two samples a GPU of the 8B are published. For the 70B, 16 samples and recomputation are assumed too:
with one sample our model gives 1.00, since gathered weights then take as long as a step, with two 1.20, from
four on 1.21 to 1.22. Our tensor-parallel exchanges are not overlapped, as asynchronous ones are. The share of
the FP8 peak (0.6) was assumed and not fitted; an H200 has reached 0.63 since then."""
RULES = """\
In how many of the eight cases of figure 10 above the best layout of our model follows each rule that speaks of
it. Why it prefers context to tensor ranks stands in
[planning](../how-to/training/planning.md#recipes-and-their-published-layouts)."""
FLOPS = """\
Counted, not run; [what does not fit, and why](../design/counting.md#published-figures-by-this-formula)."""


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """Lines of Markdown."""
    names = list(head)
    return [f"| {' | '.join(names)} |", "|" + "---|" * len(names), *(f"| {' | '.join(row)} |" for row in rows)]


def cells(rows: Iterable[figures.Row], unit: str, note: str = "") -> list[str]:
    """A figure's table."""
    head = ("", "published", "ours, predicted", "deviation", *([note] if note else []))
    return table(head, (_cell(row, unit, bool(note)) for row in rows))


def _cell(row: figures.Row, unit: str, noted: bool) -> Iterator[str]:
    digits = 1 if unit == " %" else 2
    yield row.what
    yield "not known" if row.published is None else f"{row.published:.{digits}f}{unit}"
    yield "not known" if row.ours is None else f"{row.ours:.{digits}f}{unit}"
    known = row.published is not None and row.ours is not None
    yield f"{row.ours / row.published - 1:+.1%}".replace("%", " %") if known else "-"  # type: ignore[operator]
    if noted:
        yield row.note


def sections() -> Iterator[tuple[str, str, list[str]]]:
    """(title, text, table) of each figure."""
    yield ("Low-rank modulation (figure 7)", LOW_RANK, cells(figures.low_rank(), "x", "with rank 256"))
    yield ("Fast-DiT (figure 8)", FAST_DIT, cells(figures.fast_dit(), "x", ALONE))
    yield ("Strong scaling (figure 9)", SCALING, cells(figures.scaling(), " %", "layout at the start"))
    layouts = table(("model", "tokens", "published", "best, predicted", "MFU, predicted"),
                    map(_best, figures.best_layouts()))  # fmt: skip
    yield ("Best layout by context (figure 10)", BEST, layouts)
    yield ("Exchange of frames in an ST-DiT (table 2)", EXCHANGE, cells(figures.exchange(), "x", "layout"))
    yield ("Inference on up to 32 GPUs (5.2)", INFERENCE, cells(figures.inference(), " %", "layout"))
    yield ("FP8 attention (5.2)", FP8_ATTENTION, cells(figures.fp8_attention(), "x", "layout"))
    yield ("Linears in FP8", FP8_LINEARS, cells(figures.fp8_linears(), "x"))
    yield ("The paper's five rules", RULES, table(("rule", "holds", "where not"), map(_rule, figures.rules())))
    flops = table(("", "unit", "published", "ours, counted", "deviation"), map(_counted, published_mfu.table()))
    yield ("Published FLOPs by our formula", FLOPS, flops)


def _best(found: tuple[figures.Size, int, figures.LayoutChoice]) -> Iterator[str]:
    size, tokens, choice = found
    flops = figures.work(size, tokens).training_flops * figures.CONTEXTS[tokens]
    mfu = flops / choice.time.total / choice.plan.world / figures.H100.gpu.flops_per_s
    yield from (size.name, f"{tokens:,}", "not known", figures.named(choice), f"{100 * mfu:.1f} %")


def _rule(found: tuple[str, int, int, str]) -> Iterator[str]:
    text, held, spoken, missed = found
    yield from (text, f"{held} of {spoken}", missed or "-")


def _counted(row: published_mfu.Row) -> Iterator[str]:
    deviation = f"{row.off:+.1%}".replace("%", " %")
    yield from (row.what, row.unit, f"{row.published:.2f}", f"{row.ours:.2f}", deviation)


def page() -> str:
    """All of it."""
    parts = [HEAD]
    for title, text, lines in sections():
        parts.append(f"## {title}\n{text}\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def main() -> None:
    """Print it, or write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}; else it is printed")
    if parser.parse_args().write:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        print(page())


if __name__ == "__main__":
    main()
