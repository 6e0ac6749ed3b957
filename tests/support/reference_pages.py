"""Writes the pages of docs/reference/ on commands and components: `python -m tests.support.reference_pages`."""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from launcher.cli import PROGRAM as LAUNCHER
from nemo_vfm.cli.catalogue.components import Catalogue, catalogue
from nemo_vfm.cli.catalogue.constructor_arguments import ArgumentInfo, describe, summary
from nemo_vfm.cli.catalogue.explain_component import kind_name, num_given
from nemo_vfm.cli.main import PROGRAM
from nemo_vfm.cli.verbs.explain import default_words
from nemo_vfm.config import DEFAULT_TRUST, Roots
from nemo_vfm.core.program import Program
from tests.support.repository import ROOT

FOLDER = ROOT / "docs/reference"
COMMANDS = {"commands.md": PROGRAM, "launch-commands.md": LAUNCHER}
#: Of a default that is shown.
LONGEST = 60
UPDATE = "python -m tests.support.reference_pages"


def commands_page(program: Program) -> str:
    """Every verb of a program: what it does, its arguments and examples."""
    introduction = [
        f"# {program.name}",
        program.about,
        f"This page is generated from `{program.name} VERB --help`. To update it, edit the help and run `{UPDATE}`.",
        program.exits.replace("exit status:", "Exit status:").replace("\n", " ") + ".",
    ]
    return "\n\n".join([*introduction, *(_verb(program, verb) for verb in program.verbs())]) + "\n"


def _verb(program: Program, verb: str) -> str:
    parser = program.verb_parser(verb)
    shown = [one for one in parser._actions if one.dest != "help"]
    examples = (parser.epilog or "").removesuffix(program.exits).removeprefix("examples:\n").strip("\n")
    parts = [
        f"## {verb}",
        _marked_up(parser.description or ""),
        f"```text\n{_usage(parser.prog, shown)}\n```",
        "\n".join(["| argument | meaning |", "|---|---|", *(_row(parser, one) for one in shown)]),
        f"```bash\n{re.sub('^  ', '', examples, flags=re.MULTILINE)}\n```" if examples else "",
    ]
    return "\n\n".join(filter(None, parts))


def _usage(prog: str, actions: Sequence[argparse.Action]) -> str:
    """Options that may be left out are in the table."""
    options = [one for one in actions if one.option_strings]
    needed = [f"{one.option_strings[0]} {_metavar(one)}" for one in options if one.required]
    free = ["[OPTION ...]"] if len(options) > len(needed) else []
    return " ".join([prog, *needed, *free, *(_word(one) for one in actions if not one.option_strings)])


def _word(action: argparse.Action) -> str:
    name = _metavar(action)
    optional = {"?": f"[{name}]", "*": f"[{name} ...]", "+": name if " " in name else f"{name} [{name} ...]"}
    return optional.get(str(action.nargs), name)


def _metavar(action: argparse.Action) -> str:
    if action.metavar is None and action.choices is not None:
        return "{" + ",".join(map(str, action.choices)) + "}"
    return str(action.metavar or action.dest)


def _row(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    names = ", ".join(action.option_strings)
    value = "" if action.nargs == 0 else _metavar(action)
    more = " ..." if names and action.nargs == "+" else ""
    text = _marked_up(parser._get_formatter()._expand_help(action)).replace("|", "\\|")
    return f"| `{f'{names} {value}'.strip()}{more}` | {text} |"


def _marked_up(text: str) -> str:
    """Plain text as Markdown: pages of docs/ are links; GitHub would read `<name>` as a tag and `*` as emphasis."""
    parts = (
        one if one.startswith("`") else re.sub(r"([<*])", r"\\\1", one) for one in re.split("(`[^`]*`)", text.strip())
    )
    return re.sub(r"\bdocs/([\w./-]+\.md)", r"[docs/\1](../\1)", "".join(parts))


def components_page() -> str:
    """Every component of ours below the kinds that slots ask for, with the names and defaults of its arguments."""
    found = catalogue(Roots.standard(), DEFAULT_TRUST)
    introduction = (
        "# Components\n\nWhat each slot of a recipe takes, and the arguments of each component with their defaults.\n"
        "**Bold** ones are required, and what a job gives is left out. `nemo-vfm explain DiT` says more: types,\n"
        "units, ingredients, YAML to paste ([looking inside](../how-to/explain.md)). This page is generated from\n"
        f"constructors and docstrings; to update it, run `{UPDATE}`.\n"
    )
    return "\n".join([introduction, *(text for kind in found.kinds() if (text := _kind(found, kind)))])


def _kind(found: Catalogue, kind: object) -> str:
    names = [name for name in found.components_for(kind) if name.startswith("nemo_vfm.")]
    slots = dict.fromkeys(
        f"`{slot.name}` of `{slot.owner}`" if slot.owner else "the root of a recipe"
        for slot in found.slots
        if slot.kind == kind
    )
    rows = [_component(found, name) for name in sorted(names)]
    head = (
        f"## {kind_name(kind)}\n\n{', '.join(sorted(slots))}\n\n| component | what it does | arguments |\n|---|---|---|"
    )
    return "\n".join([head, *rows, ""]) if rows else ""


def _component(found: Catalogue, name: str) -> str:
    target = found.known[name]
    arguments = ", ".join(_argument(one) for one in describe(target, num_given(found, name)) if not one.given)
    module, _, short = name.rpartition(".")
    about = _marked_up(" ".join(summary(target).split())).replace("|", "\\|")
    return f"| `{short}`<br>{module.removeprefix('nemo_vfm.')} | {about} | {arguments} |"


def _argument(argument: ArgumentInfo) -> str:
    if argument.required:
        return f"**`{argument.name}`**"
    value = default_words(argument).removeprefix("default ").replace("|", "\\|").replace("`", "'")
    return f"`{argument.name}: {value if len(value) <= LONGEST else value[:LONGEST] + '...'}`"


def main(folder: Path) -> None:
    for name, program in COMMANDS.items():
        (folder / name).write_text(commands_page(program), encoding="utf-8")
    (folder / "components.md").write_text(components_page(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
