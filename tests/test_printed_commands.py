"""Commands that messages print: each is typed here in the state in which it is printed.

`SITES` lists every place of the code that prints one, with how it is checked. Whoever adds a place
adds a line. Commands that would train start no training here: they run up to the driver.
"""

import ast
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

from dashboards.headline import confirmation_sentences
from loptune.errors import ConfigError, StorageError
from loptune.run_names import command_line, lock_folder
from sweep.driver import run as driver
from sweep.driver.control import StopControl
from sweep.driver.resume_options import check_checkpoints
from sweep.record.folder import write_spec
from sweep.record.results import read_results
from sweep.record.sweep_record import SweepRecord, open_sweep, report_errors_printed
from sweep.search.event_log import EventLog
from sweep.search.history import PLAN
from sweep.space.source import SpaceSource, write_source
from sweep.tracking.publish_report import send_report
from sweep.trials import trainable
from tests.paths import ROOT
from tests.sweep.ended_sweeps import write_sweep
from tests.tables import table
from tests.test_messages import PACKAGES, texts
from tests.trainer.commands.test_runs import EVALUATIONS, write_run
from trainer.commands.run import report_outcome
from trainer.config.schema import load_config
from trainer.run_folder import RunFolder

VERBS = (
    "run|resume|status|stop|confirm|export|report|upload|ui|plan|ls|init|presets|options|metrics|"
    "evaluate|rehearse|doctor|serve|schema|judge|gate|noise|mcp|extend|study|clean"
)
COMMAND = re.compile(rf"(?:^|(?<=[`\s:(]))((?:sweep|trainer) (?:{VERBS})\b)")
# printed where the folder of runs is not the default one, so that it stands in each command
PLACED = re.compile(rf"(?:sweep|trainer) (?:{VERBS}) [^`,\n]*?--runs-dir [\w./-]+")
NAMED = re.compile(rf"(?:sweep|trainer) (?:{VERBS}) (?:demo|r)\b")
BUILDERS = ("command", "resume_command", "command_line")
SITES: dict[str, str | dict[str, str]] = table("printed_commands")
# how a place is checked
KINDS = {
    "here": "typed by a test of this file in the state in which it is printed",
    "word": "no command to type at this place, such as the name of a program",
}


def without_examples(tree: ast.Module) -> ast.Module:
    """Leave the examples of help screens out: tests/test_printed_examples.py types all of them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", "")
            node.keywords = [word for word in node.keywords if word.arg != "example"]
            if name == "printing_command":
                node.args = node.args[:1]
    return tree


def sites() -> Iterator[str]:
    """Yield ``FILE: PROGRAM VERB`` or ``FILE: BUILDER(VERB)`` for each printed command."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            file = path.relative_to(ROOT).as_posix()
            tree = without_examples(ast.parse(path.read_text(encoding="utf-8")))
            for text in texts(tree):
                for match in COMMAND.finditer(text):
                    yield f"{file}: {match[1].strip()}"
            for node in ast.walk(tree):
                if not isinstance(node, ast.Call):
                    continue
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                if name in BUILDERS:
                    words = [word.value for word in node.args if isinstance(word, ast.Constant)]
                    verbs = " ".join(word for word in words if isinstance(word, str))
                    if name == "command" and not verbs:
                        continue  # another function of that name
                    yield f"{file}: {name}({verbs})"


def test_every_place_that_prints_a_command_is_listed():
    found = set(sites())
    assert found - set(SITES) == set(), "add these places to tests/data/printed_commands.yaml"
    assert set(SITES) - found == set(), "these places are gone"
    for site, how in SITES.items():
        if isinstance(how, dict):  # a line with names filled in: tests/test_printed_examples.py
            continue
        kind, _, test = how.partition(" ")
        assert kind in KINDS or kind == "test", site
        if kind == "test":  # in another file: path::name
            path, _, name = test.partition("::")
            assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), site


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A folder of runs other than the default of the folder where commands are typed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["sweep"])
    return tmp_path / "other"


@pytest.fixture
def started(monkeypatch) -> list[SweepRecord]:
    """Sweeps that a command would run: it ends where the driver would start."""
    sweeps: list[SweepRecord] = []
    for name in ("start_sweep", "resume_sweep"):
        monkeypatch.setattr(driver, name, lambda sweep, options: sweeps.append(sweep) or 0)
    return sweeps


