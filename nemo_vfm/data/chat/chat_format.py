"""Turns messages into tokens by a model's own template, and says which of them the assistant said.

In messages, the names of control tokens stand between two marks before a template sees them. What is between marks is
encoded as plain text afterwards. Where a text begins or ends with a part of a name, a mark stands, too: if a name comes
about over that border, the border parts it.
"""

import itertools
import json
import re
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path

from jinja2 import Environment, nodes

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.data.chat.bounded_jinja import without_generation_marks
from nemo_vfm.data.chat.chat_template import ChatTemplate, has_template, template_of
from nemo_vfm.data.tokenizers.folder_tokenizer import FolderTokenizer
from nemo_vfm.data.tokenizers.tokenizers_library import HuggingFace

_BEGINS, _ENDS, _BORDER = "\U000f1a00", "\U000f1a01", "\U000f1a04"
#: Letters that have a meaning here; none of them is left in a message.
RESERVED = dict.fromkeys(range(0xF1A00, 0xF1A05))

Place = tuple[int, int]


class ControlTokens:
    """The control tokens of a template."""

    def __init__(self, tokenizer: HuggingFace, template: str, environment: Environment) -> None:
        self._tokenizer = tokenizer
        tree = environment.parse(template)  # every text that it writes, and every constant
        texts = [*(one.data for one in tree.find_all(nodes.TemplateData)),
                 *(one.value for one in tree.find_all(nodes.Const) if isinstance(one.value, str))]  # fmt: skip
        literals = "\0".join(texts)
        added = tokenizer.added_tokens()
        self.names = sorted(
            (one.content for one in added if one.special or (one.content in literals and not one.content.isspace())),
            key=len, reverse=True,
        )  # fmt: skip
        self.numbers = {one.content: one.number for one in added}
        self._name = re.compile("|".join(map(re.escape, self.names)) or "(?!)")
        self._marked = re.compile(f"{_BEGINS}({self._name.pattern}){_ENDS}|[{_BEGINS}{_ENDS}{_BORDER}]")
        self._between = "\0".join(self.names)

    def mark(self, value: Json) -> Json:
        """A message with marks around what names a control token; keys of mappings stay."""
        if isinstance(value, str):
            text = self._wrap(value)
            core = text.strip()
            if not core:
                return text
            # Marks at the ends of a text that a template may trim, too, if a part of a name stands there.
            first, whole = text.index(core), core in self._between
            parts = [(name, n) for name in self.names for n in range(1, min(len(name), len(core) + 1))]
            begins = any(name.endswith(core[:n]) for name, n in parts)
            ends = any(name.startswith(core[-n:]) for name, n in parts)
            left, right = (_BORDER if begins or whole else ""), (_BORDER if ends or whole else "")
            return f"{text[:first]}{left}{core}{right}{text[first + len(core) :]}"
        if isinstance(value, dict):
            # Templates make control tokens of roles, such as <|user|>: only a name as a whole is marked.
            return {
                key: self._wrap(one) if key == "role" and isinstance(one, str) else self.mark(one)
                for key, one in value.items()
            }
        return [self.mark(one) for one in value] if isinstance(value, list | tuple) else value

    def _wrap(self, text: str) -> str:
        return self._name.sub(f"{_BEGINS}\\g<0>{_ENDS}", text.translate(RESERVED))

    def encode(self, text: str) -> tuple[list[int], list[Place], str]:
        """Tokens, the place of each in the text without marks, and this text."""
        tokens, places, plain = list[int](), list[Place](), ""
        # What is encoded apart: texts, and names that are no control tokens: text, name or None, text, ...
        pieces = self._marked.split(self._only_needed_borders(text))
        for number, piece in enumerate(pieces):
            if number and not piece:
                continue
            is_name = number % 2 == 1
            if number:
                own, where = self._after_a_line(piece, names=not is_name)
            else:
                own, where = self._tokenizer.encode_with_offsets(piece, names=True)
            if is_name and self.numbers[piece] in own:
                # The library finds tokens that are not special in any text; in halves there is nothing to find.
                halves = [self._after_a_line(half, names=False) for half in (piece[:1], piece[1:])]
                own = [token for half, _ in halves for token in half]
                if not piece[1:] or self.numbers[piece] in own:
                    raise DataError(f"A message contains {piece!r}, which the tokenizer turns into the control token "
                                    f"even in plain text. Take it out of the message.")  # fmt: skip
                where = [*halves[0][1], *((begin + 1, end + 1) for begin, end in halves[1][1])]
            tokens += own
            places += [(begin + len(plain), end + len(plain)) for begin, end in where]
            plain += piece
        return tokens, places, plain

    def _only_needed_borders(self, text: str) -> str:
        """Without the borders over which no name has come about, so that they change no token."""
        if _BORDER not in text:
            return text
        parts = text.split(_BORDER)
        joined, borders = "".join(parts), list[int]()
        for part in parts[:-1]:
            borders.append(len(part) + (borders[-1] if borders else 0))
        needed = set[int]()
        for begin, end in (match.span() for match in self._name.finditer(joined)):
            is_marked = joined[max(0, begin - 1) : begin] == _BEGINS and joined[end : end + 1] == _ENDS
            if not is_marked:
                needed |= {*borders[bisect_right(borders, begin) : bisect_left(borders, end)]}
        cuts = [0, *sorted(needed), len(joined)]
        return _BORDER.join(joined[begin:end] for begin, end in itertools.pairwise(cuts))

    def _after_a_line(self, text: str, *, names: bool) -> tuple[list[int], list[Place]]:
        """As the text is encoded after a new line: at the start of a text SentencePiece's kind adds a space."""
        line = self._tokenizer.encode_with_offsets("\n", names=True)[0]
        tokens, places = self._tokenizer.encode_with_offsets(f"\n{text}", names=names)
        if tokens[: len(line)] != line:
            return self._tokenizer.encode_with_offsets(text, names=names)
        return tokens[len(line) :], [(max(0, begin - 1), max(0, end - 1)) for begin, end in places[len(line) :]]


