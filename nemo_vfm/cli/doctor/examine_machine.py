"""Checks versions, memory, disk, programs and libraries, in a fixed order; a failing check stops no other."""

import os
import platform
import re
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from nemo_vfm.cli.doctor.probe_child import ProbeResult, State, ask
from nemo_vfm.config import Roots
from nemo_vfm.config.roots import header
from nemo_vfm.core.optional import available, line_of_extras
from nemo_vfm.core.process import num_cores
from nemo_vfm.core.secret import conceal
from nemo_vfm.core.types.json_value import Json

PYTHONS = ((3, 11), (3, 12))
_FEW_FILES, _LITTLE_SHM_GB, _LITTLE_MEMORY_GB, _LITTLE_DISK_GB = 1024, 1.0, 4.0, 10.0
_CGROUPS, _OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_SHM = Path("/dev/shm")  # noqa: S108 (looked at, not written)
_PROBED_EXTRAS = ("dev", "decord", "torchcodec", "ray")
_GROUPS = ("needed", "video", "GPU", "cluster", "machine", "optional packages")


@dataclass(frozen=True, slots=True)
class CheckResult:
    """How one thing was found."""

    group: str
    name: str
    state: State
    detail: str
    hint: str = ""  #: what to do; empty where nothing is to be done
    needed: bool = False  #: without it nothing works here

    @property
    def stops(self) -> bool:
        """Whether it must be put right first."""
        return self.needed and self.state in ("missing", "broken")

    def to_json(self) -> Json:
        """Without secrets and home folders, as everything that is shown."""
        return {"group": self.group, "name": self.name, "state": self.state, "needed": self.needed,
                "detail": paste_ready(self.detail), "hint": paste_ready(self.hint)}  # fmt: skip


def paste_ready(text: str) -> str:
    """The text without secrets, without the user's home folder, on one line."""
    home = str(Path.home())
    text = conceal(" ".join(text.split()))
    if len(home) > 1:
        text = re.sub(rf"{re.escape(home)}(?=[/:\s'\"]|$)", "~", text)
    return re.sub(r"/(home|Users)/[^/\s'\":]+", "~", text)


def python() -> CheckResult:
    """The interpreter."""
    supported = " and ".join(f"{major}.{minor}" for major, minor in PYTHONS)
    fits = sys.version_info[:2] in PYTHONS
    detail = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    hint = "" if fits else f"create an environment with Python {supported}"
    return CheckResult("needed", "Python", "ok" if fits else "broken", detail, hint, needed=True)


def packages() -> Iterator[CheckResult]:
    """Whether the versions that we declare are installed; their own declarations are pip's business."""
    try:
        declared = [Requirement(line) for line in metadata.requires("nemo_vfm") or []]
    except metadata.PackageNotFoundError:
        yield CheckResult("needed", "packages", "low",
                          "nemo_vfm itself is not installed, so versions were not compared",
                      "pip install -e . in the checkout", needed=True)  # fmt: skip
        return
    wanted = [r for r in declared if not r.marker or r.marker.evaluate({"extra": ""})]
    wrong = [(requirement, why) for requirement in wanted if (why := why_not(requirement))]
    for requirement, why in wrong:
        missing = "not installed" in why
        yield CheckResult("needed", requirement.name, "missing" if missing else "broken", why,
                      f"pip install '{requirement.name}{requirement.specifier}'", needed=True)  # fmt: skip
    if not wrong:
        yield CheckResult("needed", "packages", "ok", f"{len(wanted)} installed in supported versions", needed=True)


def extras() -> Iterator[tuple[str, str]]:
    """(extra, why it is not complete); an empty reason where all of it is installed."""
    try:
        lines, names = (
            metadata.requires("nemo_vfm") or [],
            metadata.metadata("nemo_vfm").get_all("Provides-Extra") or [],
        )
    except metadata.PackageNotFoundError:
        return
    declared = [Requirement(line) for line in lines]
    for extra in names:
        wanted = [r for r in declared if r.marker and r.marker.evaluate({"extra": extra})
                  and not r.marker.evaluate({"extra": ""})]  # fmt: skip
        yield extra, "; ".join(filter(None, map(why_not, wanted)))


def why_not(requirement: Requirement) -> str:
    """What is wrong with an installed package, or nothing."""
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return f"{requirement.name} is not installed"
    if requirement.specifier.contains(version, prereleases=True):
        return ""
    return f"{requirement.name} is {version}, expected {requirement.specifier}"


