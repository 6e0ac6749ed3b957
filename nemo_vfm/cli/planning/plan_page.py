"""Writes a planner's answer as a page: the layouts for a training, or on which GPUs a language model can be served."""

import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from nemo_vfm.cli.planning.layout_words import count, digits, gib, layout, percent, shorten, size
from nemo_vfm.cli.planning.plan_formats import overrides
from nemo_vfm.cli.planning.plan_request import PlanRequest
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.held_weights import HELD
from nemo_vfm.perf.fp8_time import fp8_pays_from
from nemo_vfm.perf.layout_rules import RuleSize, judge_layout
from nemo_vfm.perf.memory_remedies import NO_AVERAGE, OFFLOAD, Remedy
from nemo_vfm.perf.planner import LayoutChoice, PlanQuery, PlanResult, cost
from nemo_vfm.perf.serving import BYTES, ServingMemory, ServingPrecision, fewest_gpus, fits, plan_serving
from nemo_vfm.runtime.terminal import Terminal

if TYPE_CHECKING:
    from rich.table import Table


SHOWN = 8  #: layouts in the table
_ABOUT = {
    "tensor": "tensor", "context": "context", "pipeline": "pipeline", "samples": "data ranks (replicate x shard)",
    "memory": "memory",
}  # fmt: skip


def tell(request: PlanRequest, answer: PlanResult, own: LayoutChoice | None, recipe: str) -> None:
    """Write the page; `own` is the recipe's layout, where it is for so many GPUs."""
    paper = Terminal()
    for text in (*_write_heading(request, answer), *fp8_sentences(request.question)):
        paper.prose(text)
    if answer.ranked:
        shown = list(enumerate(answer.ranked[:SHOWN], 1))
        place = answer.rank_of(own.family) if own is not None else None
        if place is not None and place > SHOWN:
            shown.append((place, answer.ranked[place - 1]))
        with paper.console.capture() as drawn:
            paper.console.print(_table(request, shown, place))
        for line in drawn.get().splitlines():
            paper.line(line.rstrip())
    for text in (*_own_layout(request, answer, own), *_rules(request, answer)):
        paper.prose(text)
    if answer.refused:
        total = count(sum(ways for ways, _ in answer.refused), "way", "ways")
        paper.line(f"\n{total} to divide {answer.gpus:,} GPUs will not do", "bold")
        for group in answer.groups():
            values = [str(value) for value in group.values]
            values = values if len(values) < 8 else [*values[:3], "...", values[-1]]
            degrees = "" if group.about == "memory" else f" {', '.join(values)}"
            paper.prose(f"{group.count:,} for {_ABOUT[group.about]}{degrees}: {group.why}", 2)
    if answer.ranked:
        best = answer.ranked[0]
        spent = cost(best, request.question, request.steps)
        paper.line("\nRecommended", "bold")
        length = (
            "" if spent.days is None else f", {digits(spent.days)} days and {shorten(spent.gpu_hours or 0)} GPU hours"
        )
        paper.prose(f"{layout(best.plan)}: {shorten(spent.tokens_per_s)} tokens/s{length}.", 2)
        kept = (
            "each stays"
            if request.kept is None
            else f"{size(request.kept * request.checkpoint_bytes)} for the {request.kept} kept"
        )
        paper.prose(f"A checkpoint is {size(request.checkpoint_bytes)}, {kept}.", 2)
        wanted = overrides(best, request)
        if wanted:
            paper.line("  nemo-vfm run " + shlex.join([recipe, *wanted]))


