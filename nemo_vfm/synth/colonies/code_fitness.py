"""Finds out which tasks of a generation are fit: a solution passes tests that a model wrote, and a judge approves."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nemo_vfm.synth.checks.program_model import end_in
from nemo_vfm.synth.checks.python_code import code_in, defined_names, num_assertions, parsed, signatures
from nemo_vfm.synth.colonies.colony import Offspring
from nemo_vfm.synth.programs.judgement import scores_of
from nemo_vfm.synth.programs.row_program import Answer, Ask, Draft, Dropped, NoAnswer, Program, RowFailed, said

FITNESS_PROMPTS = {
    "solve": frozenset({"task"}),
    "tests": frozenset({"task", "signatures"}),
    "fitness": frozenset({"task", "solution"}),
}
MOST_SCORE = 4
_SCORES = ("task", "solution")
_ENDS = {
    "timeout": "its program takes too long", "memory": "its program takes too much memory",
    "output": "its program writes too much",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Bar:
    """What makes a task fit.

    Args:
        score: least score that the judge gives to the task, and to its solution.
        tests: fewest assertions.
    """

    score: float
    tests: int


@dataclass(slots=True)
class _Trial:
    """One task whose fitness is being found out."""

    one: Offspring
    bar: Bar
    answer: str = ""
    solution: str = ""
    tests: str = ""
    count: int = 0


def fitness(offspring: Sequence[Offspring], bar: Bar) -> Program[None]:
    """Solve the tasks, write tests, run them and judge; each that is open ends as a row, dropped or failed.

    A step is asked for all tasks at once.
    """
    trials = [_Trial(one, bar) for one in offspring]
    for ask, read in ((_solve, _solved), (_test, _tested), (_run, _ran), (_judge, _judged)):
        yield from _step(trials, ask, read)


def heard(one: Offspring, answer: str | NoAnswer) -> str:
    """The answer, which is noted.

    Raises:
        RowFailed: there is none.
    """
    if isinstance(answer, NoAnswer):
        raise RowFailed(answer.reason)
    assert isinstance(answer, Answer)
    one.answers.append(answer)
    return answer


def _step(
    trials: Sequence[_Trial], ask: Callable[[_Trial], Ask], read: Callable[[_Trial, str], Draft | Dropped | None]
) -> Program[None]:
    still = [trial for trial in trials if trial.one.end is None]
    for trial, answer in zip(still, (yield [ask(trial) for trial in still]), strict=True):
        try:
            trial.one.end = read(trial, heard(trial.one, answer))
        except RowFailed as error:
            trial.one.end = str(error)


def _solve(trial: _Trial) -> Ask:
    return Ask("solve", {"task": trial.one.task})


def _solved(trial: _Trial, answer: str) -> Dropped | None:
    trial.answer, trial.solution = answer, code_in(answer)
    if not trial.solution:
        return Dropped("a solution without code")
    if (tree := parsed(trial.solution)) is None:
        return Dropped("a solution that does not compile")
    return None if defined_names(tree) else Dropped("a solution without a function or class to test")


def _test(trial: _Trial) -> Ask:
    """Whoever writes the tests sees how the solution is called, and not what it does."""
    tree = parsed(trial.solution)
    assert tree is not None
    return Ask("tests", {"task": trial.one.task, "signatures": "\n".join(signatures(tree))})


def _tested(trial: _Trial, answer: str) -> Dropped | None:
    trial.tests = code_in(answer)
    solution, tests = parsed(trial.solution), parsed(trial.tests)
    assert solution is not None
    if not trial.tests or tests is None:
        return Dropped("tests that do not compile")
    trial.count = num_assertions(tests, defined_names(solution) - defined_names(tests))
    return None if trial.count >= trial.bar.tests else Dropped("too few tests")


def _run(trial: _Trial) -> Ask:
    program = f"{trial.solution.rstrip()}\n\n{trial.tests}"
    return Ask(None, before=[{"role": "user", "content": program}], model="python")


def _ran(trial: _Trial, answer: str) -> Dropped | None:
    end = end_in(answer)
    return None if end.passed else Dropped(_ENDS.get(end.ending, "a solution that fails its tests"))


def _judge(trial: _Trial) -> Ask:
    return Ask("fitness", {"task": trial.one.task, "solution": trial.solution}, model="judge")


def _judged(trial: _Trial, answer: str) -> Draft | Dropped:
    scores = scores_of(answer)
    for name in _SCORES:
        if not 0 <= scores.get(name, -1) <= MOST_SCORE:
            raise RowFailed(f"the judge gave the {name} no number from 0 to {MOST_SCORE}")
    one = trial.one
    one.scores = {name: scores[name] for name in _SCORES}
    if min(one.scores.values()) < trial.bar.score:
        return Dropped("judged below the least score")
    messages = [said("user", one.task), said("assistant", trial.answer)]
    verifier = f"python: {trial.count} of {trial.count} tests pass"
    return Draft(messages, one.parents, one.scores, verifier, more={"tests": trial.tests}, earlier=one.answers)
