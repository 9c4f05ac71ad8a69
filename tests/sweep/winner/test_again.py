"""Another confirmation of the same finalists, after one that decided nothing."""

import re
import shlex
import shutil

import numpy as np
import pytest

from dashboards.headline import confirmation_sentences, headline, verdict_sentences
from dashboards.pictures.differences import arm_cells
from sweep.cli import main
from sweep.driver import run
from sweep.record.results import read_results
from sweep.record.sweep_record import open_sweep
from tests.sweep.ended_sweeps import write_sweep

SEARCHED = {0: {0: 0.50}, 1: {0: 0.56}, 2: {0: 0.53}}
PLACE = {"parameters": {"algorithm.ar_alpha": {"uniform": [0.0, 0.5]}}}


def scores(gains, first, seeds, sd):
    """Return scores around 0.5 plus a gain, the same for every run of this test."""
    return {
        number: {
            seed: round(0.5 + gain + np.random.default_rng([seed, number]).normal(0, sd), 6)
            for seed in range(first, first + seeds)
        }
        for number, gain in enumerate(gains)
    }


def write_confirmation(runs, name, finalists, results):
    baselines = [{"algorithm.ar_alpha": number / 10} for number in finalists]
    confirms = {"sweep": "demo", "configurations": finalists}
    search = {"sampler": "random", "configurations": 0}
    write_sweep(runs, name, results, baselines=baselines, confirms=confirms, search=search, **PLACE)


@pytest.fixture
def undecided(tmp_path, monkeypatch):
    """A sweep with three finalists on three fresh seeds, and what a further start would run."""
    started = []
    monkeypatch.setattr(run, "start_sweep", lambda fresh, options: started.append(fresh) or 3)
    monkeypatch.chdir(tmp_path)
    runs = tmp_path / "runs"
    write_sweep(runs, "demo", SEARCHED, baselines=[{"algorithm.ar_alpha": 0.0}], **PLACE)
    write_confirmation(runs, "demo-confirm", [0, 1, 2], scores([0, 0.1, 0.01], 1, 3, 0.05))
    return runs, started


def test_the_printed_command_runs_the_nearest_finalist_on_new_seeds(undecided):
    runs, started = undecided
    front = headline(read_results(open_sweep(runs, "demo")))
    assert front.sentence.startswith("Undecided") and not front.confirmed
    (command,) = re.findall("`(sweep confirm [^`]*)`", front.step)
    assert main(shlex.split(command)[1:]) == 3
    (fresh,) = started
    assert fresh.folder.name == "demo-confirm-2"
    assert fresh.spec.confirms.configurations == [0, 1]
    assert fresh.spec.baselines == [{"algorithm.ar_alpha": 0.0}, {"algorithm.ar_alpha": 0.1}]
    seeds = fresh.spec.seeds
    assert min(seeds) == 4 and f"--seeds {len(seeds)}" in command  # 0 to 3 are spent


def test_without_numbers_all_finalists_run_again(undecided):
    _, started = undecided
    assert main(["confirm", "demo", "--again", "--seeds", "4"]) == 3
    assert started[0].spec.confirms.configurations == [0, 1, 2]
    assert started[0].spec.seeds == [4, 5, 6, 7]


def test_the_new_confirmation_is_judged_alone_and_stricter(undecided):
    runs, _ = undecided
    once = scores([0, 0.08], 4, 5, 0.02)
    write_confirmation(runs, "demo-confirm-2", [0, 1], once)
    results = read_results(open_sweep(runs, "demo"))
    assert results.fresh.earlier_confirmations == 1
    assert {trial.seed for trial in results.fresh.trials} == set("45678")
    again = results.fresh_verdict
    # the same scores as a first confirmation
    alone = read_results(open_sweep(runs, "demo"))
    object.__setattr__(alone.fresh, "earlier_confirmations", 0)
    assert again.p_value == pytest.approx(2 * alone.fresh_verdict.p_value)
    assert again.claim == "evidence" and again.difference == alone.fresh_verdict.difference
    # the interval is wider, and it is called by its coverage
    before = alone.fresh_verdict
    assert (before.coverage, again.coverage) == (0.9, 0.95)
    assert again.interval[0] < before.interval[0] < before.interval[1] < again.interval[1]
    assert again.detectable > before.detectable
    text = " ".join([*confirmation_sentences(results), *verdict_sentences(results)])
    assert "confirmation 2" in text and "95% interval" in text
    (row,) = [row for row in results.arm_table if row.interval is not None]
    assert row.interval == again.interval and row.coverage == 0.95
    assert "95% interval" in arm_cells(results)[0]


def test_a_gain_that_only_one_confirmation_shows_is_not_claimed(undecided):
    runs, _ = undecided
    for sd in np.linspace(0.02, 0.2, 100):
        results = scores([0, 0.08], 4, 5, sd)
        write_confirmation(runs, "demo-confirm-2", [0, 1], results)
        read = read_results(open_sweep(runs, "demo"))
        judged = read.fresh_verdict
        # what p says, the interval says
        assert (judged.p_value < 0.05) == (judged.interval[0] > 0)
        if 0.05 <= judged.p_value < 0.1:
            break
        shutil.rmtree(runs / "demo-confirm-2")
    assert read.fresh_verdict.claim == "none"
    assert headline(read).sentence.startswith("Undecided")
    assert {row.outcome for row in read.arm_table} == {"baseline", "undecided"}
    assert "--again" in headline(read).step  # and a third can follow


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("confirm demo", "sweep-exists"),
        ("confirm demo --again --rounds", "again-with-other-options"),
        ("confirm demo --again --finalists 2", "again-with-other-options"),
        ("confirm demo --configurations 1", "configurations-without-again"),
        ("confirm demo --again --configurations 7", "not-a-finalist"),
    ],
)
def test_what_does_not_go_together_is_refused(undecided, capsys, words, code):
    assert main(words.split()) == 2
    assert f"[{code}]" in capsys.readouterr().err


def test_the_hint_of_a_second_confirmation_works(undecided, capsys):
    _, started = undecided
    assert main(["confirm", "demo"]) == 2
    (command,) = re.findall("(sweep confirm .*--again)", capsys.readouterr().err)
    assert main(shlex.split(command)[1:]) == 3 and started


def test_nothing_runs_again_before_it_has_ended(tmp_path, capsys):
    runs = tmp_path / "runs"
    write_sweep(runs, "demo", SEARCHED, **PLACE)
    assert main(["confirm", "demo", "--again", "--runs-dir", str(runs)]) == 3
    assert "[not-confirmed-yet]" in capsys.readouterr().err
    write_confirmation(runs, "demo-confirm", [0, 1], {0: {1: 0.5, 2: 0.6}, 1: {1: 0.5}})
    assert main(["confirm", "demo", "--again", "--runs-dir", str(runs)]) == 3
    assert "[confirmation-not-ended]" in capsys.readouterr().err
