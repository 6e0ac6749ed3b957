"""Holds a population of tasks, and draws what the next generation is made from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.synth.programs.row_program import Answer, Ask, Draft, Dropped, Program, RowFailed


@dataclass(slots=True)
class Offspring:
    """One task on its way into a population, and later the candidate of a row.

    Args:
        birth: the question that its task is the answer to.
        parents: operator, colony, generation and the tasks it was made from.
        task: empty as long as there is none.
        answers: all that it was made and judged by, in their order.
        scores: of the judge.
        end: what became of it: a row, a rule that it broke, or the reason of a failure; None as long as it is open.
    """

    birth: Ask
    parents: Mapping[str, Json]
    task: str = ""
    answers: list[Answer] = field(default_factory=list)
    scores: dict[str, float] = field(default_factory=dict)
    end: Draft | Dropped | str | None = None

    @property
    def fitness(self) -> float:
        """The sum of its scores."""
        return sum(self.scores.values())

    def row(self) -> Program[Draft | Dropped]:
        """See `Candidate`: everything about it was asked when it was born."""
        yield from ()
        if isinstance(self.end, Draft | Dropped):
            return self.end
        raise RowFailed(self.end or "its generation did not end")


@dataclass(frozen=True, slots=True)
class Breeding:
    """How a population goes on.

    Args:
        mutations: ways to make a task harder, in words; the prompt `harder` has a place {how}.
        mutation_share: of the offspring that are made from one task; the others are made from several examples.
        examples: tasks that a new one is made from.
        offspring: of a generation.
        population: tasks of a colony at most.
    """

    mutations: Sequence[str]
    mutation_share: float
    examples: int
    offspring: int
    population: int


class Colony:
    """One population.

    Args:
        number: of the colony; with that of a generation it decides all draws.
        seeds: tasks that it begins with.
        seed_fitness: of each of them.
        breeding: how it goes on.
    """

    def __init__(self, number: int, seeds: Sequence[str], seed_fitness: float, breeding: Breeding) -> None:
        chosen = Random(f"{number}").sample(list(seeds), min(len(seeds), breeding.population))
        self.number, self.breeding = number, breeding
        self._members = [(seed_fitness, task) for task in chosen]

    def tasks(self) -> list[str]:
        """Of the population, the fittest first."""
        return [task for _, task in self._members]

    def offspring(self, generation: int) -> list[Offspring]:
        """Of one generation, before anybody is asked."""
        rng = Random(f"{self.number}/{generation}")
        return [self._child(rng, generation, place) for place in range(self.breeding.offspring)]

    def _child(self, rng: Random, generation: int, place: int) -> Offspring:
        sample = self.number * self.breeding.offspring + place  # equal questions of two colonies get two answers
        about: dict[str, Json] = {"colony": self.number, "generation": generation}
        if rng.random() < self.breeding.mutation_share:
            task, how = rng.choice(self.tasks()), rng.choice(self.breeding.mutations)
            birth = Ask("harder", {"task": task, "how": how}, sample=sample)
            return Offspring(birth, {"operator": "mutation", **about, "tasks": [task], "how": how})
        tasks = rng.sample(self.tasks(), min(self.breeding.examples, len(self._members)))
        birth = Ask("instruct", {"examples": "\n\n".join(f"- {task}" for task in tasks)}, sample=sample)
        return Offspring(birth, {"operator": "examples", **about, "tasks": tasks})

    def admit(self, offspring: Sequence[Offspring]) -> None:
        """Let the fit ones in; where there are too many, the fittest stay, and of equals the younger."""
        fit = [(one.fitness, one.task) for one in offspring if isinstance(one.end, Draft)]
        everybody = sorted([*fit, *self._members], key=lambda member: -member[0])
        self._members = everybody[: self.breeding.population]
