"""Watches the heartbeats of all ranks, names the one that stops, and times a small, fixed piece of work on each device.

A rank that dies closes its connections, and the others' next collective fails at once. One that is stopped, or whose
Python hangs in one call, keeps them open. Its peers would wait until the collective's own timeout, and then not know
for whom. So a thread of each rank counts up in the store. Rank 0 watches all counters, and all ranks watch rank 0's.

A device that is too hot, or whose cores others use, slows all ranks down. A step's duration does not say which, since
the others wait for it inside their collectives. So each rank multiplies the same matrices now and then, on its own.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from statistics import median

import torch

from nemo_vfm.core.device import device, synchronize
from nemo_vfm.core.ranks import SILENCE_S
from nemo_vfm.core.sanitize import beginning
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.parallel.ranks.rendezvous_store import Store

BEAT_S = 1.0
READS = "reads the samples"  #: how what a rank does begins while it waits for its data
_LOST = "lost"
_WEIGHT = 0.1  # of the newest in the mean time that a rank takes to read
_WEIGHT_OF_PULSE = 0.3  # of the newest


#: What a rank does that must end because of another, with a sentence that says why.
OnLost = Callable[[str], None]


class RankWatch:
    """Gives signs of life, and looks for those of others, in a thread of its own.

    Args:
        store: a connection of its own: one that waits in the main thread would block it.
        rank: of this process.
        num_ranks: of all.
        silence_s: so long without a sign is a death.
        on_lost: is called in the thread, with a sentence that names the rank; it must end the process.
    """

    def __init__(
        self, store: Store, rank: int, num_ranks: int, *, silence_s: float = SILENCE_S, on_lost: OnLost
    ) -> None:
        self._store, self._rank, self._num_ranks = store, rank, num_ranks
        self._silence_s, self._on_lost = silence_s, on_lost
        self._stop, self._doing = threading.Event(), "starts"
        self._since, self._reads_s, self._pulse_s = time.monotonic(), 0.0, 0.0
        self._seen: dict[int, tuple[bytes, float]] = {}  # the last sign of a rank, and when it came
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="signs of life", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def at(self, doing: str) -> None:
        """What this rank does from here on, in a few words: said of it once it is lost."""
        before, since = self._doing, self._since
        self._doing, self._since = doing, time.monotonic()
        if before.startswith(READS):
            self._reads_s += _WEIGHT * (self._since - since - self._reads_s)

    def computes(self, pulse_s: float) -> None:
        """How long a fixed work took this rank's device just now; a while of it counts, not one moment."""
        self._pulse_s += (_WEIGHT_OF_PULSE if self._pulse_s else 1.0) * (pulse_s - self._pulse_s)

    def stop(self) -> None:
        """No sign is expected of this rank any more."""
        if self._stop.is_set():
            return
        self._stop.set()
        if self._thread is not threading.current_thread():
            self._thread.join(2 * BEAT_S)
        with suppress(RuntimeError):
            self._store.set(_beat(self._rank), "end")

    def silent_for(self, seconds: float) -> list[int]:
        """On rank 0, the others that have given no sign for so long, and have not said that they leave."""
        now = time.monotonic()
        seen = [(rank, *self._seen.get(rank, (b"", self._began))) for rank in range(1, self._num_ranks)]
        return [rank for rank, beat, since in seen if beat != b"end" and now - since > seconds]

    def elsewhere(self) -> dict[int, str]:
        """On rank 0, the others that live and do something else than rank 0 does."""
        beats = {rank: self._seen.get(rank, (b"", 0.0))[0] for rank in range(1, self._num_ranks)}
        doing = {rank: text.decode().partition(" ")[2] for rank, text in beats.items() if text not in (b"", b"end")}
        return {rank: text for rank, text in doing.items() if text and text != self._doing}

    def facts(self) -> dict[str, Json]:
        """A summary on rank 0: number of ranks, slowest reader, slowest device, and ranks in another phase."""
        # Of each rank its mean time to read, and of its device's last pulse; 0 before there was one.
        beats = {0: (self._reads_s, self._pulse_s)}
        for rank, (text, _) in dict(self._seen).items():
            if text not in (b"", b"end"):
                _, reads, pulse = text.partition(b" ")[0].split(b"/")
                beats[rank] = float(reads), float(pulse)
        slowest, (longest, _) = max(sorted(beats.items()), key=lambda one: one[1][0])
        elsewhere: dict[str, Json] = {str(rank): doing for rank, doing in self.elsewhere().items()}
        found: dict[str, Json] = {"ranks": self._num_ranks, "elsewhere": elsewhere,
                                  "reads_longest": {"rank": slowest, "seconds": round(longest, 6)}}  # fmt: skip
        pulses = {rank: pulse for rank, (_, pulse) in beats.items() if pulse}
        if len(pulses) > 1:  # whose device takes longest, and how many times as long as that of the others
            rank = max(pulses, key=lambda one: pulses[one])
            times = pulses[rank] / median(seconds for other, seconds in pulses.items() if other != rank)
            found["computes_slowest"] = {"rank": rank, "seconds": pulses[rank], "times": round(times, 3)}
        return found

    def _run(self) -> None:
        number = 0
        try:
            while not self._stop.wait(min(BEAT_S, self._silence_s / 4)):
                number += 1
                self._store.set(_beat(self._rank), f"{number}/{self._reads_s:.6f}/{self._pulse_s:.9f} {self._doing}")
                if sentence := self._look():
                    self._on_lost(sentence)
                    return
        except RuntimeError as error:
            if not self._stop.is_set():
                message = beginning(error)
                self._on_lost(f"rank {self._rank} lost the rendezvous store, which rank 0 or torchrun "
                              f"runs ({message})")  # fmt: skip

    def _look(self) -> str | None:
        """A sentence once a rank is lost."""
        if self._rank and self._store.check([_LOST]):
            return self._store.get(_LOST).decode()
        for rank in range(1, self._num_ranks) if self._rank == 0 else (0,):
            beat = self._store.get(_beat(rank)) if self._store.check([_beat(rank)]) else b""
            before, since = self._seen.get(rank, (None, time.monotonic()))
            if beat != before or beat == b"end":
                self._seen[rank] = beat, time.monotonic()
            elif time.monotonic() - since > self._silence_s:
                doing = beat.decode().partition(" ")[2] or "starts"
                sentence = (f"rank {rank} of {self._num_ranks} has sent no heartbeat for {self._silence_s:.0f} s "
                            f"(the last: it {doing}); it hangs, was stopped, or its machine is down")  # fmt: skip
                self._store.set(_LOST, sentence)
                return sentence
        return None