def memory() -> CheckResult:
    """RAM."""
    import psutil

    seen = psutil.virtual_memory()
    total, free = seen.total / 1e9, seen.available / 1e9
    # (limit, use) in bytes of each group that this process is in, by version 2 or 1 of cgroups. In a container the root
    # that it sees is its own group, whatever path the kernel tells.
    limits = [(seen.total, 0)]
    lines = _OWN_CGROUPS.read_text().splitlines() if _OWN_CGROUPS.is_file() else []
    for _, controllers, path in (line.split(":", 2) for line in [*lines, "0::/", "0:memory:/"]):
        if controllers == "":
            base, names = _CGROUPS, ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            base, names = _CGROUPS / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        own = base / path.lstrip("/")
        for group in (own, *(one for one in own.parents if one.is_relative_to(base))):
            with suppress(OSError, ValueError):  # "max" is no limit
                limits.append((int((group / names[0]).read_text()), int((group / names[1]).read_text())))
    limit, used = min(limits)
    of_group = ""
    if limit < seen.total:
        of_group = f"; a container or a job (cgroup) may use no more of the machine's {total:.1f} GB"
        total, free = limit / 1e9, min(free, max(limit - used, 0) / 1e9)
    low = free < _LITTLE_MEMORY_GB
    hint = "reduce num_workers or the batch size" if low else ""
    return CheckResult(
        "machine", "memory", "low" if low else "ok", f"{total:.1f} GB, {free:.1f} GB free{of_group}", hint
    )


def processors() -> CheckResult:
    """CPU cores that this process may use."""
    return CheckResult("machine", "CPU cores", "ok", f"{num_cores()} of {os.cpu_count()}")


def shared_memory() -> CheckResult:
    """What loader processes hand batches over in."""
    if not _SHM.is_dir():
        return CheckResult("machine", "shared memory", "ok", "no /dev/shm on this system")
    total = shutil.disk_usage(_SHM).total / 1e9
    low = total < _LITTLE_SHM_GB
    hint = "loader processes need it: docker run --shm-size=8g, or num_workers: 0" if low else ""
    return CheckResult("machine", "shared memory", "low" if low else "ok", f"{_SHM} has {total:.2g} GB", hint)


def open_files() -> CheckResult:
    """How many files a process may hold open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = 0 <= soft < _FEW_FILES
    hint = "many loader processes need more: ulimit -n 4096" if low else ""
    limits = " of ".join("any number" if limit < 0 else f"{limit:,}" for limit in (soft, hard))
    return CheckResult("machine", "open files", "low" if low else "ok", limits, hint)


def run_folder(folder: Path) -> Iterator[CheckResult]:
    """Whether runs can be written here, and how much."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        yield CheckResult("needed", "run folder", "broken", f"{folder} cannot be written: {error.strerror}",
                      "work in another folder, or give every run its own run_dir=DIR", needed=True)  # fmt: skip
        return
    free = shutil.disk_usage(there).free / 1e9
    yield CheckResult("needed", "run folder", "ok", f"{folder} can be written", needed=True)
    low = free < _LITTLE_DISK_GB
    hint = "checkpoints and shards fill a disk quickly; choose a run_dir on a larger one" if low else ""
    yield CheckResult("machine", "disk", "low" if low else "ok", f"{free:,.1f} GB free for {folder}", hint)


def programs() -> Iterator[CheckResult]:
    """Slurm's commands."""
    for name in ("sbatch", "srun"):
        path = shutil.which(name)
        hint = "" if path else "submit Slurm jobs from a login node"
        yield CheckResult("cluster", name, "ok" if path else "missing", path or "not on PATH", hint)


@dataclass(frozen=True, slots=True)
class ProbeCheck:
    """A check that runs in a process of its own."""

    group: str
    name: str
    probe: str  #: its name in `probes.PROBES`
    module: str  #: what must be installed for it to be worth a process
    hint: str  #: what to do where it does not work
    needed: bool = False
    behind: str = ""  #: another probe without whose success this one is not tried
    extra: str = ""  #: of ours that brings the module; its line for pip goes before the hint


