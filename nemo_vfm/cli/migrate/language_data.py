"""Writes where a language model's tokens come from: sources with their weights, length, split and tokenizer."""

import re
from itertools import count
from pathlib import PurePosixPath

from nemo_vfm.cli.migrate.draft import RecipeDraft

_TOKENIZED = "a folder that recipes/llm/tokenize.yaml wrote has to be there; their .bin and .idx are not read"
#: Data of which every token is learned; those of all other classes have answers.
_PLAIN_TEXT = re.compile(r"pre_?train|nanogpt|mock|megatron|plain_?text|gpt_dataset|diffusion", re.IGNORECASE)
_SOURCE = "nemo_vfm.data.tokens.token_data.TokenSource"


def language_data(draft: RecipeDraft) -> None:
    """The facts of the data."""
    draft.put("data._target_", "nemo_vfm.data.tokens.token_data.TokenData")
    named = draft.get("dataset_class")
    has_answers = draft.get("answer_files") is not None or (isinstance(named, str) and not _PLAIN_TEXT.search(named))
    if has_answers:
        draft.differ("their data are chats, or questions with answers, of which the answers alone are learned; there "
                     "is no training on chats here, and all tokens of folders are learned")  # fmt: skip
    draft.leave("dataset_class", "data are folders of tokens, which recipes/llm/tokenize.yaml writes")
    _sources(draft, has_answers)
    for fact, key in (("seq_length", "sequence_length"), ("batch_size", "batch_size")):
        if draft.integer(fact):
            draft.carry(fact, f"data.{key}", draft.integer(fact))
        else:
            draft.put(f"data.{key}", "???", "tokens of a row" if fact == "seq_length" else "rows, over all devices")
            draft.leave(fact, f"the original gives no number, so you must set it: data.{key}")
    apart = draft.get("reset_mask") is True
    draft.put("data.packing", "documents" if apart else "stream")
    if isinstance(draft.get("reset_mask"), bool):
        why = "whole documents, none of which attends to another" if apart else "documents one after another"
        draft.agree("reset_mask", "data.packing", why)
    else:
        draft.leave("reset_mask", "documents are concatenated by default")
    # `900,50,50`: the second part is held out; a third one would be held out, too, and is trained on here.
    given = draft.get("splits")
    parts = [_number(part) for part in str(given).split(",")] if isinstance(given, str) else []
    whole = [part for part in parts if part is not None]
    if len(parts) == len(whole) and len(whole) in (2, 3) and 0 < whole[1] < sum(whole):
        share = float(f"{whole[1] / sum(whole):.6g}")
        draft.change("splits", "data.val_fraction", share, "the second part is held out; there is no third")
    else:
        if draft.number("val_every"):
            draft.put("data.val_fraction", 0.001, "held out for validation")
        draft.leave("splits", "the held-out part is a share of the documents: data.val_fraction")
    _tokenizer(draft)
    workers = draft.get("num_workers")
    if isinstance(workers, int) and not isinstance(workers, bool) and workers >= 0:
        draft.change("num_workers", "data.num_workers", workers, "threads that read ahead instead of processes")
    else:
        draft.leave("num_workers", "it is not a number, so tokens are read when they are asked for")
    draft.carry_or_leave("shuffle", "data.shuffle", draft.flag("shuffle"), "rows are shuffled unless this is false")
    draft.leave("micro_batch", "parallel.microbatches splits a batch once its sizes are known")


def _sources(draft: RecipeDraft, has_answers: bool) -> None:
    value = draft.get("data_path")
    parts = list(value) if isinstance(value, tuple) else [value]
    paths = [part for part in parts if is_path(part)]
    weights: list[float | None] = [_weight(part) for part in parts if not is_path(part)]
    if has_answers or (weights and (len(weights) != len(paths) or None in weights or parts[1::2] != paths)):
        paths, weights = [], []  # weights stand before paths, or nowhere
    pairs: dict[str, tuple[str, float | None]] = {}
    for source, weight in zip(paths, weights or [None] * len(paths), strict=True):
        stem = re.sub(r"\W+", "_", PurePosixPath(str(source)).name, flags=re.ASCII).strip("_").lower()
        stem = (stem if re.match(r"[a-z]", stem) else f"source_{stem}".rstrip("_"))[:80]
        names = (stem if number == 1 else f"{stem}_{number}" for number in count(1))
        pairs[next(name for name in names if name not in pairs)] = (str(source), weight)
    for name, (path, weight) in pairs.items():
        draft.put(f"data.sources.{name}._target_", _SOURCE)
        draft.put(f"data.sources.{name}.folder", path, _TOKENIZED)
        if weight is not None:
            draft.put(f"data.sources.{name}.weight", weight)
    if pairs:
        draft.origins[f"data.sources.{next(iter(pairs))}.folder"] = "data_path"
        draft.agree("data_path", "data.sources", _TOKENIZED)
    else:
        draft.put("data.sources.text._target_", _SOURCE)
        draft.put("data.sources.text.folder", "???", _TOKENIZED)
        draft.leave("data_path", f"a folder of tokens is yours to give, data.sources.text.folder=DIR: {_TOKENIZED}")


def is_path(part: object) -> bool:
    """A path that may stand in a recipe: neither a reference, an address nor a gap."""
    if not isinstance(part, str) or _weight(part) is not None:
        return False
    return part.isprintable() and part.strip() == part != "???" and not re.search(r"\$\{|://|^~|^$", part)


def _weight(part: object) -> float | None:
    try:
        found = float(part) if isinstance(part, int | float | str) and not isinstance(part, bool) else 0.0
    except ValueError:
        return None
    return found if 0 < found < float("inf") else None


def _number(text: str) -> float | None:
    try:
        return abs(float(text)) if float(text) < float("inf") else None
    except ValueError:
        return None


def _tokenizer(draft: RecipeDraft) -> None:
    """A folder on this machine, or a file in one; a name on a hub is neither."""
    given = draft.get("tokenizer")
    if not is_path(given) or not str(given).startswith(("/", "./", "../")):
        draft.leave("tokenizer", "a tokenizer is a local folder: data.tokenizer={_target_: "
                    "nemo_vfm.data.tokenizers.folder_tokenizer.FolderTokenizer, folder: DIR}")  # fmt: skip
        return
    path = PurePosixPath(str(given))
    folder = str(path.parent if path.suffix in (".model", ".json") else path)
    draft.put("data.tokenizer._target_", "nemo_vfm.data.tokenizers.folder_tokenizer.FolderTokenizer")
    draft.change("tokenizer", "data.tokenizer.folder", folder, "the folder that holds its files")
