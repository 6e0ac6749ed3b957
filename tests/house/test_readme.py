"""Tests that CONTRIBUTING.md shows the real tree of folders, and that pages and links are true."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import recipes_list, reference_pages
from tests.support.repository import ROOT, python_files, where, yaml_files

README = (ROOT / "README.md").read_text(encoding="utf-8")
TOP_FOLDERS = ("nemo_vfm", "launcher", "conf", "recipes", "tests", "benchmarks", "docs")


def drawn() -> dict[str, str]:
    """Path -> description, as drawn in the fenced block under "The tree"."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    block = re.search(r"## The tree\n.*?```\w*\n(.*?)```", text, re.DOTALL)
    assert block, 'CONTRIBUTING.md should hold a fenced block under "## The tree"'
    found = {}
    for line in block[1].splitlines():
        if match := re.fullmatch(r"( *)([\w.]+)(/?) {2,}(\S.*)", line):
            prefix = "nemo_vfm/" if match[1] else ""
            found[f"{prefix}{match[2]}"] = match[4]
    return found


def standing() -> set[str]:
    """Top folders and rooms that are really there."""
    package = ROOT / "nemo_vfm"
    folders = {name for name in TOP_FOLDERS if (ROOT / name).is_dir()}
    rooms = {f"nemo_vfm/{path.name}" for path in package.iterdir() if path.is_dir() and list(path.rglob("*.py"))}
    files = {f"nemo_vfm/{path.name}" for path in package.glob("*.py") if not path.name.startswith("__")}
    return folders | rooms | files


def test_the_tree_names_every_folder_and_room_that_stands_and_none_that_does_not():
    assert set(drawn()) == standing()


def test_the_drawing_of_the_rooms_has_each_room_once():
    drawing = (ROOT / "docs/rooms.svg").read_text(encoding="utf-8")
    written = [text.strip() for text in re.findall(r"<text[^>]*>([^<]+)</text>", drawing)]
    rooms = {name.partition("/")[2].removesuffix(".py") for name in standing() if name.startswith("nemo_vfm/")}
    assert rooms and {room: written.count(room) for room in rooms} == dict.fromkeys(rooms, 1)


def test_each_line_of_the_tree_says_something():
    assert all(len(text) > 10 for text in drawn().values())


def test_the_list_of_recipes_is_what_their_headers_say():
    assert recipes_list.PAGE.read_text(encoding="utf-8") == recipes_list.page(), (
        "docs/reference/recipes-list.md is out of date: run python -m tests.support.recipes_list"
    )


def test_the_list_of_recipes_has_one_row_a_recipe():
    rows = re.findall(r"^\| \[`[\w/]+\.yaml`\]\(\.\./\.\./(recipes/[\w/]+\.yaml)\)", recipes_list.page(), re.MULTILINE)
    assert sorted(rows) == sorted(str(path.relative_to(ROOT)) for path in yaml_files("recipes"))


def test_links_inside_the_documents_lead_somewhere():
    broken = []
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        text = path.read_text(encoding="utf-8")
        for link in re.findall(r"(?:\]\(|src=\")([^)#\"\s]+)", text):
            if "://" not in link and not (path.parent / link).exists():
                broken.append(f"{path.relative_to(ROOT)}: {link}")
    assert not broken, broken


def test_every_section_that_a_link_names_stands_on_its_page():
    broken = []
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for link, anchor in re.findall(r"\]\(([^)#\"\s]*\.md)?#([^)\s]+)\)", path.read_text(encoding="utf-8")):
            if not any(anchor == known for known in anchors((path.parent / link) if link else path)):
                broken.append(f"{path.relative_to(ROOT)}: {link}#{anchor}")
    assert not broken, broken


def anchors(page: Path) -> list[str]:
    """What GitHub makes of a page's headings."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    plain = (re.sub(r"\]\([^)]*\)", "", one).lower() for one in re.findall(r"^#+ (.+)$", text, re.MULTILINE))
    return [re.sub(r"[^\w\- ]", "", one).strip().replace(" ", "-") for one in plain]


def test_every_page_that_code_or_a_recipe_names_is_there():
    texts = [*python_files("nemo_vfm", "launcher", "benchmarks"), *yaml_files("recipes"), *yaml_files("conf")]
    named = {
        page: path
        for path in texts
        for page in re.findall(r"(?<![\w/.-])docs/[\w./-]+\.(?:md|ipynb|svg)", path.read_text(encoding="utf-8"))
    }
    missing = [f"{where(path)}: {page}" for page, path in named.items() if not (ROOT / page).exists()]
    assert not missing, missing


def test_every_page_is_linked_from_the_readme_or_from_another_page():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    linked = {
        (page.parent / link).resolve()
        for page in pages
        for link in re.findall(r"\]\(([^)#\"\s]+)", page.read_text(encoding="utf-8"))
        if "://" not in link and (page.parent / link).resolve() != page.resolve()
    }
    alone = [page.name for page in (ROOT / "docs").rglob("*.md") if page.resolve() not in linked]
    assert not alone, f"pages that nobody finds: {alone}"


@pytest.mark.parametrize("name", reference_pages.COMMANDS)
def test_the_pages_of_commands_are_what_the_help_says(name):
    page = reference_pages.commands_page(reference_pages.COMMANDS[name])
    assert (reference_pages.FOLDER / name).read_text(encoding="utf-8") == page, (
        f"docs/reference/{name} is out of date: run {reference_pages.UPDATE}"
    )


@pytest.mark.slow  # a process that imports all but what is slow: what others have imported adds slots of Lightning
def test_the_page_of_components_is_what_constructors_and_docstrings_say(tmp_path):
    subprocess.run([sys.executable, *reference_pages.UPDATE.split()[1:], tmp_path], cwd=ROOT, check=True, timeout=300)
    kept, written = ((folder / "components.md").read_text("utf-8") for folder in (reference_pages.FOLDER, tmp_path))
    assert kept == written, f"docs/reference/components.md is out of date: run {reference_pages.UPDATE}"
    assert re.search(r"^\| `DiT`<br>.*`depth: 12`", kept, re.MULTILINE)


def test_no_block_of_a_page_is_empty():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    block = re.compile(r"^```.*?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    assert not [page.name for page in pages for text in block.findall(page.read_text("utf-8")) if not text.strip()]


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 120


def test_the_readme_speaks_of_torch_for_both_kinds_of_machine():
    section = README.split("## About torch")[1].split("\n## ")[0]
    assert "CPU" in section and "GPU" in section and "TORCH=" in section


def test_the_commands_the_readme_names_are_in_the_makefile():
    rules = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {word for path in ("README.md", "CONTRIBUTING.md") for word in
             re.findall(r"`make ([a-z-]+)", (ROOT / path).read_text(encoding="utf-8"))}  # fmt: skip
    assert named and named <= rules, f"no such command: {named - rules}"
