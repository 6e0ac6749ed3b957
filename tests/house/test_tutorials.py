"""Tests that each tutorial's commands, made small, work one after another and make what the page says."""

import json
import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.house.test_packages import setup_lists
from tests.support.films import pan, write_film
from tests.support.fresh_environment import blocks, link_packages, shorter
from tests.support.repository import ROOT

TUTORIALS = ROOT / "docs/start"
EXTRAS = re.compile(r"^pip install .*nemo_vfm\[([\w,]+)\].*\n?", re.MULTILINE)


def captioned_videos(folder: Path) -> None:
    """Eight videos with captions beside them."""
    (folder / "videos").mkdir()
    for number in range(8):
        write_film(folder / f"videos/{number}.mp4", pan(number, 48))
        (folder / f"videos/{number}.txt").write_text(f"a pattern of colour {number} moves to the right")


def notes(folder: Path) -> None:
    """Short texts, one a line."""
    texts = (f"The {kind} in room {room} was checked." for kind in ("red pump", "old fan") for room in range(200))
    (folder / "notes.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def clicks(folder: Path) -> None:
    """A log of clicks, which depend on user and ad; some bids are missing."""
    draw, rows = random.Random(1), ["user,ad,site,bid,clicked"]
    for _ in range(4000):
        user, ad = draw.randrange(100), draw.randrange(80)
        clicked = draw.random() < (0.4 if (user + ad) % 4 == 0 else 0.1)
        rows.append(f"u{user},{ad},site{ad % 8}.org,{draw.choice(['', '0.5', '2.25'])},{int(clicked)}")
    (folder / "clicks.csv").write_text("\n".join([*rows, ""]))


#: The files of the user's own with which a page begins.
BEGINS_WITH: dict[str, Callable[[Path], None]] = {
    "video": captioned_videos,
    "world_model": captioned_videos,
    "language": notes,
    "recommender": clicks,
    "cluster": lambda folder: None,
}


def promised(page: Path) -> list[str]:
    """The paths in the first column of tables under the heading `appears`."""
    tables = re.findall(r"^\| appears \|.*\n\|[-|]+\n((?:\|.*\n)+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    return [shorter(path) for table in tables for path in re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)]


def test_every_tutorial_is_tried():
    assert {page.stem for page in TUTORIALS.glob("*.md")} == set(BEGINS_WITH)


@pytest.mark.parametrize("name", BEGINS_WITH)
def test_a_tutorial_works_from_its_first_command_to_its_last_and_makes_what_it_says(name, fresh, tmp_path):
    page, folder, extras = TUTORIALS / f"{name}.md", tmp_path / "work", tmp_path / "extras"
    folder.mkdir()
    extras.mkdir()
    BEGINS_WITH[name](folder)
    script = "\n".join(map(shorter, blocks(str(page.relative_to(ROOT)), "bash")))
    script = re.sub("^vfm-launch", "copied-python -P -m launcher", script, flags=re.MULTILINE)
    wanted = [
        one for extra in ",".join(EXTRAS.findall(script)).split(",") if extra for one in setup_lists()["EXTRAS"][extra]
    ]
    link_packages(wanted, extras)
    printed = replace(fresh, folder=folder).run(EXTRAS.sub("", script), PYTHONPATH=str(extras))
    assert ("PROBLEM  " not in printed and "no PROBLEM was found" in printed) or "submit" not in script
    paths = promised(page)
    assert len(paths) > 1 and not [path for path in paths if not list(folder.glob(path))]


def test_a_tutorial_is_neither_a_note_nor_a_manual():
    lengths = {page.name: len(page.read_text(encoding="utf-8").splitlines()) for page in TUTORIALS.glob("*.md")}
    assert all(60 <= length <= 120 for length in lengths.values()), lengths
