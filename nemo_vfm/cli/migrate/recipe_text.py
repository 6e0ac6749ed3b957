"""Writes a migrated recipe as text, each value with the key it came from, and the account of all keys as tables."""

import json
import math
import textwrap
from collections.abc import Iterator, Sequence

from nemo_vfm.cli.migrate import MigratedKey, Migration
from nemo_vfm.cli.migrate.draft import UNKNOWN, RecipeDraft
from nemo_vfm.cli.migrate.foreign_yaml import Value
from nemo_vfm.cli.migrate.lightning_cli import trust_words
from nemo_vfm.config.emit import text_of
from nemo_vfm.parallel.plan.plan import AXES

_MOST = 20  # keys that are told of one reason
_ORDER = ("_target_", "base", "start_from", "weights", "module", "data", "task", "model", "parallel", "optimizer",
          "lr_scheduler", "schedule", "engine", "precision", "loop", "trainer", "accelerator", "devices", "num_nodes",
          "strategy", "callbacks", "loggers", "seed", "initial_seed")  # fmt: skip
_SHOWN = 60  # characters of a value in a comment
_HEAD = """\
# {what}: {source}, migrated from {form}'s format.
# Hardware: {hardware}. Time: to be measured. Expected: to be measured.
#   nemo-vfm run {place}{gaps}
# Carried over: {carried} values. Changed: {changed}, not carried over: {left}; both stand below with their reasons.
{differences}"""
_WHAT = {"diffusion": "A diffusion transformer", "language": "A language model", "lightning": "A Lightning training"}


def recipe_text(migrated: Migration, source: str, place: str) -> str:
    """The file to write; `place` is what the user types to run it."""
    draft = migrated.draft
    counts = {verdict: len(migrated.of(verdict)) for verdict in ("carried", "changed", "left")}
    gaps = trust_words(draft)
    gaps += "".join(f" {shown_line(address)}=..." for address, value in draft.values.items() if value == "???")
    head = _HEAD.format(
        what=_WHAT[draft.kind],
        source=comment_text(source),
        form=migrated.form.title,
        place=place,
        gaps=gaps,
        hardware=_hardware(draft),
        differences="".join(f"# Differs from the original: {shown_line(one)}.\n" for one in draft.differences),
        **counts,
    )
    defaults = "".join(f"  - {{{slot}: {choice}}}\n" for slot, choice in sorted(draft.choices.items(), key=_rank))
    defaults = f"defaults:\n{defaults}" if defaults else ""
    root: dict[str, object] = {"_target_": "nemo_vfm.train.job.Train"}
    for address, value in sorted(migrated.draft.values.items(), key=_rank):
        *above, last = address.split(".")
        node = root
        for part in above:
            below = node.setdefault(part, {})
            assert isinstance(below, dict)
            node = below
        node[last] = value
    lines = list(_lines(root, migrated, "", 0))
    width = min(max(len(line) for line, comment in lines if comment), 60)
    body = "\n".join([f"{line:<{width}}  # {comment}" if comment else line for line, comment in lines])
    return f"{head}{defaults}{body}\n{_account(migrated)}"


def _hardware(draft: RecipeDraft) -> str:
    if draft.kind == "lightning":
        devices = draft.values.get("devices", 1)
        nodes = draft.values.get("num_nodes", 1)
        machines = "" if nodes == 1 else f" of each of {nodes} machines"
        if devices in ("auto", -1):
            return f"all devices{machines}"
        count = len(devices) if isinstance(devices, tuple) else devices
        return f"one device{machines}" if count == 1 else f"{count} devices{machines}"
    degrees = [draft.values.get(f"parallel.{axis}") or 1 for axis in AXES]
    world = math.prod(degree for degree in degrees if isinstance(degree, int))
    return "one device" if world == 1 else f"{world} devices, as set in parallel"


def shown_line(text: str) -> str:
    """A sentence that may hold a name of the file, on one line."""
    return text if text.isprintable() else json.dumps(text)


def comment_text(value: Value, path: str = "") -> str:
    """A text as it may stand in a comment: on one line, and cut."""
    if isinstance(value, tuple):
        text = f"[{', '.join(comment_text(part) for part in value)}]"
    elif isinstance(value, str):
        text = value if value.isprintable() and value else json.dumps(value)
    else:
        text = json.dumps(value)
    if len(text) <= _SHOWN:
        return text
    # Of a class's name the end says most, of anything else the beginning.
    return f"...{text[3 - _SHOWN :]}" if path.endswith("_target_") else f"{text[: _SHOWN - 3]}..."


def _rank(item: tuple[str, Value]) -> tuple[int, str, bool]:
    top, _, rest = item[0].partition(".")
    place = _ORDER.index(top) if top in _ORDER else len(_ORDER)
    return place, rest.rpartition(".")[0], not item[0].endswith("_target_")


