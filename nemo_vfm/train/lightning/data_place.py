"""Keeps the place of a run in its training loaders, each by what it offers, and finds it again.

Loaders with a state of their own (`load_state_dict`) are put back by it. Where one has none, all begin the epoch again,
and the batches before the place are read again and dropped. They are the same ones: each epoch and each read draws from
the run's seed, and generators of loaders, samplers and datasets are put back to where they were when the epoch began.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from lightning.fabric.utilities.data import _set_sampler_epoch
from lightning.pytorch import Trainer
from lightning.pytorch.loops.fetchers import _DataFetcher, _PrefetchDataFetcher
from lightning.pytorch.utilities.combined_loader import _shutdown_workers_and_reset_iterator
from lightning.pytorch.utilities.seed import isolate_rng

from nemo_vfm.core import log

_PARTS = ("sampler", "batch_sampler", "dataset", "datasets")


class DataPlace:
    """The place of a run in its training data.

    Args:
        trainer: of the run.
        seed: seeds whatever may be drawn from, by names; without `own` alike on all ranks.
    """

    def __init__(self, trainer: Trainer, seed: Callable[..., None]) -> None:
        self.trainer, self.seed = trainer, seed
        self.kept: Mapping[str, Any] | None = None
        self._is_found, self._goes_on, self._aside = False, False, ExitStack()
        self._at_start = self._now()
        self._unread: list[Any] = []
        fit = trainer.fit_loop
        around(fit, "setup_data", first=self._before_train_loaders)
        around(fit, "_load_combined_loader_states", first=self.begin_epoch)
        around(fit.epoch_loop, "_on_before_fetch", first=self._before_read)
        around(fit.epoch_loop.val_loop, "setup_data", first=self._before_val_loaders, then=self._aside.close)

    def state(self) -> dict[str, Any]:
        """Of this rank, as plain values and tensors where the loaders' states are; between two epochs, of the next."""
        fit = self.trainer.fit_loop
        fetcher = fit._data_fetcher
        assert fetcher is not None
        ahead, mode = len(getattr(fetcher, "batches", ())), fetcher.combined_loader._iterator
        now = self._now()
        in_epoch = fit.epoch_progress.current.ready > fit.epoch_progress.current.completed
        is_stateful = None not in now["loaders"]
        reloaded: tuple[float, float] = (
            0,
            0,
        )  # the epochs for which training and validation loaders were made, where that matters
        if self.trainer.reload_dataloaders_every_n_epochs:  # type: ignore[attr-defined]
            reloaded = fit._last_train_dl_reload_epoch, fit.epoch_loop.val_loop._last_val_dl_reload_epoch
        if in_epoch:
            now["generators"] = self._at_start["generators"]
            now["loaders"] = self._at_start["loaders"] if not is_stateful else self._unread if ahead else now["loaders"]
        return now | {
            "in_epoch": in_epoch, "epoch": self.trainer.current_epoch, "is_stateful": is_stateful,
            "reads": fetcher.fetched - ahead if in_epoch else 0,
            "iterator": {name: value for name, value in vars(mode).items() if name in ("_consumed", "_idx")},
            "reloaded": reloaded, "validation": [_generator_states(one) for one in self._val_loaders()],
        }  # fmt: skip

    def begin_epoch(self) -> None:
        """Seed its order, which is drawn from here on; where a resume begins in it, put back what has a state."""
        loaders, epoch = self._loaders(), self.trainer.current_epoch
        if self.kept is not None:
            epoch, self._is_found = self.kept["epoch"], True
            self._load_states()
            for one, generators in zip(loaders, self.kept["generators"], strict=True):
                _set_generator_states(one, generators)
                _set_sampler_epoch(one, epoch)
        self._at_start = self._now()
        for one in loaders:
            if getattr(one, "persistent_workers", False):
                _shutdown_workers_and_reset_iterator(one)  # else they draw on from where they are
        self.seed("epoch", epoch, own=False)

    def find_loaders(self) -> None:
        """Ask for them again where that happened before the checkpoint was read, as `configure_optimizers` may."""
        fit = self.trainer.fit_loop
        assert self.kept is not None
        if not self._is_found:
            fit._combined_loader = None
            fit.setup_data()
        self._goes_on = True
        fit._last_train_dl_reload_epoch, fit.epoch_loop.val_loop._last_val_dl_reload_epoch = self.kept["reloaded"]
        if any(self.kept["validation"]):
            self.trainer.validating = True  # as Lightning does where it makes these loaders before the training
            fit.epoch_loop.val_loop.setup_data()
            self.trainer.training = True
            for one, states in zip(self._val_loaders(), self.kept["validation"], strict=True):
                _set_generator_states(one, states)

    def find(self) -> None:
        """Go to the batch that comes next, in an epoch that Lightning has begun to read, from its start."""
        assert self.kept is not None
        fetcher, done = self.trainer.fit_loop._data_fetcher, self.kept["reads"]
        assert fetcher is not None
        loader, batches = fetcher.combined_loader, getattr(fetcher, "batches", [])
        if self.kept["is_stateful"]:
            self._load_states()
            iter(loader)
            vars(loader._iterator).update(self.kept["iterator"])
        else:
            for number in range(len(batches), done):
                self._seed_read(number)
                next(loader)
            log.info(f"{done} batches of epoch {self.kept['epoch']} were read again to resume after them")
        fetcher._batch_idx, fetcher.fetched = done - 1, done  # type: ignore[attr-defined]
        if batches:
            batches.clear()
            with suppress(StopIteration):
                batches.append(_DataFetcher.__next__(fetcher))

    def _load_states(self) -> None:
        assert self.kept is not None
        for one, state in zip(self._loaders(), self.kept["loaders"], strict=True):
            if state is not None:
                one.load_state_dict(deepcopy(state))

    def _now(self) -> dict[str, list[Any]]:
        loaders = self._loaders()
        return {"loaders": [deepcopy(_state(one)) for one in loaders],
                "generators": [_generator_states(one) for one in loaders]}  # fmt: skip

    def _loaders(self) -> list[Any]:
        loader = self.trainer.fit_loop._combined_loader
        return [] if loader is None else loader.flattened

    def _val_loaders(self) -> list[Any]:
        loader = self.trainer.fit_loop.epoch_loop.val_loop._combined_loader
        return [] if loader is None else loader.flattened

    def _before_read(self) -> None:
        fetcher = self.trainer.fit_loop._data_fetcher
        assert fetcher is not None
        is_ahead = isinstance(fetcher, _PrefetchDataFetcher) and fetcher.length is None
        if is_ahead:  # what is read now comes behind a checkpoint after this step
            self._unread = [deepcopy(_state(one)) for one in self._loaders()]
        if fetcher.fetched or not is_ahead:  # else it is read where the order was seeded
            self._seed_read(fetcher.fetched)

    def _seed_read(self, number: int) -> None:
        """With the first batch its order is drawn, where no workers read."""
        epoch = self.trainer.current_epoch
        if number:
            self.seed("read", epoch, number)
        else:
            self.seed("epoch", epoch, own=False)

    def _before_train_loaders(self) -> None:
        fit = self.trainer.fit_loop
        if fit._combined_loader is None or fit._should_reload_train_dl:
            if self._goes_on:
                self.kept = None  # it is of the loaders before these
            self._seed_loaders("training", 0)

    def _before_val_loaders(self) -> None:
        loop = self.trainer.fit_loop.epoch_loop.val_loop
        if loop._combined_loader is None or loop._should_reload_val_dl:
            self._aside.enter_context(isolate_rng())  # a resume makes them at other times
            self._seed_loaders("validation", 1)

    def _seed_loaders(self, name: str, which: int) -> None:
        """Whoever makes a loader may draw its data. Lightning notes no epoch for one that a sanity check has made."""
        reloaded = self.trainer.current_epoch if self.kept is None else max(0, self.kept["reloaded"][which])
        self.seed("loaders", name, str(reloaded), own=False)


