"""Reads from a config.json which blocks of a language model have a sliding window, and writes it.

What transformers does not read is refused where it says otherwise: its cache of keys and values reads it all the same.
"""

from collections.abc import Iterator, Mapping

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.models.blocks.text.sliding_window import SlidingWindow
from nemo_vfm.models.blocks.text_rope import TextRope
from nemo_vfm.models.convert.language.gpt_families import Family
from nemo_vfm.models.convert.language.gpt_keys import flag, same, shown, whole
from nemo_vfm.models.gpt import GPT

_TYPES = ("full_attention", "sliding_attention")
_MOST = 1 << 40


def window_of(
    config: Mapping[str, Json], family: Family, depth: int, near: TextRope | None
) -> SlidingWindow | None:  # fmt: skip
    """What GPT is to be built with.

    Args:
        config: config.json.
        family: whose.
        depth: number of blocks.
        near: rotary positions of blocks with a window; None for those of the others.

    Raises:
        DataError: it is said in two ways, or is no window.
    """
    told = {"sliding_window": family.window_tokens, **config}
    is_on = told["sliding_window"] is not None
    if "switched" in family.window:
        is_on &= flag(config, "use_sliding_window", False)
    layers = _usual_layers(config, family, depth) if is_on or family.window == "by layer" else []
    if (types := config.get("layer_types")) is not None:
        is_free = family.window == "by layer" or (family.window == "switched by layer" and is_on)
        layers = _told_layers(types, None if is_free else layers, family, depth)
    if not is_on and not layers:
        return None
    tokens = whole(told, "sliding_window", _MOST)
    if family.window == "never":
        raise DataError(f"config.json of a {family.architecture} says sliding_window: {tokens}, and transformers has "
                        f"no such window there; set it to null")  # fmt: skip
    return SlidingWindow(tokens, None if len(layers) == depth else tuple(layers), near) if layers else None


def _usual_layers(config: Mapping[str, Json], family: Family, depth: int) -> list[int]:
    """Blocks with a window where `layer_types` is missing."""
    if family.window == "by layer":
        every = whole({"sliding_window_pattern": 6, **config}, "sliding_window_pattern", _MOST)
        return [layer for layer in range(depth) if (layer + 1) % every]
    if family.window == "switched by layer":
        first = config.get("max_window_layers", 28)
        first = 0 if same(first, 0) else whole({"max_window_layers": first}, "max_window_layers", _MOST)
        return list(range(first, depth))
    return list(range(depth))


def _told_layers(types: Json, usual: list[int] | None, family: Family, depth: int) -> list[int]:
    if not isinstance(types, list) or len(types) != depth or not all(one in _TYPES for one in types):
        raise DataError(f"config.json says layer_types: {shown(types)}; it must say {' or '.join(_TYPES)} of each of "
                        f"{depth} layers")  # fmt: skip
    layers = [layer for layer, one in enumerate(types) if one == _TYPES[1]]
    if usual is not None and layers != usual:
        raise DataError(f"config.json of a {family.architecture} says layer_types: {shown(types)}, and sliding_window "
                        f"is for {len(usual)} of {depth} layers; leave out the wrong one")  # fmt: skip
    return layers


def window_told(model: GPT, family: Family) -> dict[str, Json]:
    """The keys of config.json."""
    if family.window == "never":
        return {}
    window = model.window
    layers = [layer for layer, tokens in enumerate(model.windows) if tokens]
    types: Json = [_TYPES[bool(tokens)] for tokens in model.windows]
    if family.window == "by layer":
        return {"sliding_window": family.window_tokens if window is None else window.tokens, "layer_types": types}
    if window is None:
        return {"sliding_window": None}
    told: dict[str, Json] = {"sliding_window": window.tokens}
    if "switched" in family.window:
        told["use_sliding_window"] = True
    if family.window == "switched by layer":
        told |= {"max_window_layers": layers[0], "layer_types": types}
    return told


def window_unsayable(model: GPT, family: Family) -> Iterator[str]:
    """What of a model's window a family has no words for."""
    if model.window is None:
        return
    if family.window == "never" or (family.window in ("always", "switched") and None in model.windows):
        yield "window" if family.window == "never" else "window.layers"
    if model.window.rope is not None and not family.two_thetas:
        yield "window.rope"
