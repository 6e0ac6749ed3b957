"""Tests that rows are the same whatever the order of answers, that nothing is asked twice, and that counts add up."""

import json
import random
import re
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from markupsafe import escape

from nemo_vfm.asking.asker import Asker
from nemo_vfm.asking.budget import Budget
from nemo_vfm.asking.journal import Journal
from nemo_vfm.asking.pace import Pace
from nemo_vfm.cli.main import main
from nemo_vfm.config import RecipeError, build, compose
from nemo_vfm.core.errors import NemoVfmError, UserError
from nemo_vfm.core.network.chat import Chat, ChatAnswer, EndpointChat
from nemo_vfm.core.network.endpoint import Endpoint, EndpointError
from nemo_vfm.core.types.job import Run
from nemo_vfm.report.page import all_sections
from nemo_vfm.report.parts.run_values import RunFolder
from nemo_vfm.serve.local_chat import LocalChat
from nemo_vfm.synth.embedded.embedded_responder import EmbeddedResponder
from nemo_vfm.synth.pipelines.topic_tasks import TopicTasks
from nemo_vfm.synth.programs.program_runner import ProgramRunner
from nemo_vfm.synth.programs.prompt_template import Prompt
from nemo_vfm.synth.programs.row_program import Ask, Draft
from nemo_vfm.synth.programs.synthesize import Synthesize
from tests.support.chat_models import said
from tests.support.chat_server import allowed
from tests.support.recipe_results import require_figures
from tests.support.repository import ROOT

RECIPE = str(ROOT / "recipes/synthetic/open_qa.yaml")
RECIPES = sorted(path.stem for path in (ROOT / "recipes/synthetic").glob("*.yaml") if "synthesize" in path.read_text())

AT = Endpoint(url="https://a.example/v1", permissions=allowed("https://a.example/v1"))


def job(*changes: str) -> Any:
    return build(compose(RECIPE, list(changes)))


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]


def ledger(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "ledger.json").read_text())
    for counts in (found["rows"], found["requests"]):
        parts = [sum(value.values()) if isinstance(value, Mapping) else value for value in counts.values()]
        assert parts[0] == sum(parts[1:]), counts
    return found


@pytest.mark.parametrize("recipe", ["open_qa", "on_topic"])  # the latter writes its generator out
@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["generator=embedded"], EmbeddedResponder),
        (["generator=endpoint", "generator.url=https://a.example/v1", "generator.model=m"], EndpointChat),
        (["generator=local", "generator.model.folder=here"], LocalChat),
    ],
)
def test_a_generator_is_chosen_by_a_word(recipe, words, kind):
    permissions = allowed("https://a.example/v1")
    found = build(compose(f"synthetic/{recipe}", [*words, "models.judge=${generator}"]), permissions=permissions)
    assert type(found.generator) is kind and found.models["judge"] is found.generator and not found.batch


def test_a_batch_is_chosen_like_any_generator():
    words = ["generator=batch", "generator.url=https://a.example/v1", "generator.model=m", "generator.max_tokens=9"]
    found = build(compose(RECIPE, words), permissions=allowed("https://a.example/v1"))
    assert found.batch and found.generator.identity() == Chat(endpoint=AT, model="m", max_tokens=9).identity()


def test_who_is_asked_is_told_before_a_run_and_must_be_allowed(capsys):
    words = ["check", RECIPE, "generator=endpoint", "generator.url=https://a.example/v1", "generator.model=m"]
    assert main(words) != 0 and "until you allow it" in capsys.readouterr().out
    assert main([*words, "--allow-host", "a.example"]) == 0
    assert "https://a.example:443 gets what it is asked" in capsys.readouterr().out


class Listening(EmbeddedResponder):
    def __init__(self) -> None:
        super().__init__(error_rate=0)
        self.heard: list[str] = []

    def say(self, messages: Any) -> ChatAnswer:
        self.heard.append(messages[-1]["content"])
        return super().say(messages)


