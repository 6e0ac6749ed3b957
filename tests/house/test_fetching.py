"""Tests that nothing but `nemo-vfm get` fetches models or files from a hub, and that no library does it for us."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.repository import CODE, ROOT, dotted, imports, python_files, tree, where

#: Who may open a connection by hand, and what for; object stores go through fsspec (core/storage/object_store.py).
CONNECTS = {
    "nemo_vfm/core/network/endpoint.py": "asks services that the user allows",
    "nemo_vfm/core/network/http_connection.py": "opens the connections of these two",
    "nemo_vfm/core/network/https_proxy.py": "connects to the proxy of the user's environment",
    "nemo_vfm/models/hub/file_download.py": "names the type of headers",
    "nemo_vfm/models/hub/hub_client.py": "downloads models for `nemo-vfm get`",
}
CLIENTS = ("http.client", "urllib.request", "urllib3", "requests", "httpx", "httpx2", "aiohttp", "ftplib", "pycurl",
           "huggingface_hub", "hf_xet", "modelscope", "kagglehub", "datasets", "torch.hub", "wget")  # fmt: skip
#: What fetches by itself, by the last part of its name.
FETCHES = frozenset({
    "hf_hub_download", "snapshot_download", "cached_file", "load_dataset", "urlretrieve", "urlopen", "load_url",
    "load_state_dict_from_url", "download_url_to_file", "hf_hub_url", "cached_download", "create_connection",
})  # fmt: skip
#: What reads a model of another library by its name or its folder; only the folder may be meant.
READS = ("from_pretrained", "from_single_file", "load_lora_weights", "load_config", "get_config_dict")
#: Who may use the part that fetches; everybody may read its names and hints.
HUB = "nemo_vfm.models.hub."
HUB_NAMES = ("nemo_vfm.models.hub.hub_names.",)
HUB_USERS = ("nemo_vfm/models/hub/", "nemo_vfm/cli/verbs/get.py")


def fetching(source: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """(place, word) of each call that would fetch, or that reads a model without saying that it is here."""
    local = local_only(source)
    for node in ast.walk(source):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else dotted(node.func)
        if name in FETCHES:
            yield node, name
        keywords = {one.arg: one.value for one in node.keywords}
        said = any(is_true(value) for key, value in keywords.items() if key == "local_files_only")
        spread = any(one.arg is None and dotted(one.value) in local for one in node.keywords)
        if name in READS and isinstance(node.func, ast.Attribute) and not (said or spread):
            yield node, f"{name} without local_files_only=True"


def local_only(source: ast.Module) -> set[str]:
    """Names that only ever hold a mapping with local_files_only=True."""
    held: dict[str, list[bool]] = {}
    for node in ast.walk(source):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                held.setdefault(dotted(target), []).append(says_local(node.value))
    return {name for name, values in held.items() if name and all(values)}


def says_local(value: ast.AST) -> bool:
    """Whether a mapping is written out with local_files_only=True in it."""
    if not isinstance(value, ast.Dict):
        return False
    pairs = zip(value.keys, value.values, strict=True)
    return any(isinstance(key, ast.Constant) and key.value == "local_files_only" and is_true(one) for key, one in pairs)


def is_true(value: ast.AST) -> bool:
    return isinstance(value, ast.Constant) and value.value is True


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_nothing_reads_a_model_by_its_name_on_a_hub():
    files = [path for path in python_files(*CODE) if relative(path) not in CONNECTS]
    found = [f"{where(path, node)} {word}" for path in files for node, word in fetching(tree(path))]
    assert files and not found, f"only `nemo-vfm get` fetches; give a local folder: {found}"


def test_only_named_files_know_how_to_connect():
    found = {
        relative(path)
        for path in python_files(*CODE)
        for name, _ in imports(path)
        if f"{name}.".startswith(tuple(f"{client}." for client in CLIENTS))
    }
    assert found <= set(CONNECTS), f"a connection is opened in core/network/ and models/hub/ alone: {found}"


def test_only_the_verb_uses_what_fetches():
    found = [
        f"{where(path, node)} {name}"
        for path in python_files(*CODE)
        if not relative(path).startswith(HUB_USERS)
        for name, node in imports(path)
        if f"{name}.".startswith(HUB) and not f"{name}.".startswith(HUB_NAMES)
    ]
    assert not found, f"only {HUB_USERS} may: {found}"


@pytest.mark.parametrize(
    "line",
    [
        "AutoModel.from_pretrained(name)",
        "AutoModel.from_pretrained(name, local_files_only=False)",
        "AutoModel.from_pretrained(name, local_files_only=choice)",
        "a = {'local_files_only': True}\na = {}\nAutoModel.from_pretrained(name, **a)",
        "AutoModel.from_pretrained(name, **settings)",
        "hub.snapshot_download(name)",
        "hf_hub_download(name, file)",
        "torch.hub.load_state_dict_from_url(url)",
        "urllib.request.urlopen(url)",
        "socket.create_connection((host, 443))",
    ],
)
def test_the_search_sees_each_way_to_fetch(line):
    assert list(fetching(ast.parse(line)))


@pytest.mark.parametrize(
    "line",
    [
        "AutoModel.from_pretrained(folder, local_files_only=True)",
        "local = {'local_files_only': True}\nAutoModel.from_pretrained(folder, **local)",
    ],
)
def test_the_search_lets_local_folders_pass(line):
    assert not list(fetching(ast.parse(line)))
