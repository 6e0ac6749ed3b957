"""Makes programming tasks with tested solutions from a few: colonies grow, each by itself (arXiv 2407.21077)."""

import re
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from nemo_vfm.core.network.permission import SentText
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.dedup.texts.near_texts import near_duplicates
from nemo_vfm.dedup.texts.normalize_text import normalize
from nemo_vfm.synth.checks.program_model import end_in
from nemo_vfm.synth.checks.python_code import code_in, defined_names, num_assertions, parse, signatures
from nemo_vfm.synth.pipelines.text_bank import TextBank
from nemo_vfm.synth.programs.judgement import scores_of
from nemo_vfm.synth.programs.row_program import (
    Ask,
    Draft,
    DroppedRow,
    ModelAnswer,
    NoAnswer,
    Program,
    RowFailed,
    RowProgram,
    ended_row,
    say,
)

_LABEL = re.compile(r"^\W*(?:new |harder )?(?:programming )?task\W*:\s*", re.IGNORECASE)
FITNESS_PROMPTS = {
    "solve": frozenset({"task"}),
    "tests": frozenset({"task", "signatures"}),
    "fitness": frozenset({"task", "solution"}),
}
MAX_SCORE = 4
_SCORES = ("task", "solution")
_ENDS = {
    "timeout": "its program takes too long", "memory": "its program takes too much memory",
    "output": "its program writes too much",
}  # fmt: skip


@dataclass(slots=True)
class Offspring:
    """One task on its way into a population, and later the candidate of a row."""

    birth: Ask  #: the question that its task is the answer to
    parents: Mapping[str, Json]  #: operator, colony, generation and the tasks it was made from
    task: str = ""  #: empty as long as there is none
    answers: list[ModelAnswer] = field(default_factory=list)  #: all that it was made and judged by, in their order
    scores: dict[str, float] = field(default_factory=dict)  #: of the judge
    #: what became of it: a row, a rule that it broke, or the reason of a failure; None as long as it is open
    end: Draft | DroppedRow | str | None = None


