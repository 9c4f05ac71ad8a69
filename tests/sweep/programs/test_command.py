"""A command line and a function as the program of a sweep: what is refused, what a trial gets and
gives.
"""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, nullcontext
from importlib.util import spec_from_file_location
from pathlib import Path

import pytest
from pydantic import ValidationError

from dashboards.statistics.scoring import Scoring
from loptune.errors import CommandError, ConfigError, MissingError
from loptune.files import read_records
from sweep.programs.base import Assignment
from sweep.programs.command import CommandProgram
from sweep.programs.process import _Lines
from sweep.search.trial_report import Failure
from sweep.space.advice import advise_space
from sweep.space.file import load_space
from tests.refusals import refused
from tests.sweep.harness import write_space
from tests.sweep.programs.scripts import SPACE, write_project
from tests.tables import table
from trainer.tracking.uploading import recorded_values
from trainer.types import RunContext

OFFLINE = {"offline": True}


def space_in(tmp_path, **changes):
    return write_space(tmp_path / "space.yaml", SPACE, **changes)


def spec_of(tmp_path, **program):
    return load_space(space_in(tmp_path, program={**SPACE["program"], **program}))


@pytest.mark.parametrize(("changes", "code", "key", "named"), table("program_errors"))
def test_a_program_that_cannot_run_is_refused(changes, code, key, named, tmp_path):
    with refused(code, ConfigError, key) as caught:
        spec_of(tmp_path, **changes)
    assert named in caught.value.hint


@pytest.mark.parametrize("metric", ["", "step", "time"])
def test_what_every_line_has_is_no_score(tmp_path, metric):
    with refused("invalid-objective", ConfigError, "objective.metric"):
        load_space(space_in(tmp_path, objective={"metric": metric}))


@pytest.mark.parametrize("key", ["rule", "score", "step"])
def test_a_searched_key_may_not_be_a_column_of_the_table(tmp_path, key):
    program = {"command": ["true"], "defaults": {key: 1}}
    parameters = {key: {"choice": [1, 2]}}
    space = space_in(tmp_path, program=program, parameters=parameters, baselines=[])
    with refused("reserved-key", ConfigError, key):
        load_space(space)


@pytest.mark.parametrize(
    ("source", "code", "named"),
    [
        ("def trian(config, report): ...", "no-function", "train"),
        ("def train(config) return", "syntax-error", "expected ':'"),
    ],
)
def test_a_function_that_is_not_there_is_found_before_ray_starts(
    tmp_path, monkeypatch, source, code, named
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(source)
    program = spec_of(tmp_path, command=[], function="mine:train").program
    with refused(code, ConfigError, names=("mine.py", named)):
        program.check_early({}, spec_of(tmp_path).resources, "acc")


def test_what_is_not_there_is_found_before_ray_starts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for changes, what in (
        ({}, "train.py"),
        ({"command": ["no-such-command"]}, "no-such-command"),
        ({"command": [], "function": "nowhere:train"}, "nowhere:train"),
        ({"command": ["true"], "inputs": ["data.jsonl"]}, "data.jsonl"),
        ({"command": ["python", "-m", "json.tol"]}, "json.tol"),
    ):
        spec = spec_of(tmp_path, **changes)
        with pytest.raises(MissingError) as missing:
            spec.program.check_early(spec.values_of_trials(), spec.resources, "acc")
        assert missing.value.what.endswith(what)


HERE = str(Path(sys.executable).parent)


@pytest.mark.parametrize(
    "command",
    [
        ["python", "-m", "MODULE", "-m", "absent"],
        ["python", "-u", "-m", "MODULE"],
        ["python", "-um", "MODULE"],
        ["python", "-X", "dev", "-Werror", "-mMODULE"],
        [sys.executable, "-O", "-m", "MODULE"],
        [f"{HERE}/python3", "-m", "MODULE"],
        ["env", "A=1", "python", "-m", "MODULE"],
        [f"{HERE}/torchrun", "--standalone", "-m", "MODULE"],
        [f"{HERE}/accelerate", "launch", "--num_processes", "1", "--module", "MODULE"],
        ["python", "-m", "torch.distributed.run", "--standalone", "-m", "MODULE"],
    ],
)
def test_a_module_that_a_command_runs_is_an_input(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("")
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__main__.py").write_text("import mine")
    (tmp_path / "empty").mkdir()
    for module, files in (("mine", ["mine.py"]), ("pack", ["pack/__main__.py", "mine.py"])):
        words = [word.replace("MODULE", module) for word in command]
        spec = spec_of(tmp_path, command=words)
        spec.program.check_early({}, spec.resources, "acc")
        found = {path for path, _ in spec.program.files({}) if path.is_relative_to(tmp_path)}
        assert found == {tmp_path / file for file in files}
    for absent in ("min", "empty", "pack.mine"):
        spec = spec_of(tmp_path, command=[word.replace("MODULE", absent) for word in command])
        with refused("no-module", MissingError):
            spec.program.check_early({}, spec.resources, "acc")


class EditableFinder:
    """Finds one package, as the finder of an editable installation does."""

    def __init__(self, package):
        self.package = package

    def find_spec(self, fullname, path=None, target=None):
        if fullname != self.package.name:
            return None
        return spec_from_file_location(fullname, self.package / "__init__.py")


def test_a_module_of_an_editable_installation_is_found_and_is_an_input(tmp_path, monkeypatch):
    package = tmp_path / "elsewhere" / "mypack"
    (package / "inner").mkdir(parents=True)
    for file in ("__init__.py", "inner/__init__.py", "helper.py"):
        (package / file).write_text("")
    (package / "inner" / "train.py").write_text("import mypack.helper")
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, EditableFinder(package)])
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    command = ["python", "-m", "mypack.inner.train"]
    spec = spec_of(tmp_path, command=command, preload=["mypack.helper", "mypack.inner:train"])
    spec.program.check_early({}, spec.resources, "acc")
    found = {path for path, _ in spec.program.files({})}
    assert {package / "inner" / "train.py", package / "helper.py"} <= found
    for absent in ("mypack.other", "mypack.helper.deeper"):
        spec = spec_of(tmp_path, command=command, preload=[absent])
        with refused("no-module", MissingError, "program.preload"):
            spec.program.check_early({}, spec.resources, "acc")