#: The slowest first, so that the others run beside it.
PROBES = (
    ProbeCheck("needed", "Lightning", "lightning", "lightning", "pip install 'lightning>=2.4,<2.7'", needed=True),
    ProbeCheck("needed", "torch", "torch", "torch", "pip install torch", needed=True),
    ProbeCheck("GPU", "GPU", "gpu", "torch", "a driver (nvidia-smi shows it) and a torch built for its CUDA"),
    ProbeCheck("needed", "H.264 encoder", "h264", "av", "pip install --force-reinstall av (its wheels bring libx264)",
          needed=True),
    ProbeCheck("needed", "PyAV decoder", "pyav", "av", "pip install --force-reinstall av", needed=True),
    ProbeCheck("video", "decord decoder", "decord", "decord",
          " (x86-64 only; wanted by `decoder: decord` alone)", extra="decord"),
    ProbeCheck("video", "torchcodec decoder", "torchcodec", "torchcodec",
          " and the system's FFmpeg (apt install ffmpeg)", extra="torchcodec"),
    ProbeCheck("cluster", "Ray", "ray", "ray", "", extra="ray"),
    ProbeCheck("GPU", "NVENC encoder", "nvenc", "av", "a GPU with NVENC (A100 and H100 have none)", behind="gpu"),
    ProbeCheck("GPU", "NVDEC decoder", "nvdec", "av", "the driver's video libraries (in containers:"
          " NVIDIA_DRIVER_CAPABILITIES with video)", behind="gpu"),
    ProbeCheck("GPU", "NCCL", "nccl", "torch", "a torch built for CUDA; its wheels bring NCCL", behind="gpu"),
)  # fmt: skip


def examine(folder: Path, run_probe: Callable[[str], ProbeResult] = ask) -> list[CheckResult]:
    """Look at everything; `folder` is where runs would be written, `run_probe` runs a probe in its process."""
    checks: tuple[Callable[[], CheckResult | Iterable[CheckResult]], ...] = (
        python, packages, partial(run_folder, folder), programs, processors, memory, shared_memory, open_files,
        _optional_packages,
    )  # fmt: skip
    futures: dict[str, Future[CheckResult]] = {}
    # Two at least: a probe may wait for an earlier one.
    with ThreadPoolExecutor(max(2, min(4, os.cpu_count() or 1))) as pool:
        for probe in PROBES:
            futures[probe.probe] = pool.submit(_probe, probe, futures.get(probe.behind), run_probe)
        findings: list[CheckResult] = []
        for check in checks:
            try:
                found = check()
                findings += [found] if isinstance(found, CheckResult) else list(found)
            except Exception as error:  # a strange machine is what this verb is for
                name = getattr(check, "__name__", "check").strip("<>_")
                why = f"could not be checked: {type(error).__name__}: {error}"
                findings.append(CheckResult("machine", name, "broken", why))
        findings += [future.result() for future in futures.values()]
    return sorted(findings, key=lambda finding: _GROUPS.index(finding.group))


def _probe(
    probe: ProbeCheck, behind: "Future[CheckResult] | None", run_probe: Callable[[str], ProbeResult]
) -> CheckResult:
    if not available(probe.module):
        answer = ProbeResult("missing", f"{probe.module} is not installed")
    elif behind is not None and (before := behind.result()).state != "ok":
        answer = ProbeResult("missing", f"needs a working {before.name}")
    else:
        answer = run_probe(probe.probe)
    install = line_of_extras([probe.extra]) if probe.extra else ""
    hint = "" if answer.state == "ok" else install + probe.hint
    return CheckResult(probe.group, probe.name, answer.state, answer.detail, hint, probe.needed)


def _optional_packages() -> Iterator[CheckResult]:
    """The extras that no probe tries: installed or not, and which recipes need them."""
    names: dict[str, list[str]] = {}
    for name, file in sorted(Roots.standard().all_recipes()):
        for extra in header(file).extras:
            names.setdefault(extra, []).append(name)
    users = {
        extra: f"needed by {found[0]}{f' and {len(found) - 1} more' if found[1:] else ''}"
        for extra, found in names.items()
    }
    for extra, why in extras():
        if extra not in _PROBED_EXTRAS:
            hint = line_of_extras([extra]) if why else ""
            needed_by = f"; {users[extra]}" if extra in users else ""
            detail = f"{why or 'installed'}{needed_by}"
            yield CheckResult("optional packages", extra, "missing" if why else "ok", detail, hint)
