# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Orders tests so that processes that share their files start the longest file first.

Everybody waits for a long file that is started last. xdist would start those with the most tests; the longest have few.
So `make test` keeps the given order (--no-loadscope-reorder), which is this one.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Protocol, TypeVar

#: Seconds of files that are known to be long, or have few tests for their time: measured one by one, on two cores that
#: others used, too. Where a figure is wrong, or a file is missing, nothing but the order suffers.
SECONDS = {
    "tests/recipes/test_quickstart.py": 230,
    "tests/train/test_ranks.py": 133,
    "tests/train/test_loggers.py": 124,
    "tests/train/test_phases.py": 119,
    "tests/parallel/test_torch_engine.py": 83,
    "tests/cli/test_rank_processes.py": 77,
    "tests/launcher/test_training_on_slurm.py": 67,
    "tests/curate/test_ray.py": 63,
    "tests/cli/test_sweep.py": 57,
    "tests/parallel/test_pipeline_schedule.py": 54,
    "tests/parallel/test_parity.py": 46,
    "tests/security/test_secrets.py": 46,
    "tests/launcher/test_slurm_ends.py": 44,
    "tests/parallel/test_compile.py": 41,
    "tests/parallel/test_temporal_all_to_all.py": 38,
    "tests/cli/test_parity.py": 35,
    "tests/parallel/test_process_group.py": 35,
    "tests/security/test_media_curation.py": 29,
    "tests/curate/test_job.py": 27,
    "tests/house/test_wheel.py": 19,
    "tests/benchmarks/test_loader.py": 18,
    "tests/benchmarks/test_token_loader.py": 15,
    "tests/perf/test_memory.py": 15,
    "tests/recipes/test_object_store.py": 15,
    "tests/benchmarks/test_gpu.py": 14,
    "tests/launcher/test_local_run.py": 14,
    "tests/launcher/test_chain_on_slurm.py": 10,
}


class Named(Protocol):
    """What has the name that pytest gives a test."""

    @property
    def nodeid(self) -> str:
        """Such as `tests/core/test_files.py::test_a_file_is_whole`."""
        ...


Test = TypeVar("Test", bound=Named)


def longest_first(tests: Iterable[Test]) -> list[Test]:
    """Files that are known to be long, then those with the most tests; the tests of a file in their own order."""
    tests = list(tests)
    numbers = Counter(map(_file, tests))
    return sorted(tests, key=lambda test: (-SECONDS.get(_file(test), 0), -numbers[_file(test)], _file(test)))


def _file(test: Named) -> str:
    return test.nodeid.partition("::")[0]
