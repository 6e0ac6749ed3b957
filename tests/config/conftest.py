"""Makes an empty working directory in which tests write and run recipes."""

import pytest

from tests.support.recipe_folder import Kitchen


@pytest.fixture
def kitchen(tmp_path, monkeypatch):
    """A working directory of the test's own."""
    monkeypatch.chdir(tmp_path)
    return Kitchen(tmp_path)
