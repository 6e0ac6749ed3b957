"""Loads a model into this process at its first use, and runs it for any number of threads."""

import threading

from nemo_vfm.core.types.factory import Factory
from nemo_vfm.serve.continuous.batch_engine import BatchEngine
from nemo_vfm.serve.continuous.engine_thread import EngineThread
from nemo_vfm.serve.continuous.key_value_room import KeyValueRoom
from nemo_vfm.serve.continuous.model_passes import ModelPasses
from nemo_vfm.serve.served_model import ServedModel

_PIECE = 128


class LocalEngine:
    """A model and its engine; subclasses ask it, and say which kind of model they need.

    Args:
        model: loads it at the first use.
        room_gb: memory for keys and values.
        at_once: texts that run at once; any number of others wait.
    """

    def __init__(self, model: Factory[[], ServedModel], room_gb: float, at_once: int) -> None:
        if at_once < 1 or room_gb <= 0:
            raise ValueError(f"at_once ({at_once}) must be at least 1, and room_gb ({room_gb}) above 0")
        self.model, self._room_gb, self._at_once = model, room_gb, at_once
        self._lock = threading.Lock()
        self._loaded: tuple[ServedModel, EngineThread] | None = None

    def require_fit(self, served: ServedModel) -> None:
        """UserError where a model is of another kind than is needed."""

    def load(self) -> tuple[ServedModel, EngineThread]:
        """Both; they are loaded at the first use."""
        with self._lock:
            if self._loaded is None:
                served = self.model()
                self.require_fit(served)
                passes = ModelPasses(served.model, KeyValueRoom(served.model, self._room_gb), self._at_once)
                engine = BatchEngine(passes, max_running=self._at_once, piece=_PIECE)
                self._loaded = served, EngineThread(engine, max_waiting=None)
            return self._loaded

    def ready(self) -> None:
        self.load()

    def is_free(self) -> bool:
        """No budget needs to reserve anything for a model in this process."""
        return True

    def close(self) -> None:
        with self._lock:
            if self._loaded is not None:
                self._loaded[1].close()
            self._loaded = None
