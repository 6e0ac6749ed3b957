"""Download a pretrained model from a hub: all files of one commit, each verified by its hash.

It is the only command that downloads models; by typing a model's name you permit the connection. The same command
resumes one that was stopped. Pickles and weights of other frameworks are left out and counted; --only takes them
(docs/how-to/weights.md).

Examples:
  nemo-vfm get hf://ORG/MODEL                  # the newest commit of main, to models/MODEL
  nemo-vfm get hf://ORG/MODEL@REVISION DIR     # a branch, a tag or a commit, to a folder of your choice
  nemo-vfm get hf://ORG/MODEL --only 'transformer/*' --only '*.json'   # files whose path matches; * matches / too
  HF_ENDPOINT=https://HOST nemo-vfm get hf://ORG/MODEL                 # from a mirror with the hub's API
"""

import argparse
import sys
from pathlib import Path

from nemo_vfm.cli.arguments import add_allow_host


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the model, the folder and the selection of files."""
    parser.add_argument("model", metavar="hf://ORG/MODEL[@REVISION]",
                        help="a model on the Hugging Face Hub, or on the hub that HF_ENDPOINT names; REVISION is a "
                             "branch, a tag or a commit (default main); HF_TOKEN holds the token"
                        )  # fmt: skip
    parser.add_argument("folder", metavar="DIR", type=Path, nargs="?",
                        help="folder to create or complete (default models/MODEL)")  # fmt: skip
    parser.add_argument("--only", metavar="GLOB", action="append", default=[],
                        help="download files whose path matches, such as 'transformer/*'; repeatable (default: all but "
                             "pickles and weights of other frameworks)")  # fmt: skip
    add_allow_host(parser, "another host to use as the hub or to follow a redirect to; VARIABLE holds the hub's token")


def run(arguments: argparse.Namespace) -> int:
    """Print what was done and the folder."""
    from nemo_vfm.core.errors import UserError
    from nemo_vfm.models.hub.hub_client import HubClient, hub_access
    from nemo_vfm.models.hub.hub_names import hub_address
    from nemo_vfm.models.hub.model_download import get_model
    from nemo_vfm.runtime.user_permissions import permissions

    try:
        address = hub_address(arguments.model)
    except ValueError as error:
        raise UserError(str(error)) from None
    folder = arguments.folder or Path("models") / address.name
    allowed = permissions(arguments.allow_host)
    summary = get_model(address, folder, arguments.only, lambda: HubClient(hub_access(allowed)))
    sys.stdout.write(f"{summary}\n{folder}\n")
    return 0
