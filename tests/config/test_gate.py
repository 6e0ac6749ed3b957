"""Tests that a recipe cannot point at code that starts other code without its own word of trust."""

import sys

import pytest

import nemo_vfm.workflow
from nemo_vfm.config import trust_list
from nemo_vfm.config.locate import NotLocated, locate

EXPERIMENT = "nemo_vfm.nemo.experiment.NeMoExperiment"


@pytest.mark.parametrize("extra", [[], ["nemo_vfm"], ["nemo_vfm.nemo"], ["nemox"], ["nemo_"]])
def test_our_own_prefix_does_not_cover_a_guarded_name_and_nothing_is_imported(extra):
    sys.modules.pop("nemo_vfm.nemo.experiment", None)
    with pytest.raises(NotLocated, match=r"add --trust nemo$"):
        locate(EXPERIMENT, trust_list(extra))
    assert "nemo_vfm.nemo.experiment" not in sys.modules


def test_a_guarded_class_is_not_reached_through_a_module_that_imported_it(monkeypatch):
    guarded = type("NeMoExperiment", (), {"__module__": "nemo_vfm.nemo.experiment"})
    monkeypatch.setattr(nemo_vfm.workflow, "Alias", guarded, raising=False)
    with pytest.raises(NotLocated, match=f"is defined as {EXPERIMENT}, which needs --trust nemo"):
        locate("nemo_vfm.workflow.Alias", trust_list())


def test_other_names_of_ours_need_no_word():
    assert locate("nemo_vfm.workflow.Workflow", trust_list()) is nemo_vfm.workflow.Workflow
