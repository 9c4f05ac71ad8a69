"""Trials that are forks of an interpreter with `program.preload`."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from loptune.errors import MissingError
from sweep.programs import warm_interpreter
from sweep.programs.command import CommandProgram
from sweep.programs.warm_interpreter import is_warmable
from tests.paths import ROOT
from tests.refusals import refused
from tests.sweep.programs.test_command import OFFLINE, spec_of, trial

REPORT = """
def report(step, **values):
    print("[loptune]", json.dumps({"step": step, "eval/accuracy": 0.5, **values}))
"""


@pytest.fixture(autouse=True)
def closed():
    """End the interpreter that a test started in this process."""
    yield
    warm_interpreter.close_interpreter()


def preloaded_line(tmp_path, script, name="c000-s0", preload=("decimal",)):
    """Return the first line that a script reports."""
    script = f"import json, os, sys{REPORT}{script}"
    with trial(tmp_path, script, preload=preload, name=name) as run:
        return run.train_until_evaluation()


def test_a_forked_script_runs_as_python_runs_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = """
import __main__, inspect
assert "decimal" in sys.modules and __name__ == "__main__" and __main__.report is report
assert sys.argv == [__file__, os.environ["LOPTUNE_OUT"]] and os.getcwd() == HERE
assert sys.path[0] == HERE and not sys.flags.safe_path
assert not any(name.split(".")[0] in ("sweep", "trainer", "rewards") for name in sys.modules)
assert os.environ["LOPTUNE_SEED"] == "4" and "def report" in inspect.getsource(report)
assert os.getsid(0) == os.getppid(), "its supervisor leads the session"
report(1, parent=os.getppid())
"""
    line = preloaded_line(tmp_path, f"HERE = {str(tmp_path)!r}\n{script}")
    assert line["step"] == 1


def test_trials_share_an_interpreter_but_not_their_noise(tmp_path):
    script = """
import random
import numpy
report(1, numpy=numpy.random.rand(), python=random.random())
"""
    first = preloaded_line(tmp_path, script, preload=["numpy"])
    interpreter = warm_interpreter._current
    second = preloaded_line(tmp_path, script, name="c000-s1", preload=["numpy"])
    assert warm_interpreter._current is interpreter is not None
    assert first["numpy"] != second["numpy"] and first["python"] != second["python"]


def test_another_environment_gets_another_interpreter(tmp_path, monkeypatch):
    script = 'report(1, gpu=float(os.environ["CUDA_VISIBLE_DEVICES"]))'
    for gpu in (2, 3):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", str(gpu))
        line = preloaded_line(tmp_path, script, name=f"c000-s{gpu}")
        assert line["gpu"] == gpu


def test_a_module_of_ones_own_package_names_is_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rewards.py").write_text("NUMBER = 7")
    (tmp_path / "mine.py").write_text("import rewards\nrewards.NUMBER += 1")
    line = preloaded_line(
        tmp_path, "import mine, rewards\nreport(1, number=rewards.NUMBER)", preload=["mine"]
    )
    assert line["number"] == 8


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True)"
         ".start()", "the import started threads: Thread-1"),
        ("raise OSError('no licence')", "OSError: no licence"),
        ("import os; os.abort()", "its interpreter has exited"),
    ],
    ids=["threads", "error", "crash"],
)  # fmt: skip
def test_modules_that_cannot_be_shared_are_imported_by_each_trial(
    tmp_path, monkeypatch, caplog, module, reason
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(module)
    assert preloaded_line(tmp_path, "report(1)", preload=["mine"])["step"] == 1
    assert reason in caplog.text


def test_an_exit_code_and_the_last_lines_are_the_scripts(tmp_path):
    script = "import sys\nprint('out of luck', file=sys.stderr)\nsys.exit(3)"
    with (
        trial(tmp_path, script, preload=["decimal"]) as run,
        pytest.raises(RuntimeError, match=r"\b3: .*out of luck"),
    ):
        run.train_until_evaluation()


def test_a_script_that_raises_shows_its_own_traceback(tmp_path):
    with (
        trial(tmp_path, "raise ValueError('too large')", preload=["decimal"]) as run,
        pytest.raises(RuntimeError, match=r"\b1: .*script\.py.*ValueError: too large"),
    ):
        run.train_until_evaluation()


def test_a_forked_script_saves_when_the_sweep_stops(tmp_path):
    script = f"""
import json, os, signal, sys, time{REPORT}
def save(*_):
    open(sys.argv[1] + "/saved", "w")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
report(1)
time.sleep(600)
"""
    with trial(tmp_path, script, preload=["decimal"]) as run:
        run.train_until_evaluation()
        (tmp_path / "stop").touch()
        run.train_until_evaluation()
        assert run.stopped
    assert (tmp_path / "trials" / "c000-s0" / "out" / "saved").exists()


def test_all_processes_of_a_forked_script_end_with_its_trial(tmp_path):
    script = """
