# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Writes a planner's answer as a page: the question, the table, why other layouts fail, what to do."""

import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from nemo_vfm.cli.planning.layout_ingredient import changes
from nemo_vfm.cli.planning.layout_words import count, digits, gib, large, layout, percent, size
from nemo_vfm.cli.planning.plan_request import PlanRequest
from nemo_vfm.perf.layout_rules import Size, judged
from nemo_vfm.perf.memory_remedies import NO_AVERAGE, OFFLOAD, Remedy
from nemo_vfm.perf.planner import Answer, Choice, Group
from nemo_vfm.perf.training_cost import cost
from nemo_vfm.runtime.terminal import Terminal

if TYPE_CHECKING:
    from rich.table import Table

SHOWN = 8  #: layouts in the table
_ABOUT = {
    "tensor": "tensor", "context": "context", "pipeline": "pipeline", "samples": "data ranks (replicate x shard)",
    "memory": "memory",
}  # fmt: skip


def tell(asked: PlanRequest, answer: Answer, own: Choice | None, recipe: str) -> None:
    """Write the page.

    Args:
        own: the recipe's layout, where it is for so many GPUs.
        recipe: as the user named it.
    """
    paper = Terminal()
    for text in _heading(asked, answer):
        paper.prose(text)
    if answer.ranked:
        _table(paper, asked, answer, own)
    for text in (*_own(asked, answer, own), *_rules(asked, answer)):
        paper.prose(text)
    _refusals(paper, answer)
    if answer.ranked:
        _advice(paper, asked, answer.ranked[0], recipe)


def tell_remedies(
    asked: PlanRequest, start: Choice, found: Sequence[Remedy] | None, answer: Answer, more: int | None
) -> None:
    """What would make the recipe's layout fit, or where it cannot be, the one that needs least.

    Args:
        start: that layout.
        found: what would, the quickest first; None where it fits.
        more: the fewest GPUs on which some layout would; None where it was not asked for, or there is none.
    """
    paper, gpu = Terminal(), asked.question.machine.gpu
    room = f"{gib(gpu.usable_bytes)} GiB that one {gpu.name} has to fill"
    number = "one GPU" if answer.gpus == 1 else f"{answer.gpus:,} GPUs"
    if found is None:
        paper.prose(f"It fits on {number}: {gib(start.memory.total)} of {room}.")
        return
    paper.prose(f"On {number} it does not fit as it is: {gib(start.memory.total)} GiB on {layout(start.plan)}, "
                f"{room}. Fullest: {start.memory.moment}.")  # fmt: skip
    if found:
        paper.line("\nWhat would make it fit", "bold")
        rows = [_remedy(asked, start, one) for one in found[:SHOWN]]
        paper.table([("GiB", "step s", "", "changes"), *rows], {})
    else:
        paper.prose(f"Nothing would make it fit on {number}: no layout, no recomputation, no smaller microbatch, no "
                    f"larger GPU, and no two changes together.")  # fmt: skip
    if more is not None:
        paper.prose(f"Unchanged, it fits on {more:,} GPUs: see nemo-vfm plan --gpus {more}.")
    elif not answer.ranked:
        paper.prose("Unchanged, it fits on no number of GPUs.")


def _remedy(asked: PlanRequest, start: Choice, one: Remedy) -> tuple[str, str, str, str]:
    """Its row: memory, time, how much longer than as it is, and the words of a command line."""
    more = one.choice.time.total / start.time.total - 1
    return gib(one.choice.memory.total), digits(one.choice.time.total), f"{more:+.0%}", shlex.join(words(asked, one))


def words(asked: PlanRequest, one: Remedy) -> list[str]:
    """A remedy as `nemo-vfm plan` and, but for another GPU, `run` take it."""
    offload, gpu = OFFLOAD in one.settings, ["--gpu", one.gpu] if one.gpu else []
    others = [f"~{asked.step}ema" if name == NO_AVERAGE else f"{asked.step}{name}"
              for name in one.settings if name != OFFLOAD]  # fmt: skip
    return [*changes(one.choice, asked, offload=offload), *others, *gpu]