@pytest.fixture
def typing(capsys):
    """Types a printed command and returns what it prints; it must end with exit code 0.

    A confirmation in rounds of which no round runs ends as one that was interrupted.
    """

    def carry_out(line: str, code: int = 0) -> str:
        program, *words = shlex.split(line)
        ends = code or (130 if "--rounds" in words else 0)
        assert import_module(f"{program}.cli").main(words) == ends, capsys.readouterr()
        printed = capsys.readouterr()
        return printed.out + printed.err

    return carry_out


def printed_commands(text: str) -> list[str]:
    """The commands in a text; each names the folder of runs."""
    found = PLACED.findall(text)
    assert len(NAMED.findall(text)) == len(found), text
    return found


ENDED = {0: {0: 0.5, 1: 0.52, 2: 0.51}, 1: {0: 0.6, 1: 0.63, 2: 0.61}}


def test_commands_of_a_status_and_report(elsewhere, typing, started):
    write_sweep(elsewhere, "demo", {0: {0: 0.5, 1: 0.6}, 1: {0: 0.9}})
    place = f"--runs-dir {elsewhere}"
    shown = typing(f"sweep status demo {place}") + typing(f"sweep report demo {place}")
    lines = printed_commands(shown)
    verbs = {line.split()[1] for line in lines}
    assert {"resume", "report"} <= verbs, shown
    for line in lines:
        typing(line)
    assert {sweep.folder.runs_dir for sweep in started} == {elsewhere.resolve()}


def test_commands_where_nothing_has_been_started(elsewhere, typing, started):
    elsewhere.mkdir()
    refused = typing(f"sweep status --runs-dir {elsewhere}", code=3)
    refused += typing(f"trainer status --runs-dir {elsewhere}", code=3)
    sweep, run = re.findall(r"next: +(.*)", refused)
    typing(f"{sweep} --runs-dir {elsewhere}")
    assert started[0].folder.runs_dir == elsewhere.resolve()
    typing(f"{run} --dry-run --runs-dir {elsewhere}")


def test_commands_of_an_undecided_search_and_its_export(elsewhere, typing, started):
    write_sweep(elsewhere, "demo", ENDED)
    shown = typing(f"sweep report demo --runs-dir {elsewhere}")
    page = (elsewhere / "demo" / "report" / "report.html").read_text(encoding="utf-8")
    page = re.sub(r'<span style="white-space: nowrap">(.*?)</span>', r"\1", page)
    shown += "\n".join(re.findall(r"<code>(sweep \w+ demo.*?)</code>", page))
    lines = printed_commands(shown)
    assert any(line.startswith("sweep confirm demo") for line in lines), shown
    for line in lines:
        typing(line)
        shutil.rmtree(elsewhere / "demo-confirm", ignore_errors=True)  # they are alternatives
    assert started


def test_commands_of_a_confirmation_that_exists(elsewhere, typing, started):
    write_sweep(elsewhere, "demo", ENDED)
    place = f"--runs-dir {elsewhere}"
    typing(f"sweep confirm demo {place}")
    (fresh,) = started
    write_sweep(
        elsewhere,
        fresh.folder.name,
        {0: {7: 0.5}},
        confirms={"sweep": "demo", "configurations": [0, 1]},
        search={"configurations": 0},
    )
    refused = typing(f"sweep confirm demo {place}", code=2)
    assert "[sweep-exists]" in refused
    (line, *_) = printed_commands(refused)
    typing(line)


def test_commands_of_an_incomplete_configuration(elsewhere, typing):
    write_sweep(elsewhere, "demo", {0: {}, 1: {}})
    place = f"--runs-dir {elsewhere}"
    for words in ("export demo", "export demo --configuration 1"):
        refused = typing(f"sweep {words} {place}", code=3)
        (line,) = printed_commands(refused)
        typing(line)


def test_commands_of_a_sweep_in_use(elsewhere, typing, started):
    sweep = write_sweep(elsewhere, "demo", ENDED)
    from loptune.errors import NameInUseError
    from loptune.run_names import raise_if_locked

    with lock_folder(sweep.folder.root, "sweep"), pytest.raises(NameInUseError) as held:
        raise_if_locked(sweep.folder.root, "sweep")
    lines = printed_commands(str(held.value))
    assert [line.split()[1] for line in lines] == ["status", "stop"]
    for line in lines:
        typing(line)


