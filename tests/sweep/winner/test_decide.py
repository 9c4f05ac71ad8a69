import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dashboards.statistics.seed_noise import Noise
from dashboards.statistics.sequential import Design, Standing
from sweep.record.folder import SweepFolder, existing_sweep, read_spec
from sweep.record.summary import configurations, trial_rows
from sweep.search.searcher import ConfigurationSearcher
from sweep.space.spec import DecideSpec, SweepSpec
from sweep.winner.decide import Decision, decide, deciding_folder, decision_as_json, read_decision
from tests.sweep.ended_sweeps import write_sweep
from trainer.errors import INTERRUPTED, MissingError

# Configuration n has alpha n / 10; 1 and 2 look best. Residuals leave a deviation around 0.01.
RESULTS: dict[int, dict[int, float | str]] = {
    0: {0: 0.50, 1: 0.52, 2: 0.51},
    1: {0: 0.56, 1: 0.56, 2: 0.58},
    2: {0: 0.54, 1: 0.57, 2: 0.55},
    3: {0: 0.50, 1: 0.50, 2: 0.51},
}


def found_sweep(runs: Path, **space: object) -> tuple[SweepSpec, SweepFolder]:
    write_sweep(runs, "demo", RESULTS, seeds=[0, 1, 2], **{"objective": {"worthwhile": 0.02}, **space})
    folder = existing_sweep(runs, "demo")
    return read_spec(folder), folder


def trains(truth: dict[float, float], failing: tuple[float, int] | None = None) -> Callable[..., int]:
    """Stands in for Ray: gives every open trial a score around the truth of its alpha."""

    def run(space: SweepSpec, folder: SweepFolder) -> int:
        searcher = ConfigurationSearcher(space, folder.ledger)
        for number in itertools.count():
            proposal = searcher.suggest(f"t{number}")
            if not isinstance(proposal, dict):
                return 0
            alpha, seed = proposal["parameters"]["algorithm.ar_alpha"], proposal["seed"]
            noise = np.random.default_rng([seed, round(100 * alpha)]).normal(0, 0.01)
            score = math.nan if failing == (alpha, seed) else truth[alpha] + noise
            searcher.on_trial_complete(f"t{number}", {"score": score, "step": 4, "finished": True})
        raise AssertionError

    return run


def test_a_better_finalist_is_found_and_everything_is_on_record(tmp_path: Path) -> None:
    spec, folder = found_sweep(tmp_path)
    said: list[str] = []
    code, decision = decide(spec, folder, DecideSpec(), trains({0.0: 0.5, 0.1: 0.6, 0.2: 0.5}), said.append)
    assert (code, decision.outcome) == (0, "better")
    assert "looks after 3, " in said[0] and "worthwhile eval/accuracy 0.02" in said[0]
    assert said[-1].startswith("demo: configuration #1 is better than the baseline: gain +0.")
    deciding = deciding_folder(folder)
    assert read_decision(deciding) == decision
    assert read_spec(deciding).seeds[0] == 3  # fresh ones
    assert read_spec(deciding).base.tracking.tags["loptune.decides"] == "demo"
    again: list[str] = []
    assert decide(spec, folder, DecideSpec(), trains({}), again.append)[1] == decision
    assert again[-1] == said[-1]
    record = json.loads(json.dumps(decision_as_json(decision, 1 / 3)))
    assert (record["outcome"], record["device_hours"]) == ("better", 0.33333)
    first = decision.looks[0][0]
    assert record["looks"][0][0][:2] == ["1", 3] and record["looks"][0][0][-1] == first.decision


def test_the_longest_record_fits_into_a_tag() -> None:
    looks = tuple(range(10, 90, 10))
    bounds = tuple(-1 / 3 for _ in looks)
    standing = Standing("10", 90, -1 / 3 * 1e-4, -1 / 3 * 1e-4, -1 / 3 * 1e-4, "not better")
    design = Design(looks, 10, 100, 1 / 3, bounds, bounds)
    longest = Decision(design, Noise(0.1, 4), tuple((standing,) * 10 for _ in looks))
    assert len(json.dumps(decision_as_json(longest, 1e3 / 3), separators=(",", ":"))) < 8000


