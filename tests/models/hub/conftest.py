# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Starts a hub on this machine, and brings its model with short waits."""

import pytest

from tests.support.model_hub import Visitor, model_hub

#: What would lead elsewhere, or change what is asked.
VARIABLES = ("HF_TOKEN", "HF_HUB_OFFLINE", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "NEMO_VFM_ENDPOINTS")


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """The hub, which the environment names; the working directory is empty."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    monkeypatch.chdir(tmp_path)
    with model_hub() as state:
        monkeypatch.setenv("HF_ENDPOINT", state.url)
        yield state


@pytest.fixture
def visitor(hub, tmp_path):
    """Brings the model into a folder of the test's own."""
    return Visitor(hub, tmp_path / "model")
