"""Compares what stages and splitters without weights find with golden_scores.json: findings are kept under a number.

Where they differ on purpose, raise `results_revision` of the class, or `FRAMES` if all see other frames, or nobody
measures again what an earlier version measured. Then `python -m tests.curate.test_golden_scores` writes them anew.
"""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import av
import numpy as np
import pyarrow.parquet as pq
import pytest

from nemo_vfm.core.types.job import Run
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.curate.examine.examine_file import round_scores
from nemo_vfm.curate.examine.findings import FRAMES
from nemo_vfm.curate.execute.inline_executor import Inline
from nemo_vfm.curate.media_pipeline import PROBED
from nemo_vfm.curate.record.footage import ClipFrames
from nemo_vfm.curate.record.stage import Comparison, FileScore, Splitter, Stage
from nemo_vfm.curate.score.brightness import Brightness
from nemo_vfm.curate.score.camera_motion import CameraMotion
from nemo_vfm.curate.score.codec_motion import CodecMotion
from nemo_vfm.curate.score.decoder_flags import DecoderFlags
from nemo_vfm.curate.score.freeze import Freeze
from nemo_vfm.curate.score.letterbox_share import Letterbox
from nemo_vfm.curate.score.local_duplicate import LocalDuplicate
from nemo_vfm.curate.score.logo import Logo
from nemo_vfm.curate.score.motion import Motion
from nemo_vfm.curate.score.near_duplicate import NearDuplicate
from nemo_vfm.curate.score.semantic_duplicate import SemanticDuplicate
from nemo_vfm.curate.score.sharpness import Sharpness
from nemo_vfm.curate.score.technical_quality import TechnicalQuality
from nemo_vfm.curate.score.text_overlay import TextOverlay
from nemo_vfm.curate.score.ticker import Ticker
from nemo_vfm.curate.split.adaptive import AdaptiveSplit
from nemo_vfm.curate.split.content import ContentSplit
from nemo_vfm.curate.split.stitch import Stitch
from nemo_vfm.curate.split.stride import FixedStride
from nemo_vfm.curate.split.union import UnionSplit
from tests.curate.score.test_logo import drawn, marked
from tests.curate.score.test_text_overlay import overlaid, panned, scene
from tests.curate.score.test_ticker import TICKERS, with_ticker
from tests.support.films import FPS, blurred, disc_that_moves, fade_through_black, job, pan, texture
from tests.support.repository import ROOT

GOLDEN = Path(__file__).with_name("golden_scores.json")
STAGES: tuple[Stage, ...] = (
    Motion(), CodecMotion(), CameraMotion(), Sharpness(), Brightness(), Freeze(), TechnicalQuality(), Letterbox(),
    TextOverlay(), Ticker(), Logo(), DecoderFlags(), NearDuplicate(), LocalDuplicate(), SemanticDuplicate(),
)  # fmt: skip
SPLITTERS: tuple[Splitter, ...] = (
    AdaptiveSplit(), ContentSplit(), Stitch(splitter=ContentSplit(threshold=20.0)), FixedStride(length_s=2.0),
    UnionSplit(),
)  # fmt: skip
PARTS = {type(part).__name__: part for part in (*STAGES, *SPLITTERS)}
_WITH_WEIGHTS = {"TransNetV2Split"}


def clips() -> list[np.ndarray]:
    """A pan, nearly the same with a freeze, one behind bars, one out of focus, a small disc."""
    first, second = pan(1), pan(2, step_px=3)
    again = np.clip(first.astype(int) + 4, 0, 255).astype(np.uint8)
    again[10:16] = again[9]
    second[:, :12] = second[:, -12:] = 0
    return [first, again, second, blurred(3), disc_that_moves()]


#: For stages that find nothing in those.
OWN_CLIPS: dict[type, Callable[[], list[np.ndarray]]] = {
    TextOverlay: lambda: [overlaid(panned(scene()), "I came for the cheese", (90, 230))],
    Ticker: lambda: [with_ticker(panned(scene(1)), float(FPS), *TICKERS[0])],
    Logo: lambda: [*(marked(drawn(seed)) for seed in range(4)), drawn(5)],
}


