"""Asks a server for rows in a process of its own, which may be killed, and notes what is under way.

python -m benchmarks.asking.client URL ROWS FOLDER TIMEOUT_S
"""

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from nemo_vfm.asking.asker import Asker
from nemo_vfm.asking.journal import Journal
from nemo_vfm.asking.pace import Pace
from nemo_vfm.asking.question import Question, Reply
from nemo_vfm.core.network.chat import Chat, ChatAnswer
from nemo_vfm.core.network.endpoint import Endpoint
from nemo_vfm.core.network.permission import Permissions
from nemo_vfm.core.network.ssrf_guard import service_url
from nemo_vfm.core.types.json_value import Json


class NotedChat:
    """A model whose questions are noted before they are sent, in a file that outlives the process.

    Args:
        chat: the model.
        log: gets a line a question, and one when it is over.
    """

    def __init__(self, chat: Chat, log: Path) -> None:
        self.chat, self._log = chat, os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def ready(self) -> None:
        """As the model's."""
        self.chat.ready()

    def identity(self) -> Json:
        """As the model's."""
        return self.chat.identity()

    def place(self) -> str:
        """As the model's."""
        return self.chat.place()

    def say(self, messages: Sequence[Json]) -> ChatAnswer:
        """As the model's."""
        row = messages[0]["content"]
        self.note("begins", row)
        try:
            return self.chat.say(messages)
        except Exception:
            self.note("ends", row)
            raise

    def note(self, what: str, row: str) -> None:
        """Add a line."""
        os.write(self._log, f"{what} {row}\n".encode())


def main() -> None:
    """Ask for all rows; the rows, the seconds and the limit that was found go to FOLDER/rows.json."""
    url, rows, folder, timeout_s = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4])
    allowed = Permissions.of(service_url(url).origin)
    endpoint = Endpoint(url=url, timeout_s=timeout_s, permissions=allowed)
    chat = NotedChat(Chat(endpoint=endpoint, model="drawn", max_tokens=8), folder / "log")
    pace = Pace()
    asker = Asker(chat=chat, journal=Journal(file=folder / "answers.jsonl"), pace=pace, tries=8)
    questions = (Question([{"role": "user", "content": f"row {row}"}], index=row) for row in range(rows))
    began, found = time.perf_counter(), []
    for reply in asker.ask(questions):
        chat.note("ends", f"row {reply.question.index}")
        found.append((reply.question.index, reply.said.text if isinstance(reply, Reply) else None))
    seconds = time.perf_counter() - began
    (folder / "rows.json").write_text(
        json.dumps({"rows": found, "seconds": seconds, "limit": pace.limit_of(chat.place()).limit})
    )


if __name__ == "__main__":
    main()
