"""Finds the weights by name in what a foreign file holds."""

from collections.abc import Iterator, Mapping

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.models.convert.opcodes import Opaque, TensorPlace

_MAX_DEPTH = 32
_MAX_NODES = 200_000  # a list may hold itself, or one list a thousand times: then a walk never ends
_USUAL = ("state_dict", "model", "module", "model_state_dict")  # Lightning's and other programs' key for the weights


def weights(content: object, key: str | None = None) -> dict[str, TensorPlace]:
    """The tensors of a state dict, by name, in what was saved.

    `key` is where, such as "state_dict" or "ema.model"; None finds the usual places.
    """
    chosen = content
    if key is None:
        if not isinstance(content, Mapping):
            raise UserError(f"the file holds no mapping but {type(content).__name__}, so there are no weights by name")
        values = content.values()
        alone = all(one is None or isinstance(one, TensorPlace) or is_stream("", one) for one in values)
        if not alone or not any(isinstance(one, TensorPlace) for one in values):
            named = [name for name in _USUAL if isinstance(content.get(name), Mapping)]
            if len(named) != 1:
                raise UserError(f"the weights may be in several places of the file or in none; say which with --key: "
                                f"it has {_list_names(content)}")  # fmt: skip
            chosen = content[named[0]]
    for word in () if key is None else key.split("."):
        if not isinstance(chosen, Mapping) or word not in chosen:
            raise UserError(f"the file has no {key!r}; it has {_list_names(chosen)}")
        chosen = chosen[word]
    # Programs put versions and step counters among the weights.
    counts = (int, float, bool, str, type(None))
    found = {name: one for name, one in by_name(chosen) if type(one) not in counts and not is_stream(name, one)}
    places = {name: value for name, value in found.items() if isinstance(value, TensorPlace)}
    if other := [name for name in found if name not in places]:
        raise DataError(f"{other[0]!r} among the weights is not a tensor but a {type(found[other[0]]).__name__}")
    if not places:
        raise UserError("there are no tensors there; --key NAME says where in the file the weights are")
    return places


def by_name(content: object) -> Iterator[tuple[str, object]]:
    """(dotted name, value) of everything that is no container."""
    seen = set[str]()
    for name, value in walk(content):
        if name in seen:
            raise DataError(f"two things in the file are called {name[:200]!r}")
        seen.add(name)
        yield name, value


def is_stream(name: str, value: object) -> bool:
    """Whether it is what Transformer Engine keeps beside its weights as bytes, how numbers of 8 bits are scaled; or the
    None that it keeps where there is nothing to scale.
    """
    return isinstance(value, Opaque | bytes) or (value is None and name.endswith("_extra_state"))


def _list_names(content: object) -> str:
    names = [str(name)[:60] for name in content] if isinstance(content, Mapping) else [type(content).__name__]
    return ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")


def walk(
    content: object, path: str = "", depth: int = 0, count: list[int] | None = None
) -> Iterator[tuple[str, object]]:  # fmt: skip
    """(dotted name, value) of everything that is no container; `count` is of what was passed."""
    count = [0] if count is None else count
    count[0] += 1
    if depth > _MAX_DEPTH or count[0] > _MAX_NODES:
        raise DataError(f"what the file holds at {path[:80]!r} is nested without end")
    if isinstance(content, Mapping):
        for key, value in content.items():
            yield from walk(value, f"{path}.{key}" if path else str(key), depth + 1, count)
    elif isinstance(content, list | tuple):
        for index, value in enumerate(content):
            yield from walk(value, f"{path}.{index}", depth + 1, count)
    else:
        yield path, content
