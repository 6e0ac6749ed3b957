"""Runs every check of the machine and lists its findings in a fixed order; a failing check stops no other."""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from nemo_vfm.cli.doctor import machine_facts
from nemo_vfm.cli.doctor.finding import Finding
from nemo_vfm.cli.doctor.probe_child import Answer, ask
from nemo_vfm.config import Roots
from nemo_vfm.config.recipe_header import header
from nemo_vfm.core.optional import available, line_of_extras


@dataclass(frozen=True, slots=True)
class Probe:
    """A check that runs in a process of its own.

    Args:
        group: the finding's.
        name: the finding's.
        probe: its name in `probes.PROBES`.
        module: what must be installed for it to be worth a process.
        hint: what to do where it does not work.
        needed: the finding's.
        behind: another probe without whose success this one is not tried.
        extra: of ours that brings the module; its line for pip goes before the hint.
    """

    group: str
    name: str
    probe: str
    module: str
    hint: str
    needed: bool = False
    behind: str = ""
    extra: str = ""


#: The slowest first, so that the others run beside it.
PROBES = (
    Probe("needed", "Lightning", "lightning", "lightning", "pip install 'lightning>=2.4,<2.7'", needed=True),
    Probe("needed", "torch", "torch", "torch", "pip install torch", needed=True),
    Probe("GPU", "GPU", "gpu", "torch", "a driver (nvidia-smi shows it) and a torch built for its CUDA"),
    Probe("needed", "H.264 encoder", "h264", "av", "pip install --force-reinstall av (its wheels bring libx264)",
          needed=True),
    Probe("needed", "PyAV decoder", "pyav", "av", "pip install --force-reinstall av", needed=True),
    Probe("video", "decord decoder", "decord", "decord",
          " (x86-64 only; wanted by `decoder: decord` alone)", extra="decord"),
    Probe("video", "torchcodec decoder", "torchcodec", "torchcodec",
          " and the system's FFmpeg (apt install ffmpeg)", extra="torchcodec"),
    Probe("cluster", "Ray", "ray", "ray", "", extra="ray"),
    Probe("GPU", "NVENC encoder", "nvenc", "av", "a GPU with NVENC (A100 and H100 have none)", behind="gpu"),
    Probe("GPU", "NVDEC decoder", "nvdec", "av", "the driver's video libraries (in containers:"
          " NVIDIA_DRIVER_CAPABILITIES with video)", behind="gpu"),
    Probe("GPU", "NCCL", "nccl", "torch", "a torch built for CUDA; its wheels bring NCCL", behind="gpu"),
)  # fmt: skip
_PROBED_EXTRAS = ("dev", "decord", "torchcodec", "ray")
_GROUPS = ("needed", "video", "GPU", "cluster", "machine", "optional packages")


def examine(run_folder: Path, run_probe: Callable[[str], Answer] = ask) -> list[Finding]:
    """Look at everything.

    Args:
        run_folder: where runs would be written.
        run_probe: runs a probe.
    """
    futures: dict[str, Future[Finding]] = {}
    # Two at least: a probe may wait for an earlier one.
    with ThreadPoolExecutor(max(2, min(4, os.cpu_count() or 1))) as pool:
        for probe in PROBES:
            futures[probe.probe] = pool.submit(_probe, probe, futures.get(probe.behind), run_probe)
        here = [finding for check in _checks(run_folder) for finding in _guarded(check)]
        findings = [*here, *(future.result() for future in futures.values())]
    return sorted(findings, key=lambda finding: _GROUPS.index(finding.group))


def _checks(run_folder: Path) -> list[Callable[[], Iterable[Finding]]]:
    return [
        lambda: [machine_facts.python()], machine_facts.packages, lambda: machine_facts.run_folder(run_folder),
        machine_facts.programs, lambda: [machine_facts.processors()],
        lambda: [machine_facts.memory()], lambda: [machine_facts.shared_memory()],
        lambda: [machine_facts.open_files()], _optional_packages,
    ]  # fmt: skip


def _guarded(check: Callable[[], Iterable[Finding]]) -> list[Finding]:
    try:
        return list(check())
    except Exception as error:  # a strange machine is what this verb is for
        name = getattr(check, "__name__", "check").strip("<>_")
        return [Finding("machine", name, "broken", f"could not be checked: {type(error).__name__}: {error}")]


def _probe(probe: Probe, behind: "Future[Finding] | None", run_probe: Callable[[str], Answer]) -> Finding:
    def found(answer: Answer) -> Finding:
        install = line_of_extras([probe.extra]) if probe.extra else ""
        hint = "" if answer.state == "ok" else install + probe.hint
        return Finding(probe.group, probe.name, answer.state, answer.detail, hint, probe.needed)

    if not available(probe.module):
        return found(Answer("missing", f"{probe.module} is not installed"))
    if behind is not None and (before := behind.result()).state != "ok":
        return found(Answer("missing", f"needs a working {before.name}"))
    return found(run_probe(probe.probe))


def _optional_packages() -> Iterator[Finding]:
    """The extras that no probe tries: installed or not, and which recipes need them."""
    users = _recipes_by_extra()
    for extra, why in machine_facts.extras():
        if extra not in _PROBED_EXTRAS:
            hint = line_of_extras([extra]) if why else ""
            needed_by = f"; {users[extra]}" if extra in users else ""
            detail = f"{why or 'installed'}{needed_by}"
            yield Finding("optional packages", extra, "missing" if why else "ok", detail, hint)


def _recipes_by_extra() -> dict[str, str]:
    """As their headers tell: "needed by llm/generate and 3 more"."""
    names: dict[str, list[str]] = {}
    for name, file in sorted(Roots.standard().all_recipes()):
        for extra in header(file).extras:
            names.setdefault(extra, []).append(name)
    return {extra: f"needed by {found[0]}{f' and {len(found) - 1} more' if found[1:] else ''}"
            for extra, found in names.items()}  # fmt: skip
