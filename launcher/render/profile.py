"""Renders how chosen ranks are run under a profiler, NVIDIA's Nsight Systems: in a script, or on this machine.

A rank's report lies in `launch/profile/`. Collecting ends after some seconds and the rank continues (`--kill=none`). A
signal that asks a job to save reaches nsys as well and would end it. So nsys ignores it, and the rank sets its own
handler. No GPU and no nsys were at hand: the options follow its documentation.
"""

import re
from dataclasses import dataclass, replace

from launcher.render.quoting import quote
from nemo_vfm.core.errors import UserError

FOLDER = "profile"  #: below the launch folder
_MAX_RANKS = 64  # a report is some hundred megabytes
_SECONDS = re.compile(r"(\d{1,6})-(\d{1,6})")
_MISSING = ("--profile nsys: nsys is not on the PATH{}. Load it with cluster.modules, use an image that has it, "
            "or leave --profile out")  # fmt: skip
_TEXT = """\
command -v nsys > /dev/null || { echo "vfm-launch: @MISSING@" >&2; exit 127; }
[[ " @RANKS@ " == *" $SLURM_PROCID "* ]] || exec "$@"
mkdir -p "$0"
trap '' USR1  # nsys goes on when the rank is asked to save
exec nsys @OPTIONS@ --output="$0/rank-$SLURM_PROCID-job-$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}" "$@"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSettings:
    """What is to be recorded."""

    ranks: tuple[int, ...] = (0,)  #: of which ranks
    begin_s: int = 120  #: seconds after the start at which it begins
    end_s: int = 180  #: and at which it ends

    def options(self) -> list[str]:
        """Words for nsys, but for the output."""
        return ["profile", "--trace=cuda,nvtx,osrt", "--sample=none", f"--delay={self.begin_s}",
                f"--duration={self.end_s - self.begin_s}", "--kill=none", "--force-overwrite=true"]  # fmt: skip


def parse_profile(profiler: str | None, ranks: str | None, seconds: str | None) -> ProfileSettings | None:
    """What `--profile`, `--profile-ranks` and `--profile-seconds` ask for; None where there is no profiler."""
    if profiler is None:
        if ranks is not None or seconds is not None:
            raise UserError("--profile-ranks and --profile-seconds are for --profile nsys; add it, or leave them out")
        return None
    found = ProfileSettings()
    if ranks is not None:
        words = ranks.split(",")
        if not all(re.fullmatch(r"\d{1,6}", word, re.ASCII) for word in words) or len(words) > _MAX_RANKS:
            raise UserError(f"--profile-ranks takes up to {_MAX_RANKS} rank numbers, such as 0,8, got {ranks!r}")
        found = replace(found, ranks=tuple(sorted({int(word) for word in words})))
    if seconds is not None:
        window = _SECONDS.fullmatch(seconds)
        if window is None or int(window[1]) >= int(window[2]):
            raise UserError(f"--profile-seconds takes a begin and an end, such as 120-180, got {seconds!r}")
        found = replace(found, begin_s=int(window[1]), end_s=int(window[2]))
    return found


def missing(where: str = "") -> str:
    """A sentence for whoever has no nsys."""
    return _MISSING.format(where)


def definition(profile: ProfileSettings | None) -> list[str]:
    """The lines of a script that keep in `$profiled` what each task runs."""
    if profile is None:
        return []
    values = {"MISSING": missing(" of $SLURMD_NODENAME"), "RANKS": " ".join(map(str, profile.ranks)),
              "OPTIONS": " ".join(map(quote, profile.options()))}  # fmt: skip
    text = _TEXT
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    ranks = f"Rank{'s' * (len(profile.ranks) > 1)} {', '.join(map(str, profile.ranks))}"
    return [f"# -- {ranks} under nsys, the others as always: --profile nsys.",
            "read -r -d '' profiled << 'PROFILED'", *text.splitlines(), "PROFILED", ""]  # fmt: skip


def before(profile: ProfileSettings | None) -> list[str]:
    """The words of a script before the command."""
    return [] if profile is None else ["bash", "-c", '"$profiled"', f'"$launch/{FOLDER}"']
