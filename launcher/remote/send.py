"""Sends a submission with its working tree to a login node, submits it there, and shows the output.

Arguments, folder and files all go through the pipe, so that no shell reads any of them. The one command is `COMMAND`: a
login shell, since on many clusters only those have sbatch on their path.
"""

import argparse
import codecs
import io
import json
import subprocess
import sys
import tarfile
import threading
from pathlib import Path
from typing import IO, TextIO

from launcher.plan.launch import code_of
from launcher.plan.preflight import name_list
from launcher.plan.programs import program
from launcher.remote.words import host, python, words
from launcher.request.request import parse_request
from launcher.state.snapshot import Code
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.log import scrub

COMMAND = "exec bash -l -c 'exec {} -P -m launcher.remote.receive'"
_SSH_FAILED = 255  # what ssh ends with where it could not connect; else it ends with the command's status


def submit_there(arguments: argparse.Namespace) -> int:
    """The exit status of the submission there."""
    name, interpreter = host(arguments), python(arguments)
    assert name is not None
    ssh = program("ssh")
    if ssh is None:
        raise UserError("--ssh needs the program ssh, which is not on the path of this machine")
    code = code_of(parse_request(arguments))
    # What leaves this machine, and what does not.
    lines = [f"to {name}: {code.why}"]
    lines += [f"untracked, copied too: {name_list(code.untracked)}"] if code.untracked else []
    lines += [f"not copied, since they hold keys: {name_list([*code.left])}"] if code.left else []
    sys.stderr.writelines(f"{scrub(line)}\n" for line in lines)
    sys.stderr.flush()
    status = _through([ssh, "-T", "--", name, COMMAND.format(interpreter)], parcel(arguments, code))
    if status == _SSH_FAILED:
        raise UserError(f"ssh {name} failed, see above; try `ssh {name} true` first")
    return status


def parcel(arguments: argparse.Namespace, code: Code) -> bytes:
    """What the other end reads: a line of JSON, then a tar of the working tree."""
    here = Path.cwd().resolve()
    below = str(here.relative_to(code.root.resolve())) if code.root is not None else "."
    folder = arguments.ssh_folder or f"vfm-launch/{(code.root or here).name}"
    head = json.dumps({"words": words(arguments), "folder": folder, "below": below})
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for path, one in code.files.items():
            entry = tarfile.TarInfo(path)
            entry.type, entry.mode = (tarfile.REGTYPE, one.mode) if one.mode else (tarfile.SYMTYPE, 0o777)
            if one.mode:
                entry.size = len(one.content)
                tar.addfile(entry, io.BytesIO(one.content))
            else:
                entry.linkname = one.content.decode("utf-8", "surrogateescape")
                tar.addfile(entry)
    return head.encode() + b"\n" + packed.getvalue()


def _through(command: list[str], text: bytes) -> int:
    """Run a command, hand it the text, and pass on what it says, without what would move a terminal's cursor."""
    # Our own ssh; the host has been looked at, and `--` ends the options.
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,  # noqa: S603
                               stderr=subprocess.PIPE)  # fmt: skip
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    pipes = ((process.stdout, sys.stdout), (process.stderr, sys.stderr))
    threads = [threading.Thread(target=_pass_on, args=pipe) for pipe in pipes]
    for thread in threads:
        thread.start()
    try:
        process.stdin.write(text)
        process.stdin.close()
    except BrokenPipeError:  # it has ended, and says why
        pass
    for thread in threads:
        thread.join()
    return process.wait()


def _pass_on(source: IO[bytes], target: TextIO) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    for line in source:
        target.write(scrub(decoder.decode(line).replace("\r\n", "\n").replace("\r", "\n")))
        target.flush()
