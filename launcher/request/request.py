"""Sorts the arguments of a command line by what they are for: the recipe, the cluster and its size.

`cluster`, everything below it, `nodes` and `gpus` belong to the launcher. Every other change belongs to the recipe.
"""

import argparse
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.render import profile
from launcher.render.profile import ProfileSettings
from nemo_vfm.config.overrides import Override, parse_override, swept_words
from nemo_vfm.config.recipe_errors import fail
from nemo_vfm.config.tree import Scalar
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.network.permission import folder_word

_OPTIONS = ("overlay", "trust", "allow")  # of `nemo-vfm run`, passed on word by word
_BUCKET = re.compile(r"(?<![\w:+.-])((?:s3|gs|abfs)://[a-z0-9][a-z0-9._-]{1,62})(?=[/,\]}\"']|$)")
#: A variable's text that YAML would take as a number or as nothing: 1_000, 12.10, the empty text.
_BARE_VARIABLE = re.compile(r"(cluster\.environment\.\w+)=(?!null$)([\w.+-]*)", re.ASCII)
CLUSTER = "cluster"  #: the word of `--trust` for a cluster's file
_SIZES = ("nodes", "gpus")
_MAX_PARTS = 1000  # Slurm's own limit for arrays, where nobody has raised it


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """What somebody wants to run, and where."""

    recipe: str  #: its file or name
    changes: tuple[str, ...] = ()  #: of the recipe
    cluster: str  #: the name of a cluster's file
    cluster_changes: tuple[str, ...] = ()  #: of the cluster: `cluster.partition=short`
    nodes: int | None = None  #: how many; None where the recipe's layout, or `gpus`, says it
    gpus: int | None = None  #: how many in all, on whole nodes where they are more than one has; None where nobody said
    conf: tuple[Path, ...] = ()  #: folders of ingredients that are searched first
    overlays: tuple[str, ...] = ()  #: over the recipe
    trust: tuple[str, ...] = ()  #: packages that the recipe may name
    #: whether a cluster's file that is not ours may bring programs and variables that load code.
    trusts_cluster: bool = False
    allow: tuple[str, ...] = ()  #: keys in which the recipe may differ from the run that is there
    #: hosts and buckets that the recipe may reach, those of typed addresses among them.
    allow_host: tuple[str, ...] = ()
    code: bool = True  #: whether the working tree is taken along
    parts: int = 0  #: into how many tasks of an array work is shared out that can be; 0 is not at all
    #: seconds without a sign of life after which a rank is lost; None is nemo-vfm's own.
    rank_silence: float | None = None
    rank_timeout: float | None = None  #: seconds that one may wait for another; None is nemo-vfm's own
    paths: bool = True  #: whether the files and folders that the recipe reads are looked for on this machine
    profile: ProfileSettings | None = None  #: what is recorded of chosen ranks; None is nothing
    #: values of the recipe, every combination of which is a task of an array: `optimizer.lr=1e-4,3e-4`.
    sweep: tuple[str, ...] = ()

    def override(self, changes: Sequence[str]) -> "LaunchRequest":
        """One combination of a sweep, which has these changes besides."""
        return replace(self, changes=(*self.changes, *changes), sweep=())

    def recipe_words(self) -> list[str]:
        """Behind a verb of `nemo-vfm`: the recipe as it is asked for here."""
        named = {"--overlay": self.overlays, "--trust": self.trust, "--conf": [str(path) for path in self.conf],
                 "--allow-host": self.allow_host}  # fmt: skip
        options = [f"{name}={value}" for name, values in named.items() for value in values]
        return [self.recipe, *self.changes, *options]

    def run_words(self) -> tuple[str, ...]:
        """Options of `nemo-vfm run` for the composed recipe, which needs no folder of ingredients and no overlay."""
        named = {"--trust": self.trust, "--allow": self.allow, "--allow-host": self.allow_host}
        limits = {"--rank-silence": self.rank_silence, "--rank-timeout": self.rank_timeout}
        return (*(f"{name}={value}" for name, values in named.items() for value in values),
                *(f"{name}={value:g}" for name, value in limits.items() if value is not None))  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """RECIPE, changes, and the options that a recipe needs."""
    parser.add_argument("recipe", metavar="RECIPE", help="a file, or a name that `nemo-vfm list` shows")
    parser.add_argument("overrides", metavar="CHANGE", nargs="*", default=[],
                        help="cluster=NAME takes conf/cluster/NAME.yaml, cluster.a=b changes it, nodes=N or gpus=N "
                        "sets its size; the rest is for the recipe")  # fmt: skip
    parser.add_argument("--conf", metavar="DIR", type=Path, action="append", default=[],
                        help="folder of your own ingredients and clusters, searched first")  # fmt: skip
    for name, metavar, what in (
        ("overlay", "NAME", "apply conf/overlay/NAME to every component that it names; `smoke` makes the recipe tiny"),
        ("trust", "PREFIX", "a package whose classes the recipe may name, or `cluster` for the programs and variables "
                            "that your own cluster file names; their code will run"),
        ("allow", "KEY", "resume in a run folder even though this key differs"),
        ("allow-host", "HOST[=VARIABLE]", "a host, s3://BUCKET or ray://HOST:PORT that the recipe may contact; "
                                          "VARIABLE holds the API key"),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", metavar=metavar, action="append", default=[], help=what)
    add_allow_write(parser)
    parser.add_argument("--parts", metavar="N", type=int, default=0,
                        help="split curation and sampling over N tasks of a job array")  # fmt: skip
    parser.add_argument("--sweep", metavar="KEY=A,B", action="extend", nargs="+", default=[],
                        help="run every combination of these values as a task of a job array")  # fmt: skip
    for name, what in (
        ("silence", "without a heartbeat before a rank counts as lost"),
        ("timeout", "that one rank may wait for another"),
    ):
        parser.add_argument(f"--rank-{name}", metavar="SECONDS", type=float, help=f"seconds {what}, as nemo-vfm run")
    parser.add_argument("--profile", choices=["nsys"],
                        help="record what chosen ranks and their GPUs do, below launch/profile/")  # fmt: skip
    parser.add_argument("--profile-ranks", metavar="R,R", help="ranks to record (default 0)")
    parser.add_argument(
        "--profile-seconds", metavar="A-B", help="time to record, counted from the start, such as 120-180"
    )
    parser.add_argument("--no-paths", action="store_true",
                        help="do not look for the recipe's files here: the nodes see files that this machine does "
                             "not")  # fmt: skip
    parser.add_argument(
        "--no-code", action="store_true", help="do not copy the working tree: the installed packages run"
    )


def add_allow_write(parser: argparse.ArgumentParser) -> None:
    """--allow-write, kept among the words of --allow-host as `nemo-vfm run` keeps it."""
    parser.add_argument("--allow-write", metavar="DIR", dest="allow_host", action="append",
                        type=folder_word,
                        help="a folder outside the working directory and the run folder in which the recipe may "
                             "write")  # fmt: skip


def parse_request(arguments: argparse.Namespace) -> LaunchRequest:
    """What the arguments ask for."""
    if not 0 <= arguments.parts <= _MAX_PARTS:
        raise UserError(f"--parts takes 1 to {_MAX_PARTS:,}, got {arguments.parts}")
    for name in ("rank_silence", "rank_timeout"):
        if (value := vars(arguments)[name]) is not None and not 1 <= value < float("inf"):
            raise UserError(f"--{name.replace('_', '-')} is {value:g}; it must be at least 1 second")
    if arguments.parts and arguments.sweep:
        raise UserError("--parts splits one run and --sweep makes several; drop one of them")
    # Whatever follows --sweep is among its words, also what says where, and changes that sweep nothing.
    where = ("cluster=", "cluster.", *(f"{name}=" for name in _SIZES))
    of_sweep = swept_words([word for word in arguments.sweep if not word.lstrip("~").startswith(where)])
    if arguments.sweep and not of_sweep:
        raise UserError("--sweep takes values of the recipe, such as optimizer.lr=1e-4,3e-4, and got none")
    given = [*arguments.overrides, *(word for word in arguments.sweep if word not in of_sweep)]
    given = [f"{bare[1]}='{bare[2]}'" if (bare := _BARE_VARIABLE.fullmatch(word)) else word for word in given]
    # Buckets of typed addresses are the user's, which the composed recipe that jobs run does not show.
    buckets = [match[1] for word in given for match in _BUCKET.finditer(word)]
    changes = [(word, parse_override(word)) for word in given]
    ours = {word: change for word, change in changes if change.path.partition(".")[0] in ("cluster", *_SIZES)}
    nodes, gpus = (_number(name, ours.values()) for name in _SIZES)
    if nodes is not None and gpus is not None:
        raise UserError(f"nodes={nodes} and gpus={gpus} both set the size; give only one")
    return LaunchRequest(
        recipe=arguments.recipe, changes=tuple(word for word, _ in changes if word not in ours),
        cluster=_cluster([change for change in ours.values() if change.path == "cluster"]),
        cluster_changes=tuple(word for word, change in ours.items() if change.path.startswith("cluster.")),
        nodes=nodes, gpus=gpus,
        conf=tuple(arguments.conf), overlays=tuple(arguments.overlay), trust=packages_of(arguments.trust),
        trusts_cluster=CLUSTER in arguments.trust,
        allow=tuple(arguments.allow), allow_host=(*arguments.allow_host, *dict.fromkeys(buckets)),
        code=not arguments.no_code,
        parts=arguments.parts, rank_silence=arguments.rank_silence, rank_timeout=arguments.rank_timeout,
        sweep=tuple(of_sweep), paths=not arguments.no_paths,
        profile=profile.parse_profile(arguments.profile, arguments.profile_ranks, arguments.profile_seconds),
    )  # fmt: skip


def packages_of(trust: Sequence[str]) -> tuple[str, ...]:
    """The words of `--trust` that are packages: `cluster` is the launcher's own."""
    return tuple(word for word in trust if word != CLUSTER)


def _cluster(changes: Sequence[Override]) -> str:
    if not changes:
        from nemo_vfm.config import Roots

        there = ", ".join(Roots.standard().choices("cluster"))
        raise UserError(
            f"no cluster given; add cluster=NAME. Available: {there}; add your own as conf/cluster/NAME.yaml"
        )
    last = changes[-1]
    if not isinstance(last.value, Scalar) or not last.text:
        raise fail("give a cluster by the name of its file: cluster=NAME", last.mark)
    return last.text


def _number(name: str, changes: Iterable[Override]) -> int | None:
    own = [change for change in changes if change.path.partition(".")[0] == name]
    if not own:
        return None
    last = own[-1]
    value = last.value.value if isinstance(last.value, Scalar) and last.path == name else None
    if type(value) is not int or value < 1:
        raise fail(f"{name} must be a whole number, one or more, got {last.text or last.path}", last.mark)
    return value
