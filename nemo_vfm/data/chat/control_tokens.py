"""Keeps what a message says apart from the control tokens that its template writes.

In messages, the names of control tokens stand between two marks before a template sees them. What is between marks is
encoded as plain text afterwards. Where a text begins or ends with a part of a name, a mark stands, too: if a name comes
about over that border, the border parts it.
"""

import itertools
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Protocol

from jinja2 import Environment, nodes

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.data.tokenizers.special_tokens import Added

_BEGINS, _ENDS, _BORDER = "\U000f1a00", "\U000f1a01", "\U000f1a04"
#: Letters that have a meaning here; none of them is left in a message.
RESERVED = dict.fromkeys(range(0xF1A00, 0xF1A05))

Place = tuple[int, int]


class PlacedTokens(Protocol):
    """A tokenizer that says where in the text each token stands."""

    def placed(self, text: str, *, names: bool) -> tuple[list[int], list[Place]]:
        """Tokens and the letters [first, last) of each; `names` says whether names of special tokens become these."""
        ...

    def added(self) -> Sequence[Added]:
        """Tokens that are found in a text as a whole."""
        ...


class ControlTokens:
    """The control tokens of a template.

    Args:
        tokenizer: encodes.
        template: its literals say which tokens that are not special are its control tokens.
        environment: parses it.
    """

    def __init__(self, tokenizer: PlacedTokens, template: str, environment: Environment) -> None:
        self._tokenizer = tokenizer
        literals = "\0".join(_literals(environment.parse(template)))
        added = tokenizer.added()
        self.names = sorted(
            (one.content for one in added if one.special or (one.content in literals and not one.content.isspace())),
            key=len, reverse=True,
        )  # fmt: skip
        self.numbers = {one.content: one.number for one in added}
        self._name = re.compile("|".join(map(re.escape, self.names)) or "(?!)")
        self._marked = re.compile(f"{_BEGINS}({self._name.pattern}){_ENDS}|[{_BEGINS}{_ENDS}{_BORDER}]")
        self._between = "\0".join(self.names)

    def marked(self, value: Json) -> Json:
        """A message with marks around what names a control token; keys of mappings stay."""
        if isinstance(value, str):
            return self._bordered(self._wrapped(value))
        if isinstance(value, dict):
            return {key: self._role(one) if key == "role" else self.marked(one) for key, one in value.items()}
        return [self.marked(one) for one in value] if isinstance(value, list | tuple) else value

    def _role(self, role: Json) -> Json:
        """Templates make control tokens of roles, such as <|user|>: only a name as a whole is marked."""
        return self._wrapped(role) if isinstance(role, str) else self.marked(role)

    def _wrapped(self, text: str) -> str:
        return self._name.sub(f"{_BEGINS}\\g<0>{_ENDS}", text.translate(RESERVED))

    def _bordered(self, text: str) -> str:
        """Marks at the ends of a text that a template may trim, if a part of a name stands there."""
        core = text.strip()
        if not core:
            return text
        first = text.index(core)
        begins = any(name.endswith(core[:n]) for name in self.names for n in range(1, min(len(name), len(core) + 1)))
        ends = any(name.startswith(core[-n:]) for name in self.names for n in range(1, min(len(name), len(core) + 1)))
        whole = core in self._between
        left, right = (_BORDER if begins or whole else ""), (_BORDER if ends or whole else "")
        return f"{text[:first]}{left}{core}{right}{text[first + len(core) :]}"

    def encoded(self, text: str) -> tuple[list[int], list[Place], str]:
        """Tokens, the place of each in the text without marks, and this text.

        Raises:
            DataError: the tokenizer makes a control token even of plain text.
        """
        tokens, places, plain = list[int](), list[Place](), ""
        for number, (piece, is_name) in enumerate(self._pieces(text)):
            own, where = self._piece(piece, is_name, first=number == 0)
            tokens += own
            places += [(begin + len(plain), end + len(plain)) for begin, end in where]
            plain += piece
        return tokens, places, plain

    def _pieces(self, text: str) -> Iterator[tuple[str, bool]]:
        """What is encoded apart: texts, and names that are no control tokens."""
        text = self._only_needed_borders(text)
        pieces = self._marked.split(text)  # text, name or None, text, ...
        yield pieces[0], False
        for number, piece in enumerate(pieces[1:], start=1):
            if piece:
                yield piece, number % 2 == 1

    def _only_needed_borders(self, text: str) -> str:
        """Without the borders over which no name has come about, so that they change no token."""
        if _BORDER not in text:
            return text
        parts = text.split(_BORDER)
        joined, borders = "".join(parts), list[int]()
        for part in parts[:-1]:
            borders.append(len(part) + (borders[-1] if borders else 0))
        matches = [match.span() for match in self._name.finditer(joined) if not self._is_marked(joined, *match.span())]
        within = (borders[bisect_right(borders, begin) : bisect_left(borders, end)] for begin, end in matches)
        needed = sorted(set(itertools.chain.from_iterable(within)))
        cuts = [0, *needed, len(joined)]
        return _BORDER.join(joined[begin:end] for begin, end in itertools.pairwise(cuts))

    @staticmethod
    def _is_marked(text: str, begin: int, end: int) -> bool:
        return text[max(0, begin - 1) : begin] == _BEGINS and text[end : end + 1] == _ENDS

    def _piece(self, piece: str, is_name: bool, *, first: bool) -> tuple[list[int], list[Place]]:
        tokens, places = self._after_a_line(piece, names=not is_name) if not first else self._plain(piece, True)
        if not is_name or self.numbers[piece] not in tokens:
            return tokens, places
        # The library finds tokens that are not special in any text; in halves there is nothing to find.
        halves = [self._after_a_line(half, names=False) for half in (piece[:1], piece[1:])]
        found = [token for own, _ in halves for token in own]
        if not piece[1:] or self.numbers[piece] in found:
            raise DataError(f"A message contains {piece!r}, which the tokenizer turns into the control token even in "
                            f"plain text. Take it out of the message.")  # fmt: skip
        return found, [*halves[0][1], *((begin + 1, end + 1) for begin, end in halves[1][1])]

    def _plain(self, text: str, names: bool) -> tuple[list[int], list[Place]]:
        return self._tokenizer.placed(text, names=names)

    def _after_a_line(self, text: str, *, names: bool) -> tuple[list[int], list[Place]]:
        """As the text is encoded after a new line: at the start of a text SentencePiece's kind adds a space."""
        line = self._plain("\n", True)[0]
        tokens, places = self._plain(f"\n{text}", names)
        if tokens[: len(line)] != line:
            return self._plain(text, names)
        return tokens[len(line) :], [(max(0, begin - 1), max(0, end - 1)) for begin, end in places[len(line) :]]


def unmarked(text: str) -> str:
    """A text without marks."""
    return text.translate(RESERVED)


def _literals(tree: nodes.Template) -> Iterator[str]:
    """Every text that a template writes, and every constant."""
    yield from (one.data for one in tree.find_all(nodes.TemplateData))
    yield from (one.value for one in tree.find_all(nodes.Const) if isinstance(one.value, str))
