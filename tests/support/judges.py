"""Defines a learned stage small enough for tests, which returns the brightest pixel of each frame."""

from nemo_vfm.curate.record.stage import LearnedFinding

_LOADED: set[int] = set()


class Brightest:
    """Must be loaded before it judges; gives `brightest`."""

    def columns(self):
        return ("brightest",)

    def frame_indices(self, num_frames, fps):
        return [0, num_frames - 1]

    def load(self):
        _LOADED.add(0)

    def judge(self, clips):
        if not _LOADED:
            raise RuntimeError("it was not loaded")
        return [LearnedFinding({"brightest": float(frames_THWC.max())}) for frames_THWC in clips]

    def fingerprint(self):
        return "brightest 1"