class GeneticInstruct:
    """Programming tasks that descend from seeds.

    In each generation a colony makes tasks from its population: from several examples, or by making one harder. Those
    enter the population whose solution passes tests, and that the judge gives good scores. A step of a generation is
    asked for all colonies at once; no colony's next step begins before all answers are there. A generation without a
    single fit task is the last: the next would ask the same of the same tasks.

    Args:
        seeds: tasks to begin with. They are not rows.
        mutations: ways to make a task harder, in words.
        mutation_share: of offspring that are made harder; the others are made from examples.
        colonies: how many.
        generations: of each.
        offspring: of a colony in a generation.
        population: tasks of a colony at most; the fittest stay.
        examples: that a new task is made from.
        min_score: that the judge, in the role `judge`, gives to a fit task and to its solution, from 0 to 4.
        min_tests: assertions of a fit task.
        max_jaccard: similarity of a task to an earlier one of any colony (n-grams of five letters) at which it is
            dropped. Equal ones are dropped before they are solved.
    """

    def __init__(
        self, *, seeds: TextBank, mutations: Sequence[SentText], mutation_share: float = 0.5, colonies: int = 4,
        generations: int = 3, offspring: int = 8, population: int = 16, examples: int = 3, min_score: float = 3.0,
        min_tests: int = 3, max_jaccard: float = 0.8,
    ) -> None:  # fmt: skip
        if min(colonies, generations, offspring, population, examples, min_tests, len(mutations)) < 1:
            raise ValueError(f"colonies {colonies}, generations {generations}, offspring {offspring}, population "
                             f"{population}, examples {examples}, min_tests {min_tests} and the number of "
                             f"mutations {len(mutations)} must be at least 1")  # fmt: skip
        if not 0 <= mutation_share <= 1 or not 0 <= min_score <= MAX_SCORE or not 0.1 <= max_jaccard <= 1:
            raise ValueError(f"mutation_share {mutation_share} must be from 0 to 1, min_score {min_score} from 0 "
                             f"to {MAX_SCORE}, and max_jaccard {max_jaccard} from 0.1 to 1")  # fmt: skip
        self.seeds, self.colonies, self.generations = seeds, colonies, generations
        self.breeding = Reproduction(tuple(mutations), mutation_share, examples, offspring, population)
        self.min_score, self.min_tests, self.max_jaccard = min_score, min_tests, max_jaccard

    def prompts(self) -> Mapping[str, frozenset[str]]:
        """See `Pipeline`."""
        return {"instruct": frozenset({"examples"}), "harder": frozenset({"task", "how"}), **FITNESS_PROMPTS}

    def roles(self) -> Sequence[str]:
        return ["judge", "python"]

    def max_rows(self) -> int:
        return self.colonies * self.generations * self.breeding.offspring

    def candidates(self) -> Program[Iterable[RowProgram]]:
        """All offspring by generation, then by colony: those that are fit, and the others with what they lack."""
        seeds = self.seeds.all()
        # A seed has what a task needs to be fit, and no more: descendants soon displace it.
        colonies = [Colony(place, seeds, 2 * self.min_score, self.breeding) for place in range(self.colonies)]
        every: list[Offspring] = []
        known = {normalize(seed) for seed in seeds}
        for generation in range(self.generations):
            broods = [colony.offspring(generation) for colony in colonies]
            born = [one for brood in broods for one in brood]
            answers = yield [one.birth for one in born]
            for one, answer in zip(born, answers, strict=True):
                try:
                    one.task = _LABEL.sub("", record_answer(one, answer).strip()).strip()
                except RowFailed as error:
                    one.end = str(error)
                    continue
                if not one.task:
                    one.end = "the model wrote no task"
                elif (task := normalize(one.task)) in known:  # dropped at once: it would be solved and judged alike
                    one.end = DroppedRow("a repeat of an earlier task")
                else:
                    known.add(task)
            yield from fitness(born, self.min_score, self.min_tests)
            for colony, brood in zip(colonies, broods, strict=True):
                colony.admit(brood)
            every += born
            if not any(isinstance(one.end, Draft) for one in born):
                break
        fit = [one for one in every if isinstance(one.end, Draft)]
        near = near_duplicates([one.task for one in fit], threshold=self.max_jaccard) if fit else {}
        for place in near:
            fit[place].end = DroppedRow("nearly an earlier task")
        # Everything about them was asked when they were born.
        return (ended_row(one.end or "its generation did not end") for one in every)


def fitness(offspring: Sequence[Offspring], min_score: float, min_tests: int) -> Program[None]:
    """Solve the tasks, write tests, run them and judge; each that is open ends as a row, dropped or failed.

    A step is asked for all tasks at once.
    """
    trials = [(one, _trial(one, min_score, min_tests)) for one in offspring if one.end is None]
    asks = [next(trial) for _, trial in trials]
    while trials:
        still, following = [], []
        for (one, trial), answer in zip(trials, (yield asks), strict=True):
            try:
                following.append(trial.send(record_answer(one, answer)))
                still.append((one, trial))
            except StopIteration as stop:
                one.end = stop.value
            except RowFailed as error:
                one.end = str(error)
        trials, asks = still, following


