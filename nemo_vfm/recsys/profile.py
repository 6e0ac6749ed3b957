"""Profiles a log: what repeats in sessions, how skewed the rows of tables are, and how they drift."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from itertools import chain

from nemo_vfm.core import log
from nemo_vfm.core.errors import DataError, NothingKept, UserError
from nemo_vfm.core.storage.files import write_json
from nemo_vfm.core.types.job import Outcome, Run, makes
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.recsys.profiling.log_measurements import LogMeasurements
from nemo_vfm.recsys.profiling.log_outline import LogOutline, outline
from nemo_vfm.recsys.profiling.profile_figures import ProfileFigures
from nemo_vfm.recsys.profiling.profile_file import FORMAT, NAME, load_profile
from nemo_vfm.recsys.profiling.session_sample import sampled_chunks
from nemo_vfm.recsys.profiling.table_rows import TableRows
from nemo_vfm.sparse.log_chunk import LogSource


@makes("profile.json")
class Profile:
    """Measures whole sessions of a log, chosen by a hash of the session and the run's seed, and writes `profile.json`.

    Args:
        source: the log, clustered by session: copies in samples that do not stand side by side are not found.
        fraction: of the sessions, above 0; 1 gives exact figures.
        tables: of features, the tables that their ids look up.
        other_tables: the table of each feature that is not among them; None gives it none.
        batch_size: samples of the batches in which lookups a row and dedupe factors are measured.
        windows: of equal duration, between which drift is measured.
        confidence: of the intervals, between 0 and 1.
        min_factor: samples a unique row that a feature must reach to be put into a group.
        hot_share: share of a window's lookups that its hottest rows hold, whose change is drift.
        max_ids: distinct ids a feature that are counted exactly; beyond, their number is estimated.
        max_values: ids and samples of the sessions that are kept in memory for groups, batches and intervals of
            tables; where the fraction has more, fewer sessions are kept.
    """

    def __init__(
        self, *, source: LogSource, fraction: float = 0.01, tables: Mapping[str, TableRows] | None = None,
        other_tables: TableRows | None = None, batch_size: int = 4096, windows: int = 4, confidence: float = 0.95,
        min_factor: float = 1.5, hot_share: float = 0.8, max_ids: int = 1 << 20, max_values: int = 1 << 24,
    ) -> None:  # fmt: skip
        if not 0 < fraction <= 1 or not 0 < confidence < 1 or not 0 < hot_share <= 1:
            raise ValueError(
                f"fraction {fraction}, confidence {confidence}, hot_share {hot_share}: fraction and hot_share must be "
                "above 0 and at most 1, confidence between 0 and 1"
            )
        if batch_size < 1 or windows < 1 or max_ids < 3 or max_values < 1:
            raise ValueError(
                f"batch_size {batch_size}, windows {windows}, max_values {max_values}, max_ids {max_ids}: the first "
                "three must be at least 1, and max_ids 3"
            )
        self.source, self.fraction, self.tables, self.other_tables = source, fraction, dict(tables or {}), other_tables
        self.batch_size, self.windows, self.confidence = batch_size, windows, confidence
        self.min_factor, self.hot_share, self.max_ids, self.max_values = min_factor, hot_share, max_ids, max_values

    def run(self, run: Run) -> Outcome:
        """Measure the log and write the file, unless it is there."""
        path, whole = run.folder / NAME, outline(self.source)
        about: dict[str, Json] = {  # what the profile is of, and how it was made
            "format": FORMAT, "data": {"hash": whole.data_hash, "samples": whole.samples}, "seed": run.seed,
            "fraction": self.fraction, "confidence": self.confidence, "batch_size": self.batch_size,
            "windows": whole.window_edges(self.windows), "min_factor": self.min_factor, "hot_share": self.hot_share,
            "max_ids": self.max_ids, "max_values": self.max_values,
            "lookups": {name: asdict(table) for name, table in self.tables.items()},
            "other_lookups": asdict(self.other_tables) if self.other_tables else None,
        }  # fmt: skip
        with suppress(UserError, DataError):
            found = load_profile(path)
            if all(found.get(key) == value for key, value in about.items()):
                return _outcome(found, did_nothing=True)
        profile = about | self._measure(whole, run.seed)
        write_json(path, profile)
        runs, sessions = profile["session_runs"], profile["sessions"]["high"]
        if runs > 1.01 * sessions:
            log.warn(
                f"the log is not clustered: {sessions:,.0f} sessions come in {runs:,} pieces, so copies within "
                "sessions are not found. Write it as a feature table first."
            )
        if (kept := profile["kept"])["fraction"] < profile["fraction"]:
            log.warn(
                f"groups, batches and intervals of tables are from {kept['samples']:,} samples, a fraction of "
                f"{kept['fraction']:.2g} of the sessions, since max_values is {profile['max_values']:,}"
            )
        return _outcome(profile, did_nothing=False)

    def _measure(self, whole: LogOutline, seed: int) -> dict[str, Json]:
        chunks = sampled_chunks(self.source, self.fraction, seed)
        if (first := next(chunks, None)) is None:
            raise NothingKept(
                f"a fraction of {self.fraction} holds none of the sessions of {whole.samples:,} samples; raise it."
            )
        others = dict.fromkeys(first.features, self.other_tables) if self.other_tables else {}
        measured = LogMeasurements(
            list(first.features), {**others, **self.tables}, fraction=self.fraction, max_ids=self.max_ids,
            max_values=self.max_values, seed=seed,
        )  # fmt: skip
        for chunk in chain([first], chunks):
            measured.add(chunk)
        return ProfileFigures(
            measured, edges=whole.window_edges(self.windows), batch_size=self.batch_size, min_factor=self.min_factor,
            hot_share=self.hot_share, confidence=self.confidence, seed=seed, fraction=self.fraction,
        ).json()  # fmt: skip


def _outcome(profile: Mapping[str, Json], *, did_nothing: bool) -> Outcome:
    per_session = profile["samples_per_session"]["value"]
    summary = (
        f"{profile['samples']:,} of {profile['data']['samples']:,} samples, {per_session:.3g} a session, "
        f"{len(profile['groups'])} groups worth deduplicating"
    )
    figures = {"samples": float(profile["samples"]), "samples_per_session": float(per_session)}
    factors = {f"factor_{name}": float(group["measured"]["value"]) for name, group in profile["groups"].items()}
    return Outcome(summary, figures | factors, did_nothing)
