"""Trains on a feature table: global batch g follows from the seed and the number alone.

Shape letter: M samples.
"""

import bisect
import copy
import functools
import itertools
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Self

import torch
from torch import Tensor

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.log import info, warn
from nemo_vfm.core.storage.files import sha256_text
from nemo_vfm.core.storage.uri import local
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.training_data import ReadPosition
from nemo_vfm.data.batching.batch_source import Loaded
from nemo_vfm.data.batching.sample_shapes import SampleShapes
from nemo_vfm.data.loader.scheduled_data import ScheduledData
from nemo_vfm.data.shards.shard_folder import warn_that_none_is_held_out
from nemo_vfm.recsys.feature_table.row_order import Order, RowOrder, WindowId
from nemo_vfm.recsys.feature_table.table_manifest import NAME, read_manifest
from nemo_vfm.recsys.feature_table.table_reader import FeatureTable
from nemo_vfm.recsys.feature_table.table_splits import HeldOutFrom, HeldOutShare, HeldOutTable, TrainedRows
from nemo_vfm.recsys.feature_table.table_window import OutOfRange, TableWindow, WindowReader, join_batches
from nemo_vfm.recsys.feature_table.time_order import TimeOrder
from nemo_vfm.recsys.feature_table.window_cache import WindowCache
from nemo_vfm.sparse.dedup_groups import choose_groups
from nemo_vfm.sparse.feature_batch import FeatureBatch

_ROWS = "rows"  # the one part of the read position
#: Of a made-up table whose features nobody names.
_MADE_UP_FEATURES, _MADE_UP_ROWS = 8, 10_000
_MADE_UP_BATCHES = 4  # that a made-up table has at least


