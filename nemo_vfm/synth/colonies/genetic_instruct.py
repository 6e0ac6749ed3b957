"""Makes programming tasks with tested solutions from a few: colonies grow, each by itself (arXiv 2407.21077)."""

import re
from collections.abc import Mapping, Sequence

from nemo_vfm.core.network.permission import SentText
from nemo_vfm.dedup.texts.near_texts import near_duplicates
from nemo_vfm.dedup.texts.normalize_text import normalize
from nemo_vfm.synth.colonies.code_fitness import FITNESS_PROMPTS, MOST_SCORE, Bar, fitness, heard
from nemo_vfm.synth.colonies.colony import Breeding, Colony, Offspring
from nemo_vfm.synth.pipelines.text_bank import TextBank
from nemo_vfm.synth.programs.row_program import Draft, Dropped, Program, RowFailed

_LABEL = re.compile(r"^\W*(?:new |harder )?(?:programming )?task\W*:\s*", re.IGNORECASE)


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
        least_score: that the judge, in the role `judge`, gives to a fit task and to its solution, from 0 to 4.
        least_tests: assertions of a fit task.
        most_jaccard: similarity of a task to an earlier one of any colony (n-grams of five letters) at which it is
            dropped. Equal ones are dropped before they are solved.
    """

    def __init__(
        self, *, seeds: TextBank, mutations: Sequence[SentText], mutation_share: float = 0.5, colonies: int = 4,
        generations: int = 3, offspring: int = 8, population: int = 16, examples: int = 3, least_score: float = 3.0,
        least_tests: int = 3, most_jaccard: float = 0.8,
    ) -> None:  # fmt: skip
        if min(colonies, generations, offspring, population, examples, least_tests, len(mutations)) < 1:
            raise ValueError(f"colonies {colonies}, generations {generations}, offspring {offspring}, population "
                             f"{population}, examples {examples}, least_tests {least_tests} and the number of "
                             f"mutations {len(mutations)} must be at least 1")  # fmt: skip
        if not 0 <= mutation_share <= 1 or not 0 <= least_score <= MOST_SCORE or not 0.1 <= most_jaccard <= 1:
            raise ValueError(f"mutation_share {mutation_share} must be from 0 to 1, least_score {least_score} from 0 "
                             f"to {MOST_SCORE}, and most_jaccard {most_jaccard} from 0.1 to 1")  # fmt: skip
        self.seeds, self.colonies, self.generations = seeds, colonies, generations
        self.breeding = Breeding(tuple(mutations), mutation_share, examples, offspring, population)
        self.bar, self.most_jaccard = Bar(least_score, least_tests), most_jaccard

    def prompts(self) -> Mapping[str, frozenset[str]]:
        """See `Pipeline`."""
        return {"instruct": frozenset({"examples"}), "harder": frozenset({"task", "how"}), **FITNESS_PROMPTS}

    def roles(self) -> Sequence[str]:
        """See `Pipeline`."""
        return ["judge", "python"]

    def most_rows(self) -> int:
        """See `Pipeline`."""
        return self.colonies * self.generations * self.breeding.offspring

    def candidates(self) -> Program[Sequence[Offspring]]:
        """All offspring by generation, then by colony: those that are fit, and the others with what they lack."""
        seeds = self.seeds.all()
        # A seed has what a task needs to be fit, and no more: descendants soon displace it.
        colonies = [Colony(place, seeds, 2 * self.bar.score, self.breeding) for place in range(self.colonies)]
        every: list[Offspring] = []
        known = {normalize(seed) for seed in seeds}
        for generation in range(self.generations):
            broods = [colony.offspring(generation) for colony in colonies]
            born = [one for brood in broods for one in brood]
            yield from _born(born, known)
            yield from fitness(born, self.bar)
            for colony, brood in zip(colonies, broods, strict=True):
                colony.admit(brood)
            every += born
            if not any(isinstance(one.end, Draft) for one in born):
                break
        self._drop_alike(every)
        return every

    def _drop_alike(self, every: Sequence[Offspring]) -> None:
        """Of the fit ones, those that are like an earlier fit one."""
        fit = [one for one in every if isinstance(one.end, Draft)]
        near = near_duplicates([one.task for one in fit], threshold=self.most_jaccard) if fit else {}
        for place in near:
            fit[place].end = Dropped("nearly an earlier task")


def _born(offspring: Sequence[Offspring], known: set[str]) -> Program[None]:
    """Their tasks. One that any colony had is dropped at once: it would be solved and judged alike."""
    answers = yield [one.birth for one in offspring]
    for one, answer in zip(offspring, answers, strict=True):
        try:
            one.task = _LABEL.sub("", heard(one, answer).strip()).strip()
        except RowFailed as error:
            one.end = str(error)
            continue
        if not one.task:
            one.end = "the model wrote no task"
        elif (task := normalize(one.task)) in known:
            one.end = Dropped("a repeat of an earlier task")
        else:
            known.add(task)
