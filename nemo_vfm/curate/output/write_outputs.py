"""Writes the run folder's tables, vectors, rules and clip shards of decided clips, each whole or absent."""

import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.storage.files import atomic_path, read_json
from nemo_vfm.core.storage.uri import Place
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.curate.caption.caption_types import CAPTION_COLUMNS
from nemo_vfm.curate.decide.rule import comparisons
from nemo_vfm.curate.record.ledger import ClipRecord
from nemo_vfm.curate.record.stage import Stage
from nemo_vfm.data.batching.bucket_count import Shape
from nemo_vfm.data.shards.clip_id import CLIP_SCHEMA
from nemo_vfm.data.shards.shard_files import ShardWriter
from nemo_vfm.data.shards.shard_folder import folder_at

_FACTS = ("fps", "width", "height", "duration_s", "decision", "rule", "message", "duplicate_of", "caption")
_AT_ONCE = 32
_NAMES = ("clip_id", "stage", "column", "vector")


def read_marker(marker: Path, made_of: str) -> Json:
    """The marker that a finished run with this very state wrote; None if there is none, or it is damaged."""
    try:
        found = read_json(marker)
        return found if found["made_of"] == made_of else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def shards_digest(shards: Place) -> str:
    """The sha256 of a finished folder's shards.json, which names the bytes of all shards."""
    index = folder_at(shards, None)
    if index.size("shards.json") is None:
        raise UserError(f"{shards} is not a finished folder of shards: there is no shards.json in it")
    return sha256(index.read("shards.json", 1 << 30)).hexdigest()


def write_scores(
    path: Path, records: Sequence[ClipRecord], columns: Sequence[str], labels: Collection[str] = ()
) -> None:
    """scores.parquet: one row per clip, kept or not; a missing score is null. `labels` are columns of words."""
    table: dict[str, list[object]] = {
        "clip_id": [record.clip.id for record in records],
        "source": [record.source for record in records],
        "first_frame": [record.clip.first_frame for record in records],
        "last_frame": [record.clip.last_frame for record in records],
        **{name: [getattr(record, name) for record in records] for name in _FACTS},
    }
    for name in ("fps", "duration_s"):  # null for an image, which distinguishes it from a clip
        table[name] = [None if record.is_image else getattr(record, name) for record in records]
    text, count = pa.string(), pa.int64()
    kinds = dict.fromkeys(("clip_id", "source", "decision", "rule", "message", "duplicate_of", "caption"), text)
    kinds |= dict.fromkeys(("first_frame", "last_frame", "width", "height"), count)
    arrays = {name: pa.array(values, kinds.get(name, pa.float64())) for name, values in table.items()}
    for name in columns:
        values = [record.scores.get(name) for record in records]
        words = name in labels or any(isinstance(value, str) for value in values)
        arrays[name] = pa.array(values, text if words else pa.float64())
    with atomic_path(path) as temporary:
        pq.write_table(pa.table(arrays), temporary)


def clip_json(record: ClipRecord) -> Json:
    """The content of the clip's `.json` member."""
    clip = record.clip
    return {
        "schema": CLIP_SCHEMA, "source": record.source, "source_id": clip.source_id,
        "first_frame": clip.first_frame, "last_frame": clip.last_frame,
        "pts_start": clip.pts_start, "pts_end": clip.pts_end,
        "time_base": f"{clip.time_base.numerator}/{clip.time_base.denominator}",
        **_shape(record), "caption_by": record.caption_by, **record.caption_facts,
        **({} if record.is_image else {"audio": record.audio}),
        **({} if record.audio_failure is None else {"audio_failure": record.audio_failure}),
        "scores": {name: value for name, value in sorted(record.scores.items()) if name not in CAPTION_COLUMNS},
    }  # fmt: skip


def _shape(record: ClipRecord) -> dict[str, Json]:
    """The properties of a clip that buckets and loaders need."""
    more = 0 if record.is_image else 1  # 4:2:0 has no odd sizes: the encoder adds a column or row
    return {
        "width": record.width + more * (record.width % 2),
        "height": record.height + more * (record.height % 2),
        "num_frames": record.clip.num_frames,
        "fps": record.fps,
        **({} if record.is_image else {"duration_s": record.duration_s}),
        "caption": record.caption,
    }


