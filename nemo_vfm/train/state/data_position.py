"""Resumes a training's data at the sample where it stopped, also when its batches have changed.

A checkpoint holds how far each part of the data was read, and the stretches of steps with unchanged reading. As long as
nothing changes, batch g follows from the last stretch alone, so a resume is exact. Otherwise a new stretch begins.
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field

from nemo_vfm.core import log
from nemo_vfm.core.duration import Duration
from nemo_vfm.core.errors import CorruptCheckpoint, UserError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.core.types.training_data import ReadPosition, ResumableData, ResumablePhases

Position = Mapping[str, ReadPosition]


@dataclass(frozen=True, slots=True)
class DataSegment:
    """Steps whose batches follow from one recipe and one position.

    Args:
        first: number of its first global batch.
        read: how far each part was read before it.
        batching: see `ResumableData.batching`.
        seed: of the order and the noise.
    """

    first: int
    read: Position
    batching: Json
    seed: int


@dataclass(frozen=True, slots=True)
class DataProgress:
    """What a checkpoint knows of the data.

    Args:
        stretches: from the first step on.
        read: how far each part was read; of those that are read now.
        left: the same of parts that were read before and are not now.
    """

    stretches: tuple[DataSegment, ...]
    read: Position = field(default_factory=dict)
    left: Position = field(default_factory=dict)

    @classmethod
    def begin(cls, data: ResumableData, seed: int) -> "DataProgress":
        """Of a training that has no step yet, or was begun by a version that noted nothing."""
        first = data.begins()
        return cls((DataSegment(first, data.position(first), data.batching(), seed),))

    @classmethod
    def from_json(cls, saved: Json) -> "DataProgress":
        """The inverse of `json`. CorruptCheckpoint if it holds something else."""
        try:
            stretches = tuple(
                DataSegment(int(one["first"]), _position(one["read"]), one["batching"], int(one["seed"]))
                for one in saved["stretches"]
            )
            return cls(stretches, _position(saved["read"]), _position(saved["left"]))
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise CorruptCheckpoint(f"The checkpoint has no usable data position: {error!r}") from error

    def json(self, data: ResumableData, step: int) -> Json:
        """For the checkpoint of a step, read by this data."""
        stretches = [
            {"first": one.first, "read": _json(one.read), "batching": one.batching, "seed": one.seed}
            for one in self.stretches
        ]
        return {"stretches": stretches, "read": _json(data.position(step)), "left": _json(self.left)}


def reading_of(state: Json) -> DataProgress | None:
    """What a checkpoint's state says; None where it is of a version, or of data, that noted nothing."""
    saved = state.get("data") if isinstance(state, dict) else None
    return None if saved is None else DataProgress.from_json(saved)


def resume(
    data: ResumableData, before: DataProgress | None, step: int, seed: int, *, quiet: bool = False
) -> tuple[ResumableData, DataProgress]:
    """The data that gives batch `step` next, and what is known of it from there on.

    `data` is the recipe's, started; `before` comes from the checkpoint of this step.
    """
    if before is None:
        return data, DataProgress.begin(data, seed)
    last, now, batching = before.stretches[-1], data.position(step), data.batching()
    known = {**before.left, **before.read}
    left = {name: read for name, read in known.items() if name not in now}
    if data.begins() > last.first and all(known.get(name) == read for name, read in now.items() if read.place):
        first = data.begins()  # of a phase, which follows from those before it
        return data, DataProgress(
            (*before.stretches, DataSegment(first, data.position(first), batching, seed)), left=left
        )
    if batching == last.batching and all(name in before.read and _agree(before.read[name], now[name]) for name in now):
        same = last.first == data.begins() and _places(last.read) == _places(data.position(last.first))
        return data if same else data.starting(last.first, _places(last.read)), before
    read = carry_positions(before, now)
    if not quiet:
        _say(known, read, step)
    new = DataSegment(step, read, batching, seed)
    return data.starting(step, _places(read)), DataProgress((*before.stretches, new), left=left)