@dataclass(frozen=True, slots=True)
class TableSchedule:
    """Which samples of the order a batch has, counted since the start of training; see `BatchSchedule`."""

    order: RowOrder | TimeOrder
    batch_size: int
    digest: str  #: of the samples and their order
    first: int = 0
    before: int = 0  #: samples before batch `first`

    @property
    def batches_per_epoch(self) -> float:
        """See `BatchSchedule`."""
        return self.order.num_samples / self.batch_size

    def samples(self, index: int, rank: int, num_ranks: int) -> range:
        share = self.batch_size // num_ranks
        first = self.place(index) + rank * share
        return range(first, first + share)

    def largest(self, num_ranks: int) -> list[range]:
        """See `BatchSchedule.largest`: all are alike."""
        return [range(self.batch_size // num_ranks)]

    def position(self, index: int) -> dict[str, ReadPosition]:
        """See `ResumableData.position`; all samples are one part."""
        return {_ROWS: ReadPosition(self.place(index), self.order.num_samples, self.digest)}

    def at(self, first: int, places: Mapping[str, int]) -> Self:
        return replace(self, first=first, before=places.get(_ROWS, 0))

    def place(self, index: int) -> int:
        """Samples before global batch `index`."""
        return self.before + (index - self.first) * self.batch_size


class TableSampleReader:
    """Reads samples by their number since the start of training; see `SampleReader`.

    Args:
        reader: reads row groups.
        rows: which samples of a row group are trained on.
        order: of the samples.
        ahead: whether the next window is read while one is used.
    """

    is_light = True  # threads read ahead, since batches are cut of what is in memory

    def __init__(self, reader: WindowReader, rows: TrainedRows, order: RowOrder | TimeOrder, *, ahead: bool) -> None:
        self.reader, self.rows, self._order = reader, rows, order
        self._windows = WindowCache(self._read, order.following if ahead else None)

    def read(self, index: int, samples: range) -> Loaded:
        """See `SampleReader.read`."""
        spans = self._order.spans(samples.start, len(samples))
        pieces = [self._windows.get(window).rows(begin, end) for window, begin, end in spans]
        return join_batches([batch for batch, _ in pieces], index), list(
            itertools.chain(*(faults for _, faults in pieces))
        )

    def num_bytes(self, samples: range) -> int:
        """See `SampleReader.num_bytes`: about what the table's mean sample fills."""
        manifest = self.reader.table.manifest
        values = sum(manifest.values[name].plain for name in self.reader.features) / manifest.num_rows
        columns = 3 + len(self.reader.dense) + len(self.reader.labels) + len(self.reader.features)
        return round(8 * (values + columns) * len(samples))

    def _read(self, window: WindowId) -> TableWindow:
        if isinstance(self._order, TimeOrder):
            return self._order.read(window)
        groups = self._order.row_groups(window)
        stored = self.reader.load_row_groups(groups)
        kept_M = torch.cat([self.rows.of(group) for group in groups]).nonzero().squeeze(1)
        return self.reader.window(stored, self._order.arrange(window, kept_M, stored.samples.session_B))


class FeatureTableData(ScheduledData[range]):
    """Samples of a feature table. Every sample that is not held out comes once an epoch, and batches cross epochs.

    Args:
        folder: that `FeatureTableWriter` wrote.
        batch_size: samples of a global batch, over all ranks.
        order: `clustered` keeps the samples of sessions together, so that groups have few unique rows, and shuffles
            blocks of sessions; `shuffled` draws samples at random; `log` takes them as they lie; `time` by their times.
        groups: which features batches hold once a unique row: `stored` are the groups of the table; `auto` measures
            which are worth it on the first row group; `none` repeats all rows; or names and their features.
        dense, labels, features: which to read; None reads all.
        num_rows: of features, the rows of their embedding tables; an id that is none is named and counted.
        out_of_range: such an id stops the run, or its sample keeps its place with weight 0.
        max_bad_in_a_row: this many such samples in a row stop the run anyway.
        val_fraction: share of the sessions that is held out, at least 0 and below 1.
        held_out: in place of `val_fraction`, the held-out samples: a share of the sessions or users, all from a time
            on, or another table.
        time_window: with `order: time`, how long a window of time lasts, in the unit of the table's times: validation
            by `window: next` measures each one before it is trained on. None has no windows.
        item_times: features with the time of each item of a history, in the same unit; an item that is newer than its
            sample stops the run.
        window_groups: row groups that are read at once and shuffled with each other. Memory grows with it: with
            `num_workers` three such windows are held.
        block_rows: about how many samples are in a block of sessions.
        num_workers: threads that read ahead on each rank; 0 reads when asked.
        verify: reads all files once at the start and compares them with the hashes in the manifest.
    """

    def __init__(
        self,
        *,
        folder: Path,
        batch_size: int,
        order: Order = "clustered",
        groups: Literal["auto", "stored", "none"] | Mapping[str, Sequence[str]] = "stored",
        dense: Sequence[str] | None = None,
        labels: Sequence[str] | None = None,
        features: Sequence[str] | None = None,
        num_rows: Mapping[str, int] | None = None,
        out_of_range: OutOfRange = "stop",
        max_bad_in_a_row: int = 1000,
        val_fraction: float = 0.0,
        held_out: HeldOutShare | HeldOutFrom | HeldOutTable | None = None,
        time_window: int | None = None,
        item_times: Sequence[str] = (),
        window_groups: int = 4,
        block_rows: int = 256,
        num_workers: int = 0,
        verify: bool = False,
    ) -> None:
        if min(batch_size, window_groups, block_rows) < 1 or num_workers < 0 or not 0 <= val_fraction < 1:
            raise ValueError(
                f"batch_size ({batch_size}), window_groups ({window_groups}) and block_rows ({block_rows}) must be at "
                f"least 1, num_workers ({num_workers}) at least 0, val_fraction ({val_fraction}) at least 0 and below 1"
            )
        if val_fraction and held_out is not None:
            raise ValueError(
                f"val_fraction ({val_fraction:g}) and held_out both define what is held out; give only one"
            )
        if time_window is not None and (order != "time" or time_window < 1):
            raise ValueError(f"time_window ({time_window}) must be at least 1, and needs order: time, not {order}")
        self.folder, self.batch_size, self.order, self.groups = folder, batch_size, order, groups
        self.dense, self.labels, self.features = dense, labels, features
        self.num_rows, self.out_of_range = dict(num_rows or {}), out_of_range
        self.held_out = HeldOutShare(fraction=val_fraction) if val_fraction else held_out
        self.time_window, self.item_times = time_window, tuple(item_times)
        self.window_groups, self.block_rows = window_groups, block_rows
        self.verify = verify
        super().__init__(num_workers=num_workers, max_bad_in_a_row=max_bad_in_a_row)
        self._shapes: SampleShapes | None = None  # of samples that are made up; None where they are read
        self._made: tempfile.TemporaryDirectory[str] | None = None  # the table of them, as long as this process lives

    def mocked(self, shapes: SampleShapes) -> Self:
        """See `HasMock`: one made-up table, which is the held-out one, too, where that is another."""
        found = copy.copy(self)
        found._shapes, found._made = shapes, None
        return found

    def open(self, seed: int) -> tuple[TableSchedule, TableSampleReader]:
        """See `ScheduledData.open`.

        Raises:
            UserError: the folder is no table, lacks a column, or all is held out.
            DataError: the table is damaged.
        """
        reader = self._reader(self.folder)
        if isinstance(self.held_out, HeldOutShare) and self.held_out.feature is not None:
            _choose("held_out", [self.held_out.feature], reader.table.schema.features)
        kept = None if isinstance(self.held_out, HeldOutTable) else self.held_out
        rows = TrainedRows(reader.table, kept, seed)
        order = self._order(reader, rows)
        if isinstance(self.held_out, HeldOutTable):
            other = self._reader(self.held_out.folder).table
            if reader.table.manifest.ids != other.manifest.ids:
                raise UserError(
                    f"the ids of {other.folder} map to other rows than those of {reader.table.folder}, so a model of "
                    "one cannot score the other. Import it by KnownIds with the other's run folder as vocabulary, or "
                    "with equal HashedIds"
                )
        grouped = {name: [*its] for name, its in reader.groups.items()}
        info(f"{self.folder}: {order.num_samples:,} samples to train on, groups stored once: {grouped or 'none'}")
        how: tuple[object, ...] = (kept, seed, self.order, self.window_groups, self.block_rows)
        if self.order == "time":
            how = (kept, seed if isinstance(kept, HeldOutShare) else None, self.order)
        digest = sha256_text(f"{reader.table.digest} {how}")[:16]
        samples = TableSampleReader(reader, rows, order, ahead=self.num_workers > 0)
        return TableSchedule(order, self.batch_size, digest), samples

    def no_samples(self) -> FeatureBatch:
        """See `HasColumns`."""
        reader = self._reader(self.folder)
        return reader.window(reader.load_row_groups([0]), torch.zeros(0, dtype=torch.int64)).batch

    def is_written(self) -> bool:
        """See `HasTableRows`."""
        return (self.folder / NAME).is_file()

    def table_rows(self) -> dict[str, int]:
        """See `HasTableRows`: those of the features that are read, as the import gave their ids rows.

        Raises:
            UserError: there is no table yet, or it does not say.
            DataError: its manifest is damaged.
        """
        if self._shapes is not None:  # the model asks for these, so it cannot be asked
            made_up = self.features or [f"feature_{number}" for number in range(_MADE_UP_FEATURES)]
            return {name: self.num_rows.get(name, _MADE_UP_ROWS) for name in made_up}
        folder = local(self.folder, "the folder of the feature table")
        if not self.is_written():
            raise UserError(f"there is no feature table in {folder} yet: run the step that writes it first")
        manifest = read_manifest(folder)
        names = _choose("features", self.features, manifest.schema.features)
        found = {name: manifest.table_rows[name] for name in names if name in manifest.table_rows}
        if not found:
            raise UserError(
                f"{folder} does not record the number of rows: import the log with ids, such as HashedIds or "
                "FrequentIds"
            )
        return found

    def val_dataloader(self) -> Iterable[Batch]:
        """See `TrainingData.val_dataloader`: in the order of the table; the last batch may be smaller."""
        return [] if self.held_out is None else self.held_out_batches()

    def held_out_batches(self) -> "OrderedBatches":
        """Those of `val_dataloader`, by number."""
        opened = self._open()[1]
        if isinstance(self.held_out, HeldOutTable):
            reader = self._reader(self.held_out.folder)
            return OrderedBatches(reader, _first_rows(reader.table, self.held_out.samples), self.batch_size)
        return OrderedBatches(opened.reader, lambda number: ~opened.rows.of(number), self.batch_size)

    def all_samples(self) -> "OrderedBatches":
        """Every sample of the table, held out or not, in its order; it need not be started."""
        reader = self._reader(self.folder)
        return OrderedBatches(reader, _first_rows(reader.table, None), self.batch_size)

    def has_time_windows(self) -> bool:
        """See `HasTimeWindows`."""
        return self.time_window is not None

    def ends_time_window(self, index: int) -> bool:
        schedule, order = self._by_time()
        begin = schedule.place(index)
        return begin < order.num_samples and order.window_end(begin) <= schedule.place(index + 1)

    def rest_of_time_window(self, index: int) -> Iterable[Batch]:
        """See `HasTimeWindows`: a later epoch trains on samples that were trained on, and has none."""
        schedule, order = self._by_time()
        begin = schedule.place(index + 1)
        end = order.window_end(begin) if begin < order.num_samples else begin
        opened = self._open()[1]
        rest = TableSampleReader(opened.reader, opened.rows, order, ahead=False)
        for number, first in enumerate(range(begin, end, self.batch_size)):
            yield rest.read(number, range(first, min(first + self.batch_size, end)))[0]

    def _by_time(self) -> tuple[TableSchedule, TimeOrder]:
        schedule = self._open()[0]
        assert isinstance(schedule.order, TimeOrder), f"windows of time need order: time, but the order is {self.order}"
        return schedule, schedule.order

    def _open(self) -> tuple[TableSchedule, TableSampleReader]:
        schedule, reader = self.by_number().schedule, self.by_number().reader
        assert isinstance(schedule, TableSchedule) and isinstance(reader, TableSampleReader)
        return schedule, reader

    def _reader(self, folder: Path) -> WindowReader:
        if self._shapes is not None:
            if self._made is None:
                from nemo_vfm.recsys.feature_table.mock_table import write_mock_table

                self._made = tempfile.TemporaryDirectory(prefix="nemo-vfm-mock-")
                named = list(self.features or ())  # by this data, whether the model reads them or not
                if isinstance(self.groups, Mapping):
                    named += itertools.chain.from_iterable(self.groups.values())
                if isinstance(self.held_out, HeldOutShare) and self.held_out.feature is not None:
                    named.append(self.held_out.feature)
                write_mock_table(
                    Path(self._made.name) / "table", *self._shapes.table(),
                    max(self._shapes.num_samples, _MADE_UP_BATCHES * self.batch_size), dense=self.dense,
                    others=dict.fromkeys(named, _MADE_UP_ROWS) | self.num_rows,
                    time_window=self.time_window, times=self.item_times,
                )  # fmt: skip
            folder = Path(self._made.name) / "table"
        table = FeatureTable(local(folder, "the folder of the feature table"), cached_row_groups=0)
        if self.verify:
            table.verify()
        schema = table.schema
        chosen = {
            kind: _choose(kind, getattr(self, kind), getattr(schema, kind)) for kind in ("dense", "labels", "features")
        }
        _choose("num_rows", [*self.num_rows], schema.features)
        times = _choose("item_times", self.item_times, chosen["features"])
        groups: Mapping[str, Sequence[str]] = {}
        if self.groups == "auto":
            chunk = table.read(0, table.row_groups[1], chosen["features"])
            groups = choose_groups(chunk.features, chunk.session_B)
        elif self.groups == "stored":
            found = {name: [n for n in its if n in chosen["features"]] for name, its in schema.groups.items()}
            groups = {name: its for name, its in found.items() if its}
        elif self.groups != "none":
            groups = self.groups
            for name, its in groups.items():
                _choose(f"groups.{name}", its, chosen["features"])
        return WindowReader(
            table, chosen["dense"], chosen["labels"], chosen["features"], groups, self.num_rows, self.out_of_range,
            times,
        )  # fmt: skip

    def _order(self, reader: WindowReader, rows: TrainedRows) -> RowOrder | TimeOrder:
        sizes = [int(rows.of(number).sum()) for number in range(len(reader.table.row_groups) - 1)]
        if not sum(sizes):
            raise UserError(f"all samples of {self.folder} are held out; hold out fewer, by val_fraction or held_out")
        if rows.held_out is not None and sum(sizes) == reader.table.num_rows:
            warn_that_none_is_held_out()
        if self.order == "time":
            return TimeOrder(reader, rows, window_groups=self.window_groups, time_window=self.time_window)
        return RowOrder(
            sizes, seed=rows.seed, order=self.order, window_groups=self.window_groups, block_rows=self.block_rows
        )


class OrderedBatches:
    """Batches in the order of the table, by number; the last one may be smaller.

    Args:
        reader: reads row groups, of which the last two stay in memory.
        chosen: whether each sample of a row group is in them.
        batch_size: samples of a batch.
    """

    def __init__(self, reader: WindowReader, chosen: Callable[[int], Tensor], batch_size: int) -> None:
        self._reader, self._chosen, self._batch_size = reader, chosen, batch_size
        self.digest = reader.table.digest
        self.dense = reader.dense  #: what the columns of `dense_BF` are
        sizes = (int(chosen(number).sum()) for number in range(len(reader.table.row_groups) - 1))
        self._ends = list(itertools.accumulate(sizes))
        self._of_row_group = functools.lru_cache(maxsize=2)(self._read)

    def __len__(self) -> int:
        return -(-(self._ends or [0])[-1] // self._batch_size)

    def __getitem__(self, index: int) -> FeatureBatch:
        if not 0 <= index < len(self):
            raise IndexError(f"there are {len(self)} batches, but batch {index} was requested")
        first, end = index * self._batch_size, min((index + 1) * self._batch_size, self._ends[-1])
        parts, number = [], bisect.bisect_right(self._ends, first)
        while first < end:
            begin = self._ends[number] - len(self._of_row_group(number))
            last = min(end, self._ends[number])
            parts += [self._of_row_group(number).rows(first - begin, last - begin)] if last > first else []
            first, number = last, number + 1
        return join_batches(parts, index)

    def __iter__(self) -> Iterator[FeatureBatch]:
        return map(self.__getitem__, range(len(self)))

    def _read(self, number: int) -> FeatureBatch:
        rows_M, stored = self._chosen(number).nonzero().squeeze(1), self._reader.load_row_groups([number])
        found = self._reader.window(stored, rows_M).batch
        return replace(found, session_B=stored.samples.session_B[rows_M])  # predictions have it as a column


def _first_rows(table: FeatureTable, samples: int | None) -> Callable[[int], Tensor]:
    """Whether each sample of a row group is among the first ones."""
    if samples is not None and samples > table.num_rows:
        warn(f"{table.folder} has {table.num_rows:,} samples, all of which are held out, {samples:,} were requested")
    borders, most = table.row_groups, samples or table.num_rows
    return lambda number: torch.arange(borders[number], borders[number + 1]) < most


def _choose(what: str, names: Sequence[str] | None, known: Sequence[str]) -> tuple[str, ...]:
    if names is None:
        return tuple(known)
    if unknown := [name for name in names if name not in known]:
        raise UserError(f"{what} names {unknown[0]}, which the feature table does not have; it has {', '.join(known)}")
    return tuple(names)
