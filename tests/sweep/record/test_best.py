from contextlib import nullcontext

import pytest

from dashboards.headline import verdict_sentences
from dashboards.next_step import next_step
from loptune.run_names import lock_folder
from sweep.record.best import choose_best
from sweep.record.results import read_results
from sweep.winner.confirm import finalists_of
from tests.sweep.ended_sweeps import write_sweep

GAIN = {0: {0: 0.5, 1: 0.52}, 1: {0: 0.9, 1: 0.92}, 2: {0: 0.5, 1: 0.51}}


def test_the_best_has_the_verdict_of_the_report(tmp_path):
    sweeps = {
        "gain": GAIN,
        "loss": {0: GAIN[1], 1: GAIN[0], 2: GAIN[2]},
        "one": {0: {0: 0.5}, 1: {0: 0.7}, 2: {0: 0.6}},
    }
    choices = {}
    commands = {}
    for name, scores in sweeps.items():
        search = {"sampler": "tpe", "configurations": 2}
        sweep = write_sweep(
            tmp_path, name, scores, seeds=[0] if name == "one" else [0, 1], search=search
        )
        results = read_results(sweep)
        choice = choose_best(sweep, results)
        choices[name] = [choice.best and choice.best.configuration, *choice.caveats]
        assert choice.caveats[0] == verdict_sentences(results)[0]
        # the last line of the terminal, the report and --json recommend the same step
        assert (
            choice.next_step is not None and choice.next_step.text == verdict_sentences(results)[1]
        )
        assert choice.next_step == next_step(results)
        commands[name] = choice.next_step.command
        assert choose_best(sweep).best == choice.best
    assert choices["gain"][0] == 1
    for name in ("gain", "one"):
        seeds = f"sweep confirm {name} --finalists 1 --seeds 5 --runs-dir {tmp_path}"
        assert commands[name] == seeds
    assert commands["loss"] == ""
    assert "candidate" in choices["gain"][1] and "#0" in choices["gain"][1]
    # The best is the baseline: nothing is a candidate.
    assert choices["loss"][0] == 0 and "#0" in choices["loss"][1]
    assert "(1 seed)" in choices["one"][1]


def test_a_confirmation_does_not_ask_to_be_confirmed(tmp_path):
    confirms = {"sweep": "gain", "configurations": [0, 7, 2]}
    sweep = write_sweep(tmp_path, "gain-confirm", GAIN, confirms=confirms)
    choice = choose_best(sweep)
    assert choice.best and choice.best.configuration == 1 and choice.caveats == []
    # the report calls it by its number in the search
    assert choice.text(sweep.spec.objective).startswith("best: configuration 1, #7 of gain  ")


def test_seeds_that_tuned_several_arms_name_no_best(tmp_path):
    arms = {
        "algorithm.ar_alpha": {"choice": [0.0, 0.1, 0.2]},
        "optim.lr": {"uniform": [1e-5, 1e-3]},
    }
    search = {"configurations": 3, "tune_within": "algorithm.ar_alpha"}
    sweep = write_sweep(tmp_path, "arms", GAIN, parameters=arms, baselines=[], search=search)
    for choice in (choose_best(sweep), choose_best(sweep, read_results(sweep))):
        text = choice.text(sweep.spec.objective)
        assert choice.best is None and f"sweep confirm arms --runs-dir {tmp_path}" in text


ARMS = {
    "parameters": {
        "algorithm.ar_alpha": {"choice": [0.0, 0.1, 0.2]},
        "optim.lr": {"uniform": [1e-5, 1e-3]},
    },
    "baselines": [],
    "search": {"configurations": 1, "tune_within": "algorithm.ar_alpha"},
}
FAILED = {0: "it failed", 1: "it failed"}
RUNNING = {0: 0.5}  # the second seed has no result


@pytest.mark.parametrize("is_running", [False, True])
@pytest.mark.parametrize(
    "scores",
    [
        GAIN,
        {},
        {0: FAILED, 1: GAIN[1], 2: GAIN[2]},
        {0: FAILED, 1: FAILED, 2: FAILED},
        {0: GAIN[0], 1: FAILED, 2: GAIN[2]},
        {0: GAIN[0], 1: GAIN[1]},
        {0: GAIN[0], 1: GAIN[1], 2: RUNNING},
        {0: RUNNING, 1: GAIN[1], 2: GAIN[2]},
    ],
)
@pytest.mark.parametrize("space", [ARMS, {}])
def test_a_printed_confirmation_can_start(tmp_path, scores, space, is_running):
    sweep = write_sweep(tmp_path, "demo", scores, **{"seeds": [0, 1], **space})
    steps = []
    with lock_folder(sweep.folder.root, "sweep") if is_running else nullcontext():
        results = read_results(sweep)
        step = next_step(results)
        steps += [] if step is None else [step.text]
        steps += choose_best(sweep, results).caveats
        steps += choose_best(sweep).caveats
    advised = [text for text in steps if "sweep confirm" in text]
    if advised:
        assert len(finalists_of(sweep, 1)) == 2
    if step is not None and is_running and not results.finished:
        assert "sweep" not in step.command
    if len(scores) == 3 and GAIN[0] == scores[0] and RUNNING not in scores.values():
        assert advised or space == {}


def test_a_confirmation_that_has_not_ended_is_continued_and_not_started_again(tmp_path):
    for name, space in (("arms", ARMS), ("listed", {})):
        search = write_sweep(tmp_path, name, GAIN, **{"seeds": [0, 1], **space})
        confirms = {"sweep": name, "configurations": [0, 1]}
        fresh = write_sweep(
            tmp_path, f"{name}-confirm", {0: {}, 1: {2: 0.9}}, seeds=[2, 3], confirms=confirms
        )
        step = next_step(read_results(search))
        assert f"sweep resume {fresh.folder.name} " in step.command
        assert "sweep confirm " not in step.text
        with lock_folder(fresh.folder.root, "sweep"):
            assert next_step(read_results(search)).command == ""
