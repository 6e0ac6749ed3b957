"""Explain a component (what it does, its arguments, YAML ready to paste), shards, a clip, a row or a step.

For a clip: every score, what each rule says, and why it was kept or dropped. For a step: its samples, noise and losses.
Nothing in shards is unpacked or run (docs/how-to/explain.md).

Examples:
  nemo-vfm explain DiT                      # a class by its short name, or in full: torch.optim.AdamW
  nemo-vfm explain model=dit_s              # an ingredient: its class, with the file's values instead of the defaults
  nemo-vfm explain model                    # a slot: what fits it
  nemo-vfm explain                          # every component, by slot
  nemo-vfm explain runs/quickstart/curate/shards             # a folder of shards; also s3://bucket/films, or one .tar
  nemo-vfm explain FOLDER KEY --out sheet.png                # a sample, by its key or how that begins, and its frames
  nemo-vfm explain RUN 803c16e4                              # a clip, by its id
  nemo-vfm explain RUN film-02.mp4:80                        # the clip with frame 80 of that file, counted from 0
  nemo-vfm explain RUN film-02.mp4@6.5                       # the clip with the frame at 6.5 s
  nemo-vfm explain RUN film-02.mp4                           # a file: what became of it, and its clips
  nemo-vfm explain RUN@120                                   # step 120, counted from 1 as in metrics.jsonl
"""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_vfm.cli.arguments import add_allow_host, add_conf, add_trust
from nemo_vfm.cli.without_gc import without_collection
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.storage import uri
from nemo_vfm.runtime.terminal import Terminal

