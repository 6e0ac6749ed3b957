"""Installs what a container's image lacks into a folder on the shared disk, with the image's own Python and pip.

A job's script holds this text, since nothing of ours is in the image: the standard library must do. The image is not
changed, and may be read-only. The folder is a virtual environment that sees the image's packages; it appears under its
name when it is complete. So of several jobs the first one makes it, and a job that is killed leaves no half of it.
"""

import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path

#: Compiled for the image's CUDA, and for one another: these must stay, or pip must fail.
KEPT = ("torch", "torchvision", "torchaudio", "triton", "transformer-engine", "flash-attn")
_PIN = re.compile(r"([\w.-]+)==\d+(\.\d+)*((a|b|rc|\.post|\.dev)\d+)*(\+[\w.]+)?", re.ASCII)


def main(target: Path, packages: Path, wanted: Sequence[str]) -> None:
    """Make the environment, unless it is there.

    Args:
        target: its folder.
        packages: a file with a line `name==version` for each package of the submission.
        wanted: requirements, as pip takes them.
    """
    if target.is_dir():
        return
    have = {_canonical_name(one.name): one.version for one in distributions() if one.name}
    if "torch" not in have:
        sys.exit(f"vfm-launch: cluster.container.setup needs an image with torch, and {sys.executable} has none")
    new = target.with_name(f"{target.name}.job-{os.environ.get('SLURM_JOB_ID', os.getpid())}")
    shutil.rmtree(new, ignore_errors=True)  # of an attempt that was killed
    venv.create(new, symlinks=True)
    (inside,) = new.glob("lib/python*/site-packages")
    image = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (inside / "image.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in image))
    pins = [line for line in packages.read_text().splitlines() if (pin := _PIN.fullmatch(line)) and
            _canonical_name(pin[1]) not in have]  # fmt: skip
    pins += [f"{name}=={have[name]}" for name in KEPT if name in have]
    (new / "constraints.txt").write_text("".join(f"{line}\n" for line in pins))
    (new / "tmp").mkdir()  # the image's own may be read-only
    command = [str(new / "bin/python"), "-P", "-m", "pip", "install", "--disable-pip-version-check", "--no-cache-dir",
               "--constraint", str(new / "constraints.txt"), *wanted]  # fmt: skip
    # The words are of our own script; no shell reads them.
    done = subprocess.run(command, env={**os.environ, "TMPDIR": str(new / "tmp")}, check=False)  # noqa: S603
    if done.returncode:
        sys.exit(f"vfm-launch: pip could not install what the image lacks, see above. Nodes without a network need "
                 f"PIP_NO_INDEX and PIP_FIND_LINKS in cluster.environment; {new} shows how far it got")  # fmt: skip
    shutil.rmtree(new / "tmp")
    try:
        new.rename(target)
    except OSError:
        if not target.is_dir():
            raise
        shutil.rmtree(new)  # another job was first


def _canonical_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