Message = Mapping[str, Json]
_PROBE = "Probe"
_TURN: tuple[Message, ...] = ({"role": "user", "content": "?"}, {"role": "assistant", "content": _PROBE})


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages as tokens."""

    tokens: list[int]  #: all of them
    assistant: list[bool]  #: of each, whether the assistant said it; the token that ends its turn is part of that


@dataclass(frozen=True, slots=True)
class _TemplateControls:
    """A template and the control tokens that it may write."""

    template: ChatTemplate
    control: ControlTokens


class ChatFormat:
    """How a model's conversations are written.

    What a message says never becomes a control token: neither a name such as <|im_end|> in it, nor one that comes about
    where a message meets the template's text.

    Args:
        tokenizer: of a folder with tokenizer.json.
        template: a file of jinja; None takes the folder's own.
        name: which of the folder's templates; None takes `tool_use` where there are tools and the folder has it, and
            `default` otherwise.
    """

    def __init__(self, *, tokenizer: FolderTokenizer, template: Path | None = None, name: str | None = None) -> None:
        self.tokenizer, self.template, self.name = tokenizer, template, name
        self._lock = threading.Lock()
        self._written: dict[str, _TemplateControls] = {}

    def _of(self, tools: Sequence[Json] | None) -> "_TemplateControls":
        """The template that these tools call for."""
        name = self.name or ("tool_use" if tools is not None and self._has_tool_use else "default")
        with self._lock:
            if name not in self._written:
                given = self.template
                template = ChatTemplate(
                    template_of(self.tokenizer.folder, name) if given is None else given.read_text()
                )
                control = ControlTokens(self.tokenizer.placed_tokens(), template.text, template.environment)
                self._written[name] = _TemplateControls(template, control)
            return self._written[name]

    @cached_property
    def _has_tool_use(self) -> bool:
        return self.template is None and has_template(self.tokenizer.folder, "tool_use")

    def tokens(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = False, tools: Sequence[Json] | None = None,
        variables: Mapping[str, Json] | None = None,
    ) -> list[int]:  # fmt: skip
        """The tokens of a conversation.

        Args:
            messages: role and content (a text, or a list of parts that are texts) and what the template knows besides.
                Arguments of calls may be a mapping or JSON, as OpenAI's are.
            add_generation_prompt: end with what begins the assistant's turn.
            tools: descriptions of functions, as OpenAI's.
            variables: further ones of the template, such as enable_thinking.

        Raises:
            DataError: the template refuses the messages or goes beyond a limit.
        """
        rendered = self._render(messages, tools, add_generation_prompt, variables)
        text, _ = without_generation_marks(rendered)
        return self._of(tools).control.encode(text)[0]

    def encode_with_mask(self, messages: Sequence[Message], *, tools: Sequence[Json] | None = None) -> Conversation:
        """The tokens, and which the assistant said.

        The template's `{% generation %}` says it exactly. Without it, each turn is what the conversation up to it has
        beyond the conversation before it.

        Raises:
            DataError: see `tokens`; or the template writes earlier turns otherwise once there are later ones, so that
                neither way is exact.
        """
        rendered, spans = without_generation_marks(self._render(messages, tools, False))
        tokens, places, plain = self._of(tools).control.encode(rendered)
        if re.search(r"\{%[-+]?\s*generation\b", self._of(tools).template.text) is not None:
            spans = [
                (len(rendered[:begin].translate(RESERVED)), len(rendered[:end].translate(RESERVED)))
                for begin, end in spans
            ]
        else:
            spans = []
            for number, message in enumerate(messages):
                if message.get("role") == "assistant":
                    before = self._render_plain(messages[:number], tools, True)
                    after = self._render_plain(messages[: number + 1], tools, False)
                    _require_prefix(before, after, number)
                    _require_prefix(after, plain, number)
                    # Letters of a turn up to the token that ends it: what the template puts behind that nobody says.
                    turn = after[len(before) :]
                    ends = [turn.rfind(name) + len(name) for name in self._of(tools).control.names if name in turn]
                    last = max(ends, default=len(turn))
                    spans.append((len(before), len(before) + (last if not turn[last:].strip() else len(turn))))
        return Conversation(tokens, [any(a < end and begin < b for a, b in spans) for begin, end in places])

    def _render_plain(self, messages: Sequence[Message], tools: Sequence[Json] | None, prompt: bool) -> str:
        text, _ = without_generation_marks(self._render(messages, tools, prompt))
        return text.translate(RESERVED)

    def _render(
        self, messages: Sequence[Message], tools: Sequence[Json] | None, prompt: bool,
        variables: Mapping[str, Json] | None = None,
    ) -> str:  # fmt: skip
        written = self._of(tools)
        try:
            marked = [written.control.mark(_for_templates(message)) for message in messages]
            told = {name: written.control.mark(value) for name, value in (variables or {}).items()}
        except RecursionError:
            raise DataError("a message holds lists in lists that are nested too deep") from None
        return written.template.render(
            marked, tools=None if tools is None else written.control.mark(list(tools)),
            add_generation_prompt=prompt, special=self.tokenizer.placed_tokens().special_names, variables=told,
        )  # fmt: skip

    def stop_tokens(self) -> frozenset[int]:
        """Tokens that end the assistant's turn: the folder's end of text, and what the template writes after a turn."""
        return self._stops

    @cached_property
    def _stops(self) -> frozenset[int]:
        found = {self.tokenizer.end()}
        try:
            turn = self._render_plain(_TURN, None, False)
        except DataError:
            return frozenset(found)
        behind = turn.rpartition(_PROBE)[2]
        control = self._of(None).control
        names = sorted((behind.find(name), name) for name in control.names if name in behind)
        if names and (number := control.numbers[names[0][1]]) is not None:
            found.add(number)
        return frozenset(found)

    def fingerprint(self) -> str:
        """Of the template and the tokenizer."""
        text = self._of(None).template.text
        if self.name is None and self._has_tool_use:
            text += template_of(self.tokenizer.folder, "tool_use")
        return f"chat/1 {sha256(text.encode()).hexdigest()[:16]} {self.tokenizer.fingerprint()}"


def _for_templates(message: Message) -> dict[str, Json]:
    """A message whose content is one text, where it is a list of texts, and whose calls have mappings as arguments.

    OpenAI's form of arguments is JSON, which templates would quote.
    """
    content, calls = message.get("content"), message.get("tool_calls")
    if isinstance(content, list):
        texts = [
            p for p in content if isinstance(p, dict) and p.get("type") == "text" and isinstance(p.get("text"), str)
        ]
        if other := next((part for part in content if part not in texts), None):
            raise DataError(f"a message has a part that is not text: {str(other)[:80]}")
        found = {**message, "content": "".join(part["text"] for part in texts)}
    else:
        found = {key: value for key, value in message.items() if value is not None or key == "content"}
    if isinstance(calls, list):
        found["tool_calls"] = []
        for call in calls:
            function = call.get("function") if isinstance(call, dict) else None
            if isinstance(function, dict) and isinstance(function.get("arguments"), str):
                with suppress(ValueError, RecursionError):  # what is no JSON stays as it is
                    if isinstance(arguments := json.loads(function["arguments"]), dict):
                        call = {**call, "function": {**function, "arguments": arguments}}
            found["tool_calls"].append(call)
    return found


def _require_prefix(shorter: str, longer: str, number: int) -> None:
    if longer.startswith(shorter):
        return
    at = next((n for n, (a, b) in enumerate(zip(shorter, longer, strict=False)) if a != b), len(longer))
    one, other = (text[max(0, at - 20) : at + 20] for text in (shorter, longer))
    raise DataError(
        f"The template has no {{% generation %}}, and it writes message {number + 1} differently when more messages "
        "follow: "
        f"{one!r} becomes {other!r}. So the assistant's tokens cannot be identified. Put {{% generation %}} around it "
        f"in your own template, or keep the last turn only."
    )
