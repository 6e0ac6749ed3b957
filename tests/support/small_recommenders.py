"""Builds each recommender at a small size for the features of `session_batches`."""

from collections.abc import Callable

from torch import nn

from nemo_vfm.models.recommenders.dcn_v2 import DCNv2
from nemo_vfm.models.recommenders.din import DIN
from nemo_vfm.models.recommenders.dlrm import DLRM
from nemo_vfm.models.recommenders.history_transformer import HistoryTransformer
from nemo_vfm.models.recommenders.hstu import HSTU
from nemo_vfm.sparse.tables.row_optimizer import RowSgd
from tests.support.session_batches import ROWS

HISTORY = {"history": "item", "categories": "category"}
_ATTENTION = {"history": HISTORY, "longest": 6, "depth": 2, "heads": 2}
_OWN = {
    DLRM: {"bottom": [16, 8]},
    DCNv2: {"bottom": [16, 8], "cross_layers": 2, "cross_rank": 5},
    DIN: {"history": HISTORY, "activation": [6, 5]},
    HistoryTransformer: _ATTENTION | {"mlp_hidden": 12},
    HSTU: _ATTENTION | {"times": "times"},
}


def small(kind: type[nn.Module], **given: object) -> nn.Module:
    """A model of this class with two labels, whose rows change by their whole gradient in an update."""
    sizes = {"dense": 3, "top": [16], "num_labels": 2, "width": 8, "table_optimizer": RowSgd(lr=1.0)}
    rows = {} if "tables" in given else {"rows": ROWS}
    return kind(**sizes | rows | _OWN[kind] | given)


def maker(kind: type[nn.Module], **given: object) -> Callable[[], nn.Module]:
    return lambda: small(kind, **given)