def tell_remedies(
    request: PlanRequest, start: LayoutChoice, found: Sequence[Remedy] | None, answer: PlanResult, more: int | None
) -> None:
    """What would make the recipe's layout fit, or where it cannot be, the one that needs least.

    Args:
        start: that layout.
        found: what would, the quickest first; None where it fits.
        more: the fewest GPUs on which some layout would; None where it was not asked for, or there is none.
    """
    paper, gpu = Terminal(), request.question.machine.gpu
    room = f"{gib(gpu.usable_bytes)} GiB that one {gpu.name} has to fill"
    number = "one GPU" if answer.gpus == 1 else f"{answer.gpus:,} GPUs"
    if found is None:
        paper.prose(f"It fits on {number}: {gib(start.memory.total)} of {room}.")
        return
    paper.prose(f"On {number} it does not fit as it is: {gib(start.memory.total)} GiB on {layout(start.plan)}, "
                f"{room}. Fullest: {start.memory.moment}.")  # fmt: skip
    if found:
        paper.line("\nWhat would make it fit", "bold")
        rows = []
        for one in found[:SHOWN]:
            seconds = one.choice.time.total
            longer = f"{seconds / start.time.total - 1:+.0%}"
            rows.append((gib(one.choice.memory.total), digits(seconds), longer, shlex.join(words(request, one))))
        paper.table([("GiB", "step s", "", "changes"), *rows], {})
    else:
        paper.prose(f"Nothing would make it fit on {number}: no layout, no recomputation, no smaller microbatch, no "
                    f"larger GPU, and no two changes together.")  # fmt: skip
    if more is not None:
        paper.prose(f"Unchanged, it fits on {more:,} GPUs: see nemo-vfm plan --gpus {more}.")
    elif not answer.ranked:
        paper.prose("Unchanged, it fits on no number of GPUs.")


def words(request: PlanRequest, one: Remedy) -> list[str]:
    """A remedy as `nemo-vfm plan` and, but for another GPU, `run` take it."""
    offload, gpu = OFFLOAD in one.settings, ["--gpu", one.gpu] if one.gpu else []
    others = [f"~{request.step}{NO_AVERAGE[1:]}" if name == NO_AVERAGE else f"{request.step}{name}"
              for name in one.settings if name != OFFLOAD]  # fmt: skip
    return [*overrides(one.choice, request, offload=offload), *others, *gpu]


