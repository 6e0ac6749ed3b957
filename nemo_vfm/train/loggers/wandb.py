"""Logs to Weights & Biases: into files in the run folder, or online where the recipe says so."""

import configparser
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.network.permission import Recipient, SentText
from nemo_vfm.core.optional import needs_packages, require
from nemo_vfm.core.secret import conceal
from nemo_vfm.train.loggers import identity
from nemo_vfm.train.loggers.logger_arguments import refuse_keys

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger

KEY = "WANDB_API_KEY"
SERVER = "WANDB_BASE_URL"
_HARMLESS = {"entity", "project", "mode", "disabled"}  # what `wandb init` writes
#: What a run writes besides its numbers: about this machine, its packages, the command line and the console. All of
#: it may hold what is nobody's business, and none of it is needed; the last looks up an address on the network too.
_UNASKED = {
    "x_disable_meta": True, "x_disable_machine_info": True, "x_save_requirements": False, "disable_git": True,
    "disable_code": True, "save_code": False, "console": "off", "silent": True, "x_disable_stats": True,
}  # fmt: skip


@needs_packages("wandb")
class WeightsAndBiases:
    """Files under `wandb/` of the run folder, which `wandb sync` uploads later; or a run at a server.

    A run that goes on keeps its number. The key comes from WANDB_API_KEY and the server from WANDB_BASE_URL, never from
    a recipe: whoever wrote it could have the key sent to a server of his own.

    Args:
        project: the project's name.
        name: the run's name; None takes the run folder's.
        entity: the user or team that owns the project; None takes the key's own.
        tags: words to find the run by.
        group: a name that runs of one experiment share, under which its pages gather them.
        job_type: what the run does, such as train or evaluate.
        mode: offline writes files alone; online sends while training.
    """

    def __init__(
        self, *, project: SentText = "nemo_vfm", name: SentText | None = None, entity: SentText | None = None,
        tags: Sequence[SentText] = (), group: SentText | None = None, job_type: SentText | None = None,
        mode: Literal["offline", "online"] = "offline",
    ) -> None:  # fmt: skip
        listed = {f"tags.{number}": tag for number, tag in enumerate(tags)}
        refuse_keys(KEY, project=project, name=name, entity=entity, group=group, job_type=job_type, **listed)
        self.project, self.name, self.entity, self.tags = project, name, entity, tuple(tags)
        self.group, self.job_type = group, job_type
        self.mode: Literal["offline", "online"] = mode

    def recipients(self) -> Sequence[Recipient]:
        """See `Sends.recipients`."""
        if self.mode == "offline":
            return ()
        owner = f"{self.entity or os.environ.get('WANDB_ENTITY', 'the owner of the key')}/{self.project}"
        gets = f"the recipe, every number and the previews of a training, as {owner}"
        reported = SERVER if os.environ.get(SERVER) else f"the package's own server, as {SERVER} is not set"
        return (Recipient(_server(), gets, (KEY,), reported),)

    def open(self, folder: Path) -> "Logger":
        """A WandbLogger whose run ends with the training, so that the next step of a workflow gets its own."""
        if self.mode == "online" and not os.environ.get(KEY):
            raise UserError(f"Weights & Biases online needs your key: export {KEY}=..., or set mode: offline")
        home = folder.absolute() / "wandb"
        home.mkdir(parents=True, exist_ok=True)
        # Its own files stay in the folder, and its reports of errors off the network, offline ones too.
        for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR", "WANDB_ARTIFACT_DIR"):
            os.environ[name] = str(home / "local")
        os.environ["WANDB_ERROR_REPORTING"] = "false"
        if self.mode == "online":
            _refuse_other_servers(home)
        wandb = require("wandb", purpose="The Weights & Biases logger")
        # Without the timeout a run that lost its server would wait for it after the last step, for ever.
        where = {"base_url": _server()} if self.mode == "online" else {}
        settings = wandb.Settings(mode=self.mode, finish_timeout=120.0, init_timeout=60.0, **where, **_UNASKED)
        return _logger(wandb.init(
            project=conceal(self.project), name=conceal(self.name or folder.name), entity=self.entity,
            tags=[conceal(tag) for tag in self.tags] or None,
            group=self.group and conceal(self.group), job_type=self.job_type and conceal(self.job_type),
            dir=str(folder.absolute()), id=identity.find_or_make(home / "id.json", self.entity, self.project),
            # Offline there is no server to ask, and asking for a resumption is a warning.
            resume="allow" if self.mode == "online" else None, reinit="create_new", settings=settings,
        ))  # fmt: skip


def _server() -> str:
    return os.environ.get(SERVER) or "https://api.wandb.ai"


def _refuse_other_servers(home: Path) -> None:
    """The package reads a server, proxies and more from files beside it, which may have come with the recipe.

    Raises:
        UserError: there is such a file, and it says more than whose project it is.
    """
    for file in (Path("wandb/settings"), Path(".wandb/settings"), home / "local" / "settings"):
        found = configparser.ConfigParser(interpolation=None)
        try:
            found.read(file, encoding="utf-8")
            reported = {name for section in found.values() for name in section} - _HARMLESS
        except (configparser.Error, UnicodeDecodeError, OSError):
            reported = {"what cannot be read"}
        if reported:
            raise UserError(f"{file} says {', '.join(sorted(reported))}, which would decide where your key is sent; "
                            f"set your own server in {SERVER}, and remove the file")  # fmt: skip


def _logger(run: Any) -> "Logger":
    from lightning.pytorch.loggers import WandbLogger

    class Finishing(WandbLogger):
        """Ends its run, which Lightning leaves open."""

        def finalize(self, status: str) -> None:
            super().finalize(status)
            run.finish(exit_code=0 if status == "success" else 1)

    # Curves over optimizer steps, also where a run that went on takes some again.
    run.define_metric("trainer/global_step")
    run.define_metric("*", step_metric="trainer/global_step", step_sync=True)
    return Finishing(experiment=run)
