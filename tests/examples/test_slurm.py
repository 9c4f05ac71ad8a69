"""The job of examples/slurm, with Slurm and Ray played by scripts that note how they are called."""

import os
import subprocess

from tests.paths import ROOT

_NOTE = 'echo "${0##*/} $*" >> "$NOTES"\n'
_PLAYED = {
    "srun": 'while [[ $1 == --* ]]; do shift; done; exec "$@"',
    "hostname": "echo 10.0.0.1 10.9.9.9",
    # The job's step: asked to stop ten minutes before its limit, the sweep ends with 4.
    "ray": _NOTE + 'if [ "${LATE:-}" ]; then kill -USR1 $PPID; sleep 1; exit 4; fi',
    "sweep": _NOTE,
    "scontrol": _NOTE,
}


def test_a_job_runs_the_sweep_and_requeued_resumes_it(tmp_path, monkeypatch):
    for name, text in _PLAYED.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    runs = tmp_path / "runs"
    notes = tmp_path / "notes"
    space = tmp_path / "space.yaml"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    words = [str(ROOT / "examples" / "slurm" / "sweep.sbatch"), "one", str(runs)]
    words += ["sweep", "run", str(space), "--name", "one"]
    environment = {
        "NOTES": str(notes),
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_CPUS_ON_NODE": "4",
        "SLURM_JOB_ID": "7",
    }

    def job(**more):
        notes.unlink(missing_ok=True)
        done = subprocess.run(
            ["bash", *words], env={**os.environ, **environment, **more}, timeout=60
        )
        return done.returncode, notes.read_text().splitlines()

    ray = (
        "ray symmetric-run --address 10.0.0.1:6379 --min-nodes 2 --num-cpus 4 --num-gpus 0 -- sweep"
    )
    where = f"--address auto --runs-dir {runs}"
    assert job() == (0, [f"{ray} run {space} --name one {where}"])
    (runs / "one").mkdir(parents=True)
    (runs / "one" / "space.lock.yaml").touch()
    asked = [f"sweep stop one --runs-dir {runs}", "scontrol requeue 7"]
    assert job(LATE="yes") == (4, [f"{ray} resume one {where}", *asked])