def test_a_finalist_that_is_given_up_costs_no_further_seeds(tmp_path: Path) -> None:
    spec, folder = found_sweep(tmp_path)
    truth = {0.0: 0.5, 0.1: 0.51, 0.2: 0.3}
    _, decision = decide(spec, folder, DecideSpec(), trains(truth), lambda line: None)
    deciding = deciding_folder(folder)
    seeds = {one.number: len(one.results) for one in configurations(deciding)}
    assert decision.looks[0][1].decision == "worse" and seeds[2] == 3
    assert seeds[0] == seeds[1] > 3
    space = read_spec(deciding)
    assert sum(not row.ended for row in trial_rows(space, deciding)) == 0


def test_none_is_better(tmp_path: Path) -> None:
    spec, folder = found_sweep(tmp_path)
    said: list[str] = []
    _, decision = decide(spec, folder, DecideSpec(), trains({0.0: 0.5, 0.1: 0.4, 0.2: 0.3}), said.append)
    assert decision.outcome == "not better"
    assert "configuration #1 is worse" in said[-1] and "configuration #2 is worse" in said[-1]


def test_a_failed_seed_ends_a_finalists_case(tmp_path: Path) -> None:
    spec, folder = found_sweep(tmp_path)
    truth = {0.0: 0.5, 0.1: 0.9, 0.2: 0.3}
    said: list[str] = []
    _, decision = decide(spec, folder, DecideSpec(), trains(truth, failing=(0.1, 4)), said.append)
    assert decision.looks[0][0].decision == "failed" and decision.outcome == "not better"
    assert "#1 failed on a seed" in said[-1]


def test_the_budget_is_counted_before_each_look(tmp_path: Path) -> None:
    spec, folder = found_sweep(tmp_path)
    said: list[str] = []
    # The sweep's trials took 2 s on one CPU: nine trials are 0.005 CPU hours.
    code, decision = decide(spec, folder, DecideSpec(cpu_hours=0.004), trains({}), said.append)
    assert (code, decision.outcome, decision.looks) == (0, "open", ())
    assert "budget spent: with the next look it would cost 0.005 of 0.004 hours" in said[1]
    more = DecideSpec(cpu_hours=1)
    assert decide(spec, folder, more, trains({0.0: 0.5, 0.1: 0.6, 0.2: 0.5}), said.append)[1].outcome == "better"


def test_an_interrupted_look_goes_on(tmp_path: Path) -> None:
    spec, folder = found_sweep(tmp_path)
    said: list[str] = []
    code, decision = decide(spec, folder, DecideSpec(), lambda space, where: 130, said.append)
    assert (code, decision.looks) == (INTERRUPTED, ())
    assert said[-1].endswith(f"sweep decide demo --runs-dir {tmp_path}")
    code, _ = decide(spec, folder, DecideSpec(), lambda space, where: 0, said.append)
    assert code == INTERRUPTED  # trials are missing, whatever the run said


def test_nothing_to_decide_is_said(tmp_path: Path) -> None:
    write_sweep(tmp_path, "alone", {0: {0: 0.5}}, seeds=[0])
    folder = existing_sweep(tmp_path, "alone")
    with pytest.raises(MissingError, match="no baseline and another configuration"):
        decide(read_spec(folder), folder, DecideSpec(), trains({}), lambda line: None)


def test_equal_scores_are_coarse_and_decide_nothing(tmp_path: Path) -> None:
    flat: dict[int, dict[int, float | str]] = {0: {0: 0.5, 1: 0.5}, 1: {0: 0.6, 1: 0.6}}
    write_sweep(tmp_path, "flat", flat, seeds=[0, 1])
    folder = existing_sweep(tmp_path, "flat")

    def run(space: SweepSpec, where: SweepFolder) -> int:
        searcher = ConfigurationSearcher(space, where.ledger)
        for number in itertools.count():
            proposal = searcher.suggest(f"t{number}")
            if not isinstance(proposal, dict):
                return 0
            score = 0.5 + proposal["parameters"]["algorithm.ar_alpha"]
            searcher.on_trial_complete(f"t{number}", {"score": score, "step": 4, "finished": True})
        raise AssertionError

    _, decision = decide(read_spec(folder), folder, DecideSpec(max_seeds=5), run, lambda line: None)
    assert decision.outcome == "undecided"
    assert decision.looks[-1] == (Standing("1", 5, pytest.approx(0.1), None, None, "open"),)
