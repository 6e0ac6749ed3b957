"""Computes how long the devices of a pipeline wait under a schedule: the bubble.

p devices, v virtual stages each, m microbatches, all stages alike. In units of the work of one device in a step:

    1f1b          (p - 1) / m
    interleaved   (p - 1) / (v m)                Narayanan et al. 2021, arXiv 2104.04473, 2.2
    zero_bubble   (p - 1) / (3 v m)              ZB1P, Qi et al. 2024, arXiv 2401.10241, table 2

The last holds where the forward pass and both halves of backward take equally long, a third each. Of the
(p - 1) (F + B + W) that wait, gradients of weights fill all but (p - 1) (F + B - W).
"""

from nemo_vfm.parallel.plan.plan import ParallelPlan


def waiting(plan: ParallelPlan) -> float:
    """What a device waits in a step, over what it works."""
    wait = (plan.pipeline - 1) / (plan.virtual * plan.microbatches)
    return wait / 3 if plan.schedule == "zero_bubble" else wait
