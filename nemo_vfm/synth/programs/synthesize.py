"""Makes rows of conversations by a pipeline; nothing that was answered is asked again."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from nemo_vfm.asking.asker import Asker
from nemo_vfm.asking.batch_asker import BatchAsker
from nemo_vfm.asking.budget import Budget
from nemo_vfm.asking.journal import Journal
from nemo_vfm.asking.pace import Pace
from nemo_vfm.asking.question import ChatModel
from nemo_vfm.core import log
from nemo_vfm.core.errors import NemoVfmError, UserError
from nemo_vfm.core.network.chat import Chat, EndpointChat
from nemo_vfm.core.network.permission import SentText
from nemo_vfm.core.storage import files
from nemo_vfm.core.storage.write_path import WritePath
from nemo_vfm.core.types.job import Needs, Outcome, Run, makes
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.synth.programs.program_runner import ProgramRunner, row_of
from nemo_vfm.synth.programs.prompt_template import Prompt
from nemo_vfm.synth.programs.row_program import (
    AskingFilter,
    AsksModels,
    Draft,
    DroppedRow,
    OrderedFilter,
    Pipeline,
    RowFilter,
    is_conversation,
)

_MAX_REASONS = 200


@dataclass(slots=True)
class _Rows:
    """What came of candidates."""

    kept: dict[int, dict[str, Json]] = field(default_factory=dict)
    dropped: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)

    @property
    def count(self) -> int:
        return len(self.kept) + self.dropped.total() + self.failed.total()


@makes("rows.jsonl", "rows.parquet", "answers.jsonl", "ledger.json")
class Synthesize:
    """Writes `rows.jsonl`, `rows.parquet` and `ledger.json`; answers are kept in `answers.jsonl`.

    Args:
        pipeline: what rows are made of, and how.
        prompts: its words, by name.
        generator: the model that is asked.
        models: others that the pipeline or a filter asks, by role: a judge, a reward model, further responders.
        filters: drop rows that a pipeline has made; those that compare rows come last.
        rows: accepted rows that are wanted.
        min_yield: accepted rows over candidates; below it the run ends with an error, after everything is written.
        pace: how many questions to each model are under way.
        budget: what all of them may cost; None limits nothing.
        tries: attempts at a question on which a service fails.
        licence: of the data, as every row says it.
        language: in which the model writes, such as German: a sentence in the place {language} of the prompts.
        audience: for whom it writes, such as pupils of ten years, in the same way.
        journal: a file of answers that recipes share; None keeps them in the run's folder.
        batch: ask through files of OpenAI's batch API, in the run's folder `batch`. Each run ends with files to send
            off, and the next continues with their results. There is one model then, behind an endpoint.
            `generator.batch` of an `EndpointChat` means the same.
    """

    def __init__(
        self, *, pipeline: Pipeline, prompts: Mapping[str, Prompt], generator: ChatModel,
        models: Mapping[str, ChatModel] | None = None, filters: Sequence[RowFilter | AskingFilter | OrderedFilter] = (),
        rows: int = 50, min_yield: float = 0.5, pace: Pace = Pace(), budget: Budget | None = None, tries: int = 4,
        licence: str = "", journal: WritePath | None = None, batch: bool = False, language: SentText = "",
        audience: SentText = "",
    ) -> None:  # fmt: skip
        if rows < 1 or not 0 <= min_yield <= 1:
            raise ValueError(f"rows {rows} must be at least 1, and min_yield {min_yield} from 0 to 1")
        most = pipeline.max_rows()
        if most is not None and rows > most:
            raise ValueError(f"rows is {rows:,}, but the pipeline makes at most {most:,}; raise the pipeline's numbers")
        self.pipeline, self.generator, self.models = pipeline, generator, dict(models or {})
        self.filters, self.rows, self.min_yield, self.pace = list(filters), rows, min_yield, pace
        self.budget, self.tries, self.licence, self.journal = budget, tries, licence, journal
        self.batch = batch or (isinstance(generator, EndpointChat) and generator.batch)
        if self.batch and (self.models or not isinstance(generator, Chat)):
            raise ValueError(f"batch writes the questions of one Chat, but got {type(generator).__name__} and "
                             f"{len(self.models)} models")  # fmt: skip
        self.prompts = self._with_wishes(prompts, {"language": ("in", language), "audience": ("for", audience)})
        self._asker()  # refuses a budget that cannot be kept
        for one in self._model_users():
            name = type(one).__name__
            for role in one.roles():
                if role not in self.models:
                    raise ValueError(f"{name} needs a model in the role {role}; models has "
                                     f"{', '.join(sorted(self.models)) or 'none'}")  # fmt: skip
            for prompt, places in one.prompts().items():
                if prompt not in self.prompts:
                    raise ValueError(
                        f"{name} needs a prompt named {prompt}; prompts has {', '.join(sorted(self.prompts))}"
                    )
                if unknown := sorted(self.prompts[prompt].names() - places):
                    raise ValueError(f"the prompt {prompt} has a placeholder {{{unknown[0]}}}, which {name} does not "
                                     f"fill; it fills {', '.join(sorted(places))}")  # fmt: skip

    def needs(self, *, num_gpus: int | None = None, folder: Path | None = None) -> Needs:
        """See `HasNeeds`: of the prompts it reads those that something asks by."""
        return Needs(names_read={"prompts": self._prompts_read()})

    def _prompts_read(self) -> set[str]:
        return {name for one in self._model_users() for name in one.prompts()}

    def run(self, run: Run) -> Outcome:
        """Ask what is not answered yet, and write all rows.

        Raises:
            NemoVfmError: too few candidates became rows.
            BatchPending: files wait to be sent off.
            UserError: the budget is spent, the service refuses us or every question, or another run has the journal.
        """
        journal = Journal(file=self.journal or run.folder / "answers.jsonl")
        asker: Asker | BatchAsker = self._asker(journal)
        if self.batch and isinstance(self.generator, Chat):
            folder = run.folder / "batch"
            asker = BatchAsker(chat=self.generator, journal=journal, folder=folder, budget=self.budget)
        asker.ready()
        runner, rows = ProgramRunner(asker, self.prompts, run.seed), _Rows()
        try:
            for ended in runner.rows(runner.result_of(self.pipeline.candidates()), self.rows, self.filters):
                if isinstance(ended.result, Draft):
                    asked = {one["model"] for one in ended.asked} & self.models.keys()
                    facts = {
                        "generator": self.generator.identity(), "seed": run.seed, "licence": self.licence,
                        "models": {role: self.models[role].identity() for role in sorted(asked)},
                    }  # fmt: skip
                    rows.kept[ended.number] = row_of(ended, ended.result, facts)
                elif isinstance(ended.result, DroppedRow):
                    rows.dropped[ended.result.rule[:_MAX_REASONS]] += 1
                else:
                    rows.failed[ended.result[:_MAX_REASONS]] += 1
                if rows.count % 1000 == 0:
                    log.info(f"{len(rows.kept):,} of {self.rows:,} rows, {rows.count:,} candidates")
        except NemoVfmError as error:
            if isinstance(error, UserError) or not (reason := runner.silent_model()):
                raise
            raise UserError(reason) from None
        finally:  # also where the budget is spent or the service is gone: what was asked so far is counted
            lines = [{"id": f"{run.seed}-{number}", **rows.kept[number]} for number in sorted(rows.kept)]
            self._write(run, lines, rows, runner)
        return self._outcome(run, rows, runner)

    def _with_wishes(self, prompts: Mapping[str, Prompt], wishes: Mapping[str, tuple[str, str]]) -> dict[str, Prompt]:
        """The prompts with a sentence for each wish in its place."""
        asked = {place for name in self._prompts_read() & prompts.keys() for place in prompts[name].names()}
        for place, (_, wish) in wishes.items():
            if "{" in wish or (wish and place not in asked):
                name = type(self.pipeline).__name__
                raise ValueError(f"{place} is {wish!r}: it fills {{{place}}} in the prompts of {name}; at least "
                                 f"one must have that placeholder, and the text must not contain braces")  # fmt: skip
        said = {place: f" Write {how} {wish}." if wish else "" for place, (how, wish) in wishes.items()}
        return {name: prompt.fill_shared(said) for name, prompt in prompts.items()}

    def _model_users(self) -> list[AsksModels]:
        return [self.pipeline, *(one for one in self.filters if isinstance(one, AskingFilter))]

    def _asker(self, journal: Journal | None = None) -> Asker:
        return Asker(chat=self.generator, others=self.models, journal=journal, pace=self.pace, budget=self.budget,
                     tries=self.tries)  # fmt: skip

    def _write(self, run: Run, lines: list[dict[str, Json]], rows: _Rows, runner: ProgramRunner) -> None:
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        files.write_text(run.folder / "rows.jsonl", text)
        with files.atomic_path(run.folder / "rows.parquet") as path:
            pq.write_table(row_table(lines), path)
        known, failed = sum(use.asked + use.recalled for use in runner.uses.values()), runner.failure_counts()
        ledger = {
            "rows": {"in": rows.count, "kept": len(rows.kept), "dropped": dict(sorted(rows.dropped.items())),
                     "failed": dict(sorted(rows.failed.items()))},
            "requests": {"in": known + failed.total(), "kept": known, "dropped": {},
                         "failed": dict(sorted(failed.items()))},
            "uses": {role: {"asked": use.asked, "recalled": use.recalled, **asdict(use.cost)}
                     for role, use in sorted(runner.uses.items())},
        }  # fmt: skip
        files.write_json(run.folder / "ledger.json", ledger)

    def _outcome(self, run: Run, rows: _Rows, runner: ProgramRunner) -> Outcome:
        share = len(rows.kept) / max(1, rows.count)
        asked, known = (sum(getattr(use, name) for use in runner.uses.values()) for name in ("asked", "recalled"))
        said = (f"{len(rows.kept):,} rows of {rows.count:,} candidates in {run.folder / 'rows.jsonl'}; "
                f"{asked:,} answers requested, {known:,} already in the journal")  # fmt: skip
        if not rows.kept and (reason := runner.silent_model()):
            raise UserError(reason)
        if not rows.kept or share < self.min_yield:
            common = [reason for reason, _ in (rows.failed + rows.dropped).most_common(1)]
            raise NemoVfmError(f"only {said}, below min_yield {self.min_yield:g}. Most often: {''.join(common)}")
        if len(rows.kept) < self.rows:
            log.warn(f"{len(rows.kept):,} of {self.rows:,} rows: the candidates are used up. Give the pipeline more "
                     f"input")  # fmt: skip
        failed = runner.failure_counts().total()
        requests = asked + known + failed
        figures = {"rows": len(rows.kept), "candidates": rows.count, "requests": requests}
        return Outcome(said, figures, did_nothing=bool(known) and not asked and not failed)


def row_table(rows: Sequence[Mapping[str, Json]]) -> pa.Table:
    """Rows as a table with a column for whatever any of them has.

    Columns of texts, of numbers, of truth values and of conversations are as they are, as trainers read them. Any other
    is JSON, with keys in their order. So are the further fields of messages where one field is of several types.
    """
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({name: _column([row.get(name) for row in rows]) for name in names})


def _column(values: Sequence[Json]) -> pa.Array:
    kinds = {type(value) for value in values if value is not None}
    try:
        if kinds <= {str}:
            return pa.array(values, pa.string())
        if kinds == {bool} or kinds <= {int, float}:
            return pa.array(values)
    except (pa.ArrowException, OverflowError):  # a number of more than 64 bits
        pass
    if not any(values) or not all(value is None or value == [] or is_conversation(value) for value in values):
        return pa.array([None if value is None else _text(value) for value in values], pa.string())
    column = [messages and [_with_openai_calls(message) for message in messages] for messages in values]
    try:
        array = pa.array(column)
        if "struct<>" not in str(array.type):  # of a field that is {} in all rows; Parquet has none
            return array
    except pa.ArrowException:  # given rows may have a number here and a text there
        pass

    def as_texts(message: Mapping[str, Json]) -> dict[str, Json]:
        return {name: value if name in ("role", "content") else _text(value) for name, value in message.items()}

    return pa.array([messages and [as_texts(message) for message in messages] for messages in column])


def _with_openai_calls(message: Mapping[str, Json]) -> dict[str, Json]:
    """Arguments of calls as JSON, which is OpenAI's form: as a mapping, each would get the names of all others."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return dict(message)
    found: list[Json] = []
    for call in calls:
        match call:
            case {"function": {"arguments": dict(arguments)} as function}:
                found.append({**call, "function": {**function, "arguments": _text(arguments)}})
            case _:
                found.append(call)
    return {**message, "tool_calls": found}


def _text(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False)
