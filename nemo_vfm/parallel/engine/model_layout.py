"""Makes every call of a model run under the layout that it was split for."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack

from torch import nn

from nemo_vfm.parallel.layers.token_layout import Layout, SharedHead, under
from nemo_vfm.parallel.plan.mesh import Mesh, neighbours
from nemo_vfm.parallel.plan.sharding_spec import Divisible


def layout_of(mesh: Mesh | None, model: nn.Module) -> Layout:
    """Return how a model's tokens and heads are split over a mesh; every rank must call it."""
    if mesh is None:
        return Layout()
    shared = _shared_head(mesh, model)
    if mesh.tokens is None and mesh.context is None:
        return Layout(tensor=mesh.tensor, shared_head=shared)
    from nemo_vfm.parallel.context.scheme import Scheme

    scheme = Scheme(kind=mesh.plan.attention, ulysses=mesh.plan.ulysses)
    return Layout(mesh.tokens, mesh.context, scheme, mesh.tensor, shared)


def _shared_head(mesh: Mesh, model: nn.Module) -> SharedHead | None:
    ranks = model.plan().sharing(mesh.plan.tensor) if isinstance(model, Divisible) else 1
    return None if ranks == 1 else SharedHead(ranks, mesh.at.tensor % ranks, neighbours(mesh, ranks))


def call_under(model: nn.Module, layout: Layout, arithmetic: Callable[[], AbstractContextManager[object]]) -> None:
    """Register hooks that run the model's forward under a layout and an autocast context, also in previews."""
    call_within(model, lambda: under(layout), arithmetic)


def call_within(model: nn.Module, *contexts: Callable[[], AbstractContextManager[object]]) -> None:
    """Register hooks that run the model's forward within contexts, the first outermost."""
    entered: list[ExitStack] = []

    def before(*_: object) -> None:
        entered.append(ExitStack())
        for context in contexts:
            entered[-1].enter_context(context())

    def after(*_: object) -> None:
        entered.pop().close()

    model.register_forward_pre_hook(before, prepend=True)
    model.register_forward_hook(after, always_call=True)
