"""Tests the command by which a run starts its own ranks."""

import sys
from pathlib import Path

import pytest

from nemo_vfm.runtime.command import own_command


@pytest.mark.parametrize(("first", "apart"), [("", []), (str(Path.cwd()), []), ("/elsewhere", ["-P"])])
def test_a_strangers_module_in_the_working_directory_is_imported_only_where_we_do_so_too(monkeypatch, first, apart):
    monkeypatch.setattr(sys, "path", [first, "/second", *sys.path])
    assert own_command("run", "a b") == [sys.executable, *apart, "-m", "nemo_vfm", "run", "a b"]
