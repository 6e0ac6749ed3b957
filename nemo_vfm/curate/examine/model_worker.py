"""Holds the models of learned stages, and adds their results to each clip's reply."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nemo_vfm.core.errors import NemoVfmError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.curate.examine.examine_file import finite
from nemo_vfm.curate.examine.sandbox import Reply
from nemo_vfm.curate.execute.work_units import Worker
from nemo_vfm.curate.record.stage import Finding, Learned


@dataclass(frozen=True, slots=True)
class JudgeWork:
    """Settings of the second step of examination.

    Args:
        stages: the learned ones, by name.
    """

    stages: Mapping[str, Learned]

    def start(self, *, isolated: bool = True) -> Worker:
        """Load every model; nothing here may crash, so nothing is isolated."""
        for stage in self.stages.values():
            stage.load()
        return _Judge(self.stages)


class _Judge:
    def __init__(self, stages: Mapping[str, Learned]) -> None:
        self._stages = stages

    def do(self, item: object) -> Iterator[object]:
        """The same reply with the findings of the learned stages, and without their frames."""
        if not isinstance(item, Reply):
            yield item  # how far the decoding is
            return
        found: dict[str, Json] = {}
        for name, frames_THWC in item.arrays.items():
            try:
                (finding,) = self._stages[name].judge([frames_THWC])
                found[name] = _to_json(finding)
            except NemoVfmError:
                raise  # weights or a package are missing: no other clip would fare better
            except ValueError as error:
                found[name] = {"message": str(error)}
        yield Reply({**item.fact, "found": item.fact["found"] | found}) if found else item

    def stop(self) -> None:
        """Models go with the process."""


def _to_json(finding: Finding) -> Json:
    vector = {} if finding.vector is None else {"vector": finding.vector}
    return {"scores": finite(finding.scores), **vector}
