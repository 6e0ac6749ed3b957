"""Tests that lm-evaluation-harness, asking the server, chooses what direct scoring chooses."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.repository import ROOT
from tests.support.served_http import NAME, Running

QUESTIONS = [("the miller's", [" cat", " mat", " mill we'll"]), ("It's what", [" we'll see", " don't", " 365"]),
             ("for i in", [" range(10)", " the mill", " mice"]), ("Il était une", [" fois", " facade", " déjà"]),
             ("мама мыла", [" раму", " 東京", " the"]), ("the cat sat", [" on the mat", " by the", " 12"])]  # fmt: skip
TASK = """
task: made
dataset_path: json
dataset_kwargs: {data_files: {test: QUESTIONS}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
doc_to_choice: "{{choices}}"
target_delimiter: ""
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""
#: In a process of its own: the harness sets the logging and the seeds of whoever imports it.
HARNESS = """
import json, sys
import lm_eval
from lm_eval.tasks import TaskManager
address, name, tokenizer, tasks, out = sys.argv[1:]
found = lm_eval.simple_evaluate(
    model="local-completions", tasks=["made"], task_manager=TaskManager(include_path=tasks, include_defaults=False),
    model_args={"base_url": f"{address}/completions", "model": name, "tokenizer": tokenizer, "batch_size": 4,
                "tokenizer_backend": "huggingface", "num_concurrent": 2},
    log_samples=True, bootstrap_iters=0,
)
samples = sorted(found["samples"]["made"], key=lambda one: one["doc_id"])
scores = [[answer[0] for answer in one["filtered_resps"]] for one in samples]
json.dump({"scores": scores, "greedy": [[answer[1] for answer in one["filtered_resps"]] for one in samples],
           "acc": found["results"]["made"]["acc,none"]}, open(out, "w"))
"""


def direct(server: Running, model: Any) -> list[list[float]]:
    """log p(choice | question), by transformers."""
    encode = server.served.tokenizer.encode
    found = []
    for question, choices in QUESTIONS:
        scores = []
        for choice in choices:
            begin, tokens = len(encode([question])[0]), encode([question + choice])[0]
            with torch.no_grad():
                logs = model(torch.tensor([tokens])).logits[0, :-1].log_softmax(-1)
            own = logs.gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]
            scores.append(float(own[begin - 1 :].sum()))
        found.append(scores)
    return found


@pytest.mark.slow  # the start of the harness alone takes 10 s
@pytest.mark.skipif(find_spec("tenacity") is None, reason="lm_eval[api] is not installed (it comes with the extra dev)")
def test_choices_are_those_of_direct_scoring(server: Running, folder: tuple[Path, Any], tmp_path: Path) -> None:
    expected = direct(server, folder[1])
    right = [scores.index(max(scores)) for scores in expected]
    answers = [(best + number % 2) % 3 for number, best in enumerate(right)]  # every second one is wrong
    rows = [{"question": question, "choices": choices, "answer": answer}
            for (question, choices), answer in zip(QUESTIONS, answers, strict=True)]  # fmt: skip
    questions = tmp_path / "questions.jsonl"
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "made.yaml").write_text(TASK.replace("QUESTIONS", str(questions)))
    out = tmp_path / "found.json"
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tmp_path / "cache"),
                                "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}  # fmt: skip
    command = [sys.executable, "-c", HARNESS, server.address, NAME, str(folder[0]), str(tmp_path), str(out)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(out.read_text())
    for ours, theirs in zip(found["scores"], expected, strict=True):
        assert all(abs(one - other) < 1e-3 for one, other in zip(ours, theirs, strict=True)), (ours, theirs)
    assert [scores.index(max(scores)) for scores in found["scores"]] == right
    assert found["acc"] == 0.5
