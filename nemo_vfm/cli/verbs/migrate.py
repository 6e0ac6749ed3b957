"""Make a recipe from YAML of NeMo 1 or 2, DFM, AutoModel or LightningCLI, and list what is left behind, and why.

Nothing that the file names is imported, and no key is dropped in silence: each is carried over, changed or not carried
over, with the reason, here and as a comment in the recipe (docs/how-to/clusters/migrating.md).
"""

import argparse
import sys
from pathlib import Path

_FORMATS = ("automodel", "dfm", "nemo2", "nemo1", "lightning-cli")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The file, the recipe's place, and the format where it is not recognised."""
    parser.add_argument("file", metavar="FILE", type=Path, help="a YAML file from one of these frameworks")
    parser.add_argument("-o", "--out", metavar="OUT", type=Path, help="recipe to write (default: recipes/<name>.yaml)")
    parser.add_argument("--kind", choices=("diffusion", "language"), help="kind of model, if it cannot be detected")
    parser.add_argument("--from", dest="form", choices=_FORMATS, default="", help="format, if it cannot be detected")


def run(arguments: argparse.Namespace) -> int:
    """Write the recipe, tell every key's fate, and check what was written."""
    from nemo_vfm.cli.copy_recipe import write
    from nemo_vfm.cli.migrate import migrate
    from nemo_vfm.cli.migrate.foreign_yaml import MAX_BYTES
    from nemo_vfm.cli.migrate.lightning_cli import trust_words
    from nemo_vfm.cli.migrate.recipe_text import account, recipe_text
    from nemo_vfm.config.recipe_errors import shown_path
    from nemo_vfm.core.errors import UserError
    from nemo_vfm.core.storage.files import open_regular
    from nemo_vfm.runtime.terminal import WIDEST, Terminal

    out = arguments.out or Path("recipes") / f"{arguments.file.stem}.yaml"
    try:
        with open_regular(arguments.file) as data:
            text = data.read(MAX_BYTES + 1).decode("utf-8-sig")
    except OSError as error:
        raise UserError(f"cannot read {arguments.file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{arguments.file} is not UTF-8 text: byte {error.start} is not") from error
    migrated = migrate(text, str(arguments.file), arguments.form, arguments.kind)
    write({out: recipe_text(migrated, arguments.file.name, shown_path(str(out)))})
    paper = Terminal()
    paper.line(f"{arguments.file} is in {migrated.form.title}'s format; {out} is the recipe.")
    for line, style in account(migrated, min(paper.width, WIDEST)):
        paper.line(line, style)
    paper.line()
    return _check(out, trust_words(migrated.draft), another=bool(migrated.draft.differences))


def _check(out: Path, trust: str, *, another: bool) -> int:
    """What `nemo-vfm check` says of it: values for the user to give are fine, and so are classes for the user to trust;
    other problems would be ours."""
    from nemo_vfm.config import RecipeError, build, check, compose

    composed = compose(out)
    problems = check(composed)
    if not problems:
        build(composed)  # constructors look at their numbers, and object
    missing = [problem.path for problem in problems if problem.kind == "missing"]
    errors = [one for one in problems if one.kind != "missing" and not (trust and " is not trusted" in one.message)]
    if errors:
        sys.stdout.write(f"{RecipeError(errors)}\n{out}: the migrated recipe is not valid yet; correct it there\n")
        return 2
    gaps = f" {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} yours to give." if missing else ""
    said = "passes the check" + (", but trains something else, as its header says" if another else "")
    sys.stdout.write(f"{out} {said}.{gaps}\n")
    if trust:
        sys.stdout.write(f"It names classes that run their own code. If you trust them: nemo-vfm check {out}{trust}\n")
    return 0