@contextmanager
def replaced_folder(folder: Path) -> Iterator[Path]:
    """A new folder that replaces the old one once the block has filled it; after a kill there is none, never half."""
    partial, old = (folder.with_name(f".{folder.name}.{word}") for word in ("partial", "old"))
    for left in (partial, old):
        shutil.rmtree(left, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)  # makes room on a full disk for the messages about it
        raise
    if folder.exists():
        folder.rename(old)
    partial.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def shape_of(record: ClipRecord) -> Shape:
    """The encoded clip as buckets see it."""
    shape = _shape(record)
    return Shape(record.clip.id, shape["width"], shape["height"], shape["num_frames"], record.fps, record.duration_us)


def write_shards(
    folder: Path,
    records: Sequence[ClipRecord],
    media: Callable[[ClipRecord], Path],
    samples_per_shard: int,
    weights: Mapping[str, int],
) -> None:
    """Clip shards: `<clip id>.mp4 .txt .json` of each record, in the order given; `weights` go into the index.

    An image has `.jpg` or `.png` in place of `.mp4`. Sound that no mp4 takes is a member `.flac`.
    """
    import json

    from nemo_vfm.data.video.image_file import is_deep

    with replaced_folder(folder) as partial, ShardWriter(partial, samples_per_shard=samples_per_shard) as writer:
        for record in records:
            film = media(record)
            data = film.read_bytes()
            members: Mapping[str, bytes] = {
                film.suffix[1:]: data,
                **({"flac": film.with_suffix(".flac").read_bytes()} if record.audio == "flac" else {}),
                "txt": record.caption.encode(),
                "json": json.dumps(clip_json(record), ensure_ascii=False, allow_nan=False).encode(),
            }
            more: dict[str, Json] = {"weight": weights[record.clip.id]} if weights else {}
            if film.suffix == ".png" and is_deep(data):
                more["is_deep"] = True  # by which loaders count 16-bit pictures
            writer.write(record.clip.id, members, {**_shape(record), "source": record.source, **more})


def copy_files(source: Path, target: Path, wanted: Mapping[str, str]) -> None:
    """Make a folder hold exactly these files of another one, `{name there: name here}`; hard links where possible."""
    names = set(wanted.values())
    for path in target.iterdir() if target.is_dir() else ():  # left by a run with other settings
        if path.name not in names and path.is_file():
            path.unlink()
    for theirs, ours in sorted(wanted.items()):
        there, here = source / theirs, target / ours
        if there.is_file() and not (here.is_file() and there.samefile(here)):
            with atomic_path(here) as temporary:
                try:
                    os.link(there, temporary)
                except OSError:  # another disk, or one without hard links
                    shutil.copyfile(there, temporary)


def remove_unfinished(folder: Path) -> None:
    """Delete temporary files of a run that was killed; see core/storage/files.py for their names."""
    for path in folder.rglob(".*.tmp*"):
        path.unlink(missing_ok=True)


def write_vectors(path: Path, records: Sequence[ClipRecord], stages: Mapping[str, Stage]) -> None:
    """vectors.parquet: one row per clip and comparing stage, if anything was stored about the clip."""
    rows = (
        (record.clip.id, name, column, record.vectors[name])
        for column, (name, _) in comparisons(stages).items()
        for record in records
        if name in record.vectors
    )
    schema = pa.schema([(name, pa.string()) for name in _NAMES])
    # A vector is 50 KB of text, and no two are alike: write some at a time, without a dictionary.
    with (
        atomic_path(path) as temporary,
        pq.ParquetWriter(temporary, schema, use_dictionary=list(_NAMES[:-1])) as writer,
    ):
        while some := list(islice(rows, _AT_ONCE)):
            writer.write_table(pa.table([pa.array(values, pa.string()) for values in zip(*some, strict=True)], schema))


def read_vectors(path: Path) -> dict[str, dict[str, str]]:
    """For each compared column, clip id -> vector; empty if there is no such file."""
    if not path.is_file():
        return {}
    try:
        table = pq.read_table(path, columns=list(_NAMES))
        found: dict[str, dict[str, str]] = {}
        for clip, column, vector in zip(*(table[name].to_pylist() for name in _NAMES if name != "stage"), strict=True):
            found.setdefault(str(column), {})[str(clip)] = str(vector)
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise DataError(f"{path} holds no vectors of clips, or is damaged ({error})") from error
    return found
