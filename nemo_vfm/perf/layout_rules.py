"""Checks which of a paper's rules of thumb a layout follows, given a model's size and context.

The five rules are those of arXiv 2503.12964 (4.5). They rank nothing here, but say where a ranking departs from what
others found, which is a reason to measure. The paper gives no numbers for small, long and so on; ours lie between the
sizes that it measured.
"""

from collections.abc import Callable
from dataclasses import dataclass

from nemo_vfm.parallel.plan.plan import ParallelPlan

SMALL_PARAMETERS = 10e9  # the paper: smaller products hurt models of up to 10 B; it measures 7 B and 28 B
SHORT_TOKENS = 24_576  # it measures 8,192 and 73,728; this is their geometric mean


@dataclass(frozen=True, slots=True)
class RuleSize:
    """What the rules ask."""

    parameters: int  #: of the model
    tokens: int  #: of a sample
    gpus_per_node: int  #: that the quick links join

    @property
    def small(self) -> bool:
        """Whether the model is."""
        return self.parameters <= SMALL_PARAMETERS

    @property
    def short(self) -> bool:
        """Whether the context is."""
        return self.tokens <= SHORT_TOKENS


@dataclass(frozen=True, slots=True)
class Rule:
    """One of them."""

    number: int  #: as the paper counts them
    text: str  #: what it says
    speaks: Callable[[RuleSize], bool]  #: of which sizes
    followed: Callable[[ParallelPlan, RuleSize], bool]  #: by which layouts


def _has_grown(plan: ParallelPlan, size: RuleSize) -> bool:
    """Context ranks where the context has grown, tensor ranks or shared weights where the model has."""
    for_model = plan.tensor > 1 or plan.shard * plan.context > 1
    return (size.short or plan.context > 1) and (size.small or for_model)


RULES = (
    Rule(1, "a small model on a short context: shared weights (FSDP) alone",
         lambda size: size.small and size.short,
         lambda plan, _: plan.tensor == plan.context == plan.pipeline == 1),
    Rule(2, "a small model on a long context: context parallel first",
         lambda size: size.small and not size.short,
         lambda plan, _: plan.context > 1 and plan.context >= plan.tensor * plan.pipeline),
    Rule(3, "a context that grows asks for context parallel, a model that grows for tensor parallel or shared weights",
         lambda size: not (size.small and size.short), _has_grown),
    Rule(4, "a large model: tensor parallel inside the machine, then pipeline parallel",
         lambda size: not size.small and size.short,
         lambda plan, size: 1 < plan.tensor <= size.gpus_per_node),
    Rule(5, "both large: tensor, pipeline and context parallel, tensor parallel inside the machine",
         lambda size: not size.small and not size.short,
         lambda plan, size: min(plan.pipeline, plan.context, plan.tensor) > 1 and plan.tensor <= size.gpus_per_node),
)  # fmt: skip


def judge_layout(plan: ParallelPlan, size: RuleSize) -> list[tuple[Rule, bool]]:
    """The rules that speak of this size, and whether the layout follows each."""
    return [(rule, rule.followed(plan, size)) for rule in RULES if rule.speaks(size)]
