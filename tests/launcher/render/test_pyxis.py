"""Tests what jobs say of their containers against pyxis and enroot themselves, where a machine has them.

`NEMO_VFM_PYXIS=/usr/local/lib/slurm/spank_pyxis.so pytest tests/launcher/render/test_pyxis.py -m cluster` needs enroot
on PATH, and pyxis compiled for this Slurm.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.render.script import script
from launcher.request.cluster import Pyxis, Slurm
from tests.launcher.render.test_quoting import PRINTABLE
from tests.support.slurm import Slurm as RealSlurm
from tests.support.slurm import lacking, slurm
from tests.support.slurm_jobs import small_job

PLUGIN = Path(os.environ.get("NEMO_VFM_PYXIS", "/usr/local/lib/slurm/spank_pyxis.so"))
PROGRAMS = ("enroot", "mksquashfs", "busybox")
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT")
#: As `enroot import` writes it for an image whose entrypoint is a program that takes no commands.
ENTRYPOINT = """\
[ -s /etc/rc.local ] && . /etc/rc.local
exec false "$@"
"""
#: Addresses of images: what enroot takes, and what it does not.
TAKEN = ("ubuntu", "team/image:1.0", "registry.example.com#team/image:tag", "me@registry.example.com:5000#a/b:1_2.x",
         "$oauthtoken@registry.example.com#nvidia/pytorch:26.06-py3", "docker://registry.example.com/team/image",
         f"registry.example.com#team/image@sha256:{'0' * 64}", f"team/image:1@sha256:{'0' * 64}")  # fmt: skip
REFUSED = ("registry.example.com#Team/image", "registry.example.com#team/image:a b", "image:", "a#b#c", "oras:x y")


def enroot_reads(image: str) -> bool:
    """Whether enroot's own parser of addresses takes this one."""
    enroot = shutil.which("enroot")
    assert enroot is not None
    library = re.search(r'ENROOT_LIBRARY_PATH +"([^"]+)"', Path(enroot).read_text())
    assert library is not None, enroot
    address = image if "://" in image else f"docker://{image}"
    names = ("CACHE_PATH", "CONFIG_PATH", "TRANSFER_RETRIES", "CONNECT_TIMEOUT", "TRANSFER_TIMEOUT")
    surroundings = {f"ENROOT_{name}": "0" for name in names} | {"ENROOT_LIBRARY_PATH": library[1]}
    code = 'shopt -s lastpipe; source "$ENROOT_LIBRARY_PATH/docker.sh"; docker::_parse_uri "$1"'
    done = subprocess.run(["bash", "-c", code, "bash", address], env={**os.environ, **surroundings},
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert not done.returncode or "Invalid image reference" in done.stderr, done.stderr
    return not done.returncode


@pytest.mark.skipif(shutil.which("enroot") is None, reason="no enroot on this machine")
@pytest.mark.parametrize("image", [*TAKEN, *REFUSED])
def test_an_address_of_an_image_is_taken_exactly_where_enroot_takes_it(image: str) -> None:
    assert enroot_reads(image) == (image in TAKEN)
    if image in TAKEN:
        Pyxis(image=image)
    else:
        with pytest.raises(ValueError, match="enroot cannot read"):
            Pyxis(image=image)


@pytest.fixture(scope="module")
def boxed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealSlurm]:
    """A Slurm with pyxis, which runs the entrypoints of images where nobody says otherwise."""
    missing = lacking() or ", ".join(name for name in PROGRAMS if shutil.which(name) is None)
    if missing or not PLUGIN.is_file():
        pytest.skip(f"tests against pyxis need Slurm, {', '.join(PROGRAMS)}, and {PLUGIN}: {missing}")
    root = tmp_path_factory.mktemp("boxed")
    plugins = root / "plugstack.conf"
    plugins.write_text(f"required {PLUGIN} runtime_path={tmp_path_factory.mktemp('pyxis')} execute_entrypoint=1\n")
    with slurm(root / "slurm", more=[f"PlugStackConfig={plugins}"]) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A squashfs file with a shell, variables of its own and an entrypoint."""
    root, file = tmp_path_factory.mktemp("root"), tmp_path_factory.mktemp("images") / "small.sqsh"
    for folder in ("bin", "etc", "proc", "sys", "dev", "tmp", "var/run", "var/lock"):
        (root / folder).mkdir(parents=True)
    shutil.copy2(str(shutil.which("busybox")), root / "bin/busybox")
    for name in ("sh", "env", "pwd", "cat", "touch", "mkdir"):
        (root / "bin" / name).symlink_to("busybox")
    (root / "etc/environment").write_text("PATH=/bin\nVALUE=image\nEMPTY=image\nPYTHONPATH=/image\nOTHER=image\n")
    (root / "etc/rc").write_text(ENTRYPOINT)
    for name in ("rc.local", "fstab", "passwd", "group"):
        (root / "etc" / name).touch()
    subprocess.run(["mksquashfs", root, file, "-all-root", "-quiet", "-no-progress"], check=True)
    return file


@pytest.mark.cluster
def test_a_job_is_in_its_container_with_its_folders_and_variables_and_without_the_entrypoint(
    boxed: RealSlurm, image: Path, tmp_path: Path
) -> None:
    outside, out = tmp_path / "outside", tmp_path / "told"
    outside.mkdir()
    (outside / "file").write_text("of the host")
    cluster = Slurm(container=Pyxis(image=str(image), mounts={str(outside): "/in/side"}), exclusive=False,
                    environment={"VALUE": PRINTABLE[0], "EMPTY": "", "PYTHONPATH": "/ours"})  # fmt: skip
    tell = (
        'pwd > "$0"; cat /in/side/file >> "$0"; touch /x || touch "$HOME/x" || touch "$TRITON_CACHE_DIR"; env >> "$0"'
    )
    job = replace(small_job(tmp_path, cluster), gpu="h100", tasks_per_node=1, command=("sh", "-c", tell, str(out)))
    (job.folder / "logs").mkdir(parents=True)
    (job.folder / "job.sh").write_text(script(job))
    number = boxed.say("sbatch", "--parsable", str(job.folder / "job.sh"))
    boxed.until_state(number, *ENDED)
    story = "".join(file.read_text() for file in (job.folder / "logs").iterdir()) + boxed.said()
    assert out.is_file(), story
    where, *told = out.read_text().split("\n")
    assert where == str(tmp_path) and told[0].startswith("of the host"), story
    for line in (f"VALUE={PRINTABLE[0]}", "EMPTY=", "PYTHONPATH=/ours", "OTHER=image", "PYTHONNOUSERSITE=1"):
        assert line in out.read_text(), story
    assert "Read-only file system" in story and "\tok\t" in (job.folder / "attempts.tsv").read_text(), story