def test_topics_of_one_s_own_are_the_topics_of_rows_and_none_is_asked_for(tmp_path: Path) -> None:
    found = job("pipeline.topics=[sailing, baking bread]", "rows=6")
    found.generator = Listening()
    found.run(Run(tmp_path))
    assert {row["parents"]["topic"] for row in rows(tmp_path)} == {"sailing", "baking bread"}
    assert not any("broad topics" in text for text in found.generator.heard)
    with pytest.raises(RecipeError, match=r"rows is 33, but the pipeline makes at most 32"):
        job("pipeline.topics=[sailing, baking bread]", "rows=33")


@pytest.mark.parametrize("recipe", sorted({*RECIPES} - {"filter_rows", "real_prompts", "upsampler"}))
def test_every_recipe_that_makes_texts_of_its_own_takes_a_language(recipe: str) -> None:
    plain, german = build(compose(f"synthetic/{recipe}")), build(compose(f"synthetic/{recipe}", ["language=German"]))
    changed = {name for name, prompt in german.prompts.items() if prompt.text != plain.prompts[name].text}
    read = german.needs().names_read["prompts"]
    assert changed & read
    for name in read & changed:
        assert german.prompts[name].text == f"{plain.prompts[name].text.rstrip()} Write in German.\n"


def test_the_audience_is_told_where_tasks_are_written(tmp_path: Path) -> None:
    found = job("audience=pupils of ten years", "language=German", "rows=4")
    found.generator = Listening()
    found.run(Run(tmp_path))
    told = [text for text in found.generator.heard if text.endswith("Write in German. Write for pupils of ten years.")]
    assert len(told) >= 4 and not any("{" in text for text in found.generator.heard)


@pytest.mark.parametrize(
    ("recipe", "word"), [("math", "audience=pupils"), ("upsampler", "language=German"), ("open_qa", "language={topic}")]
)
def test_a_wish_that_no_prompt_has_a_place_for_is_refused(recipe: str, word: str) -> None:
    with pytest.raises(RecipeError, match=f"{word.partition('=')[0]} is .* fills"):
        build(compose(f"synthetic/{recipe}", [word.replace("={topic}", "=' {topic}'")]))


class Shuffled(EmbeddedResponder):
    """Answers in another order each time; says how often it was asked, and may stop the run after so many answers."""

    def __init__(self, stop_after: int | None = None, error_rate: float = 0.0) -> None:
        super().__init__(error_rate=error_rate)
        self.asked, self.stop_after, self.lock = 0, stop_after, threading.Lock()

    def say(self, messages: Any) -> ChatAnswer:
        with self.lock:
            self.asked += 1
            if self.stop_after is not None and self.asked > self.stop_after:
                raise KeyboardInterrupt
        time.sleep(random.random() / 200)
        return super().say(messages)


def by(generator: EmbeddedResponder, count: int = 30, **more: Any) -> Synthesize:
    made = job(f"rows={count}")
    return Synthesize(
        pipeline=made.pipeline, prompts=made.prompts, generator=generator, rows=count, min_yield=0.1, tries=1, **more
    )


