"""Defines a stage that hangs, crashes, exhausts memory or raises on clips of certain lengths."""

import ctypes
import time

import numpy as np

#: Frames of a clip -> what becomes of the process that looks at it.
HANGS, CRASHES, EATS, RAISES = 13, 14, 15, 16


class Misbehaves:
    def columns(self):
        return ("behaved",)

    def measure(self, footage):
        match footage.num_frames:
            case 13:
                time.sleep(600)
            case 14:
                ctypes.string_at(0)
            case 15:
                held = [np.ones(1 << 28, np.uint8) for _ in range(64)]
                return {"behaved": float(len(held))}
            case 16:
                raise ValueError("this clip is bad for it")
        return {"behaved": 1.0}
