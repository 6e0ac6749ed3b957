"""Interrupts films by holes in their time stamps and by changes of size, and writes them as files."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import cycle, pairwise
from pathlib import Path
from typing import Literal

import av
import cv2
import numpy as np

from tests.support.shot_films import FPS, HEIGHT, WIDTH, Event, Film

Interruption = Literal["hole", "resize"]
_APART = 16  # frames from other events: splitters of 0.6 s and more leave out a cut that is nearer
_SIZES = (WIDTH, HEIGHT), (192, 108)
_TICK = Fraction(1, 1000)


def interrupted(film: Film, kinds: Sequence[Interruption], seed: int, most: int = 4) -> Film:
    """The same frames and events, and such events in turns, where a shot goes on undisturbed.

    A splitter cannot see them. So every other figure of the film can be compared with what it was.
    """
    random = np.random.default_rng(seed)
    events = list(film.events)
    for kind in (kind for kind, _ in zip(cycle(kinds), range(most), strict=False)):
        calm = [
            number for number in range(_APART, len(film.frames) - _APART)
            if all(number <= event.start - _APART or number >= event.stop + _APART for event in events)
        ]  # fmt: skip
        if calm:
            place = int(random.choice(calm))
            events = sorted([*events, Event(kind, place, place)], key=lambda event: event.start)
    return replace(film, events=tuple(events))


def write(path: Path, film: Film, seed: int) -> Path:
    """An MPEG-TS with the film's holes of 0.6 to 60 s; after each change of size another one is stored."""
    random = np.random.default_rng(seed)
    holes = {event.start for event in film.events if event.kind == "hole"}
    resized = [event.start for event in film.events if event.kind == "resize"]
    sizes, pause_s = cycle(_SIZES), 0.0
    with av.open(path, "w", format="mpegts") as out:
        stream = out.add_stream("libx264", rate=round(FPS))
        stream.width, stream.height = _SIZES[0]
        for first, stop in pairwise((0, *resized, len(film.frames))):
            encoder = _encoder(*next(sizes))
            for number in range(first, stop):
                pause_s += float(random.uniform(0.6, 60)) if number in holes else 0.0
                picture = cv2.resize(film.frames[number], (encoder.width, encoder.height))
                frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
                frame.pts, frame.time_base = round((number / FPS + pause_s) / _TICK), _TICK
                _mux(out, stream, encoder.encode(frame))
            _mux(out, stream, encoder.encode(None))
    return path


def _encoder(width: int, height: int) -> av.VideoCodecContext:
    """Without frames that wait for later ones: decoding times then ascend from one encoder to the next."""
    encoder = av.CodecContext.create("libx264", "w")
    assert isinstance(encoder, av.VideoCodecContext)
    encoder.width, encoder.height, encoder.pix_fmt = width, height, "yuv420p"
    encoder.time_base, encoder.framerate = _TICK, Fraction(FPS)
    encoder.options = {"crf": "12", "preset": "veryfast", "bf": "0", "threads": "1"}
    return encoder


def _mux(out: av.container.OutputContainer, stream: av.VideoStream, packets: Sequence[av.Packet]) -> None:
    for packet in packets:
        packet.stream = stream
        out.mux(packet)