def test_commands_of_a_run_that_stopped_and_one_in_a_sweep(elsewhere, typing, monkeypatch):
    write_run(elsewhere, "r")
    resumed: list[Path] = []

    def start_run(start):
        resumed.append(Path(start.spec).resolve())
        return 0

    monkeypatch.setattr("trainer.commands.start.start_run", start_run)
    place = f"--runs-dir {elsewhere}"
    refused = typing(f"trainer stop r {place}", code=3)
    shown = typing(f"trainer status r {place}")
    lines = printed_commands(refused + shown)
    assert [line.split()[1] for line in lines] == ["resume", "resume"]
    for line in lines:
        typing(line)
    assert resumed == [RunFolder(elsewhere / "r").config.resolve()] * 2


def test_commands_of_a_sweep_taken_for_a_run(elsewhere, typing):
    write_sweep(elsewhere, "demo", ENDED)
    refused = typing(f"trainer status demo --runs-dir {elsewhere}", code=3)
    (line,) = printed_commands(refused)
    typing(line)


def test_commands_of_a_trial_that_is_stopped(elsewhere, typing):
    sweep = write_sweep(elsewhere, "demo", ENDED)
    trial = write_run(sweep.folder.root / "trials", "c000-s0")
    with lock_folder(trial):
        refused = typing(f"trainer stop {shlex.quote(str(trial))}", code=2)
    (line,) = printed_commands(refused)
    typing(line)


def test_commands_of_a_plan(elsewhere, typing, started, tmp_path):
    from tests.sweep.spaces import kk_space

    space = kk_space(tmp_path)
    shown = typing(f"sweep plan {space} --runs-dir {elsewhere}")
    lines = re.findall(r"^  (sweep run .*)$", shown, re.M)
    assert lines
    for line in lines:
        typing(line)
    assert {sweep.folder.runs_dir for sweep in started} == {elsewhere.resolve()}


FRESH = {0: {7: 0.5, 8: 0.51}, 1: {7: 0.6, 8: 0.615}}
CONFIRMS = {"sweep": "demo", "configurations": [0, 1]}


def write_fresh(runs, scores, seeds, *events):
    """A confirmation of the sweep ``demo``."""
    listed = {"search": {"configurations": 0}, "confirms": CONFIRMS}
    fresh = write_sweep(runs, "demo-confirm", scores, **listed)
    write_spec(fresh.folder, fresh.spec.model_copy(update={"seeds": seeds}))
    EventLog(fresh.folder.event_log).append(*events)


def test_commands_of_a_confirmation_in_rounds(elsewhere, typing, started):
    write_sweep(elsewhere, "demo", ENDED)
    place = f"--runs-dir {elsewhere}"
    (first,) = printed_commands(typing(f"sweep confirm demo --again {place}", code=3))
    typing(first)
    design = {"analyses": [5, 10], "finalists": 1, "worthwhile": 0.02}
    design |= {"efficacy": [2.0, 2.0], "futility": [2.0, 2.0]}
    plan = {"event": PLAN, "design": design, "sd": 0.01, "dof": 4}
    write_fresh(elsewhere, FRESH, [7, 8], plan)
    shown = [
        typing(f"sweep confirm demo {place}", code=2),
        typing(f"sweep confirm demo --again {place}", code=3),
        typing(f"sweep resume demo-confirm {place}"),
    ]
    for text in shown:
        lines = [line for line in printed_commands(text) if "--rounds" in line]
        assert lines, text
        for line in lines:
            typing(line)


def test_commands_of_a_confirmation_that_has_not_ended(elsewhere, typing, started):
    write_sweep(elsewhere, "demo", ENDED)
    write_fresh(elsewhere, FRESH, [7, 8, 9])
    refused = typing(f"sweep confirm demo --again --runs-dir {elsewhere}", code=3)
    (line,) = printed_commands(refused)
    typing(line)
    assert [sweep.folder.name for sweep in started] == ["demo-confirm"]


def test_commands_of_an_export_that_has_to_choose(elsewhere, typing, tmp_path):
    write_sweep(elsewhere, "demo", ENDED)
    write_fresh(elsewhere, {0: {7: 0.5, 8: 0.6}, 1: {7: 0.6, 8: 0.5}}, [7, 8])
    refused = typing(f"sweep export demo --runs-dir {elsewhere}", code=3)
    lines = printed_commands(refused)
    assert len(lines) == 2
    for number, line in enumerate(lines):
        typing(f"{line} --output {tmp_path}/{number}.yaml")


