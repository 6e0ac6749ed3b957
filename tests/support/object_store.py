"""Starts an S3 server on 127.0.0.1: moto where it is installed, and a small one that fails on order."""

import os
import re
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from typing import Protocol
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

import pytest

BUCKET = "shelf"


class Bucket(Protocol):
    """What a test may do to a bucket behind the client's back."""

    url: str

    def put(self, key: str, data: bytes) -> None: ...
    def get(self, key: str) -> bytes: ...
    def names(self) -> list[str]: ...
    def delete(self, key: str) -> None: ...


@dataclass
class Moto:
    """moto's server, spoken to by plain HTTP."""

    url: str

    def put(self, key: str, data: bytes) -> None:
        self._ask("PUT", f"/{BUCKET}/{quote(key)}", data)

    def get(self, key: str) -> bytes:
        return self._ask("GET", f"/{BUCKET}/{quote(key)}")

    def names(self) -> list[str]:
        return re.findall(r"<Key>(.*?)</Key>", self._ask("GET", f"/{BUCKET}?list-type=2").decode())

    def delete(self, key: str) -> None:
        self._ask("DELETE", f"/{BUCKET}/{quote(key)}")

    def _ask(self, method: str, path: str, data: bytes | None = None) -> bytes:
        request = urllib.request.Request(self.url + path, data=data, method=method)
        request.add_header("Content-Type", "application/octet-stream")  # the default one is taken for a form
        request.add_header("Authorization", "AWS4-HMAC-SHA256 Credential=a/20260101/us-east-1/s3/aws4_request")
        with urllib.request.urlopen(request, timeout=20) as answer:
            return bytes(answer.read())


def has_moto() -> bool:
    return find_spec("moto") is not None and find_spec("flask") is not None


