"""Tests that a curation without a terminal logs its progress, one line after another."""

from nemo_vfm.core import log, progress
from nemo_vfm.curate.examine.sandbox import ChildLimits
from nemo_vfm.curate.execute.work_units import ProgressWatch, WorkItem
from nemo_vfm.curate.media_pipeline import WorkContext


class Ticking:
    """Stands in for an executor: two items of 30 frames, told one by one."""

    def run(self, steps, items, watch: ProgressWatch):
        for number, _ in enumerate(items):
            for _ in range(30):
                watch.tick(1)
                assert progress.current()["frames"] <= 60
            yield number, []


def test_frames_are_told_to_the_log_and_to_the_status(capsys, monkeypatch):
    monkeypatch.setenv("NEMO_VFM_PROGRESS_S", "0")
    log.console.cache_clear()
    progress.forget()
    try:
        done = list(
            WorkContext(Ticking(), ChildLimits(), []).work(
                "transcode", 60, [], [WorkItem({"name": "a"}), WorkItem({"name": "b"})]
            )
        )
        assert [number for number, _ in done] == [0, 1]
        assert progress.current() == {"doing": "transcode", "frames": 60, "total_frames": 60}
    finally:
        progress.forget()
        log.console.cache_clear()
    lines = [line for line in capsys.readouterr().err.splitlines() if "transcode" in line]
    assert len(lines) == 60 and "transcode: 30/60 frames" in lines[29]