if TYPE_CHECKING:
    from nemo_vfm.cli.catalogue.components import Slot
    from nemo_vfm.cli.catalogue.constructor_arguments import ArgumentInfo
    from nemo_vfm.cli.catalogue.explain_component import Explanation


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to explain."""
    parser.add_argument("name", metavar="NAME", nargs="?",
                        help="DiT, nemo_vfm.models.dit.DiT, model=dit_s or model; a list if left out; or a folder of "
                             "shards, a .tar or s3://bucket/folder; or the run folder of a curation or of a synthesis; "
                             "or RUN@STEP, a step of a training")  # fmt: skip
    parser.add_argument("key", metavar="KEY", nargs="?",
                        help="for shards: one sample, by its key or a prefix of it; for a run: a clip, by its id, a "
                             "prefix of it, FILE:FRAME or FILE@SECONDS, or a file; or a row, by its id")  # fmt: skip
    parser.add_argument(
        "--out", metavar="FILE.png", type=Path, help="for shards and clips: write their thumbnails here"
    )
    parser.add_argument("--no-losses", action="store_true",
                        help="for a step: skip the per-sample losses, which need the model in memory")  # fmt: skip
    parser.add_argument("--yaml", action="store_true", help="print the YAML only")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    add_conf(parser)
    add_trust(parser, "may be explained")
    add_allow_host(parser)


@without_collection()
def run(arguments: argparse.Namespace) -> int:
    """Find out what the name is, look, and print."""
    if arguments.name is not None:
        folder, _, step = arguments.name.rpartition("@")
        is_step = arguments.key is None and step.isascii() and step.isdigit() and len(step) < 13
        if folder and is_step and Path(folder).is_dir():
            from nemo_vfm.explain.step_report import tell_of_step

            return tell_of_step(Path(folder), int(step), trust=arguments.trust, allow_host=arguments.allow_host,
                                as_json=arguments.json, losses=not arguments.no_losses)  # fmt: skip

        from nemo_vfm.explain.clip.curation_folder import names_run
        from nemo_vfm.explain.row_page import ROWS, tell_of_row

        if (Path(arguments.name) / ROWS).is_file():
            return tell_of_row(Path(arguments.name), arguments.key, as_json=arguments.json)
        if names_run(arguments.name, arguments.key) and not is_folder_of_shards(Path(arguments.name)):
            from nemo_vfm.explain.clip.write_report import explain_clip

            return explain_clip(Path(arguments.name), arguments.key, as_json=arguments.json, out=arguments.out)
        if (where := shards_named(arguments.name)) is not None:
            from nemo_vfm.explain.shards.browse_shards import browse

            return browse(where, arguments.key, as_json=arguments.json, out=arguments.out)
    return _component(arguments)


def _component(arguments: argparse.Namespace) -> int:
    """A component, an ingredient or a slot; the list of all where there is no name."""
    from nemo_vfm.cli.catalogue.components import catalogue
    from nemo_vfm.cli.catalogue.explain_component import explain, kind_name
    from nemo_vfm.config import Roots, trust_list

    if arguments.key is not None or arguments.out is not None:
        raise UserError(f"KEY and --out are for shards, and {arguments.name} is neither a folder of shards nor a .tar")
    roots, trust = Roots.standard(arguments.conf), trust_list(arguments.trust)
    if arguments.name is None:
        known = catalogue(roots, trust)
        listed = []
        for kind in known.kinds():
            slots = dict.fromkeys(slot.name or "root" for slot in known.slots if slot.kind == kind)
            listed.append({"kind": kind_name(kind), "slots": list(slots), "components": known.components_for(kind)})
        groups = [entry for entry in listed if entry["components"]]
        if arguments.json:
            _write_json(groups)
        else:
            paper = Terminal()
            for group in groups:
                paper.line(f"{', '.join(group['slots'])} ({group['kind']})", "bold")
                for name in group["components"]:
                    paper.line(f"  {name}")
            paper.line()
            paper.prose("`nemo-vfm explain NAME` explains one; the last part of the name is enough.")
        return 0
    found = explain(arguments.name, roots, trust)
    if arguments.json:
        _write_json(found.to_json())
    elif arguments.yaml:
        sys.stdout.write(found.yaml)
    else:
        _write(Terminal(), found)
    return 0


def shards_named(word: str) -> uri.Place | None:
    """A folder with shards.json or tars, a tar, several by braces, or an address in an object store."""
    try:
        where = uri.place(word)
    except ValueError as error:
        raise UserError(str(error)) from error
    if not isinstance(where, Path) or word.endswith(".tar"):
        return where
    if is_folder_of_shards(where):
        return where
    if where.is_dir() and (where / "shards" / "shards.json").is_file():
        raise UserError(f"{where} is not a folder of shards, {where / 'shards'} is")
    if len(where.parts) > 1 and where.parent.is_dir():
        there = "holds neither shards.json nor a .tar" if where.is_dir() else "does not exist"
        raise UserError(f"{where} {there}; give a folder of shards, a .tar, or an address such as s3://bucket/folder")
    return None


def is_folder_of_shards(where: Path) -> bool:
    """Whether there are shards directly in it."""
    return (where / "shards.json").is_file() or next(where.glob("*.tar"), None) is not None


def _write_json(value: object) -> None:
    sys.stdout.write(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def _write(paper: Terminal, found: "Explanation") -> None:
    paper.line(found.name, "bold")
    paper.prose(found.summary, 2)
    if found.fills and not found.places:
        paper.line()
        paper.prose(f"Slot: {'; '.join(dict.fromkeys(map(_slot, found.fills)))}", 2)
    told = {choice for place in found.places for choice in place.ingredients}
    for slot, choices in found.ingredients.items():
        if rest := [choice for choice in choices if choice not in told]:
            paper.prose(f"conf/{slot}: {', '.join(rest)}", 2)
    if found.makes:
        paper.prose(f"Makes in its run folder: {', '.join(found.makes)}", 2)
    for package in found.packages:
        paper.prose(f"Needs: {package}", 2)
    if found.install:
        paper.prose(f"Install: {found.install}", 2)
    for place in found.places:  # the `source` of a curation takes other components than a log's
        paper.line()
        paper.prose("; ".join(dict.fromkeys(map(_slot, place.slots))), 2)
        if place.ingredients:
            paper.prose(f"conf/{found.name}: {', '.join(place.ingredients)}", 2)
        for name in place.filled_by:
            paper.line(f"    {name}")
    if found.filled_by and not found.places:
        paper.line()
        for name in dict.fromkeys(found.filled_by):
            paper.line(f"  {name}")
    if found.arguments:
        paper.line("\nArguments", "bold")
        for argument in found.arguments:
            details = default_words(argument) if argument.given else f"{argument.words}, {default_words(argument)}"
            paper.line(f"  {argument.name}: {details}")
            if argument.text:
                paper.prose(argument.text, 6)
    if found.yaml:
        paper.line("\nReady to paste", "bold")
        sys.stdout.write(found.yaml)


def _slot(slot: "Slot") -> str:
    if not slot.owner:
        return "the root of a recipe"
    return f"{slot.name} of {slot.owner}, as a factory" if slot.later else f"{slot.name} of {slot.owner}"


def default_words(argument: "ArgumentInfo") -> str:
    """A default as the page says it."""
    from nemo_vfm.cli.catalogue.constructor_arguments import node_of
    from nemo_vfm.config.emit import text_of
    from nemo_vfm.config.tree import Map, Scalar, to_plain

    if argument.given:
        return "given by the job when it is made"
    if argument.required:
        return "required"
    node = node_of(argument.default)
    if isinstance(node, Map):
        return f"default {(node.target() or '{}').rpartition('.')[2]}"
    if node is None:
        return "has its own default"
    return f"default {text_of(node.value) if isinstance(node, Scalar) else to_plain(node)}"