def test_our_own_modules_are_found(tmp_path):
    """`make install` installs us with a finder."""
    command = ["python", "-m", "trainer"]
    spec = spec_of(tmp_path, command=command, preload=["trainer.integrations.trl"])
    spec.program.check_early({}, spec.resources, "acc")


def test_modules_of_other_environments_are_not_asked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for command in (
        ["env", "PYTHONPATH=src", "python", "-m", "absent"],
        ["sh", "run", "python", "-m", "absent"],
        ["python", "-c", "pass", "-m", "absent"],
        ["python", "-m", "json.tool", "-m", "absent"],
    ):
        spec = spec_of(tmp_path, command=command)
        spec.program.check_early({}, spec.resources, "acc")


def test_a_held_out_value_that_the_command_does_not_name(tmp_path):
    spec = spec_of(tmp_path, command=["true", "{seed}"], held_out={"eval_file": "x"})
    unused = [advice.hint for advice in advise_space(spec)]
    keys = ["learning_rate", "loss_type", "eval_file"]
    assert all(f"{{{key}}}" in hint for key, hint in zip(keys, unused, strict=True))
    from_the_file = spec_of(tmp_path, command=["true"], held_out={"eval_file": "x"})
    assert list(advise_space(from_the_file)) == []


def test_a_writer_that_is_not_installed_is_found_before_ray_starts(tmp_path):
    spec = spec_of(tmp_path, command=["true"], tracking={"report_to": ["trackio"]})
    with refused("tracker-not-installed", ConfigError, names=("trackio",)):
        spec.program.check_early({}, spec.resources, "acc")


def test_a_word_that_only_ends_like_a_script_is_no_file(tmp_path):
    command = [
        "bash",
        "-c",
        "cd ${HOME} && python train.py",
        "custom_reward_function.path=reward.py",
    ]
    command += ["train_{loss_type}.py"]
    spec = spec_of(tmp_path, command=command, defaults={"learning_rate": 0.1, "loss_type": "grpo"})
    spec.program.check_early(spec.values_of_trials(), spec.resources, "acc")
    assert spec.program.configure({}).words(tmp_path)[1:] == [*command[1:-1], "train_grpo.py"]


def test_files_of_the_project_hide_no_package_of_ours(tmp_path):
    (tmp_path / "sweep.py").write_text("raise SystemExit('not this one')")
    (tmp_path / "mine.py").write_text(
        "def train(config, report): report(1, {'eval/accuracy': config['x']})"
    )
    (tmp_path / "config.json").write_text('{"x": 0.5}')
    words = CommandProgram(function="mine:train").configure({}).words(tmp_path)
    environment = {"CONFIG": tmp_path / "config.json", "OUT": tmp_path, "RESUME": 0}
    variables = {f"LOPTUNE_{name}": str(value) for name, value in environment.items()}
    subprocess.run(words, cwd=tmp_path, env={**os.environ, **variables}, check=True)
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {"step": 1, "eval/accuracy": 0.5}


def test_one_program_is_written_and_its_ranks_are_its_own(tmp_path):
    with refused("trainer-or-program", ConfigError):
        load_space(space_in(tmp_path, trainer="tiny_kk"))
    path = space_in(tmp_path, resources={"gpus_per_trial": 4})
    assert load_space(path).resources.gpus_per_worker == 4
    with refused("several-workers", ConfigError):
        load_space(path, ["resources.workers_per_trial=4"])


def test_the_command_line_of_the_space_reaches_a_default(tmp_path):
    overrides = ["program.defaults.loss_type=dapo", "program.evaluations=7"]
    program = load_space(space_in(tmp_path), overrides).program
    assert isinstance(program, CommandProgram)
    assert program.defaults["loss_type"] == "dapo" and program.planned == 7
    config = program.configure({"learning_rate": 0.2, "seed": 3})
    assert config.words(Path("/out"))[1:] == [
        "train.py",
        "--learning_rate",
        "0.2",
        "--loss_type",
        "dapo",
        "--seed",
        "3",
    ]
    assert config.model_dump(mode="json")["learning_rate"] == 0.2


