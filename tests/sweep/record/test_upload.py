from pathlib import Path

import pytest

from dashboards.queries import read_sweep
from sweep.record.folder import existing_sweep, read_spec
from sweep.record.upload import online, upload_sweep
from sweep.runner import open_parent
from sweep.space.points import trial_config
from tests.sweep.ended_sweeps import write_sweep
from trainer.tracking.tracker import Tracker
from trainer.types import RunContext

OFFLINE = {"preset": "tiny_kk", "overrides": {"tracking.offline": True, "max_steps": 4}}


def test_an_offline_sweep_is_reported_once_it_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    write_sweep(tmp_path, "demo", {0: {0: 0.5}, 1: {0: 0.7}}, trainer=OFFLINE)
    folder = existing_sweep(tmp_path, "demo")
    spec = read_spec(folder)
    for number, score in ((0, 0.5), (1, 0.7)):
        run_dir = folder.trial(f"c{number:03d}-s0")
        (run_dir / "metrics.jsonl").unlink()
        tags = {"loptune.run": f"demo/{run_dir.name}", "loptune.trial": run_dir.name, "loptune.sweep": "demo"}
        config = trial_config(spec.base, {"algorithm.ar_alpha": number / 10}, 0)
        tracker = Tracker(config, RunContext(run_dir, tmp_path, "demo", "name", tags))
        tracker.log({"eval/accuracy": score}, 4)
        tracker.close()
    path = upload_sweep(spec, folder, open_parent)
    assert path.read_text(encoding="utf-8").endswith("</html>")
    assert not read_spec(folder).base.tracking.offline and read_spec(folder) == online(spec)
    sweep = read_sweep("demo", f"sqlite:///{tmp_path / 'mlflow.db'}")
    assert dict(zip(sweep.trials.configuration, sweep.trials.score, strict=True)) == {"0": 0.5, "1": 0.7}
    assert set(sweep.trials.state) == {"COMPLETE"} and (sweep.trials.duration_s < 60).all()
