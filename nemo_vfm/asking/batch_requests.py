"""Writes questions as files of OpenAI's batch API, and reads the files of results back."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from nemo_vfm.core.log import warn
from nemo_vfm.core.network.chat import Said, said_in
from nemo_vfm.core.network.endpoint import EndpointError
from nemo_vfm.core.network.http_connection import one_line
from nemo_vfm.core.storage.files import opened, write_bytes
from nemo_vfm.core.types.json_value import Json

_REQUESTS = "requests-*.jsonl"


def request_line(key: str, body: bytes) -> bytes:
    """One line of a file of requests; `custom_id` is the key."""
    head = {"custom_id": key, "method": "POST", "url": "/v1/chat/completions"}
    return json.dumps(head).encode()[:-1] + b', "body": ' + body + b"}\n"


def write_requests(lines: Iterable[bytes], folder: Path, *, most: int, most_bytes: int) -> list[Path]:
    """Files `requests-<hash>.jsonl` of at most so many lines and bytes each, whole or absent."""
    files = []
    for group in _groups(lines, most, most_bytes):
        data = b"".join(group)
        files.append(folder / f"requests-{hashlib.sha256(data).hexdigest()[:12]}.jsonl")
        write_bytes(files[-1], data)
    return files


def written_keys(folder: Path) -> set[str]:
    """Keys of all requests that were written into a folder before."""
    return {key for file in folder.glob(_REQUESTS) for entry in _entries(file) if (key := _key(entry))}


def results(folder: Path) -> Iterator[tuple[str, Said | str]]:
    """(key, answer or why there is none) of every line in the files of results in a folder, whatever their names."""
    for file in sorted(folder.glob("*.jsonl")):
        unreadable = 0
        for entry in _entries(file):
            if key := _key(entry):
                yield key, _result(entry)
            else:
                unreadable += 1
        if unreadable:
            warn(f"{file}: {unreadable} lines are not results of a batch; expected custom_id, and response or error")


def _groups(lines: Iterable[bytes], most: int, most_bytes: int) -> Iterator[list[bytes]]:
    group: list[bytes] = []
    size = 0
    for line in lines:
        if group and (len(group) == most or size + len(line) > most_bytes):
            yield group
            group, size = [], 0
        group.append(line)
        size += len(line)
    if group:
        yield group


def _entries(file: Path) -> Iterator[Json]:
    with opened(file) as data:
        for line in data:
            try:
                yield json.loads(line)
            except (ValueError, RecursionError):
                yield None


def _key(entry: Json) -> str:
    return str(entry["custom_id"]) if isinstance(entry, dict) and isinstance(entry.get("custom_id"), str) else ""


def _result(entry: Json) -> Said | str:
    match entry:
        case {"response": {"status_code": 200, "body": body}}:
            try:
                return said_in(body, 0.0)
            except EndpointError as error:
                return str(error)
        case {"response": {"status_code": status, "body": body}}:
            return one_line(f"the service answered {status}: {json.dumps(body)}")
        case {"error": reason}:
            return one_line(f"the batch says {json.dumps(reason)}")
    return "the batch has neither response nor error for it"