@contextmanager
def trial(tmp_path, script, stall_s=60.0, launcher="", *, preload=(), name="c000-s0", scoring=None):
    """A trial of a Python script in the rank's own process, begun."""
    (tmp_path / "script.py").write_text(script)
    run_dir = tmp_path / "trials" / name
    run_dir.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, str(tmp_path / "script.py"), "{out}"]
    if launcher:
        command = ["sh", "-c", launcher, *command]
    program = CommandProgram(
        command=command, defaults={"x": 1.5}, tracking=OFFLINE, preload=list(preload)
    )
    context = RunContext(run_dir, tmp_path, "demo", "name")
    assignment = Assignment(
        name,
        program.configure({"seed": 4}),
        context,
        tmp_path / "stop",
        stall_timeout_s=stall_s,
        scoring=scoring,
    )
    run = program.start(assignment)
    errors = os.dup(2)
    with (run_dir / "stderr.log").open("ab") as log:
        os.dup2(log.fileno(), 2)
    try:
        run.resume()
        yield run
    finally:
        run.close("KILLED")
        os.dup2(errors, 2)
        os.close(errors)


def test_a_command_gets_its_values_and_gives_lines(tmp_path, monkeypatch):
    script = """
import json, os, sys
config = json.load(open(os.environ["LOPTUNE_CONFIG"]))
resume = int(os.environ["LOPTUNE_RESUME"])
line = {"step": 1, "eval/accuracy": config["x"], "seed": config["seed"], "resume": resume}
assert os.environ["LOPTUNE_OUT"] == sys.argv[1] and os.environ["LOPTUNE_SEED"] == "4"
assert "RANK" not in os.environ
assert os.environ["OMP_NUM_THREADS"] == "4", "of each of two ranks"
assert os.environ["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] == "300", "as long as the sweep waits"
print("[loptune]", json.dumps(line))
second = '{"step": 2, "eval/accuracy": 0.25, "name": "x", "time/step": 9}\\n'
open(sys.argv[1] + "/metrics.jsonl", "a").write(second)
"""
    for name, value in (("RANK", "0"), ("OMP_NUM_THREADS", "8"), ("CUDA_VISIBLE_DEVICES", "2,3")):
        monkeypatch.setenv(name, value)
    root = tmp_path / "trials" / "c000-s0"
    (root / "out").mkdir(parents=True)  # by a rank that died before it started the command
    with trial(tmp_path, script) as run:
        lines = [run.train_until_evaluation(), run.train_until_evaluation()]
        assert sorted(line["step"] for line in lines) == [1, 2] and not run.done
        assert {"step": 1, "eval/accuracy": 1.5, "seed": 4, "resume": 0} in lines
        run.train_until_evaluation()
        assert run.done
    with trial(tmp_path, script.replace('"step": 1', '"step": 3')) as run:
        assert run.train_until_evaluation() == {
            "step": 3,
            "eval/accuracy": 1.5,
            "seed": 4,
            "resume": 1,
        }
    record = read_records(root / "metrics.jsonl")
    assert record
    assert all("time/step" not in line and "time/evaluation" in line for line in record)


def test_the_records_own_seconds_are_no_metric_of_the_command(tmp_path):
    """After a resume they are in the record, and the hint named them as what the script logged."""
    record = tmp_path / "trials" / "c000-s0" / "metrics.jsonl"
    record.parent.mkdir(parents=True)
    record.write_text('{"step": 0, "time": 1.0, "time/evaluation": 2.5}\n')
    with trial(tmp_path, "pass") as run, refused("metric-not-logged", ConfigError) as caught:
        while not run.done:
            run.train_until_evaluation()
    assert "time/evaluation" not in caught.value.hint


def test_a_file_that_a_command_writes_anew_repeats_no_line(tmp_path):
    script = """
import json, sys
with open(sys.argv[1] + "/metrics.jsonl", "w") as file:
    for step, score in SCORES:
        line = {"step": step, "eval/accuracy": score, "loss": None}
        print(json.dumps(line), file=file, flush=True)
"""
    for scores in ([(1, 0.5), (2, 0.625), (3, 0.75)], [(1, 0.5), (2, 0.875)]):
        with trial(tmp_path, script.replace("SCORES", str(scores))) as run:
            while not run.done:
                run.train_until_evaluation()
    record = read_records(tmp_path / "trials" / "c000-s0" / "metrics.jsonl")
    evaluated = [
        (line["step"], line["eval/accuracy"]) for line in record if "eval/accuracy" in line
    ]
    # steps 2 and 3 of the first process are later than the second one's first line
    assert evaluated == [(1, 0.5), (2, 0.875)]


def test_steps_that_decrease_are_refused(tmp_path):
    script = """
import json
for step in (3, 2, 1):
    print("[loptune]", json.dumps({"step": step, "eval/accuracy": 1 / step}), flush=True)
"""
    with trial(tmp_path, script) as run:
        assert run.train_until_evaluation()["step"] == 3
        with refused("steps-decrease", ConfigError, "step") as caught:
            run.train_until_evaluation()
    assert Failure.of(caught.value, "").by_settings


