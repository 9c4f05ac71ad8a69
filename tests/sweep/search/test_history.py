import pytest

from dashboards.trial import Objective
from sweep.search.history import best, outcome, replay
from tests.sweep.search.instant_sweeps import ALPHA


def configuration(number):
    return {
        "event": "configuration",
        "configuration": number,
        "parameters": {ALPHA: 0.1 * number},
        "resolved": {ALPHA: 0.1 * number},
        "fingerprint": str(number),
        "time": 1.0,
    }


def result(number, seed, state, score, step=60):
    ending = {"state": state, "score": score, "step": step, "reason": "", "time": 2.0 + seed}
    return {"event": "result", "configuration": number, "seed": seed, **ending}


def test_a_look_retires_the_finalists_that_it_decides():
    def analysis(*outcomes):
        results = [
            {"configuration": str(number), "outcome": outcome}
            for number, outcome in enumerate(outcomes)
        ]
        return {"event": "analysis", "results": results}

    records = [configuration(0), configuration(1), analysis("undecided", "not better")]
    assert [replayed.retired for replayed in replay(records)] == [False, True]
    assert [
        replayed.retired for replayed in replay([*records, analysis("better", "undecided")])
    ] == [True, False]


def test_a_configuration_is_running_until_all_seeds_have_ended():
    (replayed,) = replay([configuration(0), result(0, 1, "COMPLETE", 0.5)])
    assert outcome(replayed, [0, 1]).state == "RUNNING"
    combined = outcome(replayed, [1])
    assert (combined.state, combined.score, combined.step, combined.time) == (
        "COMPLETE",
        0.5,
        60,
        3.0,
    )
    (replayed,) = replay(
        [configuration(0), result(0, 1, "COMPLETE", 0.5), result(0, 7, "FAIL", None)]
    )
    assert outcome(replayed, [1]) == combined  # whatever became of a seed that is not asked for


def test_the_score_is_the_mean_stopped_seeds_count_at_their_step():
    records = [
        configuration(0),
        result(0, 0, "COMPLETE", 0.5),
        result(0, 1, "PRUNED", 0.2, step=20),
    ]
    combined = outcome(replay(records)[0], [0, 1])
    assert (combined.state, combined.score, combined.step, combined.time) == (
        "PRUNED",
        pytest.approx(0.35),
        20,
        3.0,
    )


def test_one_failed_seed_fails_the_configuration():
    records = [configuration(0), result(0, 0, "COMPLETE", 0.9), result(0, 1, "FAIL", None)]
    combined = outcome(replay(records)[0], [0, 1])
    assert (combined.state, combined.score) == ("FAIL", None)


def test_the_earlier_of_equal_configurations_wins_and_stopped_ones_do_not():
    scores = [("COMPLETE", 0.5), ("COMPLETE", 0.7), ("COMPLETE", 0.7), ("PRUNED", 0.9)]
    records = [configuration(number) for number in range(4)]
    records += [result(number, 0, state, score) for number, (state, score) in enumerate(scores)]
    objectives = [Objective(mode=mode) for mode in ("max", "min")]
    winners = [best(replay(records), [0], objective) for objective in objectives]
    assert [winner and winner.number for winner in winners] == [1, 0]
    assert best([], [0], Objective()) is None
