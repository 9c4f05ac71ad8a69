import itertools
import json
import math

import numpy as np
import pytest

from dashboards.headline import headline, verdict_sentences
from dashboards.next_step import chosen
from dashboards.sources.stored import pack, unpack
from loptune.errors import INTERRUPTED, ConfigError, MissingError
from sweep.record.folder import read_spec, write_spec
from sweep.record.recorded_rounds import recorded_rounds
from sweep.record.results import read_results
from sweep.record.sweep_record import SweepRecord
from sweep.winner.confirm import finalists_of, fresh_space
from sweep.winner.rounds import RoundsOptions, decide
from tests.refusals import refused
from tests.sweep.ended_sweeps import write_sweep
from tests.sweep.search.instant_sweeps import searcher_in
from trainer.run_folder import RunFolder

# Configuration n has alpha n / 10; 1 and 2 look best. Residuals leave a deviation around 0.01.
RESULTS = {
    0: {0: 0.50, 1: 0.52, 2: 0.51},
    1: {0: 0.56, 1: 0.56, 2: 0.58},
    2: {0: 0.54, 1: 0.57, 2: 0.55},
    3: {0: 0.50, 1: 0.50, 2: 0.51},
}


def found_sweep(runs):
    return write_sweep(runs, "demo", RESULTS, objective={"worthwhile": 0.02})


def trains(truth, failing=lambda alpha, seed: False, sd=0.01):
    """Stands in for Ray: gives every open trial a score around the truth of its alpha."""

    def run(fresh):
        searcher = searcher_in(fresh.folder.root, fresh.spec)
        for number in itertools.count():
            proposal = searcher.suggest(f"t{number}")
            if not isinstance(proposal, dict):
                return 0
            alpha = proposal["parameters"]["algorithm.ar_alpha"]
            seed = proposal["seed"]
            noise = np.random.default_rng([seed, round(100 * alpha)]).normal(0, sd)
            score = math.nan if failing(alpha, seed) else truth[alpha] + noise
            searcher.on_trial_complete(f"t{number}", {"score": score, "step": 4, "finished": True})
        raise AssertionError

    return run


def test_a_better_finalist_is_found_and_everything_is_on_record(tmp_path):
    sweep = found_sweep(tmp_path)
    lines = []
    code, rounds = decide(
        sweep, RoundsOptions(), trains({0.0: 0.5, 0.1: 0.6, 0.2: 0.5}), lines.append
    )
    assert (code, rounds.outcome) == (0, "better")
    assert "after 5, " in lines[0] and "0.02 in eval/accuracy" in lines[0]
    assert lines[-1].startswith("demo: #1 is better than the baseline after 5 seeds: +0.")
    assert lines[-3].startswith(
        "round 1 of at most 7: #1 is better than the baseline after 5 seeds: +0."
    )
    fresh = sweep.folder.confirmation
    assert recorded_rounds(SweepRecord(read_spec(fresh), fresh)) == rounds
    assert read_spec(fresh).seeds[0] == 3  # fresh ones
    space = read_spec(fresh)
    assert space.confirms is not None and space.confirms.configurations == [0, 1, 2]
    again: list[str] = []
    assert decide(sweep, RoundsOptions(), trains({}), again.append)[1] == rounds
    assert again[-1] == lines[-1]  # a decided confirmation tells its outcome again


def test_a_command_is_judged_on_its_held_out_problems(tmp_path):
    program = {
        "command": ["true"],
        "defaults": {"algorithm.ar_alpha": 0.0},
        "held_out": {"split": "test"},
    }
    sweep = write_sweep(tmp_path, "demo", RESULTS, trainer=None, program=program)
    decide(sweep, RoundsOptions(), trains({0.0: 0.5, 0.1: 0.6, 0.2: 0.5}), lambda line: None)
    assert read_spec(sweep.folder.confirmation).program.values({}, ["split"]) == {"split": "test"}


def test_a_finalist_that_is_given_up_costs_no_further_seeds(tmp_path):
    sweep = found_sweep(tmp_path)
    truth = {0.0: 0.5, 0.1: 0.51, 0.2: 0.3}
    _, rounds = decide(sweep, RoundsOptions(), trains(truth), lambda line: None)
    fresh = sweep.folder.confirmation
    record = SweepRecord(read_spec(fresh), fresh)
    seeds = {
        configuration.number: len(configuration.results) for configuration in record.configurations
    }
    assert rounds.analyses[0][1].outcome == "worse" and seeds[2] == 5
    assert seeds[0] == seeds[1] > 5
    assert sum(not row.ended for row in record.trials()) == 0
    assert record.planned == len(record.trials())  # nothing is left that `resume` would do


def test_a_failed_seed_counts_as_the_worst_and_decides_no_finalist(tmp_path):
    sweep = found_sweep(tmp_path)
    truth = {0.0: 0.5, 0.1: 0.9, 0.2: 0.3}
    lines = []
    _, rounds = decide(
        sweep, RoundsOptions(), trains(truth, lambda *trial: trial == (0.1, 4)), lines.append
    )
    first = rounds.analyses[0][0]
    assert first.outcome == "undecided" and first.gain == pytest.approx(
        (4 * 0.4 - 0.2) / 5, abs=0.02
    )
    assert rounds.outcome == "better" and len(rounds.analyses) > 1