COMPOSITE = Scoring(("math", "amc"))


def test_an_evaluation_ends_when_its_step_has_every_metric_of_the_score(tmp_path):
    """Each benchmark has its own line, as evaluation harnesses print them."""
    script = """
import json
for step in (1, 2):
    for name, score in (("math", 0.5), ("loss", 9.0), ("amc", 0.25 * step)):
        print("[loptune]", json.dumps({"step": step, name: score}), flush=True)
print("[loptune]", json.dumps({"step": 3, "math": 0.75}), flush=True)
"""
    with trial(tmp_path, script, scoring=COMPOSITE) as run:
        ends = [run.train_until_evaluation() for _ in range(3)]
        assert run.done
    assert ends == [
        {"step": 1, "math": 0.5, "loss": 9.0, "amc": 0.25},
        {"step": 2, "math": 0.5, "loss": 9.0, "amc": 0.5},
        {"step": 3},  # ended without amc
    ]


def test_an_evaluation_that_two_processes_log_ends_once(tmp_path):
    script = """
import sys
print('[loptune] {"step": 1, "NAME": 0.5}', flush=True)
sys.exit(CODE)
"""
    first = script.replace("NAME", "math").replace("CODE", "7")
    with (
        trial(tmp_path, first, scoring=COMPOSITE) as run,
        pytest.raises(RuntimeError, match="ended with 7"),
    ):
        run.train_until_evaluation()
    second = script.replace("NAME", "amc").replace("CODE", "0")
    with trial(tmp_path, second, scoring=COMPOSITE) as run:
        assert run.train_until_evaluation() == {"step": 1, "math": 0.5, "amc": 0.5}


def test_a_metric_of_a_composite_that_is_never_logged_is_named(tmp_path):
    script = """
print('[loptune] {"step": 1, "math": 0.5, "amc23": 0.5}')
"""
    with (
        trial(tmp_path, script, scoring=COMPOSITE) as run,
        refused("metric-not-logged", ConfigError, "amc") as caught,
    ):
        run.train_until_evaluation()
    assert "amc23" in caught.value.hint


def test_an_argument_above_the_limit_of_linux_names_the_file_with_every_value(tmp_path):
    with trial(tmp_path, "") as run:
        run._assignment.config.command.append("x" * 200_000)
        with refused("argument-too-long", ConfigError, "program.command") as caught:
            run.train_until_evaluation()
    assert "LOPTUNE_CONFIG" in caught.value.hint
    assert Failure.of(caught.value, "").by_settings


def test_a_progress_bar_without_newlines_is_read_once(tmp_path):
    path = tmp_path / "stdout.log"
    lines = _Lines(path, "[loptune]", ("acc",))
    path.write_bytes(b"")
    frames = 0
    for _ in range(50):
        with path.open("ab") as file:
            file.write(b"\repoch 1" + b"#" * 2000)
        assert list(lines.new(ended=False)) == []
        offset, last = lines.position
        frames += path.stat().st_size - offset  # what the next call reads again
        assert len(last) <= 256
    assert frames < 50 * 2100
    with path.open("ab") as file:
        file.write(b"." * 200_000)  # no carriage return either
    assert list(lines.new(ended=False)) == []
    assert path.stat().st_size - lines.position[0] < 100
    with path.open("ab") as file:
        file.write(b'[loptune] {"step": 1, "acc": 0.5}\n')
    assert [(line["step"], line["acc"]) for line in lines.new(ended=False)] == [(1, 0.5)]
    assert list(lines.new(ended=False)) == []


REPORTS = """
import os, pathlib, sys
marker = pathlib.Path(sys.argv[1], "processes")
count = int(marker.read_text()) if marker.exists() else 0
marker.write_text(str(count + 1))
lines, ends = PROCESSES[count]
for step, score in lines:
    text = f'{{"step": {step}, "eval/accuracy": {score}}}'
    if WAY == "stdout":
        print("[loptune]", text, flush=True)
    else:
        open(sys.argv[1] + "/metrics.jsonl", "a").write(text + "\\n")
sys.exit(ends)
"""


