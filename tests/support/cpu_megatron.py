"""Lets Megatron-Core 0.16 run on a CPU: what it asks of CUDA is answered by the CPU, inside one `with` block."""

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.utils._device import _device_constructors

#: What imports it.
MEGATRON = tuple(
    f"nemo_vfm.parallel.megatron.{name}" for name in ("distributed_optimizer", "parallel_layers", "schedule")
)
CPU = torch.device("cpu")
MAKERS = ("tensor", "zeros", "ones", "empty", "full", "arange", "zeros_like", "empty_like", "ones_like")


class Stream:
    """A stream that has nothing to wait for."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def wait_stream(self, *_: Any) -> None:
        """Return at once."""

    def synchronize(self) -> None:
        """Return at once."""


@contextmanager
def megatron_on_cpu() -> Iterator[None]:
    """Patch torch inside the block, and leave it as it was; a process group that a run began there ends, too."""
    had_group = dist.is_initialized()
    _device_constructors()  # torch keeps the list: made inside, it would hold the wrappers
    of_cuda: dict[str, Any] = {
        "current_device": lambda: CPU, "Stream": Stream, "synchronize": lambda *_, **__: None,
        "current_stream": lambda *_, **__: Stream(), "default_stream": lambda *_, **__: Stream(),
        "stream": lambda _: nullcontext(),
    }  # fmt: skip
    with ExitStack() as stack:
        for name, instead in of_cuda.items():
            stack.enter_context(patch.object(torch.cuda, name, instead))
        for name in MAKERS:
            stack.enter_context(patch.object(torch, name, _here(getattr(torch, name))))
        stack.enter_context(patch.object(torch.Tensor, "cuda", lambda self, *_, **__: self))
        stack.enter_context(patch.object(torch.Tensor, "type", _named_as_cuda(torch.Tensor.type)))
        yield
        if dist.is_initialized() and not had_group:
            from megatron.core import parallel_state

            parallel_state.destroy_model_parallel()
            dist.destroy_process_group()


def _here(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The factory, with cpu for cuda."""

    @functools.wraps(make)
    def made(*arguments: Any, **named: Any) -> torch.Tensor:
        if "cuda" in str(named.get("device")):
            named["device"] = CPU
        return make(*arguments, **named)

    return made


def _named_as_cuda(of: Callable[..., Any]) -> Callable[..., Any]:
    """Optimizers compare a parameter's type with `torch.cuda.FloatTensor`."""

    def named(self: torch.Tensor, *arguments: Any, **more: Any) -> Any:
        found = of(self, *arguments, **more)
        return found.replace("torch.", "torch.cuda.", 1) if not arguments and not more else found

    return named
