"""Writes a pretrained model's folder as `base`, and low-rank adapters of the same linears as there."""

import re
from collections.abc import Mapping
from pathlib import Path

from torch import nn

from nemo_vfm.cli.migrate.draft import RecipeDraft
from nemo_vfm.cli.migrate.foreign_yaml import Value
from nemo_vfm.cli.migrate.language_data import is_path
from nemo_vfm.models.adapters.low_rank import WHOLE
from nemo_vfm.models.adapters.low_rank_adapter import projections_of
from nemo_vfm.models.hub.hub_names import hub_address

_ADAPTER = "nemo_vfm.models.adapters.low_rank_adapter"
_BLOCK = re.compile(r"\b(blocks|layers)\.0\.")
FACTS = ("lora", "lora_rank", "lora_alpha", "lora_targets", "lora_excluded", "lora_all", "lora_dropout", "dora")
_DEFAULTS = {"lora_rank": 8, "lora_alpha": 32}  # of AutoModel's PeftConfig


def adapters(draft: RecipeDraft, model: nn.Module, theirs: Mapping[str, tuple[str, ...]]) -> None:
    """Adapters of the linears that the file chooses; nothing where it asks for none.

    `model` is one block of the model that is trained; `theirs`, the names of each of its linears' projections there.
    """
    if not has_adapters(draft):
        return
    chosen = _chosen_patterns(draft, theirs)
    if not chosen:
        draft.differ("none of the linears that it adapts is known here, so all weights are trained")
        for fact in FACTS:
            draft.leave(fact, "none of the linears that it names is known here")
        return
    if _patterns(draft, "lora_excluded") and _numbers(draft):
        draft.differ("single blocks get adapters here that they do not have in the original")
    draft.put("weights.adapters._target_", f"{_ADAPTER}.LowRankAdapter")
    draft.put("weights.adapters.method", "dora" if draft.get("dora") is True else "lora")
    sizes = {"lora_rank": ("rank", draft.integer("lora_rank")), "lora_alpha": ("alpha", draft.number("lora_alpha"))}
    for place, names in chosen.items():
        key = "_".join(part for part in re.split(r"\W+", place) if part not in ("", "blocks"))
        target = f"weights.adapters.targets.{key}"
        all_names, parts = theirs[_BLOCK.sub(r"\1.0.", _in_first(place))], projections_of(model, _in_first(place)).names
        draft.put(f"{target}._target_", f"{_ADAPTER}.AdapterTarget")
        draft.put(f"{target}.modules", place)
        for fact, (argument, value) in sizes.items():
            draft.put(f"{target}.{argument}", value or _DEFAULTS[fact])
        if len(all_names) > 1 and parts == (WHOLE,):
            called = ", ".join(name.rpartition(".")[2] for name in all_names)
            draft.differ(f"one adapter replaces those of {called}, which share one linear here")
        elif len(names) < len(all_names):
            own = tuple(part for part, name in zip(parts, all_names, strict=True) if name in names)
            draft.put(f"{target}.parts", own)
    for fact, (argument, value) in sizes.items():
        if value:
            draft.agree(fact, f"weights.adapters.targets.*.{argument}")
        else:
            draft.leave(fact, f"it is not a number above zero; the original's default, {_DEFAULTS[fact]}, is used")
    draft.agree("lora", "weights.adapters")
    for fact in ("lora_targets", "lora_excluded", "lora_all"):
        draft.agree(fact, "weights.adapters.targets.*.modules", "our names for these linears")
    if draft.get("lora_dropout") in (0, None):
        draft.agree("lora_dropout", "weights.adapters", "adapters have no dropout")
    else:
        draft.leave("lora_dropout", "adapters have no dropout")
        draft.differ("adapters have no dropout here")
    draft.agree("dora", "weights.adapters.method")


def has_adapters(draft: RecipeDraft) -> bool:
    """Whether the file has adapters."""
    return any(draft.get(fact) is not None for fact in FACTS)


def _chosen_patterns(draft: RecipeDraft, theirs: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Pattern of ours -> the names there, of block 0, that the file chooses."""
    found: dict[str, tuple[str, ...]] = {}
    excluded, targets = _patterns(draft, "lora_excluded"), _patterns(draft, "lora_targets") or ["*_proj"]
    for ours, names in theirs.items():
        for block in ("*", *_numbers(draft)):
            here = {name: _BLOCK.sub(rf"\1.{block}.", name) for name in names}
            fitting = [name for name in names if any(_fits(one, here[name]) for one in excluded or targets)]
            chosen = [name for name in names if (name in fitting) != bool(excluded)]  # an exclusion takes the others
            if draft.get("lora_all") is True:
                chosen = list(names)
            if chosen:
                found[_BLOCK.sub(rf"\1.{block}.", ours)] = tuple(chosen)
                if block == "*":
                    break
    return found


def _numbers(draft: RecipeDraft) -> list[str]:
    """Numbers of blocks that a pattern may name."""
    texts = " ".join([*_patterns(draft, "lora_targets"), *_patterns(draft, "lora_excluded")])
    return sorted(set(re.findall(r"\b(?:blocks|layers)\.(\d{1,4})\b", texts)), key=int)


def _patterns(draft: RecipeDraft, fact: str) -> list[str]:
    value = draft.get(fact)
    return [one for one in (value if isinstance(value, tuple) else (value,)) if isinstance(one, str) and one]


def _fits(pattern: str, name: str) -> bool:
    """`*` stands for anything; a name without it, for what ends with it."""
    wild = ".*".join(map(re.escape, pattern.split("*")))
    return re.fullmatch(wild if "*" in pattern else rf"(?:.*\.)?{wild}", name) is not None


def _in_first(place: str) -> str:
    """The name of a linear of the model of one block."""
    return re.sub(r"^blocks\.[^.]+\.", "blocks.0.", place)


def put_folder(draft: RecipeDraft, kind: str) -> None:
    """The fact `pretrained` as a folder; `kind` says in notes whose folder it has to be."""
    name = draft.get("pretrained")
    if not is_path(name):
        draft.put("base", "???", f"a folder {kind}")
        draft.leave("pretrained", f"it names no model, so you must set it: base=FOLDER, a folder {kind}")
    elif (here := download_folder(name)) is None:
        draft.carry("pretrained", "base", name)
    else:
        draft.change("pretrained", "base", here, f"where `nemo-vfm get hf://{name}` puts it")
        draft.notes["base"] = f"nemo-vfm get hf://{name}"


def download_folder(name: Value) -> str | None:
    """Where a model of a hub lies after `nemo-vfm get`; None for a path."""
    if not isinstance(name, str) or name.startswith((".", "/")) or Path(name).exists():
        return None
    try:
        return f"models/{hub_address(f'hf://{name}').name}"
    except ValueError:
        return None