@pytest.mark.parametrize("way", ["stdout", "file"])
@pytest.mark.parametrize(
    ("processes", "last", "dropped"),
    [
        # the first process got further than the one that finished
        (
            [([(1, 0.7), (2, 0.8), (3, 0.9)], 1), ([(1, 0.1), (2, 0.2)], 0)],
            {1: 0.1, 2: 0.2},
            [2, 3],
        ),
        # it repeats the first process's values, and ends earlier
        (
            [([(1, 0.7), (2, 0.8), (3, 0.9)], 1), ([(1, 0.7), (2, 0.8)], 0)],
            {1: 0.7, 2: 0.8},
            [2, 3],
        ),
        # it resumes from step 2
        ([([(1, 0.7), (2, 0.8), (3, 0.9)], 1), ([(3, 0.4)], 0)], {1: 0.7, 2: 0.8, 3: 0.4}, []),
        # three processes: the lines of the first are not read again by the third
        (
            [([(1, 0.7), (2, 0.8), (3, 0.9)], 1), ([(1, 0.1), (2, 0.2)], 1), ([(3, 0.3)], 0)],
            {1: 0.1, 2: 0.2, 3: 0.3},
            [2, 3],
        ),
        # a value that returns to an earlier one, within one process and after an earlier one
        ([([(0, 0.5), (0, 0.7), (0, 0.5)], 0)], {0: 0.5}, []),
        ([([(0, 0.5)], 1), ([(0, 0.5), (0, 0.7), (0, 0.5)], 0)], {0: 0.5}, []),
        ([([(1, 0.3), (2, 0.4), (2, 0.6), (2, 0.4)], 0)], {1: 0.3, 2: 0.4}, []),
    ],
)
def test_later_steps_of_an_abandoned_process_are_dropped(tmp_path, way, processes, last, dropped):
    script = f"PROCESSES = {processes!r}; WAY = {way!r}\n{REPORTS}"
    for _, ends in processes:
        with trial(tmp_path, script) as run, pytest.raises(RuntimeError) if ends else nullcontext():
            while not run.done:
                run.train_until_evaluation()
    root = tmp_path / "trials" / "c000-s0"
    assert recorded_values(root / "metrics.jsonl", "eval/accuracy") == last
    assert run.history == last  # handed over without reading the record again
    abandoned = read_records(root / "abandoned.jsonl")
    assert [line["step"] for line in abandoned if "eval/accuracy" in line] == dropped


def test_solved_problems_of_an_abandoned_process_are_dropped(tmp_path):
    script = """
import json, os, sys
count = int(os.environ["LOPTUNE_RESUME"])
for step in (1, 2) if count else (1, 2, 3):
    with open(sys.argv[1] + "/correctness.jsonl", "a") as file:
        file.write(json.dumps({"step": step, "process": count}) + "\\n")
    print("[loptune]", json.dumps({"step": step, "eval/accuracy": count + step}), flush=True)
sys.exit(1 - count)
"""
    for ends in (1, 0):
        with trial(tmp_path, script) as run, pytest.raises(RuntimeError) if ends else nullcontext():
            while not run.done:
                run.train_until_evaluation()
    record = read_records(tmp_path / "trials" / "c000-s0" / "correctness.jsonl")
    assert [(line["process"], line["step"]) for line in record] == [(0, 1), (1, 1), (1, 2)]


@pytest.mark.parametrize(
    ("script", "what"),
    [
        ("raise SystemExit('no such loss')", "1: no such loss"),
        ("import os; os.kill(os.getpid(), 9)", "SIGKILL"),
        ("import os; os.kill(os.getpid(), 35)", "killed by signal 35"),  # without a name
        ("import time; time.sleep(60)", "limits.stall_timeout_s"),
    ],
)
def test_a_trial_that_fails_says_why(script, what, tmp_path):
    with trial(tmp_path, script, stall_s=60.0 if "sleep" not in script else 1.0) as run:
        with pytest.raises(RuntimeError) as failed:
            run.train_until_evaluation()
        assert what in str(failed.value)


def test_a_full_disk_is_not_the_commands_failure(tmp_path):
    script = "raise SystemExit('[Errno 28] No space left on device')"
    with trial(tmp_path, script) as run, pytest.raises(OSError, match="No space left"):
        run.train_until_evaluation()


@pytest.mark.parametrize(
    ("line", "code", "named"),
    [
        ("", "metric-not-logged", "eval/accuracy"),
        ({"step": 1, "eval_accuracy": 1}, "metric-not-logged", "did you mean eval_accuracy?"),
        ({"step": 1, "eval": {"accuracy": 1}}, "metric-not-logged", "eval/accuracy"),
        ({"step": 1, "eval/accuracy": "0.5"}, "metric-not-a-number", "0.61"),
        ({"step": 1, "eval/accuracy": "NaN"}, "metric-not-a-number", "NaN"),
        ({"step": 1, "eval/accuracy": [0.5]}, "metric-not-a-number", "0.61"),
        ({"step": 1, "eval/accuracy": {"mean": 0.5}}, "metric-not-a-number", "0.61"),
        ({"eval/accuracy": 1}, "invalid-metric-line", "step"),
        ({"step": 0.5, "eval/accuracy": 1}, "invalid-metric-line", "step"),
        ({"step": -1, "eval/accuracy": 1}, "invalid-metric-line", "step"),
        ([1], "invalid-metric-line", "step"),
        ("eval/accuracy 1", "invalid-metric-line", "step"),
    ],
)
def test_a_line_without_a_score_says_why(line, code, named, tmp_path):
    text = line if isinstance(line, str) else json.dumps(line)
    script = f"print({'[loptune] ' + text!r})" if text else "pass"
    with trial(tmp_path, script) as run, refused(code, ConfigError) as caught:
        while not run.done:
            run.train_until_evaluation()
    assert named in caught.value.hint
    assert "eval/accuracy" in str(caught.value)
    assert Failure.of(caught.value, "").by_settings


