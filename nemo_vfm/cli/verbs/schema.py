"""Write the JSON Schema of recipes, so that an editor completes and checks them while you type.

It is JSON Schema, draft 2020-12: components, arguments, choices and our docstrings. `check` is authoritative
(docs/how-to/recipes.md).

Examples:
  nemo-vfm schema --out .recipes.json                    # of recipes
  nemo-vfm schema --slot model --out .model.json         # of the ingredients conf/model/*.yaml
  nemo-vfm schema --trust my_package                     # with your own classes that recipes and ingredients name
"""

import argparse
import json
import sys
from pathlib import Path

from nemo_vfm.cli.arguments import add_conf, add_trust
from nemo_vfm.cli.without_gc import without_collection


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where it goes, and what it is of."""
    parser.add_argument("--out", metavar="FILE", type=Path, help="write to this file instead of standard output")
    parser.add_argument(
        "--slot", metavar="SLOT", help="print the schema of the ingredients in conf/SLOT/*.yaml instead of recipes"
    )
    add_conf(parser)
    add_trust(parser, "your recipes may name")


@without_collection()
def run(arguments: argparse.Namespace) -> int:
    """Look at every component, and write."""
    from nemo_vfm.cli.catalogue.components import catalogue, slots_of
    from nemo_vfm.cli.catalogue.json_schema import Schemas
    from nemo_vfm.config import Roots, trust_list
    from nemo_vfm.core.errors import UserError
    from nemo_vfm.core.storage.files import write_text

    roots = Roots.standard(arguments.conf)
    choices = {slot: roots.choices(slot) for slot in slots_of(roots)}
    if arguments.slot is not None and arguments.slot not in choices:
        raise UserError(f"there is no slot {arguments.slot}; ingredients exist for {', '.join(sorted(choices))}")
    found = catalogue(roots, trust_list(arguments.trust))
    for reason in found.left_out.values():
        sys.stderr.write(f"left out: {reason}\n")
    schemas = Schemas(found, choices)
    schema = schemas.ingredient(arguments.slot) if arguments.slot else schemas.recipe()
    text = json.dumps(schema, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    if arguments.out is None:
        sys.stdout.write(text)
    else:
        write_text(arguments.out, text)
        sys.stderr.write(f"{arguments.out}: {len(found.all_components())} components\n")
    return 0
