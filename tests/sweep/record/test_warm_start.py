from loptune.errors import ConfigError, MissingError
from sweep.cli import main
from sweep.record.folder import sweep_folder, write_spec
from sweep.record.sweep_record import SweepRecord, open_sweep
from sweep.record.warm_start import warm_started
from sweep.search.event_log import EventLog
from sweep.space.file import load_space
from sweep.winner.confirm import finalists_of, fresh_space
from tests.refusals import refused
from tests.sweep.ended_sweeps import write_sweep
from tests.sweep.harness import write_space

# Configuration n has alpha n / 10. Number 3 failed, 4 is unfinished, 5 is the best.
BEFORE = {
    0: {0: 50.0, 4: 60.0},
    1: {0: 90.0, 4: 92.0},
    2: {0: 70.0, 4: 70.0},
    3: {0: 99.0, 4: "diverged"},
    4: {0: 99.0},
    5: {0: 99.0, 4: 99.0},
}
ALPHA = "algorithm.ar_alpha"


def space(folder, **changes):
    search = {
        "sampler": "tpe",
        "configurations": 2,
        "warm_start": ["before"],
        **changes.pop("search", {}),
    }
    written = {"name": "now", "baselines": [{ALPHA: 0.0}], "search": search, **changes}
    return load_space(write_space(folder / "space.yaml", **written))


def before(folder):
    write_sweep(folder, "before", BEFORE)


def test_the_best_of_an_earlier_sweep_run_after_the_baselines(tmp_path):
    before(tmp_path)
    spec, lines = warm_started(space(tmp_path), tmp_path, "")
    assert spec.baselines == [{ALPHA: 0.0}, {ALPHA: 0.5}, {ALPHA: 0.1}, {ALPHA: 0.2}]
    (line,) = lines
    assert " 3 " in line and line.endswith(" before")
    narrow = space(tmp_path, parameters={ALPHA: {"uniform": [0.0, 0.15]}})
    assert warm_started(narrow, tmp_path, "")[0].baselines == [{ALPHA: 0.0}, {ALPHA: 0.1}]


def test_every_arm_takes_as_many(tmp_path):
    arms = {ALPHA: {"choice": [0.0, 0.1]}, "optim.lr": {"uniform": [1e-5, 1e-3]}}
    write_sweep(tmp_path, "before", {}, parameters=arms, baselines=[])
    event_log = EventLog(sweep_folder(tmp_path, "before").event_log)
    for number, (alpha, rate, score) in enumerate(
        [(0.0, 1e-4, 0.5), (0.1, 2e-4, 0.7), (0.1, 3e-4, 0.9)]
    ):
        point = {
            "parameters": {ALPHA: alpha, "optim.lr": rate},
            "resolved": {},
            "fingerprint": str(number),
        }
        proposal = {"time": 1.0, **point}
        result = {
            "seed": 0,
            "state": "COMPLETE",
            "score": score,
            "step": 4,
            "reason": "",
            "time": 2.0,
        }
        event_log.append({"event": "configuration", "configuration": number, **proposal})
        event_log.append({"event": "result", "configuration": number, **result})
    listed = [{ALPHA: alpha, "optim.lr": 5e-4} for alpha in (0.0, 0.1)]
    warm = space(tmp_path, parameters=arms, baselines=listed, search={"tune_within": ALPHA})
    taken = warm_started(warm, tmp_path, "")[0].baselines[2:]
    assert taken == [{ALPHA: 0.0, "optim.lr": 1e-4}, {ALPHA: 0.1, "optim.lr": 3e-4}]


def test_a_sweep_goes_on_with_what_it_took_and_confirms_on_fresh_seeds(tmp_path):
    before(tmp_path)
    spec, _ = warm_started(space(tmp_path), tmp_path, "")
    sweep = write_sweep(tmp_path, "now", {0: {0: 0.5}, 1: {0: 0.6}})
    chosen = finalists_of(sweep, 1)
    assert fresh_space(sweep, chosen, 2).seeds == [1, 2]
    write_spec(sweep.folder, spec)
    assert open_sweep(tmp_path, "now").spec.baselines == spec.baselines
    warm = SweepRecord(sweep.spec.model_copy(update={"search": spec.search}), sweep.folder)
    assert fresh_space(warm, chosen, 2, held_out=False).seeds == [5, 6]


def test_an_error_names_a_few_of_many_sweeps_with_the_same_parameters(tmp_path):
    for number in range(9):
        write_sweep(tmp_path, f"alike-{number}", BEFORE)
    both = {ALPHA: {"value": 0.1}, "optim.lr": {"value": 1}}
    write_sweep(tmp_path, "other", {0: {0: 0.5}}, parameters=both)
    with refused("warm-start-other-parameters", ConfigError) as caught:
        warm_started(space(tmp_path, search={"warm_start": ["other"]}), tmp_path, "")
    assert "alike-4 and 4 more" in caught.value.hint


def test_what_cannot_be_taken_is_refused(tmp_path, capsys):
    before(tmp_path)
    write_sweep(
        tmp_path,
        "other",
        {0: {0: 0.5}},
        parameters={ALPHA: {"value": 0.1}, "optim.lr": {"value": 1}},
    )
    write_sweep(tmp_path, "idle", {0: {0: "diverged"}})
    for name, code, kind, word in (
        ("befor", "no-such-sweep", MissingError, "before"),
        ("other", "warm-start-other-parameters", ConfigError, "also searches optim.lr"),
        ("idle", "warm-start-takes-nothing", MissingError, "status idle"),
    ):
        with refused(code, kind) as caught:
            warm_started(space(tmp_path, search={"warm_start": [name]}), tmp_path, "")
        assert word in str(caught.value)
        if name == "other":
            assert "before, idle" in caught.value.hint  # which search the same parameters
    with refused("warm-start-without-baseline", ConfigError):
        warm_started(space(tmp_path, baselines=[]), tmp_path, "")
    space(tmp_path)
    assert (
        main(
            [
                "plan",
                str(tmp_path / "space.yaml"),
                "--runs-dir",
                str(tmp_path),
                "--step-seconds",
                "1",
            ]
        )
        == 0
    )
    printed = capsys.readouterr().err
    assert "warm start: " in printed and " 3 " in printed