@contextmanager
def moto() -> Iterator[Moto]:
    """Start moto's server in a process of its own and stop it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"
        for _ in range(150):
            try:
                urllib.request.urlopen(f"{url}/moto-api/data.json", timeout=2).read()
                break
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
        store = Moto(url)
        store._ask("PUT", f"/{BUCKET}")
        yield store
    finally:
        process.terminate()
        process.wait(10)


@dataclass
class Failing:
    """A small S3 server. `faults`: part of `METHOD /key` -> what happens instead, a status or a word of `_act`."""

    objects: dict[str, bytes] = field(default_factory=dict)
    faults: dict[str, int | str] = field(default_factory=dict)
    times: int = 10**9  #: how many requests still meet their fault
    requests: list[str] = field(default_factory=list)
    url: str = ""

    def put(self, key: str, data: bytes) -> None:
        self.objects[key] = data

    def get(self, key: str) -> bytes:
        return self.objects[key]

    def names(self) -> list[str]:
        return sorted(self.objects)

    def delete(self, key: str) -> None:
        self.objects.pop(key, None)

    def fault(self, line: str) -> int | str | None:
        found = next((fault for part, fault in self.faults.items() if part in line), None)
        if found is None or self.times < 1:
            return None
        self.times -= 1
        return found


@contextmanager
def failing() -> Iterator[Failing]:
    """Start the small server on a free port and stop it."""
    store = Failing()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(store))
    server.daemon_threads = True
    store.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield store
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


def _handler(store: Failing) -> type[BaseHTTPRequestHandler]:
    parts: dict[str, dict[int, bytes]] = {}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Headers and body leave in two writes; without this each answer waits 40 ms for an acknowledgement.
        disable_nagle_algorithm = True

        def log_message(self, format: str, *args: object) -> None:
            return

        def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            if "Content_Length" not in headers:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def body(self) -> bytes:
            if "chunked" not in (self.headers.get("Transfer-Encoding") or ""):
                data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            else:
                data = b"".join(iter(self._piece, b""))
            return _unchunked(data) if "aws-chunked" in (self.headers.get("Content-Encoding") or "") else data

        def _piece(self) -> bytes:
            size = int(self.rfile.readline().split(b";")[0], 16)
            data = self.rfile.read(size)
            self.rfile.readline()
            return data

        def key(self) -> tuple[str, dict[str, list[str]]]:
            split = urlsplit(self.path)
            return unquote(split.path).removeprefix("/"), parse_qs(split.query, keep_blank_values=True)

        def hit(self) -> bool:
            line = f"{self.command} {unquote(self.path)}"
            store.requests.append(line)
            fault = store.fault(line)
            if fault is None:
                return False
            data = self.body() if self.command in ("PUT", "POST") else b""
            if isinstance(fault, int):
                self.answer(fault)
                return True
            _act(self, fault, data)
            self.close_connection = True
            return True

        def do_HEAD(self) -> None:
            if self.hit():
                return
            bucket, _, key = self.key()[0].partition("/")
            if bucket != BUCKET or key not in store.objects:
                return self.answer(404)
            data = store.objects[key]
            self.answer(200, Content_Length=str(len(data)), ETag=f'"{md5(data).hexdigest()}"',
                        Last_Modified="Sat, 21 Nov 2026 06:00:00 GMT")  # fmt: skip

        def do_GET(self) -> None:
            if self.hit():
                return
            name, query = self.key()
            bucket, _, key = name.partition("/")
            if bucket != BUCKET:
                text = b"<Error><Code>NoSuchBucket</Code><Message>The specified bucket does not exist</Message></Error>"
                return self.answer(404, text)
            if "list-type" in query:
                return self.answer(200, _list(store, query), Content_Type="application/xml")
            if key not in store.objects:
                return self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            data, asked = store.objects[key], re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
            part = data if asked is None else data[int(asked[1]) : int(asked[2]) + 1]
            self.answer(200 if asked is None else 206, part, ETag=f'"{md5(data).hexdigest()}"')

        def do_PUT(self) -> None:
            if self.hit():
                return
            name, query = self.key()
            bucket, _, key = name.partition("/")
            data = self.body()
            if bucket != BUCKET:
                text = b"<Error><Code>NoSuchBucket</Code><Message>The specified bucket does not exist</Message></Error>"
                return self.answer(404, text)
            if "uploadId" in query:
                parts[query["uploadId"][0]][int(query["partNumber"][0])] = data
            else:
                store.objects[key] = data
            self.answer(200, ETag=f'"{md5(data).hexdigest()}"')

        def do_POST(self) -> None:
            if self.hit():
                return
            name, query = self.key()
            key = name.partition("/")[2]
            body = self.body()
            if "delete" in query:
                for gone in re.findall(r"<Key>(.*?)</Key>", body.decode()):
                    store.objects.pop(gone, None)
                return self.answer(200, b"<DeleteResult></DeleteResult>")
            if "uploads" in query:
                number = f"u{len(parts)}"
                parts[number] = {}
                return self.answer(200, f"<InitiateMultipartUploadResult><UploadId>{number}</UploadId>"
                                        f"</InitiateMultipartUploadResult>".encode())  # fmt: skip
            pieces = parts.pop(query["uploadId"][0])
            store.objects[key] = b"".join(pieces[n] for n in sorted(pieces))
            self.answer(200, b"<CompleteMultipartUploadResult><ETag>x</ETag></CompleteMultipartUploadResult>")

        def do_DELETE(self) -> None:
            if self.hit():
                return
            store.objects.pop(self.key()[0].partition("/")[2], None)
            self.answer(204)

    return Handler


def _act(handler: BaseHTTPRequestHandler, word: str, data: bytes) -> None:
    """hang: say nothing; reset: tear the line; short: promise more bytes than come."""
    if word == "hang":
        time.sleep(4)
    elif word == "reset":
        handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        handler.connection.close()
    elif word == "short":
        handler.send_response(206)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        handler.wfile.write(b"x" * 10)


def _unchunked(data: bytes) -> bytes:
    """The bytes inside aws-chunked framing."""
    found, position = b"", 0
    while True:
        end = data.index(b"\r\n", position)
        size = int(data[position:end].split(b";")[0], 16)
        if size == 0:
            return found
        found += data[end + 2 : end + 2 + size]
        position = end + 2 + size + 2


def _list(store: Failing, query: dict[str, list[str]]) -> bytes:
    prefix = query.get("prefix", [""])[0]
    rows = "".join(
        f"<Contents><Key>{escape(key)}</Key><LastModified>2026-11-21T06:00:00.000Z</LastModified>"
        f"<ETag>&quot;{md5(data).hexdigest()}&quot;</ETag><Size>{len(data)}</Size></Contents>"
        for key, data in sorted(store.objects.items()) if key.startswith(prefix)
    )  # fmt: skip
    count = f"<KeyCount>{rows.count('<Key>')}</KeyCount><IsTruncated>false</IsTruncated>"
    found = f"<ListBucketResult><Name>{BUCKET}</Name>{count}{rows}</ListBucketResult>"
    return f'<?xml version="1.0"?>{found}'.encode()


@contextmanager
def reached(store: Bucket) -> Iterator[None]:
    """Point this process's environment at a server, with credentials that are none, and nowhere else."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL_S3", "AWS_SESSION_TOKEN", "AWS_NO_SIGN_REQUEST", "AWS_REGION"):
            patch.delenv(name, raising=False)
        for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
            patch.delenv(name, raising=False)
        known = {"AWS_ENDPOINT_URL": store.url, "AWS_ACCESS_KEY_ID": "id-in-tests",
                 "AWS_SECRET_ACCESS_KEY": "key-in-tests", "AWS_EC2_METADATA_DISABLED": "true",
                 "AWS_CONFIG_FILE": os.devnull,
                 "AWS_SHARED_CREDENTIALS_FILE": os.devnull, "NEMO_VFM_STORE_TIMEOUT_S": "2"}  # fmt: skip
        for name, value in known.items():
            patch.setenv(name, value)
        yield