RULES = {
    "rule": {"choice": ["GRPO", "RLOO"]},
    "algorithm.advantage": {"by": {"rule": {"RLOO": "rloo"}}, "else": "grpo"},
    "optim.lr": {"loguniform": [1e-5, 1e-2]},
}


def write_rules(runs, name, scores, **space):
    """A sweep of two rules: number -> seed -> score; even numbers are GRPO's."""
    sweep = write_sweep(runs, name, {0: dict.fromkeys(scores[0], 0.0)}, parameters=RULES, **space)
    sweep.folder.event_log.unlink()
    log = EventLog(sweep.folder.event_log)
    for number, row in scores.items():
        rule = ("GRPO", "RLOO")[number % 2]
        settings = {"algorithm.advantage": rule.lower(), "optim.lr": (number + 1) * 1e-4}
        names = {"event": "configuration", "configuration": number, "fingerprint": str(number)}
        point = {"rule": rule, **settings}
        log.append({**names, "parameters": point, "resolved": settings, "time": 1.0})
        for seed, score in row.items():
            trial = {"event": "result", "trial_id": f"{number}{seed}", "configuration": number}
            ended = {"state": "COMPLETE", "reason": "", "step": 4, "time": 2.0}
            log.append({**trial, **ended, "seed": seed, "score": score})


@pytest.mark.parametrize(
    ("gain", "said", "exported"),
    [
        (-0.3, "RLOO is worse: -0.30", "grpo"),
        (0.3, "RLOO beats GRPO", "rloo"),
        (0.0, "none", "grpo"),
    ],
)
def test_commands_of_rules_on_fresh_seeds(elsewhere, typing, tmp_path, gain, said, exported):
    tuned = {"configurations": 8, "tune_within": "rule"}
    scores = {number: {0: 0.5 + number / 1000} for number in range(16)}
    write_rules(elsewhere, "demo", scores, search=tuned, baselines=[])
    best = {"sweep": "demo", "configurations": [14, 15], "tune_within": "rule"}
    noise = (0.0, 0.01, -0.01, 0.02, -0.02, 0.005, -0.005, 0.0)
    fresh = {
        0: {seed: 0.5 + noise[seed - 1] for seed in range(1, 9)},
        1: {seed: 0.5 + gain - noise[seed % 8] for seed in range(1, 9)},
    }
    points = [{"rule": rule, "optim.lr": lr} for rule, lr in (("GRPO", 1.5e-3), ("RLOO", 1.6e-3))]
    alone = {"search": {"configurations": 0}, "baselines": points, "confirms": best}
    write_rules(elsewhere, "demo-confirm", fresh, **alone)
    place = f"--runs-dir {elsewhere}"
    shown = typing(f"sweep status demo-confirm {place}")
    assert "GRPO lr=0.0001" in shown and "RLOO lr=0.0002" in shown  # the names of the arms
    verdict = "\n".join(confirmation_sentences(read_results(open_sweep(elsewhere, "demo"))))
    assert said in verdict
    (line,) = printed_commands(verdict)
    output = tmp_path / "best.yaml"
    typing(f"{line} --output {output}")
    assert load_config(str(output)).algorithm.advantage.name == exported


def test_commands_where_nothing_can_be_confirmed(elsewhere, typing):
    place = f"--runs-dir {elsewhere}"
    write_sweep(elsewhere, "demo", {0: {}, 1: {}})
    (line,) = printed_commands(typing(f"sweep confirm demo {place}", code=3))
    typing(line)
    shutil.rmtree(elsewhere / "demo")
    write_sweep(elsewhere, "demo", {0: {0: 0.5}})  # nothing besides the baseline
    (line,) = printed_commands(typing(f"sweep confirm demo --rounds {place}", code=3))
    typing(line)


def test_commands_of_a_warm_start_and_of_an_edited_space(elsewhere, typing, started, tmp_path):
    sweep = write_sweep(elsewhere, "demo", {0: {}, 1: {}})
    place = f"--runs-dir {elsewhere}"
    space = tmp_path / "my space.yaml"
    shutil.copy(sweep.folder.space, space)
    new = f"{shlex.quote(str(space))} --name other search.warm_start=[demo]"
    (line,) = printed_commands(typing(f"sweep plan {new} {place}", code=3))
    typing(line)
    shutil.rmtree(sweep.folder.root)
    sweep = write_sweep(elsewhere, "demo", ENDED)
    write_source(sweep.folder.root, SpaceSource(str(space), []))
    space.write_text(space.read_text().replace("seeds:\n- 0", "seeds:\n- 5"))
    warned = typing(f"sweep resume demo {place}")
    (line,) = re.findall(r"sweep run .*", warned)
    assert "NAME" in line
    typing(line.replace("NAME", "again"))
    assert [sweep.folder.name for sweep in started] == ["demo", "again"]
    assert {sweep.folder.runs_dir for sweep in started} == {elsewhere.resolve()}