def test_a_finalist_that_always_fails_is_given_up(tmp_path):
    sweep = found_sweep(tmp_path)
    truth = {0.0: 0.5, 0.1: 0.9, 0.2: 0.5}
    _, rounds = decide(sweep, RoundsOptions(), trains(truth, lambda alpha, _: alpha == 0.1), print)
    first, second = rounds.analyses[0]
    assert (first.configuration, first.outcome) in {("1", "worse"), ("1", "not better")}
    assert second.configuration == "2" and rounds.outcome in ("not better", "undecided")


def test_nothing_is_decided_where_the_baseline_always_fails(tmp_path):
    sweep = found_sweep(tmp_path)
    fails = trains({0.0: 0.5, 0.1: 0.6, 0.2: 0.5}, lambda alpha, _: alpha == 0.0)
    with refused("baseline-failed", MissingError):
        decide(sweep, RoundsOptions(), fails, print)


def test_the_smallest_loss_wins_where_less_is_better(tmp_path):
    losses = {
        number: {seed: -score for seed, score in row.items()} for number, row in RESULTS.items()
    }
    objective = {"worthwhile": 0.02, "mode": "min"}
    sweep = write_sweep(tmp_path, "demo", losses, objective=objective)
    _, rounds = decide(sweep, RoundsOptions(), trains({0.0: 0.5, 0.1: 0.4, 0.2: 0.6}), print)
    best, worst = rounds.analyses[0]
    assert (best.configuration, best.outcome, worst.outcome) == ("1", "better", "worse")
    assert best.gain == pytest.approx(0.1, abs=0.02) and worst.gain < 0


def test_the_budget_is_counted_before_each_look(tmp_path):
    sweep = found_sweep(tmp_path)
    lines = []
    # The sweep's trials took 2 s on one CPU: 15 trials are 0.0083 CPU hours.
    code, rounds = decide(sweep, RoundsOptions(hours=0.008), trains({}), lines.append)
    assert (code, rounds.outcome, rounds.analyses) == (0, "open", ())
    assert "0.00833 CPU-hours" in lines[1] and lines[1].endswith(" 0.008")
    assert (
        decide(sweep, RoundsOptions(hours=1), trains({0.0: 0.5, 0.1: 0.6, 0.2: 0.5}), lines.append)[
            1
        ].outcome
        == "better"
    )


def test_an_interrupted_look_goes_on(tmp_path):
    sweep = found_sweep(tmp_path)
    lines = []
    asked = RoundsOptions(resume_command=sweep.command("confirm", "--rounds", "--cpus", "2"))
    code, rounds = decide(sweep, asked, lambda fresh: 130, lines.append)
    assert (code, rounds.analyses) == (INTERRUPTED, ())
    assert lines[-1].endswith(f"sweep confirm demo --rounds --cpus 2 --runs-dir {tmp_path}")
    code, _ = decide(sweep, RoundsOptions(), lambda fresh: 0, lines.append)
    assert code == INTERRUPTED  # trials are missing, whatever the run said


def test_finalists_of_the_first_round_stay_and_others_are_named(tmp_path):
    sweep = found_sweep(tmp_path)
    decide(sweep, RoundsOptions(), lambda fresh: 130, lambda line: None)
    lines = []
    decide(sweep, RoundsOptions(finalists=1), lambda fresh: 130, lines.append)
    assert "#0, #1, #2" in lines[0] and lines[0].endswith("#0, #1")
    assert "next round: 15 trials, about 0.0083 CPU-hours" in lines[2]


def test_rounds_do_not_follow_fixed_seeds(tmp_path):
    sweep = found_sweep(tmp_path)
    folder = sweep.folder.confirmation
    folder.root.mkdir()
    write_spec(folder, fresh_space(sweep, finalists_of(sweep, 1), 3))
    folder.event_log.touch()
    with refused("confirmed-on-fixed-seeds", ConfigError):
        decide(sweep, RoundsOptions(), trains({}), lambda line: None)


def test_nothing_to_decide_is_said(tmp_path):
    sweep = write_sweep(tmp_path, "alone", {0: {0: 0.5}})
    with refused("nothing-to-confirm", MissingError):
        decide(sweep, RoundsOptions(), trains({}), lambda line: None)


def test_equal_scores_are_coarse_and_decide_nothing(tmp_path):
    flat = {0: {0: 0.5, 1: 0.5}, 1: {0: 0.6, 1: 0.6}}
    sweep = write_sweep(tmp_path, "flat", flat, seeds=[0, 1])
    run = trains({0.0: 0.5, 0.1: 0.6}, sd=0.0)
    _, rounds = decide(sweep, RoundsOptions(max_seeds=5), run, lambda line: None)
    assert rounds.outcome == "undecided"
    (result,) = rounds.analyses[-1]
    assert (result.configuration, result.seeds, result.outcome) == ("1", 5, "undecided")
    assert result.gain == pytest.approx(0.1) and result.interval is None