def _lines(node: dict[str, object], migrated: Migration, path: str, depth: int) -> Iterator[tuple[str, str]]:
    for key, value in node.items():
        address, indent = f"{path}.{key}" if path else key, "  " * depth
        if isinstance(value, dict) and list(value) == [str(number) for number in range(len(value))]:
            yield f"{indent}{text_of(key)}: {_flow(value)}", ""  # a list of mappings
        elif isinstance(value, dict):
            yield f"{indent}{text_of(key)}:", ""
            yield from _lines(value, migrated, address, depth + 1)
        else:
            # Where it came from, or why it stands there.
            fact = migrated.draft.origins.get(address)
            paths = [one.key.path for one in migrated.entries if fact and migrated.form.fact(one.key.path) == fact]
            comment = filter(None, [*map(comment_text, paths[:1]), migrated.draft.notes.get(address, "")])
            yield f"{indent}{text_of(key)}: {_flow(value, in_list=False)}", "; ".join(comment)


def _flow(value: object, *, in_list: bool = True) -> str:
    """A value on one line; a mapping whose keys count from 0 is a list."""
    if isinstance(value, dict) and list(value) == [str(number) for number in range(len(value))]:
        value = tuple(value.values())
    if isinstance(value, tuple):
        return f"[{', '.join(map(_flow, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{text_of(key, in_list=True)}: {_flow(below)}' for key, below in value.items())}}}"
    if isinstance(value, float):
        return f"{value!r}"
    assert value is None or isinstance(value, bool | int | str)
    return text_of(value, in_list=in_list)


def _account(migrated: Migration) -> str:
    """What was changed and what was not carried over, as comments; the original's values are not lost with it."""
    changed = [
        f"#   {entry.key.line}: {_sentence(entry, ' = ')} -> {shown_line(entry.fate.where)}: {entry.fate.why}"
        for entry in migrated.of("changed")
    ]
    left = [
        line
        for why, entries in by_reason(migrated.of("left")).items()
        for line in (f"#   {why}", *(f"#     {entry.key.line}: {_sentence(entry, ' = ')}" for entry in entries))
    ]
    blocks = (("Changed", changed), ("Not carried over", left))
    return "".join(
        f"\n# {title} (line of the original: key = value):\n" + "".join(f"{line}\n" for line in lines)
        for title, lines in blocks
        if lines
    )


def by_reason(entries: Sequence[MigratedKey]) -> dict[str, list[MigratedKey]]:
    """Keys that stayed behind for the same reason, together."""
    groups: dict[str, list[MigratedKey]] = {}
    for entry in entries:
        groups.setdefault(entry.fate.why, []).append(entry)
    return groups


def account(migrated: Migration, width: int) -> Iterator[tuple[str, str]]:
    """(line, style) of what differs, then of all three tables; an empty style is plain."""
    if migrated.draft.differences:
        yield "", ""
        yield "Differs from the original", "bold"
        for one in migrated.draft.differences:
            yield from _wrap(shown_line(one), 2, width)
    carried, changed, left = (migrated.of(verdict) for verdict in ("carried", "changed", "left"))
    yield from _head("Carried over", carried)
    sentences = [_sentence(entry) for entry in carried]
    column = min(max(map(len, sentences), default=0), 70)
    for sentence, entry in zip(sentences, carried, strict=True):
        yield f"  {sentence:<{column}}  ->  {shown_line(entry.fate.where)}", ""
    yield from _head("Changed", changed)
    for entry in changed:
        yield f"  {_sentence(entry)}  ->  {shown_line(entry.fate.where)}", ""
        yield from _wrap(entry.fate.why, 6, width)
    yield from _head("Not carried over", left)
    for why, entries in by_reason(left).items():
        yield from _wrap(why, 2, width)
        most = len(entries) if why == UNKNOWN else _MOST
        more = [f"and {len(entries) - most} more, named in the recipe"] * (len(entries) > most)
        # A key and its value stay on one line: the blank between them is no place to break.
        together = ", ".join(_sentence(entry).replace(" ", "\u00a0") for entry in entries[:most])
        together = ", ".join([together, *more])
        yield from ((line.replace("\u00a0", " "), style) for line, style in _wrap(together, 6, width))


def _head(title: str, entries: Sequence[MigratedKey]) -> Iterator[tuple[str, str]]:
    if entries:
        yield "", ""
        yield f"{title} ({len(entries)})", "bold"


def _sentence(entry: MigratedKey, sign: str = ": ") -> str:
    value = "(not shown)" if entry.key.secret else comment_text(entry.key.value, entry.key.path)
    return f"{comment_text(entry.key.path)}{sign}{value}"


def _wrap(text: str, indent: int, width: int) -> Iterator[tuple[str, str]]:
    lines = textwrap.wrap(text, max(width, 40) - indent, break_long_words=False, break_on_hyphens=False)
    yield from ((" " * indent + line, "") for line in lines)
