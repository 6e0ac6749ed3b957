"""Makes a video with sound, with a different tone in every second."""

from fractions import Fraction
from pathlib import Path

import av
import numpy as np

RATE = 44_100
TONES = [220.0, 440.0, 880.0, 1320.0]  # hertz, of each second


def tone(hertz: float, seconds: float = 1.0, rate: int = RATE) -> np.ndarray:
    """A sine of half volume."""
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)).astype(np.float32)


def sounding_film(
    path: Path,
    tones: list[float] = TONES,
    *,
    late_s: float = 0.0,
    silent: bool = False,
    width: int = 64,
    without: range = range(0),
) -> Path:
    """Twelve grey frames a second but those `without`, and stereo sound: left the tone, right nothing."""
    with av.open(str(path), "w") as container:
        picture = container.add_stream("libx264", rate=12)
        picture.width, picture.height, picture.pix_fmt = width, 48, "yuv420p"
        picture.codec_context.time_base = Fraction(1, 12)
        sound = None if silent else container.add_stream("aac", rate=RATE, layout="stereo")
        for number in (number for number in range(12 * len(tones)) if number not in without):
            frame = av.VideoFrame.from_ndarray(np.full((48, width, 3), number % 200, np.uint8), format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, 12)
            container.mux(picture.encode(frame))
        container.mux(picture.encode(None))
        if sound is not None:
            left = np.concatenate([tone(hertz) for hertz in tones])
            both = np.stack([left, np.zeros_like(left)])
            start = round(late_s * RATE)
            for first in range(0, both.shape[1], 1024):
                piece = np.ascontiguousarray(both[:, first : first + 1024])
                frame = av.AudioFrame.from_ndarray(piece, format="fltp", layout="stereo")
                frame.pts, frame.sample_rate, frame.time_base = start + first, RATE, Fraction(1, RATE)
                container.mux(sound.encode(frame))
            container.mux(sound.encode(None))
    return path


def pitch(samples: np.ndarray, rate: int) -> float:
    """The loudest frequency, in hertz."""
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    return float(spectrum.argmax() * rate / len(samples))
