"""Tests that a GPU decoder which does not work is refused, and that what it leaves to the CPU is said once.

There is no GPU here: where NVDEC has to work, the CPU's decoder replaces it behind the same switch.
"""

from pathlib import Path

import pytest

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.types.job import Run
from nemo_vfm.curate import media_pipeline
from nemo_vfm.curate.examine.findings import Findings
from nemo_vfm.curate.examine.frame_stream import Walk
from nemo_vfm.curate.execute.inline_executor import Inline
from nemo_vfm.curate.media_pipeline import GPU_REST, GPU_SLICE
from nemo_vfm.curate.output.transcode import EncodedMedia, Transcode
from nemo_vfm.curate.record.ledger import FileRecord, MediaInfo, SourceFile
from nemo_vfm.curate.score.codec_motion import CodecMotion
from nemo_vfm.curate.split.adaptive import AdaptiveSplit
from nemo_vfm.data.video import codecs, pyav_reader
from nemo_vfm.data.video.encode import encode_mp4
from nemo_vfm.data.video.pyav_reader import PyAVReader
from tests.support.films import FPS, job, pan, write_film

WITHOUT = pytest.mark.skipif(codecs.nvdec_why_not() is None, reason="NVDEC works here")


@pytest.fixture
def film(tmp_path: Path) -> Path:
    (tmp_path / "films").mkdir()
    write_film(tmp_path / "films/a.mp4", pan(1, 30))
    return tmp_path / "films"


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVDEC works, and is the CPU."""
    monkeypatch.setattr(codecs, "nvdec_why_not", lambda: None)
    monkeypatch.setattr(pyav_reader, "_hw_accel", lambda decode: None)


@WITHOUT
def test_a_curation_without_nvdec_refuses_it_before_any_work(film: Path, tmp_path: Path):
    with pytest.raises(
        UserError, match=r"NVDEC does not work here: .*Set decode to cpu: videos are decoded by the CPU"
    ):
        job(film, decode="nvdec").run(Run(tmp_path / "run"))
    assert not (tmp_path / "run").exists() or not list((tmp_path / "run").iterdir())


@WITHOUT
def test_a_reader_never_falls_back_in_silence(film: Path):
    with PyAVReader(film / "a.mp4", decode="nvdec") as reader:
        assert reader.info().num_frames == 30  # looked over by the CPU
        with pytest.raises(DataError, match=r"a.mp4 cannot be decoded by the GPU \(use decode=cpu\)"):
            reader.read([0])


def test_what_nvdec_does_not_decode_is_decoded_on_cores(tmp_path: Path):
    path = tmp_path / "a.mp4"
    encode_mp4(path, pan(1, 12), FPS, crf=30, preset="ultrafast", encoder="svtav1")
    with PyAVReader(path) as cpu, PyAVReader(path, decode="nvdec") as reader:
        assert (reader.read([3, 7]) == cpu.read([3, 7])).all()
        assert reader.decode == "cpu"


def test_codecs_that_nvdec_leaves_are_named_once(monkeypatch: pytest.MonkeyPatch):
    from fractions import Fraction

    said: list[str] = []
    monkeypatch.setattr(media_pipeline, "warn_once", said.append)
    files = [
        FileRecord(
            SourceFile(Path(f"{codec}.mp4"), f"{codec}.mp4"), info=MediaInfo(1, 1.0, 2, 2, codec, Fraction(1, 24))
        )
        for codec in ("h264", "prores", "av1", "av1")
    ]
    media_pipeline.say_what_nvdec_leaves(files, "cpu")
    assert not said
    media_pipeline.say_what_nvdec_leaves(files, "nvdec")
    assert said == ["NVDEC does not decode av1, prores: 3 of 4 files are decoded by the CPU"]


@pytest.mark.usefixtures("stand_in")
def test_what_was_made_with_nvdec_is_not_taken_for_what_the_cpu_makes(film: Path, tmp_path: Path):
    run = Run(tmp_path / "run")
    assert not job(film, decode="cpu", keep_clips=True).run(run).did_nothing
    findings, clips = (len(list((run.folder / "work" / name).glob(what))) for name, what in
                       (("findings", "*"), ("clips", "*.mp4")))  # fmt: skip
    here = Inline(isolated=False)
    assert not job(film, decode="nvdec", executor=here, keep_clips=True).run(run).did_nothing
    assert len(list((run.folder / "work" / "findings").glob("*"))) == 2 * findings
    assert len(list((run.folder / "work" / "clips").glob("*.mp4"))) == 2 * clips
    assert job(film, decode="nvdec", executor=here, keep_clips=True).run(run).did_nothing
    assert not job(film, decode="cpu", keep_clips=True).run(run).did_nothing


def test_decoding_on_the_cpu_names_nothing_anew(tmp_path: Path):
    assert EncodedMedia.of(tmp_path, tmp_path, Transcode(), {}) == EncodedMedia.of(
        tmp_path, tmp_path, Transcode(), {}, "cpu"
    )
    assert EncodedMedia.of(tmp_path, tmp_path, Transcode(), {}) != EncodedMedia.of(
        tmp_path, tmp_path, Transcode(), {}, "nvdec"
    )
    shots = [Findings(tmp_path, tmp_path, AdaptiveSplit(), 256, {}, where)._shots._folder for where in ("cpu", "nvdec")]
    assert shots[0] == Findings(tmp_path, tmp_path, AdaptiveSplit(), 256, {})._shots._folder != shots[1]


@pytest.mark.usefixtures("stand_in")
def test_there_are_no_motion_vectors_from_nvdec_so_flow_is_taken(film: Path):
    found = {}
    for where in ("cpu", "nvdec"):
        with Walk(film / "a.mp4", side_px=96, vectors=True, decode=where) as walk:
            for _ in walk.frames():
                pass
            footage = walk.footage((0, 30))
            found[where] = footage.motion_vectors([3]) is not None
            assert CodecMotion().measure(footage)
    assert found == {"cpu": True, "nvdec": False}


def test_a_model_and_eight_decoders_fit_on_one_gpu():
    assert GPU_REST + 8 * GPU_SLICE <= 1 < 2 * GPU_REST
