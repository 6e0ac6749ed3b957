"""Watches the linears in FP8 and names those whose numbers leave its range, before the loss does."""

import json
import math
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict

from nemo_vfm.core import log, ranks
from nemo_vfm.core.storage.files import drop_steps_after
from nemo_vfm.parallel.fp8.operand_stats import OperandStats, OperandSummary
from nemo_vfm.parallel.fp8.use_fp8 import fp8_linears
from nemo_vfm.parallel.ranks.process_group import everyone_says
from nemo_vfm.train.state.train_state import TrainState

FILE = "fp8.jsonl"
_DEAD_LOOKS = 3  # a layer that begins as the identity has no gradient in its first steps
Layers = Mapping[str, Mapping[str, OperandSummary]]


class Fp8Monitor:
    """Looks at every linear in FP8 once in a while: amax, channels, and shares of values saturated and flushed to zero.

    It names a layer whose input has an outlier channel or grows, a dead layer, and one that loses many values; each
    once. Gradients have outlier channels by nature: those of queries and keys are small beside those of values.
    `fp8.jsonl` has all numbers, metrics the largest shares, and the report both.

    Args:
        every_steps: between two looks; each reads the operands of a step once more.
        outlier: so many times the median channel's amax is an outlier channel's.
        saturated: largest share of an operand's values beyond the format's range.
        flushed: largest share of an operand's values that become zero.
        growth: an input's amax that grew so many times over the last ten looks is growing.
        to_bf16: take a layer that is named out of FP8; checkpoints remember it.

    Raises:
        ValueError: a limit is of no use.
    """

    def __init__(
        self, *, every_steps: int = 50, outlier: float = 100.0, saturated: float = 0.001, flushed: float = 0.5,
        growth: float = 16.0, to_bf16: bool = False,
    ) -> None:  # fmt: skip
        if every_steps < 1 or outlier <= 1 or growth <= 1:
            raise ValueError(f"every_steps ({every_steps}) must be at least 1, outlier ({outlier}) and growth "
                             f"({growth}) more than 1")  # fmt: skip
        self.every_steps, self.outlier, self.saturated = every_steps, outlier, saturated
        self.flushed, self.growth, self.to_bf16 = flushed, growth, to_bf16

    def on_start(self, fit: TrainState) -> None:
        """Forget the lines of steps that will be taken again, and look at the next one where it is due."""
        self._named: set[tuple[str, str]] = set()
        self._inputs: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=10))
        self._dead: dict[str, int] = defaultdict(int)
        if ranks.is_first():
            drop_steps_after(fit.run.folder / FILE, fit.step)
        if not any(fp8_linears(fit.model)) and fit.plan.pipeline == 1:
            log.warn("Fp8Monitor has nothing to watch: no linear is in FP8; set precision=fp8")
        self._begin(fit)

    def on_step(self, fit: TrainState) -> None:
        """Say what was seen, where this step was looked at; begin to look where the next one will be."""
        if fit.step % self.every_steps == 0 and fit.metrics.get("skipped") is None:
            layers, ages = _gather_stats(fit)
            if every := [one for operands in layers.values() for one in operands.values()]:
                # The worst of all layers, for the curves.
                fit.metrics["fp8_saturated"] = max(one.share(one.saturated) for one in every)
                fit.metrics["fp8_flushed"] = max(one.share(one.flushed) for one in every)
            problems = [one for one in self._problems(layers) if one not in self._named]
            self._say(fit, problems, layers)
            if ranks.is_first():
                self._write(fit, layers, ages, problems)
        self._begin(fit)

    def _begin(self, fit: TrainState) -> None:
        due = (fit.step + 1) % self.every_steps == 0
        for _, linear in fp8_linears(fit.model):
            linear.stats = OperandStats() if due and linear.is_on else None

    def _problems(self, layers: Layers) -> Iterator[tuple[str, str]]:
        """(layer, what is wrong)."""
        for name, operands in layers.items():
            for role, one in operands.items():
                if not math.isfinite(one.amax):
                    yield name, f"has non-finite numbers in its {role}"
                if role == "input" and one.outlier >= self.outlier:
                    yield name, "has an outlier channel in its input"
                if one.share(one.saturated) >= self.saturated:
                    yield name, f"saturates values of its {role}"
                if one.share(one.flushed) >= self.flushed:
                    yield name, f"flushes most values of its {role} to zero"
            dead = any(operands[role].amax == 0 for role in ("input", "gradient") if role in operands)
            self._dead[name] = self._dead[name] + 1 if dead else 0
            if self._dead[name] >= _DEAD_LOOKS:
                yield name, "is dead: its input or its gradient is zero"
            if "input" in operands:
                looks = self._inputs[name]
                looks.append(operands["input"].amax)
                if looks[0] > 0 and looks[-1] >= self.growth * looks[0]:
                    yield name, "has a growing input"

    def _say(self, fit: TrainState, problems: list[tuple[str, str]], layers: Layers) -> None:
        own = dict(fp8_linears(fit.model))
        for name, problem in problems:
            self._named.add((name, problem))
            if self.to_bf16 and name in own:
                own[name].is_on = False
            if ranks.is_first():
                then = "; from now on it computes in bf16" if self.to_bf16 else ""
                where = f" (channel {layers[name]['input'].channel})" if "outlier" in problem else ""
                log.warn(f"step {fit.step}: {name} {problem}{where}{then}")

    def _write(
        self, fit: TrainState, layers: Layers, ages: Mapping[str, list[int]], problems: list[tuple[str, str]]
    ) -> None:  # fmt: skip
        line = {
            "step": fit.step,
            "layers": {
                name: {role: _round_digits(one) for role, one in operands.items()} for name, operands in layers.items()
            },
            "ages": ages,
            "problems": [{"layer": name, "problem": text, "to_bf16": self.to_bf16} for name, text in problems],
        }
        with (fit.run.folder / FILE).open("a") as file:
            file.write(json.dumps(line) + "\n")


def _round_digits(one: OperandSummary) -> dict[str, float]:
    """Four digits of each number: a large model has hundreds of layers."""
    return {name: float(f"{value:.4g}") for name, value in asdict(one).items()}


def _gather_stats(fit: TrainState) -> tuple[dict[str, dict[str, OperandSummary]], dict[str, list[int]]]:
    """What all ranks saw of each layer, and how old its delayed scales are."""
    own = {
        name: {role: asdict(one) for role, one in linear.stats.summaries().items()}
        for name, linear in fp8_linears(fit.model)
        if linear.stats is not None
    }
    ages = {name: linear.history.ages() for name, linear in fp8_linears(fit.model) if linear.history is not None}
    layers: dict[str, dict[str, OperandSummary]] = {}
    for text in everyone_says(json.dumps([own, ages])):
        other, other_ages = json.loads(text)
        ages |= other_ages
        for name, operands in other.items():
            for role, values in operands.items():
                found, before = OperandSummary(**values), layers.setdefault(name, {}).get(role)
                layers[name][role] = found if before is None else before.merge(found)
    return layers, ages
