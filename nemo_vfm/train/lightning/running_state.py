"""Keeps what Lightning's checkpoints lack of a running training: its epoch means, its metrics, what was logged last."""

import builtins
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import fields
from io import BytesIO
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.connectors.logger_connector.result import _Metadata, _ResultMetric, _Sync
from torch import Tensor
from torchmetrics import Metric, MetricCollection
from torchmetrics.wrappers import MetricTracker

from nemo_vfm.core import log, ranks
from nemo_vfm.parallel.ranks.process_group import everyone_sends
from nemo_vfm.train.lightning.checkpoint_values import read

#: Of `_ResultMetric`, which accumulates what a module logs.
_RESULT = ("value", "cumulated_batch_size", "_forward_cache", "_computed", "_update_count")
#: Plain attributes of a `Metric` that are no state.
_SETTINGS = {
    "training", "_defaults", "_persistent", "_cache", "_is_synced", "_to_sync", "_should_unsync", "_enable_grad",
    "_dtype_convert", "compute_on_cpu", "dist_sync_on_step", "sync_on_compute", "compute_with_cache",
}  # fmt: skip
#: Of modules, which freeze and thaw them as they train.
_FLAGS = ("training", "track_running_stats")
_LOGGED = ("_callback_metrics", "_logged_metrics", "_progress_bar_metrics")
#: Buffers by name, each with torch's count of its changes.
Seen = dict[str, tuple[Tensor, int]]


def running_state(trainer: Trainer, module: LightningModule, unsaved: Seen) -> dict[str, Any]:
    """Of this rank, as plain values and tensors; of its unsaved buffers those that have changed since `unsaved`."""
    connector, results = trainer._logger_connector, trainer.fit_loop.epoch_loop._results
    for one in module.modules():
        if isinstance(one, MetricCollection):
            one.items()  # of metrics that share a state it updates the first alone, until somebody asks
    return {
        "results": {key: _result(one) for key, one in results.items() if not one.has_reset and not one.meta.sync.group},
        "metrics": {name: {key: value for key, value in vars(one).items() if key not in _SETTINGS and _is_plain(value)}
                    for name, one in module.named_modules() if isinstance(one, Metric)},
        "trackers": {name: len(one) for name, one in module.named_modules() if isinstance(one, MetricTracker)},
        "logged": {name: dict(getattr(connector, name)) for name in _LOGGED},
        "hook": connector._current_fx, "is_first_batch": connector._first_loop_iter,
        "should_stop": trainer.should_stop,
        "learns": {name: one.requires_grad for name, one in module.named_parameters()},
        "flags": {name: {flag: vars(one)[flag] for flag in _FLAGS if flag in vars(one)}
                  for name, one in module.named_modules()},
        "buffers": {name: one for name, (one, version) in unsaved_buffers(module).items()
                    if unsaved.get(name, (None, 0))[0] is not one or unsaved[name][1] != version},
    }  # fmt: skip


def set_running_state(trainer: Trainer, module: LightningModule, kept: Mapping[str, Any]) -> None:
    """Go on from there."""
    connector, results = trainer._logger_connector, trainer.fit_loop.epoch_loop._results
    for name, length in kept["trackers"].items():
        tracker = module.get_submodule(name)
        while len(tracker) < length:  # type: ignore[arg-type]
            tracker.increment()  # type: ignore[operator]
    metrics = {name: one for name, one in module.named_modules() if isinstance(one, Metric)}
    if missing := kept["metrics"].keys() - metrics.keys():
        log.warn(f"the checkpoint has the state of {' and '.join(sorted(missing))}, which the module no longer has")
    for name, state in kept["metrics"].items():
        for attribute, value in _copy_to(state, module.device).items() if name in metrics else ():
            setattr(metrics[name], attribute, value)
    results.clear()
    results.update({key: _restore(one, trainer, module) for key, one in kept["results"].items()})
    for name in _LOGGED:
        setattr(connector, name, _copy_to(kept["logged"][name], module.device))
    connector._current_fx, connector._first_loop_iter = kept["hook"], kept["is_first_batch"]
    trainer.should_stop = kept["should_stop"]
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(kept["learns"].get(name, parameter.requires_grad))
    for name, one in module.named_modules():
        vars(one).update(kept["flags"].get(name, {}))
    for name, buffer in _copy_to(kept["buffers"], module.device).items():
        owner, _, last = name.rpartition(".")
        module.get_submodule(owner)._buffers[last] = buffer


