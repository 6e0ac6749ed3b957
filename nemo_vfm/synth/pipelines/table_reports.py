"""Makes tables with reports and questions about them, whose answers a program must find, too (2406.11704, 3.2)."""

import ast
import random
from collections.abc import Iterable, Mapping, Sequence

from nemo_vfm.core.network.permission import SentText
from nemo_vfm.synth.checks.answer_data import table_in
from nemo_vfm.synth.checks.final_answer import final_answer, same_answer
from nemo_vfm.synth.checks.program_model import end_in
from nemo_vfm.synth.checks.python_code import code_in, parse
from nemo_vfm.synth.programs.list_questions import LIST_PROMPTS, lists_of, num_topics, topics_of
from nemo_vfm.synth.programs.prompt_template import Prompt
from nemo_vfm.synth.programs.row_program import Ask, Draft, DroppedRow, Program, RowFailed, RowProgram, say, texts_of

_PLACES = frozenset({"table", "report", "question"})
_NAME = "TABLE"  # of the variable that a program finds the table in


class TableReports:
    """Questions about tables and reports that the model makes.

    The model writes an answer, and by itself a Python program that computes it from the table. The program is run by
    the model in the role `python`, and must print the same value.

    Args:
        templates: by name: they join table, report and question to what the user says; one is drawn for each row.
        topics: how many are asked for; or a list of your own.
        tables: of each topic, with a report each.
        questions: of each table.
        table_rows: least and most rows of a table, below the names of its columns.
        seed: of the draw of templates.
    """

    def __init__(
        self, *, templates: Mapping[str, Prompt], topics: int | Sequence[SentText] = 8, tables: int = 2,
        questions: int = 4, table_rows: tuple[int, int] = (4, 40), seed: int = 0,
    ) -> None:  # fmt: skip
        if min(num_topics(topics), tables, questions) < 1 or not 1 <= table_rows[0] <= table_rows[1]:
            raise ValueError(f"the number of topics {num_topics(topics)}, tables {tables} and questions {questions} "
                             f"must be at least 1, and table_rows {list(table_rows)} must increase from at least "
                             "1")  # fmt: skip
        for name, template in templates.items():
            if not {"table", "question"} <= template.names() <= _PLACES:
                raise ValueError(f"the template {name} must have the places {{table}} and {{question}}, and may have "
                                 f"{{report}}; it has {', '.join(sorted(template.names())) or 'none'}")  # fmt: skip
        if not templates:
            raise ValueError("templates is empty: at least one joins table and question")
        self.templates, self.topics, self.tables, self.questions = dict(templates), topics, tables, questions
        self.table_rows, self.seed = table_rows, seed

    def prompts(self) -> Mapping[str, frozenset[str]]:
        """See `Pipeline`."""
        topics = {"topics": ("count",)} if isinstance(self.topics, int) else {}
        own = topics | {
            "table": ("topic", "least", "most"), "report": ("topic", "table"),
            "questions": ("count", "table", "report"), "program": ("table", "question"),
        }  # fmt: skip
        return LIST_PROMPTS | {name: frozenset(places) for name, places in own.items()}

    def roles(self) -> Sequence[str]:
        return ["python"]

    def max_rows(self) -> int | None:
        return num_topics(self.topics) * self.tables * self.questions

    def candidates(self) -> Program[Iterable[RowProgram]]:
        """One question of each table, then the next."""
        topics = yield from topics_of(self.topics)
        return (self.row(topic, table, place) for place in range(self.questions)
                for table in range(self.tables) for topic in topics)  # fmt: skip

    def row(self, topic: str, number: int, place: int) -> RowProgram:
        """Table, report, question, answer, and the program that agrees.

        Questions about one table share what is asked for it.

        Args:
            number: of the table among those of the topic.
            place: of the question among those of the table.
        """
        least, most = self.table_rows
        values = {"topic": topic, "least": str(least), "most": str(most)}
        (written,) = texts_of((yield [Ask("table", values, sample=number)]))
        table = table_in(written, least, most)
        if table is None:
            return DroppedRow(f"no table of {least} to {most} rows with numbers")
        (report,) = texts_of((yield [Ask("report", {"topic": topic, "table": table})]))
        count = self.questions
        values = {"count": str(count), "table": table, "report": report.strip()}
        (items,) = yield from lists_of([Ask("questions", values)], count)
        if place >= len(items):
            raise RowFailed("the model wrote fewer questions than it was asked for")
        question = items[place]
        name = random.Random(f"{self.seed} {question}").choice(sorted(self.templates))
        template = self.templates[name]
        user = say("user", template.fill({"table": table, "report": report.strip(), "question": question}))
        asks = [Ask(None, before=(user,)), Ask("program", {"table": table, "question": question})]
        answer, program = texts_of((yield asks))
        if rule := (yield from self._disagreement(answer, code_in(program), table)):
            return DroppedRow(rule)
        parents = {"topic": topic, "table": number, "question": question}
        return Draft(
            [user, say("assistant", answer)], {**parents, "template": f"{name}/{template.version}"},
            verifier="python/1: the program prints the same answer", more={"program": code_in(program)},
        )  # fmt: skip

    def _disagreement(self, answer: str, program: str, table: str) -> Program[str]:
        """The rule that answer and program break; empty where they agree."""
        if (value := final_answer(answer)) is None:
            return "the answer does not end with a value"
        if (tree := parse(program) if program else None) is None:
            return "no program that compiles"
        uses = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == _NAME]
        if not uses or not all(isinstance(node.ctx, ast.Load) for node in uses):  # or it puts another in its place
            return "the program does not read the table"
        run = say("user", f"{_NAME} = {table!r}\n\n{program}")
        end = end_in(*texts_of((yield [Ask(None, before=(run,), model="python")])))
        if end.ending != "ok" or not end.stdout.strip():
            return f"the program ended with {end.ending}" if end.ending != "ok" else "the program printed nothing"
        return "" if same_answer(value, end.stdout.strip().splitlines()[-1]) else "the program prints another answer"