def test_the_recipe_makes_its_rows_and_says_of_each_where_it_is_from(tmp_path: Path) -> None:
    job("rows=12", "generator.error_rate=0").run(Run(tmp_path))
    found = rows(tmp_path)
    assert len(found) == 12 and len({row["id"] for row in found}) == 12
    for row in found:
        assert [message["role"] for message in row["messages"]] == ["user", "assistant"]
        assert all(message["content"].strip() for message in row["messages"])
        assert row["parents"].keys() == {"topic", "subtopic", "task"} and row["generator"][0] == "embedded/1"
        assert [asked["prompt"] for asked in row["asked"]] == ["revise/1", "answer/1"]
    keys = {json.loads(line)["key"] for line in (tmp_path / "answers.jsonl").read_text().splitlines()}
    assert {asked["key"] for row in found for asked in row["asked"]} <= keys
    table = pq.read_table(tmp_path / "rows.parquet").to_pylist()
    assert [row["id"] for row in table] == [row["id"] for row in found]
    assert table[0]["messages"] == found[0]["messages"] and json.loads(table[0]["parents"]) == found[0]["parents"]
    assert ledger(tmp_path)["rows"] == {"in": 12, "kept": 12, "dropped": {}, "failed": {}}


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_makes_its_rows_twice_alike(tmp_path: Path, recipe: str) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        build(compose(str(ROOT / f"recipes/synthetic/{recipe}.yaml"), ["tries=1"])).run(Run(tmp_path / name))
    one, other = (tmp_path / name / "rows.jsonl" for name in ("one", "other"))
    assert one.read_bytes() == other.read_bytes() and ledger(tmp_path / "one") == ledger(tmp_path / "other")
    require_figures(f"recipes/synthetic/{recipe}.yaml", tmp_path / "one")


@pytest.mark.parametrize(("recipe", "turns"), [
    ("open_qa", 2), ("writing", 2), ("math", 2), ("two_turn", 4), ("preferences", 1), ("dialogues", 6),
])  # fmt: skip
def test_rows_of_topics_are_on_all_of_them(tmp_path: Path, recipe: str, turns: int) -> None:
    build(compose(str(ROOT / f"recipes/synthetic/{recipe}.yaml"), ["tries=1", "generator.error_rate=0"])).run(
        Run(tmp_path)
    )
    found = rows(tmp_path)
    assert {len(row["prompt" if recipe == "preferences" else "messages"]) for row in found} == {turns}
    assert len({row["parents"]["topic"] for row in found}) >= 5, "rows are on all topics, or nearly"
    assert recipe != "math" or len({row["parents"]["level"] for row in found}) == 3


def test_a_run_without_enough_candidates_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    few = job("rows=12", "pipeline.topics=1", "pipeline.subtopics=1", "pipeline.tasks=12")
    few.generator = Shuffled()
    few.filters = [_SameKind()]
    few.min_yield = 0.1
    few.run(Run(tmp_path))
    kept = ledger(tmp_path)["rows"]["kept"]
    assert kept < 12 and f"{kept} of 12 rows: the candidates are used up" in " ".join(capfd.readouterr().err.split())


def test_for_its_next_question_the_model_is_shown_the_conversation(tmp_path: Path) -> None:
    asked: list[Any] = []

    class Noting(EmbeddedResponder):
        def say(self, messages: Any) -> ChatAnswer:
            asked.append(messages)
            return super().say(messages)

    made = build(compose(str(ROOT / "recipes/synthetic/two_turn.yaml"), ["rows=1"]))
    made.generator = Noting(error_rate=0)
    made.run(Run(tmp_path))
    first, answer, second, _ = rows(tmp_path)[0]["messages"]
    ((follow_up,),) = [messages for messages in asked if "what you say next" in messages[-1]["content"]]
    shown = f"[user]\n{first['content']}\n\n[assistant]\n{answer['content']}\n</conversation>"
    assert shown in follow_up["content"] and asked[-1] == [first, answer, second]


def test_the_report_shows_conversations_and_what_became_of_candidates(tmp_path: Path) -> None:
    job("rows=20", "generator.error_rate=0.2", "tries=1").run(Run(tmp_path))
    found = {section.title: section for section in all_sections(RunFolder.open(tmp_path))}
    row, shown = rows(tmp_path)[0], found["Conversations"]
    assert escape(row["messages"][1]["content"]) in shown.body and row["parents"]["topic"] in shown.body
    assert {card.label: card.value for card in shown.cards}["rows"] == "20"
    assert "the model returned nothing" in found["From candidates to rows"].body


