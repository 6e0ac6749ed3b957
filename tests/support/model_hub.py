"""Runs a model hub on 127.0.0.1, with faults on request, and a CDN host that serves its large files."""

import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from nemo_vfm.core.network.permission import Permissions
from nemo_vfm.models.hub.hub_client import HubClient, hub_access
from nemo_vfm.models.hub.hub_names import HubAddress
from nemo_vfm.models.hub.model_download import get_model

MODEL = "acme/tiny-video"
OURS = ("get.json", ".get")
COMMIT, LATER = "a" * 39 + "1", "b" * 39 + "2"
#: Answers a request in place of the handler.
Fault = Callable[["Handler"], None]


def git_sha1(data: bytes) -> str:
    """Git's blob hash of these bytes."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def entry(path: str, data: bytes, large: bool) -> dict:
    usual = {"type": "file", "path": path, "size": len(data), "oid": git_sha1(data if not large else b"pointer")}
    lfs = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
    return {**usual, "lfs": lfs} if large else usual


@dataclass
class Hub:
    """The hub's state, which a test may read and change while the hub runs."""

    url: str = ""
    cdn_url: str = ""
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)  #: commit -> path -> bytes
    branches: dict[str, str] = field(default_factory=dict)
    faults: dict[str, list[Fault]] = field(default_factory=dict)  #: path suffix -> faults, one per request
    always: dict[str, Fault] = field(default_factory=dict)
    change_entries: Callable[[list], object] = lambda entries: entries
    page: int = 1000
    cdn: bool = True  #: whether large files are served by the CDN
    token: str | None = None  #: required of every request to the hub, if set
    requests: list[str] = field(default_factory=list)  #: `hub GET /path` or `cdn GET /path`
    headers: list[dict[str, str]] = field(default_factory=list)
    sent: int = 0  #: bytes of file content sent
    lock: threading.Lock = field(default_factory=threading.Lock)

    def is_large(self, path: str) -> bool:
        """Whether a file is stored as a large one, identified by its sha256."""
        return path.endswith((".safetensors", ".bin", ".pt"))

    def asked(self, word: str) -> list[str]:
        """The requests that contain a word."""
        return [one for one in self.requests if word in one]


class Handler(BaseHTTPRequestHandler):
    """Handles one request to the hub or to the CDN."""

    protocol_version = "HTTP/1.1"
    hub: Hub
    is_cdn = False

    def do_GET(self) -> None:
        hub, path = self.hub, urlsplit(self.path).path
        with hub.lock:
            hub.requests.append(f"{'cdn' if self.is_cdn else 'hub'} GET {self.path}")
            hub.headers.append(dict(self.headers))
            fault = self._fault(unquote(path))
        try:
            fault(self) if fault is not None else self.answer()
        except OSError:
            self.close_connection = True  # the client disconnected

    def _fault(self, path: str) -> Fault | None:
        """Find a fault by path suffix; the prefix `cdn:` or `hub:` limits it to one host."""
        here = "cdn:" if self.is_cdn else "hub:"
        for key, waiting in self.hub.faults.items():
            if waiting and (here + path).endswith(key.removeprefix(here)) and ":" not in key.removeprefix(here):
                return waiting.pop(0)
        for key, fault in self.hub.always.items():
            if (here + path).endswith(key.removeprefix(here)) and ":" not in key.removeprefix(here):
                return fault
        return None

    def answer(self) -> None:
        """Answer without a fault."""
        hub, parts = self.hub, urlsplit(self.path)
        path = unquote(parts.path)
        if not self.is_cdn and hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
            self.send(401, b"no", X_Error_Code="GatedRepo")
        elif found := re.fullmatch(rf"/api/models/{MODEL}/revision/(.+)", path):
            self._revision(found[1])
        elif found := re.fullmatch(rf"/api/models/{MODEL}/tree/(\w+)", path):
            self._tree(found[1], parse_qs(parts.query))
        elif found := re.fullmatch(rf"/{MODEL}/resolve/(\w+)/(.+)", path):
            self._file(found[1], found[2])
        else:
            self.send(404, b"no", X_Error_Code="RepoNotFound")

    def _revision(self, name: str) -> None:
        commit = self.hub.branches.get(name, name)
        if commit not in self.hub.commits:
            self.send(404, b"no", X_Error_Code="RevisionNotFound")
            return
        self.send_json({"id": MODEL, "sha": commit, "siblings": []})

    def _tree(self, commit: str, query: dict[str, list[str]]) -> None:
        files, start = self.hub.commits[commit], int(query.get("cursor", ["0"])[0])
        folders = sorted({path.rpartition("/")[0] for path in files if "/" in path})
        entries: list = [{"type": "directory", "path": one, "size": 0, "oid": "0" * 40} for one in folders]
        entries += [entry(path, data, self.hub.is_large(path)) for path, data in files.items()]
        entries = self.hub.change_entries(entries)
        if not isinstance(entries, list):
            self.send_json(entries)
            return
        end = start + self.hub.page
        path = urlsplit(self.path).path
        more = {"Link": f'<http://elsewhere.test{path}?recursive=true&cursor={end}>; rel="next"'}
        self.send_json(entries[start:end], **(more if end < len(entries) else {}))

    def _file(self, commit: str, path: str) -> None:
        data, large = self.hub.commits[commit][path], self.hub.is_large(path)
        sha256 = hashlib.sha256(data).hexdigest()
        headers = {"X-Repo-Commit": commit}
        if large:
            headers |= {"X-Linked-Size": str(len(data)), "X-Linked-Etag": f'"{sha256}"'}
        if large and self.hub.cdn and not self.is_cdn:
            self.send(302, b"", Location=f"{self.hub.cdn_url}{self.path}?Signature=signed-canary", **headers)
            return
        self.send_file(data, **headers)

    def send_file(self, data: bytes, **headers: str) -> None:
        """Send the bytes, or the requested range."""
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(wanted[1]) if wanted else 0
        if wanted and start >= len(data):
            self.send(416, b"", Content_Range=f"bytes */{len(data)}")
        elif wanted:
            self.send(206, data[start:], Content_Range=f"bytes {start}-{len(data) - 1}/{len(data)}", **headers)
        else:
            self.send(200, data, **headers)

    def send(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)
        self.hub.sent += len(body)

    def send_json(self, value: object, **headers: str) -> None:
        self.send(200, json.dumps(value).encode(), **headers)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def status(code: int, body: bytes = b"", **headers: str) -> Fault:
    """A fault: respond with this status."""
    return lambda handler: handler.send(code, body, **headers)