import subprocess
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
report(1, child=child.pid, me=os.getpid())
import time; time.sleep(600)
"""
    line = preloaded_line(tmp_path, script)
    assert not psutil.pid_exists(int(line["child"])) and not psutil.pid_exists(int(line["me"]))


def test_interpreter_and_trial_end_with_the_rank(tmp_path):
    (tmp_path / "script.py").write_text("import time; time.sleep(600)")
    code = """
import os, sys, time
from sweep.programs.warm_interpreter import start_warm
theirs, lifeline = os.pipe()
words = [sys.executable, "script.py"]
started = start_warm(["decimal"], words, dict(os.environ), open("out", "wb"), theirs)
from sweep.programs import warm_interpreter
print(warm_interpreter._current.pid, started.pid, flush=True)
time.sleep(600)
"""
    rank = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=tmp_path
    )
    pids = [int(word) for word in rank.stdout.readline().split()]
    processes = [psutil.Process(pid) for pid in pids]
    processes += processes[0].children(recursive=True)
    rank.send_signal(signal.SIGKILL)
    rank.wait()
    rank.stdout.close()
    _, alive = psutil.wait_procs(processes, timeout=30)
    assert len(pids) == 2 and not alive


def test_a_killed_interpreter_ends_its_trial_and_the_next_one_runs(tmp_path):
    script = "report(1)\nimport time; time.sleep(600)"
    with trial(tmp_path, f"import json{REPORT}{script}", preload=["decimal"]) as run:
        run.train_until_evaluation()
        os.kill(warm_interpreter._current.pid, signal.SIGKILL)
        with pytest.raises(RuntimeError, match="SIGKILL"):
            run.train_until_evaluation()
    line = preloaded_line(tmp_path, "report(2)")
    assert line["step"] == 2


def test_a_function_is_called_in_a_fork(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "import sys\n"
        "def train(config, report):\n"
        "    report(1, {'eval/accuracy': float('decimal' in sys.modules)})\n"
    )
    program = CommandProgram(function="mine:train", tracking=OFFLINE, preload=["decimal"])
    config = program.configure({"seed": 1})
    environment = {**os.environ, "LOPTUNE_OUT": str(tmp_path), "LOPTUNE_RESUME": "0"}
    environment["LOPTUNE_CONFIG"] = str(tmp_path / "config.json")
    (tmp_path / "config.json").write_text("{}")
    theirs, lifeline = os.pipe()
    with (tmp_path / "out").open("wb") as output:
        started = warm_interpreter.start_warm(
            config.preload, config.words(tmp_path), environment, output, theirs
        )
    os.close(theirs)
    assert started.wait(60) == 0
    os.close(lifeline)
    assert '"eval/accuracy": 1.0' in (tmp_path / "metrics.jsonl").read_text()


@pytest.mark.parametrize(
    "command", [["sh", "run.sh"], ["python", "-u", "train.py"], ["env", "A=1", "python", "t.py"]]
)
def test_only_python_commands_can_share_an_interpreter(tmp_path, command):
    with refused("preload-without-python"):
        spec_of(tmp_path, command=command, preload=["numpy"])


def test_a_module_to_preload_that_is_not_there_is_found_early(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    for name, absent in (("numpy.linalg:norm", False), ("nonumpy", True), ("numpy.nolinalg", True)):
        spec = spec_of(tmp_path, command=["python", "train.py"], preload=[name])
        if absent:
            with refused("no-module", MissingError, "program.preload"):
                spec.program.check_early({}, spec.resources, "acc")
        else:
            spec.program.check_early({}, spec.resources, "acc")


def test_a_preloaded_module_is_imported_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "slow.py").write_text("open('imported', 'a').write('x')")
    for seed in range(3):
        preloaded_line(tmp_path, "import slow; report(1)", name=f"c000-s{seed}", preload=["slow"])
    assert Path("imported").read_text(encoding="utf-8") == "x"


def test_a_name_to_preload_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lazy.py").write_text(
        "def __getattr__(name):\n    open('asked', 'a').write(name + ' ')\n    return 1"
    )
    preloaded_line(tmp_path, "report(1)", preload=["lazy:Trainer"])
    assert "Trainer " in Path("asked").read_text(encoding="utf-8")


def test_only_scripts_and_modules_run_in_a_fork(tmp_path):
    script = tmp_path / "train.py"
    assert is_warmable(["python", "-P", str(script)]) and is_warmable(["python", "-m", "train"])
    assert not is_warmable(["python", str(tmp_path)])
    assert not is_warmable(["python", "-u", str(script)])


def test_a_script_in_safe_mode_does_not_find_the_modules_beside_it(tmp_path):
    folder = tmp_path / "lib"
    folder.mkdir()
    (folder / "beside.py").write_text("")
    script = folder / "script.py"
    script.write_text("import beside")
    words = [sys.executable, "-P", "-c", "from sweep.programs import warm; warm._run({})"]
    for flags in ([], ["-P"]):
        run = [*words[:3], words[3].format([*flags, str(script)])]
        ended = subprocess.run(run, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
        assert (ended.returncode == 0) == (not flags)
