"""Starts a hub on this machine and provides a downloader with short waits."""

import pytest

from tests.support.model_hub import ModelDownload, model_hub

#: Variables that would redirect or change the requests.
VARIABLES = ("HF_TOKEN", "HF_HUB_OFFLINE", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "NEMO_VFM_ENDPOINTS")


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """The hub, named by HF_ENDPOINT; the working directory is empty."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    monkeypatch.chdir(tmp_path)
    with model_hub() as state:
        monkeypatch.setenv("HF_ENDPOINT", state.url)
        yield state


@pytest.fixture
def download(hub, tmp_path):
    return ModelDownload(hub, tmp_path / "model")
