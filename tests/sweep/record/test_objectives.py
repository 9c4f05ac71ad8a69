"""A sweep's objective along an axis, of several benchmarks, with guards: the same verdict as
`sweep judge` gives on its folder.
"""

import json
from dataclasses import replace

import pytest

import loptune as lt
from dashboards.headline import headline
from dashboards.judging import Judgement
from dashboards.next_step import chosen
from dashboards.pictures.differences import benchmarks
from dashboards.results import Guard
from dashboards.rounds import Rounds
from dashboards.sources.stored import pack, unpack
from sweep.record.results import read_results
from sweep.space.file import load_space
from sweep.space.scoring import scoring_of
from tests.dashboards.table import interim
from tests.refusals import refused
from tests.sweep.ended_sweeps import write_sweep
from tests.sweep.harness import write_space
from trainer.run_folder import RunFolder

OBJECTIVE = {
    "metric": ["math", "minerva"],
    "axis": "tokens",
    "at": 40.0,
    "window": 1,
    "guards": ["chars:5:min", "amc:0.02"],
}
PROGRAM = {"command": ["true"], "defaults": {"algorithm.ar_alpha": 0.0}}
# configuration -> tokens a step, gain in math and minerva at equal tokens, gain in amc
SEEDS = range(6)
ARMS = {0: (10.0, 0.0, 0.0), 1: (17.0, 0.02, 0.0), 2: (10.0, 0.05, -0.1)}


def logged(number, seed):
    """The lines of a trial at steps 0 to 8; arm 1 uses 1.7 times the tokens."""
    rate, gain, of_amc = ARMS[number]
    noise = 0.002 * ((seed * 7 + number * 3) % 5 - 2)
    lines = []
    for step in range(9):
        value = 0.2 + 0.004 * rate * step + gain + noise
        line = {"step": step, "time": 1.0, "tokens": rate * step, "math": value}
        line |= {"minerva": value + 0.1, "amc": value + of_amc - gain, "chars": 100 + 60 * noise}
        lines.append(line)
    return lines


def written(tmp_path, **objective):
    """A sweep that has ended, with the scores that its trials would have reported."""
    space = {
        "name": "demo",
        "trainer": None,
        "program": PROGRAM,
        "objective": {**OBJECTIVE, **objective},
        "baselines": [{"algorithm.ar_alpha": number / 10} for number in ARMS],
        "search": {"sampler": "random", "configurations": 0},
        "seeds": list(SEEDS),
        "parameters": {"algorithm.ar_alpha": {"uniform": [0.0, 1.0]}},
    }
    scoring = scoring_of(load_space(write_space(tmp_path / "space.yaml", space)))
    scores = {}
    for number in ARMS:
        scores[number] = {
            seed: scoring.score(scoring.values(logged(number, seed))) for seed in SEEDS
        }
    sweep = write_sweep(tmp_path, scores=scores, **space)
    for number in ARMS:
        for seed in SEEDS:
            text = "".join(json.dumps(line) + "\n" for line in logged(number, seed))
            RunFolder(sweep.folder.trial(f"c{number:03d}-s{seed}")).metrics.write_text(text)
    return sweep.reloaded()