def _trial(one: Offspring, min_score: float, min_tests: int) -> Generator[Ask, str, Draft | DroppedRow]:
    """What becomes of one task."""
    answer = yield Ask("solve", {"task": one.task})
    if not (solution := code_in(answer)):
        return DroppedRow("a solution without code")
    if (tree := parse(solution)) is None:
        return DroppedRow("a solution that does not compile")
    if not (names := defined_names(tree)):
        return DroppedRow("a solution without a function or class to test")
    # Whoever writes the tests sees how the solution is called, and not what it does.
    tests = code_in((yield Ask("tests", {"task": one.task, "signatures": "\n".join(signatures(tree))})))
    if not tests or (test_tree := parse(tests)) is None:
        return DroppedRow("tests that do not compile")
    if (count := num_assertions(test_tree, names - defined_names(test_tree))) < min_tests:
        return DroppedRow("too few tests")
    program = {"role": "user", "content": f"{solution.rstrip()}\n\n{tests}"}
    end = end_in((yield Ask(None, before=[program], model="python")))
    if not end.passed:
        return DroppedRow(_ENDS.get(end.ending, "a solution that fails its tests"))
    scores = scores_of((yield Ask("fitness", {"task": one.task, "solution": solution}, model="judge")))
    for name in _SCORES:
        if not 0 <= scores.get(name, -1) <= MAX_SCORE:
            raise RowFailed(f"the judge gave the {name} no number from 0 to {MAX_SCORE}")
    one.scores = {name: scores[name] for name in _SCORES}
    if min(one.scores.values()) < min_score:
        return DroppedRow("judged below the least score")
    messages = [say("user", one.task), say("assistant", answer)]
    verifier = f"python: {count} of {count} tests pass"
    return Draft(messages, one.parents, one.scores, verifier, more={"tests": tests}, earlier=one.answers)


def record_answer(one: Offspring, answer: str | NoAnswer) -> str:
    """The answer, which is noted."""
    if isinstance(answer, NoAnswer):
        raise RowFailed(answer.reason)
    assert isinstance(answer, ModelAnswer)
    one.answers.append(answer)
    return answer


@dataclass(frozen=True, slots=True)
class Reproduction:
    """How a population goes on."""

    mutations: Sequence[str]  #: ways to make a task harder, in words; the prompt `harder` has a place {how}
    mutation_share: float  #: of the offspring that are made from one task; the others are made from several examples
    examples: int  #: tasks that a new one is made from
    offspring: int  #: of a generation
    population: int  #: tasks of a colony at most


class Colony:
    """One population."""

    def __init__(self, number: int, seeds: Sequence[str], seed_fitness: float, breeding: Reproduction) -> None:
        chosen = Random(f"{number}").sample(list(seeds), min(len(seeds), breeding.population))
        self.number, self.breeding = number, breeding
        self._members = [(seed_fitness, task) for task in chosen]

    def tasks(self) -> list[str]:
        """Of the population, the fittest first."""
        return [task for _, task in self._members]

    def offspring(self, generation: int) -> list[Offspring]:
        """Of one generation, before anybody is asked."""
        rng = Random(f"{self.number}/{generation}")
        about: dict[str, Json] = {"colony": self.number, "generation": generation}
        born = []
        for place in range(self.breeding.offspring):
            sample = self.number * self.breeding.offspring + place  # equal questions of two colonies get two answers
            if rng.random() < self.breeding.mutation_share:
                task, how = rng.choice(self.tasks()), rng.choice(self.breeding.mutations)
                birth = Ask("harder", {"task": task, "how": how}, sample=sample)
                born.append(Offspring(birth, {"operator": "mutation", **about, "tasks": [task], "how": how}))
            else:
                tasks = rng.sample(self.tasks(), min(self.breeding.examples, len(self._members)))
                birth = Ask("instruct", {"examples": "\n\n".join(f"- {task}" for task in tasks)}, sample=sample)
                born.append(Offspring(birth, {"operator": "examples", **about, "tasks": tasks}))
        return born

    def admit(self, offspring: Sequence[Offspring]) -> None:
        """Let the fit ones in; where there are too many, the fittest stay, and of equals the younger."""
        fit = [(sum(one.scores.values()), one.task) for one in offspring if isinstance(one.end, Draft)]
        everybody = sorted([*fit, *self._members], key=lambda member: -member[0])
        self._members = everybody[: self.breeding.population]
