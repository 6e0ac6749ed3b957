"""Writes docs/reference/recipes-list.md from the recipes' headers: `python -m tests.support.recipes_list`."""

from pathlib import Path

from nemo_vfm.config.roots import header
from tests.support.repository import ROOT, where, yaml_files

PAGE = ROOT / "docs/reference/recipes-list.md"
INTRODUCTION = """# All recipes

This page is generated from the comment at the top of each recipe. To update it, edit the recipe and run
`python -m tests.support.recipes_list`. `nemo-vfm list diffusion/` prints the same for one group.
"""
#: Folder of recipes -> the heading of its section and a page to read first, in the order of the page.
SECTIONS = {
    "recipes": "From raw video to a trained model",
    "synthetic": "Generated videos",
    "curation": "Curation ([how it works](../how-to/video/curation.md))",
    "diffusion": "Diffusion ([layouts](../how-to/training/several_devices.md), [loading](../how-to/video/loading.md))",
    "world_model": "Pretrained world models ([Cosmos and Wan](../how-to/video/video_models.md))",
    "llm": "Language models ([how they work](../how-to/language/language_models.md), "
    "[text](../how-to/language/pretraining_data.md), [phases](../how-to/training/phases.md))",
}
HEAD = "| recipe | what it does | hardware | time | expected result |\n|---|---|---|---|---|"


def page() -> str:
    folders = {path.parent.name for path in yaml_files("recipes")}
    ordered = [*(name for name in SECTIONS if name in folders), *sorted(folders - set(SECTIONS))]
    return "\n".join([INTRODUCTION, *(_section(folder) for folder in ordered)])


def _section(folder: str) -> str:
    rows = [_row(path) for path in yaml_files("recipes") if path.parent.name == folder]
    return "\n".join([f"## {SECTIONS.get(folder, folder)}", "", HEAD, *rows, ""])


def _row(recipe: Path) -> str:
    top = header(recipe)
    needs = f"{top.hardware}; `nemo_vfm[{','.join(top.extras)}]`" if top.extras else top.hardware
    cells = [text.replace("|", "\\|") for text in (top.title, needs, top.time, top.expected)]
    name = where(recipe)
    return " | ".join([f"| [`{name.removeprefix('recipes/')}`](../../{name})", *cells]) + " |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