@pytest.mark.parametrize(
    ("script", "by_settings"),
    [
        ("raise ValueError('loss is nan')", True),
        ("raise MemoryError", False),
        ("raise RuntimeError('CUDA out of memory. Tried 2 GiB')", False),
        ("raise RuntimeError('[enforce fail] Cannot allocate memory')", False),
        ("import os; os.kill(os.getpid(), 9)", False),
    ],
)
def test_a_command_that_lacked_memory_or_was_killed_is_no_evidence(script, by_settings, tmp_path):
    with trial(tmp_path, script) as run, pytest.raises(RuntimeError) as caught:
        run.train_until_evaluation()
    assert isinstance(caught.value, CommandError) == by_settings
    assert Failure.of(caught.value, "").by_settings == by_settings


@pytest.mark.parametrize(
    ("text", "score"),
    [("1", 1.0), ("true", 1.0), ("5e-1", 0.5), ('0.5, "note": "x"', 0.5), ("1e308", 1e308)],
)
def test_numbers_of_any_form_are_scores(text, score, tmp_path):
    line = f'[loptune] {{"step": "20", "eval/accuracy": {text}}}'
    with trial(tmp_path, f"print({line!r})") as run:
        assert run.train_until_evaluation()["eval/accuracy"] == score
        assert run.step == 20


def test_a_command_asked_to_stop_saves_and_ends_its_processes(tmp_path):
    script = """
import signal, subprocess, sys, time
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
open(sys.argv[1] + "/child", "w").write(str(child.pid))
def leave(*_):
    print('[loptune] {"step": 1, "loss": 0.5}')
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
open(sys.argv[1] + "/../../../stop", "w")
while True: time.sleep(0.05)
"""
    with trial(tmp_path, script) as run:
        folder = tmp_path / "trials" / "c000-s0" / "out"
        assert run.train_until_evaluation() == {"step": 1} and run.stopped and not run.done
        with pytest.raises(ProcessLookupError):
            os.kill(int((folder / "child").read_text()), 0)


def test_a_script_saves_though_its_launcher_dies_of_the_same_signal(tmp_path):
    script = """
import signal, sys, time
def save(*_):
    time.sleep(0.5)
    print('[loptune] {"step": 1, "loss": 0.5}')
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
open(sys.argv[1] + "/../../../stop", "w")
while True: time.sleep(0.05)
"""
    with trial(tmp_path, script, launcher='"$0" "$@"; echo ended') as run:
        assert run.train_until_evaluation() == {"step": 1} and run.stopped


def test_a_torn_line_is_cut_off_and_a_whole_one_needs_no_end(tmp_path):
    script = """
import os, sys
with open(sys.argv[1] + "/metrics.jsonl", "a") as file:
    file.write(LINES)
os.kill(os.getpid(), 9) if LINES.endswith("ev") else None
"""
    torn = '{"step": 1, "eval/accuracy": 0.5}\n{"step": 2, "ev'
    with trial(tmp_path, script.replace("LINES", repr(torn))) as run:
        assert run.train_until_evaluation()["eval/accuracy"] == 0.5
        with pytest.raises(RuntimeError, match="SIGKILL"):
            run.train_until_evaluation()
    whole = '{"step": 1, "loss": 0.25}\n{"step": 2, "eval/accuracy": 0.75}'
    with trial(tmp_path, script.replace("LINES", repr(whole))) as run:
        assert run.train_until_evaluation()["eval/accuracy"] == 0.75
        run.train_until_evaluation()
        assert run.done
    record = read_records(tmp_path / "trials" / "c000-s0" / "metrics.jsonl")
    losses = [line["loss"] for line in record if "loss" in line]
    assert losses == [0.25]  # new of a step that has been recorded


def test_a_command_ends_with_the_rank_that_started_it(tmp_path):
    write_project(tmp_path)
    code = (
        "import os, subprocess, sys, time; theirs, lifeline = os.pipe(); "
        "command = [sys.executable, '-m', 'sweep.programs.launch', str(theirs), 'sleep', '600']; "
        "print(subprocess.Popen(command, pass_fds=(theirs,)).pid, flush=True); os.close(theirs); "
        "time.sleep(600)"
    )
    rank = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    launched = int(rank.stdout.readline())
    rank.send_signal(signal.SIGKILL)
    rank.wait()
    rank.stdout.close()
    deadline = time.monotonic() + 30
    while Path(f"/proc/{launched}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{launched}").exists()


def test_a_sample_needs_loptunes_trainer(tmp_path, typed):
    printed = typed("sweep plan --sample 4", space_in(tmp_path), code=2)
    assert "[no-sample]" in printed


KEYS = {"lr": 0.1, "+optim.lr": 0.1, "model@net": "small", "~x": "y", "note": "a b; touch c"}


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("+optim.lr={+optim.lr}", "+optim.lr=0.1"),
        ("{model@net}{~x}", "smally"),
        ("{{print}} {{1..3}}", "{print} {1..3}"),
        ('{"a": {"b": 1}}', '{"a": {"b": 1}}'),
        ('{"a":{"b":{lr}}}', '{"a":{"b":0.1}}'),
        ("${HOME} {} {print $1}", "${HOME} {} {print $1}"),
        ("{note}", "a b; touch c"),
    ],
)
def test_keys_of_any_form_are_replaced_and_other_braces_stay(word, text, tmp_path):
    program = CommandProgram(command=["true", word], defaults=KEYS)
    assert program.configure({}).words(tmp_path) == ["true", text]


