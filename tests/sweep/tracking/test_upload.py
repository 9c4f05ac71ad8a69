import pytest

from dashboards.trial import TrialRecord
from loptune.errors import StorageError
from loptune.identity import identity
from loptune.mlflow_runs import find_runs
from sweep.record.folder import SweepFolder, existing_sweep, read_spec
from sweep.record.sweep_record import SweepRecord
from sweep.space.file import find_space, load_space
from sweep.tracking.outcomes import EndedTrial
from sweep.tracking.upload import send_ended, send_unsent, upload_sweep
from tests.ports import quiet_port
from tests.refusals import refused
from tests.sweep.ended_sweeps import write_sweep
from tests.trainer.tracking.store import config_for, history, runs_of, sqlite_store
from trainer.tracking.mlflow_store import connect
from trainer.tracking.tracker import Tracker
from trainer.tracking.uploading import TrackingState, has_unsent
from trainer.types import RunContext

SPEC = load_space(find_space("quickstart"))  # any
OFFLINE = {"preset": "tiny_kk", "overrides": {"tracking.offline": True, "max_steps": 4}}


def test_an_offline_sweep_is_reported_once_it_is_sent(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    write_sweep(tmp_path, "demo", {0: {0: 0.5}, 1: {0: 0.7}}, trainer=OFFLINE)
    folder = existing_sweep(tmp_path, "demo")
    spec = read_spec(folder)
    for number, score in ((0, 0.5), (1, 0.7)):
        run_dir = folder.trial(f"c{number:03d}-s0")
        (run_dir / "metrics.jsonl").unlink()
        tags = {
            "loptune.run": f"demo/{run_dir.name}/{identity(folder.root)}",
            "loptune.trial": run_dir.name,
            "loptune.sweep": "demo",
        }
        config = spec.program.configure({"algorithm.ar_alpha": number / 10, "seed": 0})
        tracker = Tracker(config, RunContext(run_dir, tmp_path, "demo", "name", tags))
        tracker.log({"eval/accuracy": score}, 4)
        tracker.close()
    path = upload_sweep(SweepRecord(spec, folder))
    assert path.read_text(encoding="utf-8").endswith("</html>")
    assert not read_spec(folder).trainer.base.tracking.offline
    client = connect(f"sqlite:///{tmp_path / 'mlflow.db'}")
    runs = find_runs(client, ["1"], {"loptune.sweep": "demo"})
    scores = {run.info.run_name: run.data.metrics["final/score"] for run in runs}
    assert scores == {"sweep demo": 0.7, "#0 grpo · seed 0": 0.5, "#1 grpo+AR · seed 0": 0.7}


@pytest.fixture
def folder(tmp_path):
    return SweepFolder(tmp_path, "demo")


def record(folder, trial, uri, status="FINISHED"):
    """A trial of three steps whose process ended without reaching MLflow."""
    tags = {"loptune.run": f"demo/{trial}"}
    context = RunContext(folder.trial(trial), folder.runs_dir, "exp", trial, tags)
    tracker = Tracker(config_for(uri), context, must_connect=False, close_limit_s=0)
    for step in (1, 2, 3):
        tracker.log({"rollout/reward": 0.5 * step}, step)
    assert not tracker.close()
    state = TrackingState.load(context.run_dir)
    assert state is not None
    state.status = status
    state.save(context.run_dir)
    return context.run_dir


def test_what_trials_could_not_send_is_sent_once(folder, tmp_path):
    away = f"http://127.0.0.1:{quiet_port()}"
    trials = [record(folder, "c000-s0", away), record(folder, "c001-s0", away, status=None)]
    assert all(map(has_unsent, trials))
    uri = sqlite_store(tmp_path / "store")
    send_unsent(SweepRecord(SPEC, folder), uri)
    assert not any(map(has_unsent, trials))
    runs = {run.data.tags["loptune.run"]: run for run in runs_of(uri)}
    assert {key: run.info.status for key, run in runs.items()} == {
        "demo/c000-s0": "FINISHED",
        "demo/c001-s0": "KILLED",  # its process ended without a word
    }
    for run in runs.values():
        assert history(uri, run.info.run_id, "rollout/reward") == [(1, 0.5), (2, 1.0), (3, 1.5)]
    send_unsent(SweepRecord(SPEC, folder), uri)
    assert len(runs_of(uri)) == 2


def test_completed_trials_are_sent_while_others_run(folder, tmp_path):
    away = f"http://127.0.0.1:{quiet_port()}"
    sweep = SweepRecord(SPEC, folder)
    ended = []
    for number, state in enumerate(["COMPLETE", "COMPLETE", "PRUNED"]):
        run_dir = record(folder, f"c00{number}-s0", away)
        trial = TrialRecord(name=run_dir.name, configuration=str(number), seed="0", state=state)
        ended.append(EndedTrial(trial, run_dir.name, {}))
    damaged, whole, closing = (folder.trial(each.trial.name) for each in ended)
    (damaged / "tracking.json").write_text((whole / "tracking.json").read_text())
    (damaged / "metrics.jsonl").write_text('{"step"' + "\n{}\n")
    with refused("mlflow-request", StorageError):
        send_ended(sweep, away, ended)
    send_ended(sweep, sqlite_store(tmp_path / "store"), ended)
    assert [has_unsent(path) for path in (damaged, whole, closing)] == [True, False, True]


def test_while_mlflow_is_away_all_that_it_lacks_is_named(folder):
    away = f"http://127.0.0.1:{quiet_port()}"
    for number in range(7):
        record(folder, f"c00{number}-s0", away)
    with refused("records-not-sent", StorageError) as raised:
        send_unsent(SweepRecord(SPEC, folder), away)
    problem = raised.value
    assert "c000-s0, c001-s0, c002-s0, c003-s0, c004-s0 and 2 more" in problem.what
    assert "resume demo" in problem.hint
    assert (problem.where, problem.exit_code) == (away, 4)


def test_a_damaged_record_does_not_keep_the_others_from_being_sent(folder, tmp_path):
    away = f"http://127.0.0.1:{quiet_port()}"
    damaged = record(folder, "c000-s0", away)
    whole = record(folder, "c001-s0", away)
    lines = (damaged / "metrics.jsonl").read_text().splitlines()
    (damaged / "metrics.jsonl").write_text("\n".join([lines[0], "{" + lines[1], lines[2]]) + "\n")
    with refused("records-not-sent", StorageError) as raised:
        send_unsent(SweepRecord(SPEC, folder), sqlite_store(tmp_path / "store"))
    assert "c000-s0" in raised.value.what and "c001-s0" not in raised.value.what
    assert has_unsent(damaged)
    assert not has_unsent(whole)
