"""Makes a fake run once, and reads pages into what tests ask about."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

import pytest

from nemo_vfm.report.page import render
from tests.support import fake_run

VOID = frozenset({"meta", "img", "br", "link", "input", "hr"})


@dataclass
class Seen(HTMLParser):
    """What a browser would meet: tags with their attributes, text, and whether all tags close in order."""

    tags: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    _open: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self._open and self._open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data: str) -> None:
        if self._open[-1:] != ["style"]:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def charts(self) -> list[dict[str, str]]:
        """The outer `svg` of each: one within it only stretches its paths."""
        return [svg for svg in self.all("svg") if "viewbox" not in svg]

    def finish(self) -> "Seen":
        self.close()
        assert not self._open, f"never closed: {self._open}"
        return self


def read_page(html: str) -> Seen:
    seen = Seen()
    seen.feed(html)
    return seen.finish()


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; tests that change files copy it."""
    return fake_run.make(tmp_path_factory.mktemp("runs") / "quickstart", num_clips=36)


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture
def page() -> Callable[[Path], Seen]:
    """Renders a folder and reads the result as a browser would."""
    return lambda folder: read_page(render(folder))
