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
    "tests/house/test_fresh_environment.py": 130, "tests/recipes/test_recipes.py": 104,
    "tests/house/test_tutorials.py": 90, "tests/synth/test_sampling_ranks.py": 82,
    "tests/cli/test_rank_processes.py": 70, "tests/launcher/on_slurm/test_restart_on_slurm.py": 69,
    "tests/launcher/on_slurm/test_slurm_ends.py": 60, "tests/curate/test_ray.py": 55,
    "tests/launcher/on_slurm/test_training_on_slurm.py": 55, "tests/recsys/test_teacher_recipe.py": 50,
    "tests/recipes/test_quickstart.py": 45, "tests/train/lightning/test_kinds_of_modules.py": 45,
    "tests/synth/programs/test_synthesize.py": 42, "tests/recipes/test_paper_recipes.py": 42,
    "tests/security/test_secrets.py": 42, "tests/cli/test_convert.py": 41, "tests/core/test_fast_bf16.py": 40,
    "tests/serve/test_tensor_ranks.py": 40, "tests/cli/test_train_adapter.py": 38, "tests/cli/test_parity.py": 37,
    "tests/security/test_run_folders.py": 36, "tests/train/test_interrupt.py": 35, "tests/train/test_loggers.py": 35,
    "tests/parallel/test_torch_engine.py": 32, "tests/parallel/test_megatron_engine.py": 32,
    "tests/train/test_ranks.py": 32, "tests/house/test_wheel.py": 32, "tests/config/test_page.py": 32,
    "tests/parallel/test_compile.py": 31, "tests/cli/test_sample_ranks.py": 31,
    "tests/synth/pipelines/test_served_generator.py": 31, "tests/parallel/fp8/test_fp8_layouts.py": 30,
    "tests/report/test_page.py": 30, "tests/train/lightning/test_resume_decisions.py": 30,
    "tests/runtime/test_python_api.py": 29, "tests/house/test_files.py": 28,
    "tests/synth/checks/test_time_of_checks.py": 26, "tests/parallel/fp8/test_fp8_megatron.py": 26,
    "tests/security/test_media_curation.py": 25, "tests/curate/test_job.py": 25, "tests/cli/test_schema.py": 22,
    "tests/benchmarks/test_token_loader.py": 22, "tests/curate/test_kills.py": 22,
    "tests/train/test_lightning_fit.py": 20, "tests/parallel/test_gpt_layouts.py": 20,
    "tests/house/test_commands.py": 20, "tests/security/test_package.py": 20, "tests/cli/test_sweep.py": 20,
    "tests/house/test_doors.py": 20, "tests/train/lightning/test_evaluation.py": 20,
    "tests/parallel/test_pipeline_schedule.py": 19, "tests/launcher/plan/test_sweep.py": 19,
    "tests/cli/test_gpu_check.py": 18, "tests/cli/test_run_lock.py": 18,
    "tests/launcher/plan/test_every_recipe.py": 18, "tests/recipes/test_hardware.py": 18,
    "tests/serve/test_leaving.py": 18, "tests/launcher/on_slurm/test_chain_on_slurm.py": 17,
    "tests/data/test_shared_fetch.py": 17, "tests/curate/test_source_guard.py": 17,
    "tests/parallel/test_process_group.py": 16, "tests/house/test_ci_run.py": 16,
    "tests/cli/test_fine_tune_pretrained.py": 16, "tests/parallel/context/test_collectives.py": 16,
    "tests/cli/test_copy.py": 15, "tests/launcher/state/test_local_log.py": 15, "tests/train/test_damage.py": 14,
    "tests/benchmarks/test_peer_parity.py": 14, "tests/launcher/verbs/test_local_run.py": 14,
    "tests/perf/test_memory.py": 14, "tests/core/test_uri.py": 14, "tests/launcher/verbs/test_python_api.py": 14,
    "tests/benchmarks/test_curation_memory.py": 14, "tests/cli/test_explain.py": 14,
    "tests/security/test_bounds.py": 13, "tests/train/test_phases.py": 13, "tests/train/test_fp8_monitor.py": 13,
    "tests/house/test_packages.py": 13, "tests/data/chat/test_chat_format.py": 13, "tests/house/test_adding.py": 13,
    "tests/security/test_shards.py": 13, "tests/cli/test_plan.py": 13,
}  # fmt: skip


class Named(Protocol):
    """What has the name that pytest gives a test."""

    @property
    def nodeid(self) -> str:
        """Such as `tests/core/test_files.py::test_a_file_is_whole`."""
        ...


Test = TypeVar("Test", bound=Named)


#: Files of one process, which then makes once what they share: an environment; the syntax trees of all files, 10 s.
TOGETHER = {
    **dict.fromkeys(["tests/house/test_fresh_environment.py", "tests/house/test_tutorials.py"], "a fresh environment"),
    **dict.fromkeys([f"tests/house/test_{name}.py" for name in (
        "circles", "components", "constructors", "doors", "fetching", "files", "mutants", "packages", "support",
        "words", "write_paths",
    )], "syntax trees"),
}  # fmt: skip


def longest_first(tests: Iterable[Test]) -> list[Test]:
    """Files, or those that are together, that are known to be long; then those with the most tests."""
    tests = list(tests)
    numbers = Counter(group(test.nodeid) for test in tests)
    seconds = Counter[str]()
    for file in {_file(test) for test in tests}:
        seconds[group(file)] += SECONDS.get(file, 0)

    def place(test: Test) -> tuple[int, int, str, str]:
        name = group(test.nodeid)
        return -seconds[name], -numbers[name], name, _file(test)

    return sorted(tests, key=place)


def group(nodeid: str) -> str:
    """A test's file, or what that shares with others."""
    file = nodeid.partition("::")[0]
    return TOGETHER.get(file, file)


def _file(test: Named) -> str:
    return test.nodeid.partition("::")[0]