def _write_heading(request: PlanRequest, answer: PlanResult) -> Iterator[str]:
    question, sample = request.question, request.sample
    name, gpu, network = type(question.subject.model).__name__, question.machine.gpu, question.machine.network
    shape = " x ".join(map(str, sample.inputs["latents_BCTHW"][2:])) if sample.frames is not None else ""
    of = f" (latents of {shape}, by {sample.source})" if shape else f" (by {sample.source})"
    phase = f", phase {request.phase}" if request.phase else ""
    yield (
        f"{name} of {shorten(question.work.parameters)} parameters on samples of {sample.tokens:,} tokens{of}, "
        f"{count(question.subject.batch, 'sample', 'samples')} a step in {question.arithmetic}{phase}."
    )
    machines = count(-(-answer.gpus // network.gpus_per_node), "machine", "machines")
    yield (
        f"{answer.gpus:,} {gpu.name} of {gpu.memory_gib:g} GiB, of which {gib(gpu.usable_bytes)} can be filled, in "
        f"{machines} of up to {network.gpus_per_node}. Predicted, not measured: "
        "docs/how-to/training/planning.md says how well."
    )
    if request.held.weights:
        parts = ", ".join(f"{name} {gib(size)}" for name, size in request.held.weights.items())
        fewer = " Data of cached latents and texts need fewer (recipes/curation/encode.yaml)."
        kinds = request.held.kinds
        yield f"Each GPU also holds {kinds}, which count: {parts} GiB.{fewer if HELD in kinds else ''}"
    yield from (f"Not counted: {note}" for note in request.held.notes())


def fp8_sentences(question: PlanQuery) -> Iterator[str]:
    """Whether the model's linears are wide enough for FP8; nothing of a training in fp32 or bf16."""
    if question.fp8 is None:
        return
    gpu, tokens, width = question.machine.gpu, question.subject.tokens, question.work.width
    least = fp8_pays_from(gpu, question.fp8, tokens)
    of = f"on {gpu.name} with {tokens:,} tokens a microbatch by recipe={question.fp8.recipe}"
    if least is None:
        yield f"FP8 is slower than bf16 at every width {of}."
    else:
        verdict = "slower" if width < least else "quicker"
        yield f"FP8 is faster than bf16 from width {least:,} {of}, and {verdict} at this model's {width:,}."


def _table(request: PlanRequest, shown: Sequence[tuple[int, LayoutChoice]], own: int | None) -> "Table":
    """Layouts with their places; the recipe's own one is bold."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("", justify="right")
    table.add_column("layout", overflow="fold", min_width=24)
    with_days = ["days", "GPU h"] if request.steps is not None else []
    for name in ("parts x rows", "GiB", "step s", "MFU %", "waits %", "sends %", *with_days):
        table.add_column(name, justify="right", no_wrap=True)
    for number, choice in shown:
        spent = cost(choice, request.question, request.steps)
        cells = [
            str(number), layout(choice.plan) + ("; recompute" if choice.recompute else ""),
            f"{choice.plan.microbatches} x {choice.rows}", gib(choice.memory.total), digits(spent.step_s),
            percent(spent.mfu), percent(spent.waits) if choice.plan.pipeline > 1 else "-", percent(spent.exchanges),
        ]  # fmt: skip
        if spent.days is not None:
            cells += [digits(spent.days), shorten(spent.gpu_hours or 0)]
        table.add_row(*cells, style="bold" if number == own else "")
    return table


def _own_layout(request: PlanRequest, answer: PlanResult, own: LayoutChoice | None) -> Iterator[str]:
    if own is None:
        if request.own.world != answer.gpus:
            yield f"The recipe's own layout ({request.own}) is for {request.own.world:,} GPUs."
        return
    spent, place = cost(own, request.question, request.steps), answer.rank_of(own.family)
    fits = request.question.fits(own.memory)
    where = f"its kind is number {place} of {len(answer.ranked)}" if place else "no layout of its kind fits"
    yield (
        f"The recipe's own layout ({layout(own.plan)}): {digits(spent.step_s)} s, MFU {percent(spent.mfu)} %, "
        f"{gib(own.memory.total)} GiB{'' if fits else ', more than there is'}; {where}."
    )


def _rules(request: PlanRequest, answer: PlanResult) -> Iterator[str]:
    if not answer.ranked:
        return
    question, best = request.question, answer.ranked[0]
    rule_size = RuleSize(question.work.parameters, question.subject.tokens, question.machine.network.gpus_per_node)
    for rule, follows in judge_layout(best.plan, rule_size):
        first = next((n for n, one in enumerate(answer.ranked, 1) if rule.followed(one.plan, rule_size)), None)
        other = "" if follows else f"; the first that does is number {first}" if first else "; none that fits does"
        verdict = f"{'followed' if follows else 'not followed'}{other}"
        yield f"Rule {rule.number} of arXiv 2503.12964 ({rule.text}): {verdict}."


def serving_answers(question: PlanQuery, gpus: int, sequences: int) -> dict[ServingPrecision, ServingMemory | None]:
    """What each GPU would hold; None in FP8 on GPUs that have no such products."""
    work, network = question.work, question.machine.network
    if sequences < 1:
        raise UserError(f"--sequences must be at least 1, got {sequences}")
    return {
        name: None if name == "fp8" and question.machine.gpu.fp8_tflops is None else
        plan_serving(work, gpus, network, name, sequences=sequences)
        for name in BYTES
    }  # fmt: skip


def serving_sentences(question: PlanQuery, gpus: int, sequences: int) -> Iterator[str]:
    """The page: what is served, then a sentence for each precision."""
    work, gpu, network = question.work, question.machine.gpu, question.machine.network
    yield (
        f"Serving {type(question.subject.model).__name__} of {shorten(work.parameters)} parameters on {gpus:,} "
        f"{gpu.name}, of which each has {gib(gpu.usable_bytes)} GiB ({digits(gpu.usable_bytes / 1e9)} GB) to fill: "
        f"{sequences:,} x {work.tokens:,} tokens at once. Predicted, not measured."
    )
    for name, needed in serving_answers(question, gpus, sequences).items():
        if needed is None:
            yield f"{name}: {gpu.name} has no FP8 matmuls, which need compute capability 8.9."
            continue
        sizes = {"weights": needed.weights, "keys and values": needed.cache, "activations": needed.activations,
                 "together": needed.total}  # fmt: skip
        parts = ", ".join(f"{what} {num_bytes / 1e9:.1f} GB" for what, num_bytes in sizes.items()) + " a GPU"
        if fits(needed, gpu):
            yield f"{name}: it fits: {parts}."
            continue
        alone = "; the weights alone exceed it" if needed.weights > gpu.usable_bytes else ""
        more = fewest_gpus(work, gpu, network, name, sequences=sequences)
        would = f"it would fit on {more:,} {gpu.name}" if more else "it would fit on no number of them"
        yield f"{name}: it does not fit: {parts}{alone}; {would}."
