"""Describes a clip in one sentence made from its numbers."""

from nemo_vfm.curate.record.ledger import ClipRecord

DESCRIPTION = "description"


class Description:
    """Describes a clip by its numbers: "a 3.2 s video, 854x480, 24 fps, little motion, dark"; "an image, 640x480"."""

    def caption(self, record: ClipRecord) -> tuple[str, str] | None:
        """The sentence and `description`; there is always one."""
        size = f"{record.width}x{record.height}"
        facts = [f"a {record.duration_s:.1f} s video", size, f"{record.fps:.4g} fps"]
        facts = ["an image", size] if record.is_image else facts
        for column, words in _WORDS.items():
            if column in record.scores:
                facts.append(next(word for limit, word in words if float(record.scores[column]) < limit))
        return ", ".join(fact for fact in facts if fact), DESCRIPTION


_ANY = float("inf")
_WORDS = {
    "motion": [(0.3, "no motion"), (3.0, "little motion"), (15.0, "some motion"), (_ANY, "much motion")],
    "luma_mean": [(50.0, "dark"), (190.0, ""), (_ANY, "bright")],
}