def _heading(asked: PlanRequest, answer: Answer) -> Iterator[str]:
    question, sample = asked.question, asked.sample
    name, gpu, network = type(question.subject.model).__name__, question.machine.gpu, question.machine.network
    shape = " x ".join(map(str, sample.inputs["latents_BCTHW"][2:])) if sample.frames is not None else ""
    of = f" (latents of {shape}, by {sample.source})" if shape else f" (by {sample.source})"
    phase = f", phase {asked.phase}" if asked.phase else ""
    yield (
        f"{name} of {large(question.work.parameters)} parameters on samples of {sample.tokens:,} tokens{of}, "
        f"{count(question.subject.batch, 'sample', 'samples')} a step in {question.precision}{phase}."
    )
    machines = count(-(-answer.gpus // network.gpus_per_node), "machine", "machines")
    yield (
        f"{answer.gpus:,} {gpu.name} of {gpu.memory_gib:g} GiB, of which {gib(gpu.usable_bytes)} can be filled, in "
        f"{machines} of up to {network.gpus_per_node}. Predicted, not measured: docs/planning.md says how well."
    )


def _table(paper: Terminal, asked: PlanRequest, answer: Answer, own: Choice | None) -> None:
    shown = list(enumerate(answer.ranked[:SHOWN], 1))
    place = answer.rank_of(own.family) if own is not None else None
    if place is not None and place > SHOWN:
        shown.append((place, answer.ranked[place - 1]))
    table = _columns(asked.steps is not None)
    for number, choice in shown:
        table.add_row(*_row(asked, number, choice), style="bold" if number == place else "")
    with paper.console.capture() as drawn:
        paper.console.print(table)
    for line in drawn.get().splitlines():
        paper.line(line.rstrip())


def _columns(with_days: bool) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("", justify="right")
    table.add_column("layout", overflow="fold", min_width=24)
    for name in (
        "parts x rows",
        "GiB",
        "step s",
        "MFU %",
        "waits %",
        "sends %",
        *(["days", "GPU h"] if with_days else []),
    ):
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _row(asked: PlanRequest, number: int, choice: Choice) -> Iterator[str]:
    told = cost(choice, asked.question, asked.steps)
    yield str(number)
    yield layout(choice.plan) + ("; recompute" if choice.recompute else "")
    yield f"{choice.plan.microbatches} x {choice.rows}"
    yield gib(choice.memory.total)
    yield digits(told.step_s)
    yield percent(told.mfu)
    yield percent(told.waits) if choice.plan.pipeline > 1 else "-"
    yield percent(told.exchanges)
    if told.days is not None:
        yield digits(told.days)
        yield large(told.gpu_hours or 0)


def _own(asked: PlanRequest, answer: Answer, own: Choice | None) -> Iterator[str]:
    if own is None:
        if asked.own.world != answer.gpus:
            yield f"The recipe's own layout ({asked.own}) is for {asked.own.world:,} GPUs."
        return
    told, place = cost(own, asked.question, asked.steps), answer.rank_of(own.family)
    fits = asked.question.fits(own.memory)
    where = f"its kind is number {place} of {len(answer.ranked)}" if place else "no layout of its kind fits"
    yield (
        f"The recipe's own layout ({layout(own.plan)}): {digits(told.step_s)} s, MFU {percent(told.mfu)} %, "
        f"{gib(own.memory.total)} GiB{'' if fits else ', more than there is'}; {where}."
    )


def _rules(asked: PlanRequest, answer: Answer) -> Iterator[str]:
    if not answer.ranked:
        return
    question, best = asked.question, answer.ranked[0]
    of = Size(question.work.parameters, question.subject.tokens, question.machine.network.gpus_per_node)
    for rule, follows in judged(best.plan, of):
        first = next((n for n, one in enumerate(answer.ranked, 1) if rule.followed(one.plan, of)), None)
        other = "" if follows else f"; the first that does is number {first}" if first else "; none that fits does"
        verdict = f"{'followed' if follows else 'not followed'}{other}"
        yield f"Rule {rule.number} of arXiv 2503.12964 ({rule.text}): {verdict}."


def _refusals(paper: Terminal, answer: Answer) -> None:
    if not answer.refused:
        return
    total = count(sum(ways for ways, _ in answer.refused), "way", "ways")
    paper.line(f"\n{total} to divide {answer.gpus:,} GPUs will not do", "bold")
    for group in answer.groups():
        paper.prose(f"{group.count:,} for {_ABOUT[group.about]}{_values(group)}: {group.why}", 2)


def _values(group: Group) -> str:
    if group.about == "memory":
        return ""
    shown = [str(value) for value in group.values]
    return f" {', '.join(shown if len(shown) < 8 else [*shown[:3], '...', shown[-1]])}"


def _advice(paper: Terminal, asked: PlanRequest, best: Choice, recipe: str) -> None:
    told = cost(best, asked.question, asked.steps)
    paper.line("\nRecommended", "bold")
    length = "" if told.days is None else f", {digits(told.days)} days and {large(told.gpu_hours or 0)} GPU hours"
    paper.prose(f"{layout(best.plan)}: {large(told.tokens_per_s)} tokens/s{length}.", 2)
    kept = (
        "each stays" if asked.kept is None else f"{size(asked.kept * asked.checkpoint_bytes)} for the {asked.kept} kept"
    )
    paper.prose(f"A checkpoint is {size(asked.checkpoint_bytes)}, {kept}.", 2)
    wanted = changes(best, asked)
    if wanted:
        paper.line("  nemo-vfm run " + shlex.join([recipe, *wanted]))