def test_the_report_shows_scores_preferences_and_what_asking_cost(tmp_path: Path) -> None:
    build(compose(str(ROOT / "recipes/synthetic/preferences.yaml"), ["rows=10", "tries=1"])).run(Run(tmp_path))
    found = {section.title: section for section in all_sections(RunFolder.open(tmp_path))}
    made, uses = rows(tmp_path), json.loads((tmp_path / "ledger.json").read_text())["uses"]
    mean = sum(row["scores"]["chosen"] for row in made) / 10
    assert f">{mean:.2f}</td>" in found["Scores by source"].body
    won = sum(row["parents"]["chosen_by"] == "other" for row in made)
    shares = re.findall(r"<td[^>]*>([^<]*)</td>", found["Preferences"].body)
    assert shares[3:6] == [str(won), str(10 - won), f"{won / 10:.0%}"], "after the generator's"
    tokens = sum(use["tokens_in"] + use["tokens_out"] for use in uses.values())
    assert found["Cost of the answers"].cards[0].value == f"{tokens:,}" and f"{uses['judge']['asked']}</td>" in (
        found["Cost of the answers"].body
    )
    assert escape(made[0]["rejected"][0]["content"]) in found["Conversations"].body


def test_a_row_is_explained_with_every_answer_on_the_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job("rows=3", "generator.error_rate=0").run(Run(tmp_path))
    row = rows(tmp_path)[1]
    assert main(["explain", str(tmp_path), row["id"], "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [asked["answer"]["text"] for asked in told["asked"]] == [one["content"] for one in row["messages"]]
    assert main(["explain", str(tmp_path), row["id"]]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for words in (*row["parents"].values(), "prompt revise/1", "embedded/1: ", row["messages"][1]["content"]):
        assert words in shown
    assert main(["explain", str(tmp_path), "9-9"]) == 2
    assert f"has 3 rows and none named 9-9: name one by its id, such as nemo-vfm explain {tmp_path} 0-0" in " ".join(
        capsys.readouterr().err.split()
    )


def test_the_order_of_answers_decides_nothing(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        by(Shuffled(error_rate=0.1)).run(Run(tmp_path / name))
    assert (tmp_path / "one/rows.jsonl").read_bytes() == (tmp_path / "other/rows.jsonl").read_bytes()
    one, other = (ledger(tmp_path / name) for name in ("one", "other"))
    assert one == other and one["rows"]["failed"] and one["rows"]["kept"] == 30


def test_a_run_that_was_ended_asks_only_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    whole = Shuffled()
    by(whole).run(Run(tmp_path / "whole"))
    ended, folder = Shuffled(stop_after=40), tmp_path / "ended"
    folder.mkdir()
    with pytest.raises(KeyboardInterrupt):
        by(ended, pace=Pace(start=4, most=4)).run(Run(folder))
    again = Shuffled()
    by(again).run(Run(folder, resume=True))
    assert (folder / "rows.jsonl").read_bytes() == (tmp_path / "whole/rows.jsonl").read_bytes()
    assert whole.asked - 40 <= again.asked <= whole.asked - 40 + 4, "what was under way may be lost"
    more = Shuffled()
    by(more, 40).run(Run(folder))
    assert 0 < more.asked == 2 * 10, "a question and an answer for each of ten rows more"


def test_recipes_share_the_answers_of_one_journal(tmp_path: Path) -> None:
    for recipe in ("open_qa", "ratings"):
        made = build(compose(str(ROOT / f"recipes/synthetic/{recipe}.yaml"), ["rows=10", "generator.error_rate=0"]))
        made.journal = tmp_path / "shared.jsonl"
        (tmp_path / recipe).mkdir()
        made.run(Run(tmp_path / recipe))
    uses = json.loads((tmp_path / "ratings/ledger.json").read_text())["uses"]["generator"]
    assert (uses["asked"], uses["recalled"]) == (10, 1 + 8 + 32), "topics and tasks were known, answers were not"
    assert not (tmp_path / "ratings/answers.jsonl").exists()


def test_another_seed_asks_all_anew_and_the_first_one_recalls_its_own(tmp_path: Path) -> None:
    asked = []
    for seed in (0, 1, 0):
        model = Shuffled()
        by(model, 5, journal=tmp_path / "journal.jsonl").run(Run(tmp_path, seed=seed))
        asked.append(model.asked)
    assert asked[0] == asked[1] > 5 and asked[2] == 0


def shared(number: int) -> Any:
    """A program that asks one question twice, and one of its own."""
    answers = yield [Ask(None, before=({"role": "user", "content": text},))
                     for text in ("What is shared?", "What is shared?", f"And alone, {number}?")]  # fmt: skip
    return str(answers)


def test_an_answer_that_rows_share_is_paid_once_and_one_that_was_known_is_paid_too(tmp_path: Path) -> None:
    class Costly(EmbeddedResponder):
        def say(self, messages: Any) -> ChatAnswer:
            return ChatAnswer("so", "success", "costly", "", 10, 3, 0.0)

    for asked in (4, 0):
        journal = Journal(file=tmp_path / "answers.jsonl")
        runner = ProgramRunner(Asker(chat=Costly(error_rate=0), journal=journal, pace=Pace(start=1, most=1)), {})
        assert len([*runner.rows(map(shared, range(3)), 3)]) == 3
        use = runner.uses["generator"]
        assert (use.asked, use.asked + use.recalled) == (asked, 9)
        assert (use.cost.tokens_in, use.cost.tokens_out) == (4 * 10, 4 * 3), "four questions, whoever asked them"


def test_another_prompt_asks_only_what_it_changes(tmp_path: Path) -> None:
    first = Shuffled()
    by(first).run(Run(tmp_path))
    changed, again = by(Shuffled()), Shuffled()
    changed.generator = again
    changed.prompts = {**changed.prompts, "answer": Prompt(text="In short: {task}", version=2)}
    changed.run(Run(tmp_path))
    assert again.asked == 30


class Refusing(EmbeddedResponder):
    def say(self, messages: Any) -> ChatAnswer:
        raise EndpointError("the service answered 400 Bad Request: use max_completion_tokens")


@pytest.mark.parametrize("recipe", [one for one in RECIPES if one != "filter_rows"])
def test_a_service_that_refuses_every_question_is_the_users_to_mend_and_says_how(tmp_path: Path, recipe: str) -> None:
    made = build(compose(str(ROOT / f"recipes/synthetic/{recipe}.yaml"), ["rows=3", "tries=1"]))
    made.generator = Refusing()
    with pytest.raises(
        UserError, match=r"role generator answered none of \d+ questions: .* use max_completion_tokens$"
    ):
        made.run(Run(tmp_path))
    counted = ledger(tmp_path)["requests"]["failed"]
    assert counted["the service answered 400 Bad Request: use max_completion_tokens"] > 0


def test_a_judge_that_refuses_every_question_is_named_where_no_row_is_left(tmp_path: Path) -> None:
    made = build(compose(str(ROOT / "recipes/synthetic/ratings.yaml"), ["rows=3", "tries=1"]))
    made.models = {"judge": Refusing()}
    said = r"the model in the role judge answered none of \d+ questions: the service answered 400"
    with pytest.raises(UserError, match=said):
        made.run(Run(tmp_path))


@pytest.mark.parametrize(("answer", "requests"), [("", 2), ("I will not write lists.", 4)])
def test_a_model_that_writes_no_list_ends_the_run_with_its_words(tmp_path: Path, answer: str, requests: int) -> None:
    class Prose(EmbeddedResponder):
        def say(self, messages: Any) -> ChatAnswer:
            return ChatAnswer(answer, "success", "prose", "", 1, 1, 0.0)

    said = "none of the model's answers .* was a list" if answer else "none of 2 questions: .* returned nothing"
    with pytest.raises(NemoVfmError, match=said):
        by(Prose()).run(Run(tmp_path))
    told = ledger(tmp_path)
    assert told["requests"]["in"] == requests and told["rows"]["in"] == 0 and rows(tmp_path) == []


def test_a_model_whose_answer_is_no_list_is_shown_it_and_asked_again(tmp_path: Path) -> None:
    corrected: list[Any] = []

    class Chatty(EmbeddedResponder):
        def say(self, messages: Any) -> ChatAnswer:
            if "Write that as a numbered list" in messages[-1]["content"]:
                corrected.append(messages)
                return super().say(messages)
            prose = "list of" in messages[-1]["content"] and "broad topics" in messages[-1]["content"]
            return ChatAnswer("Gladly!", "success", "chatty", "", 1, 1, 0.0) if prose else super().say(messages)

    by(Chatty(error_rate=0), 3).run(Run(tmp_path))
    ((asked, answer, _),) = corrected
    assert "broad topics" in asked["content"] and answer == {"role": "assistant", "content": "Gladly!"}
    assert len(rows(tmp_path)) == 3


def test_a_list_in_another_form_is_copied_out_and_what_it_does_not_say_is_refused(tmp_path: Path) -> None:
    class Prose(EmbeddedResponder):
        def say(self, messages: Any) -> ChatAnswer:
            asked = messages[-1]["content"]
            if "should hold a list" in asked:
                return said("1. Old Rivers\n2. new rivers\n3. **small bridges.**")
            return said("I suggest old rivers and small bridges.") if "broad topics" in asked else super().say(messages)

    by(Prose(error_rate=0), 8).run(Run(tmp_path))
    assert {row["parents"]["topic"] for row in rows(tmp_path)} == {"Old Rivers", "small bridges."}


class _OddYears:
    def broken_rule(self, draft: Draft) -> str | None:
        return "an odd year" if int(draft.messages[1]["content"].rstrip(".")[-1]) % 2 else None


class _SameKind:
    """Refuses a row whose first word an earlier row has."""

    def make_rule(self) -> Any:
        seen = set[str]()

        def rule(draft: Draft) -> str | None:
            word = draft.messages[1]["content"].split()[0]
            known = word in seen
            seen.add(word)
            return "same kind" if known else None

        return rule


class _Asked:
    def prompts(self) -> Mapping[str, frozenset[str]]:
        return {"judge": frozenset({"answer"})}

    def roles(self) -> list[str]:
        return ["judge"]

    def rule_program(self, draft: Draft) -> Any:
        ((verdict),) = yield [Ask("judge", {"answer": draft.messages[1]["content"]}, model="judge")]
        return "judged" if str(verdict).startswith("No") else None


def test_filters_drop_rows_and_the_order_of_answers_decides_nothing(tmp_path: Path) -> None:
    prompts = {"judge": Prompt(text="{answer} Is that good? Answer yes or no.")}
    judge, filters = EmbeddedResponder(name="judge", error_rate=0), [_SameKind(), _Asked(), _OddYears()]
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        made = by(Shuffled(), 8)
        Synthesize(
            pipeline=made.pipeline, prompts={**made.prompts, **prompts}, generator=made.generator, rows=8,
            models={"judge": judge}, filters=filters, min_yield=0.01,
        ).run(Run(tmp_path / name))  # fmt: skip
    one, other = (ledger(tmp_path / name) for name in ("one", "other"))
    assert one == other and one["rows"]["dropped"].keys() == {"an odd year", "judged", "same kind"}
    assert (tmp_path / "one/rows.jsonl").read_bytes() == (tmp_path / "other/rows.jsonl").read_bytes()
    found = rows(tmp_path / "one")
    assert len({row["messages"][1]["content"].split()[0] for row in found}) == len(found) == 8
    assert all(row["models"] == {"judge": ["judge", 0]} for row in found)
    assert one["uses"]["judge"]["asked"] == one["rows"]["in"]
    assert not set(one["rows"]["dropped"]) & {""} and one["uses"]["generator"]["tokens_out"] > 100


def test_a_filter_that_asks_needs_its_model_and_its_prompt() -> None:
    made = job()
    given: dict[str, Any] = {"pipeline": made.pipeline, "generator": made.generator, "filters": [_Asked()]}
    with pytest.raises(ValueError, match="_Asked needs a model in the role judge; models has none"):
        Synthesize(prompts=made.prompts, **given)
    with pytest.raises(ValueError, match="_Asked needs a prompt named judge"):
        Synthesize(prompts=made.prompts, models={"judge": made.generator}, **given)


def test_a_yield_below_the_min_is_an_error_after_all_is_written(tmp_path: Path) -> None:
    class Echo(EmbeddedResponder):
        def say(self, messages: Any) -> ChatAnswer:
            asked = messages[-1]["content"]
            return super().say(messages) if "list of" in asked else said(asked[-60:])

    with pytest.raises(NemoVfmError, match=r"only 0 rows of 1\d\d candidates.*below min_yield 0.1. Most often: echo"):
        by(Echo()).run(Run(tmp_path))
    assert ledger(tmp_path)["rows"]["dropped"]["echo"] > 100 and rows(tmp_path) == []


@pytest.mark.parametrize(("more", "said"), [
    ({"rows": 5000}, "makes at most 128"),
    ({"prompts": {}}, "a prompt named as_list"),
    ({"prompts": dict.fromkeys(TopicTasks().prompts(), Prompt(text="{other}"))}, "a placeholder {other}"),
    ({"min_yield": 2}, "from 0 to 1"),
    ({"budget": Budget(money=1.0), "generator": Chat(endpoint=AT, model="m")},
     "has no price for the model 'm'"),
    ({"tries": 0}, "must be at least 1"),
])  # fmt: skip
def test_what_cannot_be_is_refused_when_it_is_built(more: dict[str, Any], said: str) -> None:
    made = job()
    given = {"pipeline": made.pipeline, "prompts": made.prompts, "generator": made.generator, **more}
    with pytest.raises(ValueError, match=said):
        Synthesize(**given)


def test_a_budget_passes_over_the_embedded_responder(tmp_path: Path) -> None:
    by(Shuffled(), 5, budget=Budget(money=0.0, tokens=10_000_000)).run(Run(tmp_path))
    assert len(rows(tmp_path)) == 5


def test_data_are_never_places_of_a_prompt() -> None:
    prompt = Prompt(text="On {topic}: {question} {1} {X}")
    assert prompt.names() == {"topic", "question"}
    assert Prompt(text="{a}{b}").fill({"a": "{b}", "b": "{a}"}) == "{b}{a}"


@pytest.mark.parametrize(
    ("word", "said"),
    [("prompts.task.text=Go", "did you mean tasks?"),
     ("prompts.compare.text=Go", "prompts.compare: this job reads again,"),
     ("prompts.new={_target_: nemo_vfm.synth.programs.prompt_template.Prompt, text: x}", "prompts.new: this job")],
)  # fmt: skip
def test_words_of_a_prompt_by_which_nothing_asks_are_refused(word: str, said: str, tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for verb in ("check", "run"):
        assert main([verb, RECIPE, word]) == 2
        assert said in "".join(capsys.readouterr())
    assert not (tmp_path / "runs").exists()


def test_a_misspelt_prompt_in_a_recipe_is_refused_and_those_of_ingredients_are_not(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    composed = compose(str(ROOT / "recipes/synthetic/ratings.yaml"))  # of it nothing reads compare and revise
    Path("whole.yaml").write_text(composed.to_yaml())
    assert main(["check", "whole.yaml"]) == 0
    Path("step.yaml").write_text(
        "_target_: nemo_vfm.workflow.Workflow\nsteps:\n  rate: recipe:whole.yaml\n  again: recipe:whole.yaml\n"
    )
    Path("whole.yaml").write_text(composed.to_yaml().replace("  compare:\n", "  compared:\n"))
    capsys.readouterr()
    assert main(["check", "step.yaml"]) == 2
    told = capsys.readouterr().out
    assert "steps.rate.prompts.compared" in told and "steps.again.prompts.compared" in told and "2 problems" in told
