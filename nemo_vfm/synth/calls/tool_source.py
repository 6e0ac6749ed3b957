"""Gets tools that an assistant may call: made by a model for areas of life, or read from a file."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.optional import needs_packages
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.synth.checks.answer_data import NoJson, json_in
from nemo_vfm.synth.checks.call_schema import check_tools
from nemo_vfm.synth.pipelines.text_bank import TextBank
from nemo_vfm.synth.programs.row_program import Ask, AsksModels, NoAnswer, Program, RowFailed


@dataclass(frozen=True, slots=True)
class Toolset:
    """Tools that are there in one conversation."""

    tools: Sequence[Json]  #: in OpenAI's form, valid, with different names
    parents: Mapping[str, Json]  #: what they were made from


class ToolSource(AsksModels, Protocol):
    """Has sets of tools."""

    def max_sets(self) -> int | None:
        """How many there are at most; None where a file decides."""
        return None

    def toolsets(self) -> Program[Sequence[Toolset]]:
        """All of them."""
        ...


@needs_packages("jsonschema")
class MadeTools(ToolSource):
    """Tools that a model makes up; those that are not valid are left out.

    Args:
        areas: of life; each has a set.
        tools: of a set, at most.
    """

    def __init__(self, *, areas: TextBank, tools: int = 3) -> None:
        if tools < 1:
            raise ValueError(f"tools is {tools}; it must be at least 1")
        self.areas, self.tools = areas, tools

    def prompts(self) -> Mapping[str, frozenset[str]]:
        return {"tools": frozenset({"area", "count"})}

    def max_sets(self) -> int | None:
        return self.areas.max_texts()

    def toolsets(self) -> Program[Sequence[Toolset]]:
        """See `ToolSource`; an area for which there is no valid tool is passed over."""
        areas = self.areas.all()
        answers = yield [Ask("tools", {"area": area, "count": str(self.tools)}) for area in areas]
        sets = []
        for area, answer in zip(areas, answers, strict=True):
            try:
                found = [] if isinstance(answer, NoAnswer) else json_in(answer)
            except NoJson:
                continue
            tools: dict[str, Json] = {}  # the valid ones, each name once
            for one in found if isinstance(found, list) else [found]:
                bare = isinstance(one, dict) and "function" not in one
                tool: Json = {"type": "function", "function": one} if bare else one
                if not check_tools([tool]):
                    tools.setdefault(tool["function"]["name"], tool)
            if tools:
                sets.append(Toolset([*tools.values()][: self.tools], {"area": area}))
        if not sets:
            raise RowFailed("none of the model's answers to requests for tools contains a valid tool")
        return sets


@needs_packages("jsonschema")
class GivenTools(ToolSource):
    """Tools of a file.

    Args:
        file: JSON: a list of tools in OpenAI's form, which are one set, or a list of such lists.
    """

    def __init__(self, *, file: Path) -> None:
        self.file = file

    def toolsets(self) -> Program[Sequence[Toolset]]:
        yield from ()
        try:
            found: Json = json.loads(self.file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise UserError(f"{self.file} cannot be read as JSON, a list of tools in OpenAI's form: {error}") from None
        sets = found if isinstance(found, list) and found and isinstance(found[0], list) else [found]
        for number, tools in enumerate(sets):
            if wrong := check_tools(tools):
                raise UserError(f"{self.file}: set {number + 1} of tools cannot be used: {wrong[0]}")
        return [Toolset(tools, {"file": self.file.name, "set": number}) for number, tools in enumerate(sets)]
