"""Takes stripes out of microscope images, page by page; nothing else about the files changes.

Shape letters: H height, W width, S samples of a pixel.
"""

import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.errors import DataError, NothingKept, UserError
from nemo_vfm.core.log import bar, warn
from nemo_vfm.core.optional import needs_packages
from nemo_vfm.core.storage.files import atomic_path, is_full, read_json, sha256_text, write_bytes, write_json
from nemo_vfm.core.storage.folder_walk import files_below, is_taken, text_name
from nemo_vfm.core.types.job import Outcome, Run, makes
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.curate.examine.findings import fingerprint
from nemo_vfm.curate.output.write_outputs import remove_unfinished
from nemo_vfm.curate.restore.image_pages import (
    PNG_SUFFIX,
    TIFF_SUFFIXES,
    End,
    PageStripes,
    PngPage,
    StripeFinder,
    TiffPages,
    excess_db,
    open_pages,
    share_of,
    without_stripes,
)

_SUFFIXES = TIFF_SUFFIXES | {PNG_SUFFIX}
_HALF = 0.5  # of fixed stripes: a page that holds less of them has none
_SHOWN, _SHOWN_PX = 8, 384  # files in the report; the side of the part that is shown
Record = dict[str, Any]


@needs_packages("tifffile", "imagecodecs")
@makes("images", "restored", "restored.json", "images.json")
class DestripeImages:
    """Takes stripes out of TIFF and PNG images of 8 or 16 bits or float32, and writes them below `images/`.

    Names, type, pages, resolution and descriptions stay. A page without stripes keeps every bit. One page is in memory
    at a time. A killed run resumes with the file that it was at.

    Args:
        input: an image file, or a folder of them and the folders below it.
        mode: per_frame where each page has its own stripes; static where the pages of a file have the same ones:
            they are then found once, in the mean of all pages.
        stack: with `static`: the same ones are in all files of the folder, which are of one size and type.
        theta_deg: direction of the stripes, counter-clockwise from vertical, 0 to 180; `auto` finds it.
        wedge_deg: opening angle of the wedge of frequencies that is recovered; a narrow one harms least.
        kmin: cycles per picture below which nothing is touched: slower stripes stay, as shading.
        min_excess_db: excess of power in one direction from which a page has stripes.
        black: the lowest value that camera and type could hold, at which the true one is lost. `auto` means 0 for
            integers, and None, which is no such value, for floats.
        white: the highest, likewise; `auto` means 255 or 65535. A camera of 12 bits has 4095.
    """

    def __init__(
        self, *, input: Path, mode: Literal["per_frame", "static"] = "per_frame", stack: bool = False,
        theta_deg: float | Literal["auto"] = "auto", wedge_deg: float = 5.0, kmin: float = 6.0,
        min_excess_db: float = 5.0, black: End = "auto", white: End = "auto",
    ) -> None:  # fmt: skip
        if mode not in ("per_frame", "static"):
            raise ValueError(f"mode is {mode!r}; known are per_frame and static")
        if stack and mode != "static":
            raise ValueError("stack=true means that all files have the same stripes, so it needs mode=static")
        self.input, self.mode, self.stack = Path(input), mode, stack
        self.finder = StripeFinder(
            theta_deg=theta_deg, wedge_deg=wedge_deg, kmin=kmin, min_excess_db=min_excess_db, black=black, white=white
        )

    def run(self, run: Run) -> Outcome:
        """Do the work; a second run does nothing.

        Raises:
            UserError: there are no images.
            NothingKept: not one of them could be read.
        """
        remove_unfinished(run.folder)
        root, files = self._files(run.folder)
        stats = {file: file.stat() for file in files}
        marks = {file: fingerprint(self, str(file), stat.st_size, stat.st_mtime_ns) for file, stat in stats.items()}
        state, done = fingerprint(*marks.values()), run.folder / "images.json"
        if done.is_file() and read_json(done)["made_of"] == state:
            return _outcome(read_json(done)["files"], did_nothing=True)
        if self.stack:
            marks = dict.fromkeys(files, state)
        work, records = run.folder / "work", []
        fixed = self._static_stripes(files) if self.stack else None
        with bar("destripe", len(files), unit="files") as line:
            for file in files:
                name = text_name(file, root)
                record = work / f"{sha256_text(name)[:16]}.json"
                target = run.folder / "images" / file.relative_to(root)
                if not (record.is_file() and target.is_file() and read_json(record)["made_of"] == marks[file]):
                    write_json(record, {**self._one(file, target, fixed, record), "name": name, "made_of": marks[file]})
                records.append(read_json(record))
                line.advance(1)
        if all("failed" in record for record in records):
            raise NothingKept(f"no image could be destriped: {records[0]['name']}: {records[0]['failed']}")
        # The report shows the files with the strongest stripes.
        striped = sorted(
            (one for one in records if one.get("destriped")), key=lambda one: (-one["excess_db"], one["name"])
        )
        images: dict[str, Json] = {}
        for record in striped:
            key = sha256_text(record["name"])[:16]
            if len(images) < _SHOWN:
                write_bytes(run.folder / "restored" / f"{key}.jpg", (run.folder / "work" / f"{key}.jpg").read_bytes())
            facts = {name: value for name, value in record.items() if name not in ("name", "made_of")}
            images[key] = {"restored": ["destripe"], "facts": facts, "source": record["name"]}
        write_json(run.folder / "restored.json", {"restorers": ["destripe"], "images": images})
        write_json(done, {"made_of": state, "files": records})
        shutil.rmtree(work)
        return _outcome(records)

    def _files(self, own: Path) -> tuple[Path, list[Path]]:
        """The folder that names begin in, and the images; what is left out is said."""
        if self.input.is_file() and is_taken(Path(self.input.name), _SUFFIXES):
            return self.input.parent, [self.input]
        if not self.input.is_dir():
            raise UserError(f"{self.input} is not a folder, TIFF or PNG; give input=FILE or input=DIR")
        found = [file for file in files_below(self.input, lambda name: True) if not file.is_relative_to(own)]
        files = [file for file in found if is_taken(file.relative_to(self.input), _SUFFIXES)]
        others = Counter(file.suffix or "no suffix" for file in found if file.suffix.lower() not in _SUFFIXES)
        if others:
            kinds = ", ".join(f"{count} {suffix}" for suffix, count in sorted(others.items()))
            warn(f"{others.total()} files of {self.input} are not TIFF or PNG and are left out: {kinds}")
        if not files:
            raise UserError(f"{self.input} holds no TIFF or PNG; looked for {' '.join(sorted(_SUFFIXES))}")
        return self.input, files

    def _one(self, file: Path, target: Path, fixed: "list[PageStripes | None] | None", record: Path) -> Record:
        """Write one file, and say what was done, or why it failed."""
        try:
            with atomic_path(target) as temporary:
                shutil.copyfile(file, temporary)
                if fixed is None and self.mode == "static":
                    fixed = self._static_stripes([file])
                with open_pages(temporary, change=True) as pages:
                    return self._destripe(pages, fixed, record.with_suffix(".jpg"))
        except (DataError, OSError) as error:
            if is_full(error):
                raise
            target.unlink(missing_ok=True)  # of an earlier state of the file
            warn(f"{file}: {error}; it is left out")
            return {"failed": str(error)}

    def _destripe(self, pages: TiffPages | PngPage, fixed: "list[PageStripes | None] | None", picture: Path) -> Record:
        """Take stripes out of every page that has some."""
        most, destriped, held, facts = -1.0, 0, 0, {}
        for place in range(len(pages)):
            stored = pages.read(place)
            clean = stored.copy()
            ends = self.finder.ends(stored.dtype)
            for number, (before_HW, after_HW) in enumerate(zip(_planes(stored), _planes(clean), strict=True)):
                plane_HW = before_HW.astype(np.float32)
                found = self.finder.find(plane_HW, ends) if fixed is None else fixed[number]
                if found is None or (fixed is not None and share_of(plane_HW, found.added_HW) < _HALF):
                    continue
                after_HW[...], at_ends = without_stripes(before_HW, found.added_HW, ends)
                held += at_ends
                before_db = found.excess_db if fixed is None else excess_db(plane_HW, ends, found)
                if before_db > most:
                    most = before_db
                    after_db = excess_db(after_HW.astype(np.float32), ends, found)
                    facts = {
                        "excess_db": before_db,
                        "excess_after_db": after_db,
                        "theta_deg": round(found.theta_deg, 2),
                    }
                    # The middle before, after, and the difference, in which grey is none.
                    top, left = (max(0, (length - _SHOWN_PX) // 2) for length in before_HW.shape)
                    before, after = (
                        np.nan_to_num(one[top : top + _SHOWN_PX, left : left + _SHOWN_PX].astype(np.float32))
                        for one in (before_HW, after_HW)
                    )
                    low, high = np.percentile(after, (0.5, 99.5))
                    shown = [(one - low) / (high - low or 1) for one in (before, after)]
                    difference = before - after
                    spread = 6 * float(difference.std()) or 1.0
                    sheet = np.hstack([*shown, difference / spread + 0.5])
                    done, data = cv2.imencode(
                        ".jpg", (sheet.clip(0, 1) * 255).astype(np.uint8), [cv2.IMWRITE_JPEG_QUALITY, 90]
                    )
                    assert done
                    write_bytes(picture, data.tobytes())
            if not np.array_equal(clean, stored, equal_nan=stored.dtype.kind == "f"):
                pages.write(place, clean)
                destriped += 1
        return {"pages": len(pages), "destriped": destriped, "held_pixels": held, **facts}

    def _static_stripes(self, files: Iterable[Path]) -> "list[PageStripes | None]":
        """The stripes of each plane of the mean of all pages; what is lost in a page is left out of it."""
        sums: list[NDArray[np.float64]] = []
        counts: list[NDArray[np.int32]] = []
        for planes in _pages_of(files):
            sums = sums or [np.zeros(plane_HW.shape) for plane_HW in planes]
            counts = counts or [np.zeros(plane_HW.shape, np.int32) for plane_HW in planes]
            black, white = self.finder.ends(planes[0].dtype)
            for plane_HW, total_HW, count_HW in zip(planes, sums, counts, strict=True):
                seen_HW = np.isfinite(plane_HW)
                seen_HW &= True if black is None else plane_HW > black
                seen_HW &= True if white is None else plane_HW < white
                np.add(total_HW, plane_HW, out=total_HW, where=seen_HW)
                count_HW += seen_HW
        found = []
        for total_HW, count_HW in zip(sums, counts, strict=True):
            mean_HW = np.full(total_HW.shape, np.nan, np.float32)
            np.divide(total_HW, count_HW, out=mean_HW, where=count_HW > 0, casting="same_kind")
            found.append(self.finder.find(mean_HW, (None, None)))
        return found


def _pages_of(files: Iterable[Path]) -> Iterator[list[NDArray[Any]]]:
    """The planes of each page of all files, which have one size and type."""
    first: list[tuple[tuple[int, ...], np.dtype[Any]]] = []
    for file in files:
        try:
            with open_pages(file) as pages:
                for place in range(len(pages)):
                    planes = _planes(pages.read(place))
                    kinds = [(plane_HW.shape, plane_HW.dtype) for plane_HW in planes]
                    first = first or kinds
                    if kinds != first:
                        raise DataError(f"page {place} differs from the first in size or type; use mode=per_frame")
                    yield planes
        except DataError as error:
            raise DataError(f"{file.name}: {error}") from error


def _planes(page: NDArray[Any]) -> list[NDArray[Any]]:
    """Views of a page, a sample each."""
    return [page] if page.ndim == 2 else [page[..., sample] for sample in range(page.shape[2])]


def _outcome(records: list[Record], *, did_nothing: bool = False) -> Outcome:
    failed = Counter(record["failed"] for record in records if "failed" in record)
    totals = {key: sum(record.get(key, 0) for record in records) for key in ("pages", "destriped", "held_pixels")}
    figures = {"files": len(records), "failed": failed.total(), **totals}
    summary = (
        f"{totals['destriped']:,} of {totals['pages']:,} pages of {len(records) - failed.total():,} files had stripes"
    )
    if totals["held_pixels"]:
        summary += f"; {totals['held_pixels']:,} pixels were held at black or white"
    if failed:
        summary += f"; {failed.total()} files failed: {failed.most_common(1)[0][0]}"
    return Outcome(summary, figures, did_nothing=did_nothing)
