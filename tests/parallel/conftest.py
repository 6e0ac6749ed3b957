"""Has ranks begin with what a file of tests says that they import."""

import pytest

from tests.support.ranks import begin_with


@pytest.fixture(scope="module", autouse=True)
def _imported_by_ranks(request: pytest.FixtureRequest) -> None:
    """`RANKS_IMPORT` of the file."""
    begin_with(*getattr(request.module, "RANKS_IMPORT", ()))