def _beat(rank: int) -> str:
    return f"beat/{rank}"


FIRST_S, EVERY_S = 10.0, 60.0  # the first steps allocate, compile and warm up
_SIDE = {"cuda": 2048, "cpu": 256}
# 24 MB and some milliseconds of a GPU. Of a core 25 ms: the best of three single products saw nothing of two other
# programs on it, since each was over before its turn was.
_PRODUCTS = {"cuda": 60, "cpu": 64}


class Heartbeat:
    """Says when it is time, and measures."""

    def __init__(self, *, first_s: float = FIRST_S, every_s: float = EVERY_S) -> None:
        self._next, self._every_s = time.monotonic() + first_s, every_s
        self._matrices: list[torch.Tensor] = []

    def is_due(self) -> bool:
        """Whether it is time again; the clock begins anew."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + self._every_s
        return True

    @torch.no_grad()
    def seconds(self) -> float:
        """Of one product, the mean of many. What is queued on the device is waited for first."""
        kind = device().type
        if not self._matrices:  # nothing is drawn, since a run's random numbers are its own
            side, dtype = _SIDE[kind], torch.bfloat16 if kind == "cuda" else torch.float32
            ramp = torch.arange(side * side, device=device(), dtype=torch.float32)
            factor = ramp.sin().reshape(side, side).to(dtype)
            self._matrices = [factor, factor.t().contiguous(), torch.empty_like(factor)]
        a, b, out = self._matrices
        torch.mm(a, b, out=out)  # the first one loads what it needs
        synchronize()
        began = time.perf_counter()
        for _ in range(_PRODUCTS[kind]):
            torch.mm(a, b, out=out)
        synchronize()
        return (time.perf_counter() - began) / _PRODUCTS[kind]
