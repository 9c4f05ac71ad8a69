"""loptune's trainer as any other command: what a sweep of it finds is what one of the trainer
itself finds.
"""

import json

import pytest

from sweep.record.results import read_results
from sweep.record.sweep_record import open_sweep
from tests.run_cli import run_cli
from tests.sweep.harness import event_log, metrics, results
from tests.warm import warm

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

OVERRIDES = {
    "max_steps": 2,
    "optim.lr": 1e-3,
    "evaluation.every_steps": 1,
    "rollout.prompts_per_step": 2,
    "rollout.group_size": 4,
    "optim.update_batch_size": 8,
    "evaluation.sets": {"dev": {"source": "generated", "split": "dev", "people": [2], "size": 40}},
}
DEFAULTS = {"algorithm.ar_alpha": 0.0, "algorithm.lopti_eta": 0.0}
SPACE = {
    "objective": {"metric": "eval/accuracy", "window": 2},
    "parameters": {
        "algorithm.ar_alpha": {"uniform": [0.0, 0.5]},
        "algorithm.lopti_eta": {"uniform": [0.0, 0.9]},
    },
    "baselines": [DEFAULTS],
    "search": {"sampler": "random", "configurations": 1},
    "seeds": [0, 1],
    "limits": {"max_concurrent": 1},
}
SCRIPT = """
ln -s trial/metrics.jsonl "$LOPTUNE_OUT"/metrics.jsonl
ln -s trial/correctness.jsonl "$LOPTUNE_OUT"/correctness.jsonl
exec $TRAINER run "$@" --runs-dir "$LOPTUNE_OUT" --name trial --offline
"""


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory):
    """The folders of two sweeps that ended: of the trainer, and of its command."""
    runs = tmp_path_factory.mktemp("runs")
    words = [f"{key}={json.dumps(value)}" for key, value in OVERRIDES.items()]
    words += [f"{key}={{{key}}}" for key in (*DEFAULTS, "seed")]
    command = ["sh", "-c", SCRIPT, "sh", "tiny_kk", *words]
    programs = {
        "program": {"trainer": {"preset": "tiny_kk", "overrides": OVERRIDES}},
        "command": {"program": {"command": command, "defaults": DEFAULTS, "evaluations": 2}},
    }
    for name, program in programs.items():
        (runs / f"{name}.yaml").write_text(json.dumps({"name": name, **program, **SPACE}))
        ended = run_cli(
            "sweep",
            "run",
            runs / f"{name}.yaml",
            "--runs-dir",
            runs,
            "--offline",
            timeout=400,
            environment={"TRAINER": " ".join(warm("-m", "trainer"))},
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
    return runs / "program", runs / "command"


def test_event_log_and_scores_are_the_same(sweeps):
    proposed = []
    scores = []
    for root in sweeps:
        proposed.append(
            [record.get("parameters") for record in event_log(root) if "parameters" in record]
        )
        scores.append({trial: result["score"] for trial, result in results(root).items()})
    assert proposed[0] == proposed[1] and len(proposed[0]) == 2
    assert scores[0] == scores[1] and len(scores[0]) == 4
    assert len(set(scores[0].values())) > 1, "all alike: the comparison says nothing"


def test_every_metric_of_every_step_is_the_same(sweeps):
    for trial in results(sweeps[0]):
        ours, command = (
            {
                (line["step"], name): value
                for line in metrics(root, trial)
                for name, value in line.items()
                # A command does not know the objective's window; its final score has the default.
                if not name.startswith(("time", "memory", "nonfinite", "attempt", "final/accuracy"))
            }
            for root in sweeps
        )
        assert ours == command and len(ours) > 20


def test_the_verdict_is_the_same(sweeps):
    ours, command = (read_results(open_sweep(root.parent, root.name)) for root in sweeps)
    # the test may differ: only loptune's own trainer declares that its seeds are blocks
    verdicts = [sweep.verdict for sweep in (ours, command)]
    assert verdicts[0].found.gain == verdicts[1].found.gain
    assert verdicts[0].seeds == verdicts[1].seeds == 2
    assert verdicts[0].found.configuration == verdicts[1].found.configuration
    assert ours.table.score.notna().all() and list(ours.table.score) == list(command.table.score)
