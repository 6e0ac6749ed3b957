"""Starts a real Slurm of several nodes on this machine's loopback, which ends with the test in any case.

Every process of it, and of its jobs, carries the folder's name in its environment (SLURM_CONF). By that mark they are
found and ended one by one, also by a watcher that outlives a killed test process. Without munge there is no Slurm here:
its daemons would believe anybody about who is asking.
"""

import os
import random
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from getpass import getuser
from pathlib import Path

from tests.support.repository import ROOT

NEEDED = ("slurmctld", "slurmd", "sbatch", "munged")
START_S = 30.0
ENDS = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "DEADLINE")
#: Nobody may listen beyond loopback: whoever reaches slurmd may run what he likes.
CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={short}/munge/sock
CredType=cred/munge
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation={root}/state
SlurmdSpoolDir={short}/spool/%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.%n.pid
SlurmctldLogFile={root}/log/slurmctld.log
SlurmdLogFile={root}/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={root}/log/jobcomp.txt
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1,sched_min_interval=10000
InactiveLimit=0
KillWait={kill_wait_s}
MinJobAge=600
SlurmctldTimeout=30
SlurmdTimeout=5
JobRequeue=1
FirstJobId={first}
{gres}
{nodes}
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP {partition}
{more}
"""
NODE = ("NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} Sockets=1 CoresPerSocket=16 "
        "ThreadsPerCore=1 RealMemory=2000 {gres} State=UNKNOWN")  # fmt: skip
GPU_GRES = "NodeName={names} Name=gpu Flags=nvidia_gpu_env File={root}/dev/gpu[0-{last}]\n"
CGROUP = "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n"
WATCHER = "import sys; from tests.support.slurm import watch; watch(*sys.argv[1:])"


def lacking() -> str:
    """What a machine needs and this one has not, as a sentence; empty where a Slurm can be started."""
    missing = [name for name in NEEDED if found(name) is None]
    if not missing:
        return ""
    return f"no {', '.join(missing)} on this machine; on Debian and Ubuntu: apt-get install slurm-wlm munge"


def found(program: str) -> str | None:
    """Where it is; daemons are often in folders that only an administrator's path names."""
    return shutil.which(program, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"]))


class Slurm:
    """One cluster: a controller, nodes n1 and so on, of 16 cores each.

    Args:
        root: its folder, empty.
        nodes: how many.
        gpus: device files a node, which compute nothing.
        kill_wait_s: between SIGTERM and SIGKILL where Slurm ends a job.
        partition: of all nodes, what more is said of it.
        more: lines for its configuration, another partition for example.
    """

    def __init__(
        self, root: Path, *, nodes: int = 2, gpus: int = 0, kill_wait_s: int = 30,
        partition: str = "OverSubscribe=FORCE:4", more: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.root, self.gpus, self.kill_wait_s, self.partition, self.more = root, gpus, kill_wait_s, partition, more
        self.nodes = [f"n{number + 1}" for number in range(nodes)]
        self.conf = root / "slurm.conf"
        self._short = root  # the same folder by a name of a few letters: sockets' names have 107 at most
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._watcher: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """This process's, and where the cluster is."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH"))}
        return {**kept, "SLURM_CONF": str(self.conf)}

    def start(self) -> None:
        """Up to where every node is idle."""
        for folder in ("munge", "state", "log", "dev", *(f"spool/{node}" for node in self.nodes)):
            (self.root / folder).mkdir(parents=True)
        self._short = Path(tempfile.mkdtemp(prefix="slurm-")) / "r"
        self._short.symlink_to(self.root)
        self._configure()
        watcher = [sys.executable, "-c", WATCHER, str(self.conf), str(self._short)]
        # Its own session: the Ctrl-C that ends the tests must leave it to clean up behind them.
        self._watcher = subprocess.Popen(watcher, stdin=subprocess.PIPE, start_new_session=True, cwd=ROOT)
        self._begin_munge()
        self._begin("slurmctld", "-D", "-i", "-f", str(self.conf))
        # A node that comes before the controller listens tries again only after a second.
        self.until(lambda: "is UP" in self.say("scontrol", "ping", expect=None), "controller")
        for node in self.nodes:
            self.begin(node)
        self.until(lambda: set(self.states().values()) == {"idle"}, "idle nodes")

    def begin(self, node: str) -> None:
        """Start the daemon of one node."""
        self._begin("slurmd", "-D", "-N", node, "-f", str(self.conf), name=node)

    def stop(self) -> None:
        """End all jobs, then every process of the cluster, and see that none is left."""
        for process in self._running.values():
            process.kill()  # asked to end, a node that has just run something takes seconds; nothing of it is kept
            process.wait()
        sweep(str(self.conf))
        if self._watcher is not None:
            self._watcher.communicate(timeout=START_S)

    def say(self, *words: str, expect: int | None = 0) -> str:
        """What one of Slurm's commands prints."""
        done = subprocess.run(words, env=self.environment, capture_output=True, text=True, timeout=240, check=False)
        assert expect is None or done.returncode == expect, f"{words} ended with {done.returncode}: {done.stderr}"
        return done.stdout.strip()

    def states(self) -> dict[str, str]:
        """What Slurm thinks of each node."""
        said = self.say("sinfo", "-h", "-N", "-o", "%N %T", expect=None)
        return dict(line.split() for line in said.splitlines())

    def job(self, number: str) -> dict[str, str]:
        """All that Slurm says of a job."""
        said = self.say("scontrol", "show", "job", "-o", number)
        return dict(word.split("=", 1) for word in said.split() if "=" in word)

    def until_state(self, number: str, *states: str, within_s: float = 120.0) -> dict[str, str]:
        """Wait until a job is in one of these states, and its nodes are free where it has ended."""
        self.until(lambda: self.job(number)["JobState"] in states, f"job {number} {states}", within_s)
        return self.job(number)

    def ended(self, number: str, within_s: float = 240.0) -> dict[str, str]:
        """Wait for the end of a job that may be begun again, without the two minutes that Slurm leaves between."""
        end, begun = time.monotonic() + within_s, ""
        while (job := self.job(number))["JobState"] not in ENDS:
            assert time.monotonic() < end, f"job {number} did not end within {within_s:g} s: {job}\n{self.said()}"
            if job["Reason"] == "BeginTime" and begun != job["Restarts"]:
                # Not at once: for a second a node takes what comes of the job for a part of the attempt before.
                self.say("scontrol", "update", f"JobId={number}", "StartTime=now+2")
                begun = job["Restarts"]
            time.sleep(0.1)
        return job

    def until(self, is_so: Callable[[], bool], what: str, within_s: float = START_S) -> None:
        """Ask again until it is so."""
        end = time.monotonic() + within_s
        while not is_so():
            assert time.monotonic() < end, f"no {what} within {within_s:g} s: {self.states()}\n{self.said()}"
            time.sleep(0.05)

    def lose(self, node: str) -> None:
        """Kill what runs on a node, its daemon first, as a power failure does."""
        self._running[node].kill()
        self._running[node].wait()
        ours, here = marked(str(self.conf)), marked(str(self.conf), f"SLURMD_NODENAME={node}")
        for pid in here | {parent for pid in here if (parent := parent_of(pid)) in ours}:
            end(pid)

    def said(self, last: int = 2000) -> str:
        """The ends of all logs, for whoever asks why."""
        logs = sorted((self.root / "log").glob("*.log"))
        return "\n".join(f"-- {log.name}\n{log.read_text(errors='replace')[-last:]}" for log in logs)

    def _configure(self) -> None:
        host, ports = socket.gethostname().partition(".")[0], free_ports(len(self.nodes) + 1)
        gres = f"Gres=gpu:{self.gpus}" if self.gpus else ""
        lines = [NODE.format(name=node, host=host, port=port, gres=gres)
                 for node, port in zip(self.nodes, ports[1:], strict=True)]  # fmt: skip
        # The port of a job's processes follows from its number: two clusters at a time need numbers far apart.
        first = random.SystemRandom().randrange(1000, 9_000_000, 50)
        self.conf.write_text(CONF.format(
            host=host, port=ports[0], user=getuser(), root=self.root, short=self._short, first=first,
            nodes="\n".join(lines),
            gres="GresTypes=gpu" if self.gpus else "", kill_wait_s=self.kill_wait_s, partition=self.partition,
            more="\n".join(self.more),
        ))  # fmt: skip
        (self.root / "cgroup.conf").write_text(CGROUP)
        if self.gpus:
            for number in range(self.gpus):  # Slurm wants character devices: these are /dev/null by other names
                os.mknod(self.root / f"dev/gpu{number}", stat.S_IFCHR | 0o666, os.makedev(1, 3))
            names = f"n[1-{len(self.nodes)}]"
            text = GPU_GRES.format(names=names, root=self.root, last=self.gpus - 1)
            (self.root / "gres.conf").write_text(text)

    def _begin_munge(self) -> None:
        folder = self._short / "munge"
        folder.chmod(0o711)  # munged refuses a folder that others may write
        (folder / "key").write_bytes(os.urandom(128))
        (folder / "key").chmod(0o400)
        files = {"socket": "sock", "key-file": "key", "log-file": "log", "pid-file": "pid", "seed-file": "seed"}
        words = [f"--{option}={folder / name}" for option, name in files.items()]
        self._begin("munged", "--foreground", "--force", *words)
        self.until(lambda: (folder / "sock").exists(), "munge")

    def _begin(self, program: str, *words: str, name: str = "") -> None:
        path = found(program)
        assert path is not None, lacking()
        with (self.root / "log" / f"{name or program}.out.log").open("ab") as log:
            self._running[name or program] = subprocess.Popen(
                [path, *words], env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip


@contextmanager
def slurm(
    root: Path, *, nodes: int = 2, gpus: int = 0, kill_wait_s: int = 30, partition: str = "OverSubscribe=FORCE:4",
    more: Sequence[str] = (),
) -> Iterator[Slurm]:  # fmt: skip
    """A cluster for the time of the block."""
    cluster = Slurm(root, nodes=nodes, gpus=gpus, kill_wait_s=kill_wait_s, partition=partition, more=more)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def free_ports(count: int) -> list[int]:
    """So many that nobody listens at; all are held until the last is known, so that they differ."""
    held = [socket.socket() for _ in range(count)]
    try:
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in held]
    finally:
        for one in held:
            one.close()


def marked(conf: str, *more: str) -> set[int]:
    """The processes whose environment names this cluster's configuration, and has these entries besides."""
    wanted = {os.fsencode(entry) for entry in (f"SLURM_CONF={conf}", *more)}
    pids = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                entries = (folder / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if wanted <= set(entries):
                pids.add(int(folder.name))
    return pids - {os.getpid()}


def parent_of(pid: int) -> int:
    """Who started a process; 0 where it is gone."""
    try:
        return int((Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def end(pid: int) -> None:
    """Kill one process, which may be gone."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def sweep(conf: str) -> None:
    """Kill one by one whatever carries the mark, until nothing does."""
    until = time.monotonic() + START_S
    while (left := marked(conf)) and time.monotonic() < until:
        for pid in left:
            end(pid)
        time.sleep(0.02)


def watch(conf: str, short: str) -> None:
    """Wait until the test process closes its end or dies, then end what it left, and take its short name away."""
    sys.stdin.buffer.read()
    sweep(conf)
    Path(short).unlink(missing_ok=True)
    Path(short).parent.rmdir()
