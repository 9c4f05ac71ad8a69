import os
import signal
import subprocess
import sys

from tests.paths import ROOT
from trainer.scratch import scratch_folder

HOLDER = """
import sys, time
from trainer.scratch import scratch_folder
with scratch_folder("tune") as folder:
    (folder / "file").touch()
    print(folder, flush=True)
    time.sleep(600)
"""


def test_folders_of_killed_processes_are_removed_and_those_of_living_ones_stay(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "loptune-of-somebody").mkdir()
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    holders = [
        subprocess.Popen([sys.executable, "-c", HOLDER], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        killed, living = [holder.stdout.readline().strip() for holder in holders]
        holders[0].send_signal(signal.SIGKILL)
        holders[0].wait()
        with scratch_folder("tune") as folder:
            names = {str(path) for path in tmp_path.iterdir() if path.is_dir()}
            assert names == {living, str(folder), str(tmp_path / "loptune-of-somebody")}
            assert os.path.exists(f"{living}/file")
        assert not folder.exists()
        assert killed not in names
    finally:
        for holder in holders:
            holder.kill()
            holder.wait()
            holder.stdout.close()
