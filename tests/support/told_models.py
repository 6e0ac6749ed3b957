"""Makes models for tests of synthetic conversations from a function of the messages."""

import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nemo_vfm.config import build, compose
from nemo_vfm.core.network.chat import ChatAnswer
from nemo_vfm.core.types.job import Run
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.synth.embedded.embedded_responder import EmbeddedResponder
from tests.support.repository import ROOT

Tell = Callable[[Sequence[Json]], str | None]


class ToldModel(EmbeddedResponder):
    """Says what `tell` says of the messages; None leaves it to the embedded responder, which errs never.

    Args:
        tell: called with the messages.
        name: as rows say it.
    """

    def __init__(self, tell: Tell = lambda messages: None, name: str = "told") -> None:
        super().__init__(error_rate=0, name=name)
        self._tell, self._lock = tell, threading.Lock()
        self.asked: list[list[Json]] = []

    def say(self, messages: Sequence[Json]) -> ChatAnswer:
        with self._lock:
            self.asked.append(list(messages))
        text = self._tell(messages)
        return super().say(messages) if text is None else ChatAnswer(text, "success", self.name, "", 1, 1, 0.0)


def ran(folder: Path, recipe: str, *changes: str, generator: Any = None, **models: Any) -> list[dict[str, Any]]:
    """The rows of a recipe in recipes/synthetic, with these models in the place of its own."""
    job = build(compose(str(ROOT / f"recipes/synthetic/{recipe}.yaml"), ["tries=1", *changes]))
    job.generator = generator or ToldModel()
    job.models = {role: models.get(role) or ToldModel(name=role) for role in job.models}
    job.run(Run(folder))
    return [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]


def ledger_of(folder: Path) -> dict[str, Any]:
    """What became of the candidates."""
    rows: dict[str, Any] = json.loads((folder / "ledger.json").read_text())["rows"]
    assert rows["in"] == rows["kept"] + sum(rows["dropped"].values()) + sum(rows["failed"].values())
    return rows