def refusal_of(command):
    """The code and the hint of the error that refuses a command."""
    with pytest.raises(ValidationError) as caught:
        CommandProgram(command=command, defaults=KEYS)
    [error] = caught.value.errors()
    return error["type"], error["ctx"]["hint"]


@pytest.mark.parametrize(
    ("word", "code", "named"),
    [
        ("{+optim.lx}", "unknown-placeholder", "+optim.lr"),
        ("{print}", "unknown-placeholder", "{{print}}"),
        ("{{lr}}", "unreplaced-placeholder", "{lr}"),
        ("{+optim.lr:.3f}", "unreplaced-placeholder", "{+optim.lr}"),
        ("x={lr?--lr}", "flag-inside-word", "'{lr?--flag}'"),
        ("{lr?lr}", "flag-inside-word", "'{lr?--flag}'"),
        ("${program}", "wandb-word", "train.py"),
        ("${interpreter}", "wandb-word", "python"),
        ("${env}", "wandb-word", "leave it out"),
        ("${envvar:HOME}", "wandb-word", "{KEY}"),
        ("${args_json_file}", "wandb-word", "$LOPTUNE_CONFIG"),
        ("--all=${args}", "wandb-word", "whole word"),
    ],
)
def test_what_looks_like_a_key_is_refused_with_what_to_write(word, code, named):
    found, hint = refusal_of(["true", word])
    assert found == code and named in hint


@pytest.mark.parametrize(
    ("word", "words"),
    [
        ("${args}", ["--lr=0.1", "--packing=true", "--data=a b", "--seed=3"]),
        ("${args_no_boolean_flags}", ["--lr=0.1", "--packing", "--data=a b", "--seed=3"]),
        ("${args_no_hyphens}", ["lr=0.1", "packing=true", "data=a b", "seed=3"]),
        ("${args_json}", ['{"lr": 0.1, "packing": true, "data": "a b", "seed": 3}']),
    ],
)
def test_the_words_of_wandb_for_all_values(word, words, tmp_path):
    keys = {"lr": 0.1, "packing": True, "data": "a b", "apart": 1}
    program = CommandProgram(command=["true", word, "{apart}"], defaults=keys)
    assert program.configure({"seed": 3}).words(tmp_path) == ["true", *words, "1"]
    assert list(program.advice({"lr": []})) == []


SHELLS = [
    ["sh", "-c"],
    ["/bin/bash", "-ec"],
    ["env", "A=1", "bash", "-euo", "pipefail", "-c"],
    ["bash", "-c", "--"],
    ["bash", "--norc", "-lc"],
    ["nice", "-n", "1", "sh", "-c"],
    ["timeout", "9", "/usr/bin/env", "-i", "/bin/sh", "-c"],
    ["nohup", "setsid", "bash", "+e", "-c"],
]


@pytest.mark.parametrize("shell", SHELLS)
def test_a_value_in_a_shells_script_is_one_word(shell, tmp_path):
    script = "printf '<%s>' --name={note} {{x}} $1 # it's"
    words = [*shell, script, "name", "{note}"]
    config = CommandProgram(command=words, defaults=KEYS).configure({})
    printed = subprocess.run(config.words(tmp_path), cwd=tmp_path, capture_output=True, text=True)
    assert printed.stdout == "<--name=a b; touch c><{x}><a><b;><touch><c>"
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("command", "position"),
    [
        (["su", "-", "bob", "-c", "train {note}"], 4),
        (["sudo", "su", "-lc", "train {note}", "bob"], 3),
        (["su", "--command=train {note}"], 1),
        (["runuser", "-u", "bob", "-c", "train {note}"], 4),
        (["script", "-qec", "train {note}", "log"], 2),
        (["flock", "/tmp/lock", "-c", "train {note}"], 3),
        (["flock", "-w", "5", "/tmp/lock", "-c", "train {note}"], 5),
        (["su", "bob", "--", "-c", "train {note}"], 4),
        (["nix-shell", "-p", "python", "--run", "train {note}"], 4),
        (["sbatch", "--wait", "--wrap", "train {note}"], 3),
        (["sbatch", "--wait", "--wrap=train {note}"], 2),
        (["xargs", "-I", "X", "sh", "-c", "train {note} X"], 5),
    ],
)
def test_a_value_in_the_script_of_another_command_is_quoted(command, position, tmp_path):
    words = CommandProgram(command=command, defaults=KEYS).configure({}).words(tmp_path)
    assert "train 'a b; touch c'" in words[position]