def test_commands_of_a_lost_checkpoint_and_of_changed_files(
    elsewhere, typing, started, monkeypatch
):
    sweep = write_sweep(elsewhere, "demo", {0: {0: 0.5, 1: 0.6}, 1: {0: 0.9}})
    run_dir = sweep.folder.trial("c001-s1")
    run_dir.mkdir(parents=True)
    RunFolder(run_dir).metrics.write_text('{"step": 9999}\n')
    with pytest.raises(StorageError) as lost:
        check_checkpoints(sweep)

    def changed(*_):
        raise ConfigError("train.jsonl has changed", "train.jsonl", code="inputs-changed")

    monkeypatch.setattr(trainable, "check_inputs", changed)
    plan = SimpleNamespace(folder=sweep.folder, working_dir=Path())
    with pytest.raises(StorageError) as edited:
        trainable.SweepTrial._check_inputs(SimpleNamespace(plan=plan))
    for error, option in ((lost, " --start-over"), (edited, " --accept-changes")):
        (line,) = printed_commands(str(error.value))
        assert option.strip() in str(error.value)
        typing(line)
        typing(f"{line}{option}" if option not in line else line)
    assert len(started) == 4


def test_commands_of_the_end_of_a_sweep(elsewhere, typing, monkeypatch, capsys):
    sweep = write_sweep(elsewhere, "demo", ENDED)
    parent = SimpleNamespace(uri="sqlite:///m.db", reconcile=list, finish=str)
    sent = []
    monkeypatch.setattr(driver, "send_unsent", lambda *_: None)
    monkeypatch.setattr("sweep.tracking.upload.upload_sweep", lambda sweep: sent.append(sweep))
    monkeypatch.setattr("sweep.commands.report.serve", lambda *_: 0)
    control = StopControl(sweep, sweep.command("resume"))
    for record in (None, parent):  # without MLflow, and with it
        assert driver._finish(sweep, driver.Options(report=False), record, control) == 0
    ended = capsys.readouterr().out
    lines = printed_commands(ended)
    assert {line.split()[1] for line in lines} >= {"upload", "ui"}, ended
    for line in lines:
        shown = "" if line.split()[1] == "confirm" else typing(line)  # it would train
        for again in printed_commands(shown):
            typing(again)
    assert sent
    offline = sweep.spec.with_program(sweep.spec.program.with_tracking(offline=True))
    write_spec(sweep.folder, offline)
    (line,) = printed_commands(typing(f"sweep ui demo --runs-dir {elsewhere}", code=3))
    assert line.split()[1] == "upload"
    typing(line)
    with report_errors_printed(sweep, sweep.folder.log):
        raise OSError("no space left")
    (line,) = printed_commands(capsys.readouterr().out)
    assert line.split()[1] == "report"
    typing(line)


def test_commands_of_a_sweep_in_mlflow(elsewhere, typing, started, monkeypatch):
    sweep = write_sweep(elsewhere, "demo", ENDED)
    noted = []
    parent = SimpleNamespace(
        log_artifact=str, describe=lambda tags, metrics: noted.append(str(tags))
    )
    send_report(sweep, read_results(sweep), parent)
    monkeypatch.setattr("sweep.commands.report.serve", lambda *_: 0)
    online = sweep.spec.with_program(sweep.spec.program.with_tracking(offline=False))
    write_spec(sweep.folder, online)
    (line,) = [line for line in printed_commands(noted[0]) if line.split()[1] == "ui"]
    typing(line)

    def fails(*_):
        raise StorageError("the server is down", "http://127.0.0.1:1")

    monkeypatch.setattr("sweep.tracking.upload.upload", fails)
    monkeypatch.setattr("sweep.tracking.upload.has_unsent", lambda path: True)
    from sweep.tracking.upload import send_unsent

    with pytest.raises(StorageError) as unsent:
        send_unsent(sweep, "http://127.0.0.1:1")
    (line,) = printed_commands(str(unsent.value))
    typing(line)
    assert started


