"""Leaves the house tests to `make check` and `make test-slow`: most of them read all of our code."""

from pathlib import Path

import pytest

from tests.support.fresh_environment import Environment, fresh_checkout


@pytest.fixture(scope="session")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """What `make setup` makes of a new checkout, with a folder of small videos in it."""
    return fresh_checkout(tmp_path_factory.mktemp("checkout"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark those of this folder, before the marks choose what runs."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.slow)