def body(data: bytes, *, declared: int | None = None, **headers: str) -> Fault:
    """A fault: send these bytes as the file, with the declared length, then close the connection."""

    def send(handler: Handler) -> None:
        handler.send_response(200)
        for name, value in {"Content-Length": str(len(data) if declared is None else declared), **headers}.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Connection", "close")
        handler.end_headers()
        handler.wfile.write(data)
        handler.close_connection = True

    return send


def cut_after(count: int) -> Fault:
    """A fault: close the connection after this many bytes of the body."""

    def send(handler: Handler) -> None:
        whole = handler.wfile.write
        left = [count]

        def write(data: bytes) -> int:
            if data.startswith(b"HTTP/"):
                return whole(data)
            whole(data[: left[0]])
            handler.hub.sent += min(len(data), left[0])
            handler.wfile.flush()
            handler.connection.close()
            raise ConnectionResetError

        handler.wfile.write = write  # type: ignore[method-assign]
        handler.close_connection = True
        handler.answer()

    return send


def endless(handler: Handler) -> None:
    """A fault: send an endless body without a length."""
    handler.send_response(200)
    handler.send_header("Connection", "close")
    handler.end_headers()
    handler.close_connection = True
    for _ in range(10_000):
        handler.wfile.write(b" " * 1_000_000)
        handler.hub.sent += 1_000_000


@contextmanager
def model_hub() -> Iterator[Hub]:
    """Run the hub and its CDN; the hub has one model with one commit, `main`."""
    hub = Hub(commits={COMMIT: files()}, branches={"main": COMMIT})
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": hub, "is_cdn": is_cdn}))
               for is_cdn in (False, True)]  # fmt: skip
    for server in servers:
        server.daemon_threads, server.block_on_close = True, False
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    hub.url, hub.cdn_url = (f"http://127.0.0.1:{server.server_port}" for server in servers)
    try:
        yield hub
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


class ModelDownload:
    """Downloads the hub's model into one folder, with permission for the CDN."""

    def __init__(self, hub: Hub, folder: Path) -> None:
        self.hub, self.folder = hub, folder

    def get(self, *only: str, revision: str = "main", allowed: tuple[str, ...] | None = None) -> str:
        """Download with short waits; return the summary."""
        permissions = Permissions.of(*((self.hub.cdn_url,) if allowed is None else allowed))
        client = partial(self._client, permissions)
        return get_model(HubAddress(MODEL, revision), self.folder, only, client)

    def _client(self, permissions: Permissions) -> HubClient:
        return HubClient(hub_access(permissions), timeout_s=5.0, tries=4, max_wait_s=0.01)

    def files(self) -> dict[str, bytes]:
        """The folder's files without the record and partial files."""
        found = {str(path.relative_to(self.folder)): path for path in self.folder.rglob("*") if path.is_file()}
        return {name: path.read_bytes() for name, path in found.items() if name.partition("/")[0] not in OURS}

    def record(self) -> dict:
        return json.loads((self.folder / "get.json").read_text())


def files() -> dict[str, bytes]:
    """A typical model: configs, safetensors weights, and a pickle."""
    weights = bytes(range(256)) * 12_000
    return {
        "README.md": b"# tiny\n", "model_index.json": b'{"_class_name": "WanPipeline"}\n', "empty.txt": b"",
        "transformer/config.json": b"{}\n", "transformer/model.safetensors": weights,
        "vae/model.safetensors": weights[::-1], "vae/pytorch model.bin": b"pickle" * 10,
    }  # fmt: skip
