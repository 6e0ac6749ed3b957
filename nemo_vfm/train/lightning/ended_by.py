"""Remembers which callback wished for a training's end, which Lightning forgets."""

import sys
from collections.abc import Mapping

from lightning.pytorch import Callback, Trainer


class RememberingTrainer(Trainer):
    """Lightning's; it looks at who sets `should_stop`."""

    _ended_by: object = None
    _stops = False

    @property
    def should_stop(self) -> bool:
        """Whether the training is to end after this step."""
        return self._stops

    @should_stop.setter
    def should_stop(self, stops: bool) -> None:
        who = sys._getframe(1).f_locals.get("self") if stops and not self._stops else self._ended_by
        self._stops, self._ended_by = bool(stops), who if stops else None

    def ending(self, callbacks: Mapping[str, Callback]) -> str:
        """Who ended the training before its length; empty where nobody did."""
        steps, epochs = self.max_steps, -1 if self.max_epochs is None else self.max_epochs
        if not self._stops or 0 <= steps <= self.global_step or 0 <= epochs <= self.current_epoch:
            return ""
        kind = type(self._ended_by).__name__
        names = [f"callbacks.{name}, {kind}" for name, one in callbacks.items() if one is self._ended_by]
        return f" (ended early by {(names or [kind])[0]})" if self._ended_by is not None else " (ended early)"
