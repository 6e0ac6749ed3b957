"""Measures samples and tokens a second and the model FLOPs utilisation, and says what they mean."""

import math
import time
from collections import deque
from typing import TYPE_CHECKING, Literal

from nemo_vfm.core import log, ranks
from nemo_vfm.core.storage.files import write_json
from nemo_vfm.core.types.model_traits import ReportsFlops

if TYPE_CHECKING:
    from nemo_vfm.perf.flops import PeakFlops
    from nemo_vfm.train.state.train_state import TrainState


class Throughput:
    """Adds samples_per_s of all devices, of text also tokens_per_s, and mfu of each where the model says what it costs.

    Args:
        window_steps: steps the rate is averaged over.
        causal_attention: whether FLOPs of a language model's attention are counted full, masked half included, as most
            published figures do, or causal, without it. Models that see all their tokens have the same either way.

    Raises:
        ValueError: no steps, or a convention that there is not.
    """

    def __init__(self, *, window_steps: int = 20, causal_attention: Literal["full", "causal"] = "full") -> None:
        if window_steps < 1:
            raise ValueError(f"window_steps must be at least 1, got {window_steps}")
        if causal_attention not in ("full", "causal"):
            raise ValueError(f"causal_attention must be full or causal, got {causal_attention!r}")
        self.window_steps, self.causal_attention = window_steps, causal_attention
        self._seen: deque[tuple[float, int, int, float]] = deque()  # when, and how many samples, tokens, FLOPs
        self._peak: PeakFlops | None = None

    def on_start(self, fit: "TrainState") -> None:
        """Begin the clock, and say once what mfu will mean."""
        from nemo_vfm.parallel.apply.frozen_weights import only_adapters_learn
        from nemo_vfm.perf import flops

        self._seen = deque([(time.perf_counter(), 0, 0, 0.0)], maxlen=self.window_steps + 1)
        if isinstance(fit.model, ReportsFlops) and ranks.is_first():  # several that measure would slow each other
            self._peak = flops.peak_flops()
            formula = flops.formula(self.causal_attention, frozen=only_adapters_learn(fit.model))
            log.info(f"mfu: the peak is {self._peak.flops_per_s / 1e12:.4g} TFLOP/s; mfu.json says by what formula")
            write_json(fit.run.folder / "mfu.json", {"formula": formula, "peak": str(self._peak)})

    def on_step(self, fit: "TrainState") -> None:
        """Rates over the window."""
        result, model, flops = fit.result, fit.model, 0.0
        assert result is not None
        if self._peak is not None and isinstance(model, ReportsFlops):
            from nemo_vfm.parallel.apply.frozen_weights import only_adapters_learn
            from nemo_vfm.perf.flops import training_flops

            frozen, convention = only_adapters_learn(model), self.causal_attention
            own = sum(training_flops(model.ops(shapes), convention, frozen=frozen) for shapes in result.shapes)
            flops = own * fit.plan.data / fit.plan.world  # the ranks of one slice share its arithmetic
        texts = (shapes["tokens_BS"] for shapes in result.shapes if "tokens_BS" in shapes)
        self._seen.append((time.perf_counter(), result.num_samples, sum(map(math.prod, texts)) * fit.plan.data, flops))
        (begin, *_), *rest = self._seen
        seconds = rest[-1][0] - begin
        _, samples, tokens, flops = (sum(column) for column in zip(*rest, strict=True))
        fit.metrics["samples_per_s"] = samples / seconds
        if tokens:
            fit.metrics["tokens_per_s"] = tokens / seconds
        if self._peak is not None:
            from nemo_vfm.perf.flops import mfu

            fit.metrics["mfu"] = mfu(flops, seconds, self._peak)