def film() -> np.ndarray:
    """Cuts, a fade and a still, 9 s long."""
    still = np.repeat(texture(9)[None], 24, axis=0)
    faded = fade_through_black(pan(6), pan(7))
    return np.concatenate([pan(4, 30), pan(5, 24, 4), faded, still])


def found_by(part: object) -> Json:
    """What a part finds in the clips or the film."""
    footage = [ClipFrames.of(frames, float(FPS)) for frames in OWN_CLIPS.get(type(part), clips)()]
    if isinstance(part, Comparison):
        return part.likeness([part.remember(one) for one in footage])
    if isinstance(part, FileScore):
        return [dict(one) for one in part.agree([part.remember(one) for one in footage])]
    if isinstance(part, Stage):
        return [round_scores(part.measure(one)) for one in footage]
    return [list(span) for span in part.spans(iter(film()), fps=float(FPS))]


def found_in_a_file(folder: Path) -> Json:
    """What a curation writes of a film without loss, so that every decoder gives the same pixels."""
    with av.open(str(folder / "film.mkv"), "w") as container:
        stream = container.add_stream("ffv1", rate=FPS, width=film().shape[2], height=film().shape[1])
        stream.pix_fmt = "yuv420p"
        for picture in film()[:54]:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture)))
        container.mux(stream.encode())
    job(folder, executor=Inline(isolated=False)).run(Run(folder / "run"))
    names = ("first_frame", "last_frame", "fps", "width", "height", "motion", "sharpness", "luma_mean", "similarity")
    return [{name: row[name] for name in names} for row in pq.read_table(folder / "run/scores.parquet").to_pylist()]


def close(found: Json, golden: Json) -> bool:
    """Whether numbers agree to 1 %: processors sum in other orders, and optical flow takes that further."""
    if isinstance(golden, Mapping):
        return found.keys() == golden.keys() and all(close(found[name], golden[name]) for name in golden)
    if isinstance(golden, list):
        return len(found) == len(golden) and all(close(*pair) for pair in zip(found, golden, strict=True))
    return bool(found == (golden if isinstance(golden, str | int) else pytest.approx(golden, rel=1e-2, abs=1e-3)))


def number_of(name: str) -> int | list[int]:
    return [PROBED, FRAMES] if name == "film" else getattr(type(PARTS[name]), "results_revision", 1)


@pytest.mark.parametrize("name", PARTS)
def test_what_a_part_finds_changes_with_its_number_alone(name: str) -> None:
    golden = json.loads(GOLDEN.read_text())[name]
    assert golden["number"] == number_of(name), "write the golden scores anew"
    assert close(found_by(PARTS[name]), golden["found"]), f"it finds something else: raise {name}.results_revision"


def test_what_is_found_in_a_file_changes_with_the_numbers_of_frames_and_probe_alone(tmp_path: Path) -> None:
    golden = json.loads(GOLDEN.read_text())["film"]
    assert golden["number"] == number_of("film"), "write the golden scores anew"
    assert close(found_in_a_file(tmp_path), golden["found"]), "other frames are seen: raise FRAMES or PROBED"


def test_every_stage_and_splitter_of_the_recipes_is_measured() -> None:
    written = "".join(
        file.read_text() for name in ("stages/full", "split/*") for file in (ROOT / "conf").glob(f"{name}.yaml")
    )
    assert set(re.findall(r"curate\.(?:score|split)\.\w+\.(\w+)", written)) - _WITH_WEIGHTS <= PARTS.keys()


def write(folder: Path) -> None:
    """All that is found, a part a line; what changed under the same number is an error."""
    before = json.loads(GOLDEN.read_text()) if GOLDEN.is_file() else {}
    now = {name: {"number": number_of(name), "found": found_by(part)} for name, part in PARTS.items()}
    now["film"] = {"number": number_of("film"), "found": found_in_a_file(folder)}
    for name, one in now.items():
        known = before.get(name)
        if known and known["number"] == one["number"] and not close(one["found"], known["found"]):
            raise SystemExit(f"{name} finds something else under the same number; raise it first (see above)")
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(one)}" for name, one in now.items())
    GOLDEN.write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as temporary:
        write(Path(temporary))