@pytest.mark.parametrize(
    "script",
    [
        "echo '{note}'",
        'echo "{note}"',
        'echo "$(echo "{note}")"',
        "echo `echo {note}`",
        "echo $'it\\'s {note}'",
        "echo \\{note}",
        "true # {note}",
        "cat <<END\n{note}\nEND",
        "echo $(( {note} + 1 ))",
        "eval echo {note}",
        "x={note}; eval echo $x",
        "ssh host train {note}",
        "env -S {note}",
        "true | xargs -I X train {note}",
        "bash -lc {note}",
        "watch train {note}",
        "su bob -c {note}",
        "trap {note} EXIT",
        "true;eval echo {note}",
        "\\eval echo {note}",
        "/usr/bin/ssh host train {note}",
        "/usr/bin/env -iS {note}",
    ],
)
def test_a_value_that_a_script_would_read_again_is_refused(script):
    for shell in (["env", "bash", "-lc"], ["su", "bob", "-c"]):
        code, hint = refusal_of([*shell, script])
        assert code == "value-in-shell-text" and "{note}" in hint
    CommandProgram(command=["bash", "-c", script.replace("{note}", "1")], defaults=KEYS)


@pytest.mark.parametrize(
    "word", ["eval/accuracy", "--metric=eval", "runs/eval", "eval.yaml", "a-eval"]
)
def test_a_word_that_contains_a_commands_name_is_not_that_command(word):
    command = ["sh", "-c", f"train {word} {{note}}"]
    assert CommandProgram(command=command, defaults=KEYS).command == command


@pytest.mark.parametrize(
    "command",
    [
        ["ssh", "host", "python", "train.py", "{note}"],
        ["ssh", "host", "python train.py --note {note}"],
        ["ssh", "host", "bash", "-c", "train {note}"],
        ["watch", "-n", "1", "train {note}"],
        ["env", "-S", "python train.py {note}"],
        ["/usr/bin/env", "-iS", "python", "{note}"],
        ["env", "--split-string=python {note}"],
        ["fish", "-c", "train {note}"],
        ["pwsh", "-NoProfile", "-Command", "train {note}"],
        ["csh", "-fc", "train {note}"],
        ["parallel", "train", ":::", "{note}"],
        ["make", "train", "NOTE={note}"],
        ["python", "-c", "print('{note}')"],
        ["python3.11", "-c", "print('{note}')"],
        ["python", "-W", "ignore", "-uc", "print('{note}')"],
        ["perl", "-e", "print '{note}'"],
        ["perl", "-e", "1;", "-0777ne", "print '{note}'"],
        ["perl", "-e{note}"],
        ["node", "--require", "x", "--eval={note}"],
        ["node", "-pe", "{note}"],
        ["julia", "-O2", "--startup-file", "no", "-e", "{note}"],
        ["awk", "BEGIN {print {note}}"],
    ],
)
def test_text_where_no_quoting_helps_is_refused(command):
    code, hint = refusal_of(command)
    assert code == "value-in-shell-text" and "{note}" in hint
    CommandProgram(command=[word.replace("{note}", "{lr}") for word in command], defaults=KEYS)


@pytest.mark.parametrize(
    "command",
    [
        ["python", "train.py", "-c", "{note}"],
        ["python", "-u", "-Xdev", "-W", "ignore", "train.py", "-c", "{note}"],
        ["python", "-m", "pkg", "-config={note}"],
        ["python", "-mexec", "{note}"],
        ["node", "-r", "ts-node", "t.js", "-p", "{note}"],
        ["perl", "-I", "lib", "t.pl", "-eta", "{note}"],
        ["Rscript", "a.R", "-eta={note}"],
        ["php", "-f", "t.php", "-r", "{note}"],
        ["flock", "/tmp/l", "python", "t.py", "-c", "{note}"],
        ["flock", "-w", "5", "/tmp/l", "./train", "-c", "{note}"],
        ["runuser", "-u", "bob", "--", "./train", "-c", "{note}"],
    ],
)
def test_the_options_of_the_program_itself_are_no_code(command, tmp_path):
    words = CommandProgram(command=command, defaults=KEYS).configure({}).words(tmp_path)
    assert words[1:] == [word.replace("{note}", "a b; touch c") for word in command[1:]]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (True, ["--packing"]),
        (False, []),
        (None, []),
        ("a b", ["--packing=a b"]),
        (0, ["--packing=0"]),
        ([1, 2], ["--packing=[1, 2]"]),
    ],
)
def test_a_flag_is_present_or_left_out(value, words, tmp_path):
    program = CommandProgram(command=["true", "{x?--packing}", "end"], defaults={"x": value})
    assert program.configure({}).words(tmp_path) == ["true", *words, "end"]
    assert list(program.advice({"x": []})) == []


def test_all_metrics_of_an_output_line_count(tmp_path):
    script = """
first, second = [f'[loptune] {{"step": {step}, "eval/accuracy": 0.{step}, "n": "[loptune]"}}'
                 for step in (1, 2)]
print("10%", first, "20%" + second, "done")
"""
    with trial(tmp_path, script) as run:
        lines = []
        while not run.done:
            lines.append(run.train_until_evaluation())
    assert [(line["step"], line.get("eval/accuracy")) for line in lines[:2]] == [(1, 0.1), (2, 0.2)]
