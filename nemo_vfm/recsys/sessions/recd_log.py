"""Configures a log like the one of RecD: most values belong to sessions, and most of those to histories."""

from nemo_vfm.core.bounds import require_between
from nemo_vfm.recsys.sessions.id_feature import IdFeature
from nemo_vfm.recsys.sessions.session_log import SessionGroup, SessionLog
from nemo_vfm.recsys.sessions.teacher import Teacher

_HISTORY, _BAG = 48, 8
_SESSION_VALUES = 4 * _HISTORY + 64  # a sample: three quarters of them are of histories


def recd_log(
    *,
    num_samples: int,
    samples_per_session: float = 16.5,
    unchanged: float = 0.9,
    session_share: float = 0.85,
    rows: int = 100_000,
    auc: float = 0.8,
    seed: int | None = None,
) -> SessionLog:
    """A log whose shares of values are those of `benchmarks/recd.py` (after RecD, 2211.05239).

    A sample has 256 values in session features: two groups of two histories of 48 that shift by one, and a group of 16
    single ids and 6 rows of 8. The rest is of items, in rows of 8 and single ids: 45 where `session_share` is 0.85.

    Args:
        num_samples: of the log.
        samples_per_session: S.
        unchanged: d of each of the three groups.
        session_share: share of all values of ids that session features have, 0.5 to 0.95.
        rows: of each table.
        auc: of the teacher, which reads features of users and items, and pairs of them.
        seed: see `SessionLog`.
    """
    require_between(0.5, 0.95, session_share=session_share)
    single, bag = IdFeature(rows=rows), IdFeature(rows=rows, length=_BAG)
    history = IdFeature(rows=rows, length=_HISTORY, history=True)
    item_values = round(_SESSION_VALUES * (1 - session_share) / session_share)
    num_bags = item_values // (3 * _BAG)
    user = {f"user_{n:02d}": single for n in range(16)} | {f"user_bag_{n}": bag for n in range(6)}
    items = {f"item_{n:02d}": single for n in range(item_values - num_bags * _BAG)}
    groups = {
        "clicks": {"click_items": history, "click_topics": history},
        "views": {"view_items": history, "view_topics": history},
        "user": user,
    }
    teacher = Teacher(
        auc=auc,
        single=["item_00", "user_00", "click_items"],
        pairs=[["user_01", "item_01"], ["view_topics", "item_02"]],
        dense_share=0.0,
    )
    return SessionLog(
        num_samples=num_samples, samples_per_session=samples_per_session,
        groups={name: SessionGroup(unchanged=unchanged, features=features) for name, features in groups.items()},
        features=items | {f"item_bag_{n}": bag for n in range(num_bags)}, teacher=teacher, seed=seed,
    )  # fmt: skip
