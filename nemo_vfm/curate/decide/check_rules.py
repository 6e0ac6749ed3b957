"""Refuses rules that read a column which no stage of the recipe gives."""

from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from types import MappingProxyType

from nemo_vfm.core.nested_error import PartRefused
from nemo_vfm.curate.caption.caption_columns import CAPTION_COLUMNS
from nemo_vfm.curate.decide.grammar import Column, Compared, Use
from nemo_vfm.curate.decide.rule import Rule
from nemo_vfm.curate.record.stage import FACTS, Compares, FileScore, Labelling, Learned, Score, Stage

Known = Mapping[str, Collection[str] | None]  # column -> the words that may stand in it; None where it holds numbers


def check_rules(
    stages: Mapping[str, Stage], rules: Mapping[str, Rule], of_source: Known | None = MappingProxyType({})
) -> None:
    """Refuse rules on scores that nobody gives.

    Args:
        stages: by name.
        rules: by name.
        of_source: the columns of the source; None where nobody knows them yet, so that any other may be one.

    Raises:
        ValueError: such a rule, a score given twice, a word that no stage gives, words used as numbers, or a
            comparison's rule that is more than one threshold above which clips are dropped.
    """
    given: dict[str, str] = dict.fromkeys(FACTS, "the video itself") | dict.fromkeys(CAPTION_COLUMNS, "the caption")
    given |= dict.fromkeys(of_source or (), "the source")
    for name, stage in stages.items():
        if not isinstance(stage, Score | FileScore | Compares | Learned):
            raise ValueError(f"stage {name!r} is a {type(stage).__name__}, which neither scores nor compares clips")
        for column in stage.columns():
            if column in given:
                raise ValueError(f"the score {column!r} is given by {given[column]} and by the stage {name!r}")
            given[column] = f"the stage {name!r}"
    known = dict.fromkeys(given) | label_columns(stages) | dict(CAPTION_COLUMNS) | dict(of_source or {})
    check_columns(known, rules, is_all=of_source is not None)
    _check_comparisons(stages, rules)


def label_columns(stages: Mapping[str, Stage]) -> dict[str, Sequence[str]]:
    """The columns that hold words, and which words those may be."""
    labelling = [stage for stage in stages.values() if isinstance(stage, Labelling)]
    return {column: tuple(words) for stage in labelling for column, words in stage.labels().items()}


def comparisons(stages: Mapping[str, Stage]) -> dict[str, tuple[str, Compares]]:
    """The comparing stages by their column."""
    return {stage.columns()[0]: (name, stage) for name, stage in stages.items() if isinstance(stage, Compares)}


def reads_captions(rule: Rule) -> bool:
    """Whether a rule can only be applied once clips have their captions."""
    return any(use.name in CAPTION_COLUMNS for use in rule.uses())


def check_columns(known: Known, rules: Mapping[str, Rule], *, is_all: bool = True) -> None:
    """Refuse rules that read columns that are not there, or words as numbers; unless `is_all` there may be others.

    Raises:
        PartRefused: such a rule, at its place.
    """
    for name, rule in rules.items():
        try:
            _check_rule(name, rule, known, is_all)
        except ValueError as error:
            raise PartRefused(str(error), "rules", name) from None


def _check_rule(name: str, rule: Rule, known: Known, is_all: bool) -> None:
    for use in rule.uses():
        if use.name in known:
            _check_kind(name, rule, use, known[use.name])
        elif is_all:
            raise rule.complaint(use.at, _unknown(name, use.name, known))


def _unknown(rule: str, column: str, known: Known) -> str:
    near = get_close_matches(column, known, n=1, cutoff=0.6)
    message = f"rule {rule!r} reads the score {column!r}, which no stage gives; "
    if near:
        return f"{message}did you mean {near[0]!r}? Remove the rule too (~rules.{rule}) if you removed its stage"
    # The list comes last: with all stages it is so long that what follows is cut off.
    return (
        f"{message}remove the rule too (~rules.{rule}) if you removed its stage. There are {', '.join(sorted(known))}"
    )


def _check_kind(name: str, rule: Rule, use: Use, words: Collection[str] | None) -> None:
    if words is not None and use.kind == "number":
        some = ", ".join(list(words)[:4])
        raise rule.complaint(
            use.at,
            f"rule {name!r} uses {use.name!r} as a number, but it holds words" + (f" such as {some}" if some else ""),
        )
    if words is None and use.kind == "label":
        raise rule.complaint(use.at, f"rule {name!r} compares {use.name!r} with a word, but it holds numbers")
    for word in use.words:
        if words and word.text not in words:
            near = get_close_matches(word.text, words, n=1, cutoff=0.6)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(words)}"
            raise rule.complaint(word.at, f"rule {name!r}: {use.name!r} is never {word.text!r}; {hint}")


def _check_comparisons(stages: Mapping[str, Stage], rules: Mapping[str, Rule]) -> None:
    for column, (stage, _) in comparisons(stages).items():
        for name, rule in rules.items():
            if any(use.name == column for use in rule.uses()) and not _says_above(rule, column):
                raise PartRefused(
                    f"a rule on {column!r} of the stage {stage!r} must have the form above: NUMBER or drop: "
                    f"{column} > NUMBER, so that it drops similar clips; rule {name!r} says {rule.text}", "rules", name,
                )  # fmt: skip


def _says_above(rule: Rule, column: str) -> bool:
    part = rule.expression()
    if rule.score is not None:
        return rule.above is not None
    sign = ">" if rule.drop is not None else "<="
    return isinstance(part, Compared) and part.op == sign and isinstance(part.left, Column) and part.left.name == column
