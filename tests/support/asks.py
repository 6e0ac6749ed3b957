"""Defines jobs that send what they are given, as a user's own components may."""

import base64
from collections.abc import Mapping, Sequence

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.network.chat import Chat
from nemo_vfm.core.network.endpoint import EndpointError
from nemo_vfm.core.storage.uri import Address, Place
from nemo_vfm.core.types.job import Outcome, Run
from nemo_vfm.curate.caption.endpoint_captioner import EndpointCaptioner
from nemo_vfm.curate.execute.work_units import Executor
from nemo_vfm.train.state.slots import LoggerSource


class Ask:
    """Says a text to a model.

    Args:
        chat: the model.
        text: what it is asked; nothing says that this is sent.
        hidden: sends it as a picture.
    """

    def __init__(self, *, chat: Chat, text: str = "what is it?", hidden: bool = False) -> None:
        self.chat, self.text, self.hidden = chat, text, hidden

    def run(self, run: Run) -> Outcome:
        picture = {"url": f"data:image/jpeg;base64,{base64.b64encode(self.text.encode()).decode()}"}
        content = [{"type": "image_url", "image_url": picture}] if self.hidden else self.text
        try:
            return Outcome(self.chat.say([{"role": "user", "content": content}]).text, {})
        except EndpointError as error:
            raise UserError(str(error)) from error


class Holds:
    """Holds what could send, and does nothing with it.

    Args:
        captioner: asks an endpoint.
        copy_to: a bucket.
        places: more of them.
        named: the same by name.
        loggers: by name.
        executor: of the work.
    """

    def __init__(
        self, *, captioner: EndpointCaptioner | None = None, copy_to: Address | None = None,
        places: Sequence[Place] = (), named: Mapping[str, Place] | None = None,
        loggers: Mapping[str, LoggerSource] | None = None, executor: Executor | None = None,
    ) -> None:  # fmt: skip
        self.held = (captioner, copy_to, places, named, loggers, executor)

    def run(self, run: Run) -> Outcome:
        return Outcome("held", {"held": 1})