def test_commands_of_a_name_that_is_taken(elsewhere, typing, monkeypatch):
    sweep = write_sweep(elsewhere, "demo", ENDED)
    with pytest.raises(ConfigError) as taken:
        driver.start_sweep(sweep, driver.Options())
    (line,) = printed_commands(str(taken.value))
    monkeypatch.setattr(driver, "resume_sweep", lambda *_: 0)
    typing(line)


def test_commands_of_a_run_that_has_ended(elsewhere, typing, monkeypatch):
    done = [*EVALUATIONS, {"step": 8, "final/accuracy": 0.6}]
    folder = write_run(elsewhere, "r", done, {"run_id": None}, steps=(8,))
    newest = folder / "checkpoints" / "step-8"
    place = f"--runs-dir {elsewhere}"
    sent = []
    evaluated = []
    monkeypatch.setattr("trainer.commands.runs.upload_run", lambda path: sent.append(path) or "abc")
    monkeypatch.setattr("trainer.commands.evaluate.intact_checkpoints", lambda path: iter([newest]))
    monkeypatch.setattr("trainer.commands.evaluate.damaged_files", lambda path: [])
    stub = SimpleNamespace(run_evaluations=lambda *words: evaluated.append(words) or 0)
    monkeypatch.setitem(sys.modules, "trainer.commands.evaluation_run", stub)
    shown = typing(f"trainer status r {place}")
    evaluate, ui = re.search(r"next: +(trainer evaluate .*), (trainer ui .*)", shown).groups()
    typing(evaluate)
    refused = typing(ui, code=3)  # it is not in MLflow yet
    outcome = SimpleNamespace(
        trainer=SimpleNamespace(
            context=SimpleNamespace(run_dir=folder, run_name="r", runs_dir=elsewhere),
            step=8,
            zero_variance_steps=0,
            parallel=SimpleNamespace(is_main=False),
        ),
        done=True,
        recorded=False,
        diverged=None,
    )
    with pytest.raises(StorageError) as incomplete:
        report_outcome(outcome)
    for text in (refused, str(incomplete.value)):
        (line,) = re.findall(r"trainer upload .*", text)
        typing(line)
    assert [path.resolve() for path in sent] == [folder, folder] and evaluated


def test_commands_of_a_campaign(tmp_path, monkeypatch, typing):
    monkeypatch.chdir(tmp_path)
    missing = typing("sweep gate status camp", code=3)
    shown = typing(_gate(missing), code=11)
    for seed in range(8):
        record = _gate(shown).replace("SCORE", f"{0.5 + seed % 3 / 100}")
        assert record.split()[5] == str(seed)
        shown = typing(record, code=0 if seed == 7 else 11)
    again = typing("sweep gate start camp --worthwhile 0.01", code=2)
    typing(_gate(again))
    recorded_twice = typing(record, code=2)
    typing(_gate(recorded_twice))
    unopened = typing("sweep gate record camp proposal 0 0.3", code=2)
    # the setting has to be one's own, and a campaign without a program takes a note instead
    assert _gate(unopened) == "sweep gate propose camp KEY=VALUE"
    typing(_gate(shown), code=11)
    for command in _gates(typing("sweep gate recheck camp", code=2)):  # a proposal is open
        typing(command, code=11 if "status" in command else 0)
    typing("sweep gate propose camp --note more", code=11)
    for refused in ("record camp proposal 99 0.3", "run camp"):
        status, *_ = _gates(typing(f"sweep gate {refused}", code=2))
        typing(status, code=11)
    later = "sweep gate start later --worthwhile 0.01 --after camp"
    status, withdraw = _gates(typing(later, code=2))  # a proposal is open
    typing(status, code=11)
    typing(withdraw)
    typing(later, code=11)
    typing(_gate(typing("sweep gate propose camp --note more", code=2)), code=11)


def _gates(text):
    """The printed commands about a campaign."""
    return re.findall(r"(sweep gate [^`;\n]*)", text)


def _gate(text):
    """The last printed command about a campaign."""
    return _gates(text)[-1]


def test_a_command_names_a_folder_only_if_it_must(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert command_line("sweep", "status", "a", runs_dir=Path("runs")) == "sweep status a"
    assert command_line("sweep", "status", "a", runs_dir=tmp_path / "runs") == "sweep status a"
    there = command_line("trainer", "resume", "a", runs_dir=tmp_path / "my runs")
    assert there == "trainer resume a --runs-dir 'my runs'"