def unsaved_buffers(module: LightningModule) -> Seen:
    """Those that `state_dict` leaves out."""
    buffers = {
        f"{prefix}.{name}".lstrip("."): one._buffers[name]
        for prefix, one in module.named_modules() for name in sorted(one._non_persistent_buffers_set)
    }  # fmt: skip
    return {name: (one, one._version) for name, one in buffers.items() if one is not None and not one.is_inference()}


@contextmanager
def keep_unchanged(trainer: Trainer, module: LightningModule) -> Iterator[None]:
    """What a checkpoint holds stays as it is, and loggers get nothing, while hooks set a process up a second time.

    It copies the weights, before there are gradients, which take as much.
    """
    tensors = {name: one.detach().clone() for name, one in _tensors(module).items()}
    groups = [(group, deepcopy({name: value for name, value in group.items() if name != "params"}))
              for one in trainer.optimizers for group in one.param_groups]  # fmt: skip
    stateful = [config.scheduler for config in trainer.lr_scheduler_configs]
    stateful += [one for one in trainer.callbacks if type(one).on_train_epoch_start != Callback.on_train_epoch_start]  # type: ignore[attr-defined]
    states = [deepcopy(one.state_dict()) for one in stateful]
    for logger in trainer.loggers:
        logger.log_metrics = lambda *_, **__: None  # type: ignore[method-assign]
    yield
    for logger in trainer.loggers:
        del logger.log_metrics
    for one, state in zip(stateful, states, strict=True):
        if state:
            one.load_state_dict(state)
    for group, values in groups:
        group.update(values)
    with torch.no_grad():
        for name, tensor in _tensors(module).items():
            if name in tensors and tensor.shape == tensors[name].shape:
                tensor.copy_(tensors[name])


def _tensors(module: LightningModule) -> dict[str, Tensor]:
    return dict([*module.named_parameters(), *module.named_buffers()])


def of_all_ranks(state: dict[str, Any]) -> list[dict[str, Any]]:
    """Every rank's, by rank."""
    if ranks.count() == 1:
        return [state]
    buffer = BytesIO()
    torch.save(state, buffer)  # noqa: TID251 - as Lightning will write it
    sent = everyone_sends(buffer.getvalue())
    return [read(BytesIO(one)) for one in sent]


def _result(one: _ResultMetric) -> dict[str, Any]:
    meta = one.meta
    plain = {each.name: getattr(meta, each.name) for each in fields(meta) if each.name not in ("reduce_fx", "_sync")}
    reduce = meta.reduce_fx
    is_builtin = reduce is getattr(builtins, reduce.__name__, None)  # Lightning compares functions
    return {
        "meta": plain, "reduce": reduce.__name__, "is_builtin": is_builtin, "is_tensor": one.is_tensor,
        "is_synced": meta.sync.should, "of_first_rank": meta.sync.rank_zero_only,
        "state": {name: vars(one)[name] for name in _RESULT if name in vars(one) and _is_plain(vars(one)[name])},
    }  # fmt: skip


def _restore(kept: Mapping[str, Any], trainer: Trainer, module: LightningModule) -> _ResultMetric:
    meta = _Metadata(**kept["meta"], reduce_fx=getattr(builtins if kept["is_builtin"] else torch, kept["reduce"]))
    meta.sync = _Sync(trainer.strategy.reduce, kept["is_synced"], kept["of_first_rank"])
    one = _ResultMetric(meta, kept["is_tensor"])
    for name, value in _copy_to(kept["state"], module.device).items():
        setattr(one, name, value)
    if not one.is_tensor:
        one.value = module.get_submodule(meta.metric_attribute or "")
    return one


def _copy_to(value: Any, device: torch.device) -> Any:
    """Copies on a device: two metrics must not share what one of them changes in place."""
    if isinstance(value, Tensor):
        return value.to(device, copy=True)
    if isinstance(value, dict):
        return {name: _copy_to(one, device) for name, one in value.items()}
    return type(value)(_copy_to(one, device) for one in value) if isinstance(value, list | tuple) else value


def _is_plain(value: Any) -> bool:
    if type(value) in (list, tuple):
        return all(map(_is_plain, value))
    if type(value) is dict:
        return all(map(_is_plain, [*value.keys(), *value.values()]))
    return type(value) in (type(None), bool, int, float, str, Tensor)