def _state(loader: Any) -> Any:
    return loader.state_dict() if hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict") else None


def _generator_states(loader: Any) -> list[Any]:
    """As plain values and tensors, since a checkpoint takes no arrays."""
    states = list[Any]()
    for one in _generators(loader):
        if isinstance(one, torch.Generator):
            states.append(one.get_state())
        elif isinstance(one, random.Random):
            states.append(one.getstate())
        else:
            is_new = isinstance(one, np.random.Generator)
            states.append(_without_arrays(one.bit_generator.state if is_new else one.get_state(False)))
    return states


def _set_generator_states(loader: Any, states: Sequence[Any]) -> None:
    for one, state in zip(_generators(loader), states, strict=True):
        if isinstance(one, torch.Generator):
            one.set_state(state)
        elif isinstance(one, random.Random):
            one.setstate(state)
        elif isinstance(one, np.random.Generator):
            one.bit_generator.state = state
        else:
            one.set_state(state)


def _generators(loader: Any) -> list[Any]:
    """Of the loader, and of the samplers and datasets below it, in an order that is the same after a resume."""
    found, todo = list[Any](), [loader]
    for one in todo:
        values = getattr(one, "__dict__", {})
        kinds = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)
        found += [value for value in values.values() if isinstance(value, kinds)]
        parts = [values[name] for name in _PARTS if name in values]
        parts = [each for part in parts for each in (part if isinstance(part, list | tuple) else [part])]
        todo += [part for part in parts if not any(part is other for other in todo)]
    return found


def _without_arrays(state: Any) -> Any:
    if isinstance(state, dict):
        return {name: _without_arrays(value) for name, value in state.items()}
    return state.tolist() if isinstance(state, np.ndarray) else state


def around(
    owner: object, method: str, *, first: Callable[[], None] | None = None, then: Callable[[], None] | None = None
) -> None:
    """Let an object's method call one function before its own work, and one after it: Lightning has no hook there."""
    original = getattr(owner, method)

    def both(*args: Any, **kwargs: Any) -> Any:
        if first is not None:
            first()
        result = original(*args, **kwargs)
        if then is not None:
            then()
        return result

    setattr(owner, method, both)
