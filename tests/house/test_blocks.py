"""Tests that the YAML on pages is valid: recipes, parts of recipes, clusters, overlays and endpoints.

A block that is a part of a recipe names it in its first line: `# in recipes/llm/stories.yaml`, or `..., steps.train`
where its keys belong there. Another file's block begins with its path. YAML of other programs is fenced as text.
"""

import argparse
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from launcher.request.cluster_config import cluster_of
from launcher.request.request import add_arguments, parse_request
from nemo_vfm.config import check, compose, trust_list
from nemo_vfm.core.network.permission import NOTHING
from nemo_vfm.runtime.user_permissions import VARIABLE, permissions
from tests.house.test_adding import BLOCKS as ADDED
from tests.support.repository import ROOT, where

#: Pages that show mistakes, or what was written on a day.
OTHERS = ("docs/reference/mistakes.md", "docs/reference/messages.md", "docs/log.md", "docs/measurements/",
          "CHANGELOG.md")  # fmt: skip
#: What a few keys `in conf/cluster/NAME.yaml` are added to.
CLUSTER = "defaults: [{container: pyxis}]\n_target_: launcher.request.cluster.Slurm\n"
BLOCK = re.compile(r"^( *)```yaml\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
PART = re.compile(r"# in recipes/([\w/]+)\.yaml(?:, ([\w.]+))?(?:$|[;:] )", re.MULTILINE)
FILE = re.compile(r"# (?:in )?(?:~/\.config/nemo_vfm/)?((?:conf/\w+/)?[\w/]+)\.yaml\b")
#: What a recipe is refused for that a user has prepared, or that the page is about.
PREPARED = (
    "the endpoints file has no endpoint",
    "--allow-host",
    "--allow-write",
    "is not installed",
    "there is no module mine",
)


def shown() -> Iterator[tuple[str, str]]:
    """The place and the text of every block of YAML."""
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        if not where(page).startswith(OTHERS):
            text = page.read_text(encoding="utf-8")
            for match in BLOCK.finditer(text):
                yield f"{where(page)}:{text.count(chr(10), 0, match.start()) + 1}", textwrap.dedent(match[2])


def require_valid(block: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise what the reader of such a file says of it."""
    if part := PART.match(block):
        check_recipe(below(part[1], part[2], block), folder)
    elif (file := FILE.match(block)) and file[1].startswith("conf/cluster/"):
        text = f"{CLUSTER}{block}" if block.startswith("# in ") else block
        check_cluster(file[1].rpartition("/")[2], text, folder)
    elif file and file[1].startswith("conf/overlay/"):
        (folder / file[1]).parent.mkdir(parents=True)
        (folder / f"{file[1]}.yaml").write_text(block)
        compose("quickstart", [], [folder / "conf"], [file[1].split("/")[2]])
    elif file and file[1] == "endpoints":
        folder.chmod(0o700)
        (folder / "endpoints.yaml").write_text(block)
        monkeypatch.setenv(VARIABLE, str(folder / "endpoints.yaml"))
        found = permissions(())
        assert found.allowed and not found.trouble, found.trouble
    else:
        check_recipe(block, folder)


def below(recipe: str, path: str | None, block: str) -> str:
    """A recipe that builds on another one, with a block's keys at a path."""
    for key in reversed(path.split(".") if path else []):
        block = f"{key}:\n{textwrap.indent(block, '  ')}"
    return f"defaults: [recipe:{recipe}]\n{block}"


def check_recipe(text: str, folder: Path) -> None:
    """Compose it and check all of it; what it leaves to the user may be missing."""
    (folder / "block.yaml").write_text(text)
    trust = trust_list(["mine", "nemo", "lightning"])
    problems = check(compose(str(folder / "block.yaml"), trust=trust), trust, NOTHING)
    wrong = [one for one in problems if one.kind != "missing" and not any(words in one.message for words in PREPARED)]
    assert not wrong, "\n".join(map(str, wrong))


def check_cluster(name: str, text: str, folder: Path) -> None:
    """Read it as the launcher does for `cluster=NAME --trust cluster`."""
    (folder / "conf/cluster").mkdir(parents=True)
    (folder / f"conf/cluster/{name}.yaml").write_text(text)
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    words = ["quickstart", f"cluster={name}", "--trust", "cluster", "--conf", str(folder / "conf")]
    cluster_of(parse_request(parser.parse_intermixed_args(words)))


BLOCKS = dict(shown())


@pytest.fixture(autouse=True)
def adding_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """The classes of docs/adding.md, in the files that it would add."""
    for block in (one for one in ADDED if not (ROOT / one.split()[1]).exists()):
        module = ModuleType(block.split()[1].removesuffix(".py").replace("/", "."))
        exec(block, vars(module))
        monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.mark.parametrize("place", BLOCKS)
def test_yaml_on_a_page_is_valid(place, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    require_valid(BLOCKS[place], tmp_path, monkeypatch)


@pytest.mark.parametrize("place", [place for place, block in BLOCKS.items() if PART.match(block)])
def test_a_misspelt_key_in_a_part_of_a_recipe_is_found(place, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    key = re.search(r"^[a-z]\w*(?=:)", BLOCKS[place], re.MULTILINE)
    assert key is not None
    with pytest.raises(AssertionError, match=f"{key[0]}x"):
        require_valid(f"{BLOCKS[place][: key.end()]}x{BLOCKS[place][key.end() :]}", tmp_path, monkeypatch)
