"""Makes the package name and the text of each file of a new project; it writes nothing.

The templates lie under `template/`; their suffix `.tmpl` keeps them from being taken for our code.
"""

import importlib.util
import keyword
import re
import sys
from pathlib import Path

from nemo_vfm.core.errors import UserError

_TEMPLATE = Path(__file__).parent / "template"
_NAME = "@package@"
_FOLDERS = ("conf", "recipes", "tests")  # of a project, beside its package


def package_name(folder: Path) -> str:
    """The name of the package in a project's folder: the folder's own, with _ for - and blanks."""
    name = re.sub(r"[-\s]", "_", folder.resolve().name)
    if not name.isascii() or not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
        raise UserError(f"{folder.resolve().name!r} cannot be the name of a package: "
                        "letters, digits and _, not beginning with a digit, such as my_project")  # fmt: skip
    taken = ""  # what is imported by this name today; a mere folder that lies in the way counts for nothing
    if name in _FOLDERS:
        taken = f"the project's own folder {name}"
    elif name in sys.stdlib_module_names:
        taken = f"Python's own module {name}"
    elif (found := importlib.util.find_spec(name)) is not None and found.origin is not None:  # imports nothing
        taken = f"the installed package {name}"
    if taken:
        raise UserError(f"{name} would shadow {taken}: give the project's folder another name, such as my_{name}")
    return name


def files_of(folder: Path, name: str) -> dict[Path, str]:
    """Path -> text of every file of a new project."""
    if folder.is_dir() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty: a project needs its own folder")
    found = sorted(_TEMPLATE.rglob("*.tmpl"))
    assert found, f"no templates in {_TEMPLATE}"
    texts = {}
    for path in found:
        first, *rest = path.relative_to(_TEMPLATE).with_suffix("").parts
        target = folder.joinpath(name if first == "package" else first, *rest)
        texts[target] = path.read_text(encoding="utf-8").replace(_NAME, name)
    return texts
