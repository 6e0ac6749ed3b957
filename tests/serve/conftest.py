"""Shares one model and one server among the tests of this room."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.served_http import Running, model_folder, running


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """(folder of a model, the model of transformers)."""
    path = tmp_path_factory.mktemp("served") / "tiny"
    return path, model_folder(path)


@pytest.fixture(scope="session")
def server(folder: tuple[Path, Any]) -> Iterator[Running]:
    with running(folder[0]) as found:
        yield found