def test_rounds_stop_where_every_seed_differs_equally(tmp_path):
    """The seed does not reach the program, or its scores are too coarse: more seeds cost only."""
    flat = {0: {0: 0.5, 1: 0.5}, 1: {0: 0.6, 1: 0.6}}
    sweep = write_sweep(tmp_path, "flat", flat, seeds=[0, 1])
    lines = []
    options = RoundsOptions(max_seeds=20, resume_command="sweep confirm flat --rounds")
    code, rounds = decide(sweep, options, trains({0.0: 0.5, 0.1: 0.6}, sd=0.0), lines.append)
    assert (code, rounds.outcome, len(rounds.analyses)) == (INTERRUPTED, "open", 1)
    assert "seed reach the program" in lines[-2] and lines[-1].endswith(options.resume_command)


AMC = "eval/accuracy/amc"
GUARDED = {"worthwhile": 0.02, "guards": [f"{AMC}:0.02"]}


def trains_with_guard(truth, losses, sd):
    """As `trains`, and every trial logs the guard: 0.5 minus the loss of its alpha."""
    train = trains(truth)

    def run(fresh):
        code = train(fresh)
        for configuration in fresh.reloaded().configurations:
            alpha = configuration.parameters["algorithm.ar_alpha"]
            for seed, trial in configuration.results.items():
                noise = np.random.default_rng([9, seed, round(100 * alpha)]).normal(0, sd)
                line = {"step": 4, AMC: 0.5 - losses[alpha] + noise}
                folder = RunFolder(fresh.folder.trial(trial.name))
                folder.metrics.parent.mkdir(parents=True, exist_ok=True)
                folder.metrics.write_text(json.dumps(line) + "\n")
        return code

    return run


def test_the_winner_is_a_finalist_whose_guards_hold(tmp_path):
    """Finalist 1 gains more than 2, but loses more on amc than its guard allows."""
    sweep = write_sweep(tmp_path, "demo", RESULTS, objective=GUARDED)
    lines = []
    losses = {0.0: 0.0, 0.1: 0.1, 0.2: 0.0}
    run = trains_with_guard({0.0: 0.5, 0.1: 0.65, 0.2: 0.6}, losses, sd=0.002)
    _, rounds = decide(sweep, RoundsOptions(), run, lines.append)
    assert {result.configuration: result.outcome for result in rounds.results} == {
        "1": "fails a guard",
        "2": "better",
    }
    assert lines[-1].startswith("demo: #2 is better than the baseline after 5 seeds")
    assert f"guards: {AMC} holds" in lines[-1]
    results = read_results(sweep.reloaded())
    assert results.fresh.rounds.winner.configuration == "2"
    assert chosen(results).configuration == "2"
    assert headline(results).sentence.startswith("Confirmed: #2")
    assert any("fails a guard after 5 seeds" in line for line in verdict_sentences(results))
    again = read_results(sweep.reloaded())
    assert unpack(pack(again), "results").guard_state("1") == "fails"


def test_an_undecided_guard_gets_further_seeds(tmp_path):
    sweep = write_sweep(tmp_path, "demo", RESULTS, objective=GUARDED)
    lines = []
    losses = dict.fromkeys((0.0, 0.1, 0.2), 0.0)
    run = trains_with_guard({0.0: 0.5, 0.1: 0.65, 0.2: 0.5}, losses, sd=0.015)
    _, rounds = decide(sweep, RoundsOptions(finalists=1, max_seeds=40), run, lines.append)
    first, *_, last = rounds.results
    # the score alone is decided at once
    assert first.interval[0] > 0 and first.outcome == "undecided" and first.seeds == 5
    assert last.outcome == "better" and last.seeds > 5
    assert rounds.guards["1"][AMC].seeds == last.seeds


def test_rounds_end_when_every_finalist_fails_a_guard(tmp_path):
    sweep = write_sweep(tmp_path, "demo", RESULTS, objective=GUARDED)
    losses = {0.0: 0.0, 0.1: 0.1, 0.2: 0.1}
    run = trains_with_guard({0.0: 0.5, 0.1: 0.65, 0.2: 0.6}, losses, sd=0.002)
    _, rounds = decide(sweep, RoundsOptions(), run, lambda line: None)
    assert rounds.outcome == "not better" and rounds.retired == {"1", "2"}
    results = read_results(sweep.reloaded())
    sentence = headline(results).sentence
    assert (
        sentence.startswith("Keep the baseline #0") and "every finalist fails a guard" in sentence
    )
    assert chosen(results).configuration == "0"


def test_a_guard_that_no_trial_logs_is_undecided(tmp_path):
    sweep = write_sweep(tmp_path, "demo", RESULTS, objective=GUARDED)
    lines = []
    truth = {0.0: 0.5, 0.1: 0.65, 0.2: 0.5}
    options = RoundsOptions(finalists=1, max_seeds=6)
    _, rounds = decide(sweep, options, trains(truth), lines.append)
    assert rounds.outcome == "undecided" and rounds.guards == {"1": {}}
    assert f"{AMC} is undecided: no score to compare" in lines[-1]