def test_a_sweep_and_a_judged_folder_give_one_verdict(tmp_path):
    sweep = written(tmp_path)
    results = read_results(sweep)
    judgement = lt.judge(
        str(sweep.folder.root),
        by="ar_alpha",
        baseline="ar_alpha=0",
        score="math,minerva",
        axis="tokens",
        at=40,
        guard=OBJECTIVE["guards"],
        fresh=True,
    )
    found = {arm.configuration: arm.difference for arm in judgement.arms}
    own = {arm.configuration: arm.difference for arm in results.arm_table}
    assert own == pytest.approx(found, nan_ok=True)
    longer = next(arm for arm in results.arm_table if arm.configuration == "1")
    assert longer.difference == pytest.approx(0.02, abs=0.003)  # at equal tokens; 0.224 at steps
    assert set(results.by_score) == {"math", "minerva"}
    states = {number: results.guard_state(number) for number in ("1", "2")}
    assert states == {"1": "holds", "2": "fails"}
    # the guard takes arm 2 out, although it gains more
    assert chosen(results).configuration == chosen(judgement.results).configuration == "1"
    assert headline(results).configuration == "1"
    assert results.budget.at == 40 and results.place == "tokens"
    # the report in MLflow has the guards, too
    stored = unpack(pack(results), "results")
    assert stored.guard_state("2") == "fails" and chosen(stored).configuration == "1"
    fields = Judgement.of(results).fields()
    assert [guard["outcome"] for guard in fields["guards"]] == ["holds", "holds"]
    assert set(fields["scores"]) == {"math", "minerva"}
    picture = benchmarks(results)
    assert len(picture.figures) == 4 and "Guards: chars and amc" in picture.sentence


def test_a_benchmark_that_is_also_a_guard_is_drawn_with_its_margin(tmp_path):
    picture = benchmarks(read_results(written(tmp_path, guards=["math:0.015"])))
    margins = [[shape.x0 for shape in figure.layout.shapes] for figure in picture.figures]
    assert len(margins) == 2 and -0.015 in margins[0] and -0.015 not in margins[1]


def test_a_gain_whose_guard_fails_is_not_chosen(tmp_path):
    results = read_results(written(tmp_path, guards=["amc:0.001"]))
    alone = {"0", "2"}
    trials = tuple(trial for trial in results.trials if trial.configuration in alone)
    results = replace(results, trials=trials)
    assert results.not_guarded is not None and chosen(results) is None
    assert headline(results).sentence.startswith("Better, but worse on amc by 0.0997")


def test_a_guard_that_no_trial_has_logged_is_named_with_the_nearest_metric(tmp_path):
    results = read_results(written(tmp_path, guards=["char:5", "amc:0.02"]))
    [warning] = [line for line in results.warnings if "guard" in line]
    assert "guard char " in warning and "did you mean chars?" in warning
    assert results.guard_state("1") == "undecided"


def test_rounds_that_confirm_a_gain_still_ask_the_guards(tmp_path):
    searched = replace(read_results(written(tmp_path, guards=["amc:0.02"])), guards=())
    alone = tuple(trial for trial in searched.trials if trial.configuration in ("0", "2"))
    won = interim("2", 6, 0.05, (0.04, 0.06), "better")
    rounds = Rounds(planned=(6,), worthwhile=0.01, outcome="better", results=(won,))
    confirmed = replace(searched, fresh=replace(searched, trials=alone, rounds=rounds))
    assert headline(confirmed).sentence.startswith("Confirmed: #2")
    guard = Guard("amc", 0.001, confirmed.scored_by("amc", "max", 0.001))
    guarded = replace(confirmed, guards=(guard,))
    assert headline(guarded).sentence.startswith("Better, but worse on amc by 0.0997")
    assert chosen(guarded) is None and chosen(confirmed).configuration == "2"


@pytest.mark.parametrize(
    ("objective", "code"),
    [
        ({"axis": "tokens", "at": None}, "axis-without-amount"),
        ({"axis": "step", "at": 40.0}, "axis-without-amount"),
        ({"axis": "gpu_hours", "at": 40.0}, "unknown-axis"),
        ({"composite": {"math": 1.0}}, "other-weights"),
    ],
)
def test_an_objective_that_cannot_be_scored_is_refused(objective, code, tmp_path):
    data = {
        "name": "demo",
        "program": PROGRAM,
        "objective": {**OBJECTIVE, **objective},
        "baselines": [{}],
        "search": {"sampler": "random", "configurations": 0},
    }
    with refused(code):
        load_space(write_space(tmp_path / "space.yaml", data))