def carry_positions(before: DataProgress, now: Position) -> dict[str, ReadPosition]:
    """Where each part goes on: at its sample, or, where its samples or their order differ, as far into its epochs.

    A part that was not there before begins where those that are gone have stopped: it may hold their samples.
    """
    known = {**before.left, **before.read}
    gone = [read for name, read in before.read.items() if name not in now]
    share = sum(read.place for read in gone) / max(1, sum(read.of for read in gone))
    places = {
        name: round(share * read.of) if (old := known.get(name)) is None
        else old.place if _agree(old, read) or not (old.of and read.of)
        else round(old.place / old.of * read.of)
        for name, read in now.items()
    }  # fmt: skip
    return {name: read._replace(place=places[name]) for name, read in now.items()}


def data_at(
    data: ResumableData, before: DataProgress | None, step: int, index: int, seed: int
) -> tuple[ResumableData, int]:
    """The data that gave, or will give, batch `index`, and the seed of its stretch.

    `data`, started, and `seed` are the recipe's; `before` comes from the checkpoint of `step`. UserError if that batch
    was made of samples that the recipe no longer names.
    """
    if before is None or data.begins() > step:
        return data, seed  # of a phase that no step was taken in
    if index >= step:
        return resume(data, before, step, seed, quiet=True)[0], seed
    stretch = next(one for one in reversed(before.stretches) if one.first <= index)
    try:
        found = data.with_batching(stretch.batching).starting(stretch.first, _places(stretch.read))
    except (KeyError, ValueError) as error:
        raise _others(index, str(error)) from error
    found.start(seed=stretch.seed, first_batch=index)
    now = found.position(stretch.first)
    if other := [name for name in {**now, **stretch.read} if not _agree(now.get(name), stretch.read.get(name))]:
        raise _others(index, f"{', '.join(sorted(other)[:4])} holds other samples, or in another order")
    return found, stretch.seed


def _others(index: int, why: str) -> UserError:
    return UserError(
        f"step {index + 1} was trained on different samples than this folder's recipe has now ({why}); use the "
        f"recipe of that time in a copy of the folder"
    )


def steps_until(data: ResumableData, length: Duration) -> int:
    """Steps of a resumed training whose length is in samples, tokens or epochs. UserError if an epoch's is unknown."""
    data.num_train_samples()
    first, per_sample = data.begins(), data.tokens_per_sample() if isinstance(data, ResumablePhases) else 1

    def reaches(steps: int) -> bool:
        read = data.position(first + steps).values()
        if length.unit == "epochs":
            return all(one.place >= length.amount * one.of for one in read)
        return sum(one.place for one in read) * (per_sample if length.unit == "tokens" else 1) >= length.amount

    most = 1
    while not reaches(most):
        most *= 2
    return first + bisect_left(range(most), True, key=reaches)


def _say(before: Position, now: Position, step: int) -> None:
    """What changes where the batches do."""
    place = sum(read.place for read in now.values())
    here = f"the data resumes at sample {place:,}, after step {step:,}"
    other = {name: read for name, read in now.items() if read.place and not _agree(before.get(name), read)}
    if not other:
        log.info(f"batches differ from those before: {here}; no sample of the epoch is repeated or left out")
        return
    left = {name: read.of - read.place % read.of for name, read in other.items() if read.of}
    again = sum(count * (other[name].of - count) / other[name].of for name, count in left.items())
    log.warn(f"the samples of {', '.join(list(other)[:4])} or their order differ from those before: {here}, as far "
             f"into the epoch as it was; if the samples are the same, about {again:,.0f} of the "
             f"{sum(left.values()):,} that follow in this epoch are repeated, and as many are left out")  # fmt: skip


def _agree(one: ReadPosition | None, other: ReadPosition | None) -> bool:
    return one is not None and other is not None and one.order == other.order


def _places(read: Position) -> dict[str, int]:
    return {name: one.place for name, one in read.items()}


def _json(read: Position) -> Json:
    return {name: list(one) for name, one in read.items()}


def _position(saved: Json) -> dict[str, ReadPosition]:
    return {str(name): ReadPosition(int(place), int(of), str(order)) for name, (place, of, order) in saved.items()}
