"""The report, its tables and the exports exist for whatever values a space may hold."""

import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweep.cli import main
from sweep.record.folder import sweep_folder
from sweep.record.results import read_results
from sweep.record.sweep_record import SweepRecord, open_sweep
from sweep.search.event_log import EventLog
from sweep.search.study import propose, write_study
from sweep.space.points import Space, fingerprint
from tests.json_values import UNHURRIED
from tests.sweep.harness import write_space

KINDS = {
    "lists": [[0.9, 0.95], [0.9, 0.999], []],
    "mappings": [{"name": "adam", "betas": [0.9, 0.99]}, {"name": "sgd"}, {}],
    "null": [None, 0.5, 1.5],
    "bools": [False, True],
    "mixed": [None, True, 3, 0.5, "text", [1], {"a": None}],
    "long": ["a" * 10_000, "b" * 10_000],
    "unicode": ["grün", "学习", "🙂", "line\nbreak", "\u2028"],
    "quotes": ["it's", 'say "x"', "</script><b>", "a;b", "${x}", "%", "\\", ""],
    "huge": [1e308, -1e308, 5e-324, 10**30],
}


def sweep_over(runs, values, scores=None, name="values"):
    """Return the record of an ended sweep of a command with one trial per value."""
    folder = sweep_folder(runs, name)
    folder.root.mkdir(parents=True)
    (runs / "train.py").write_text("")
    space = {
        "name": name,
        "program": {
            "command": [sys.executable, str(runs / "train.py"), "{x}"],
            "defaults": {"x": None},  # of any type
        },
        "objective": {"metric": "eval/accuracy", "window": 1},
        "parameters": {"x": {"choice": values}},
        "baselines": [{"x": values[0]}],
        "search": {"sampler": "random", "configurations": len(values)},
        "seeds": [0, 1],
    }
    write_space(folder.space, json.loads(json.dumps(space)))  # no YAML aliases
    scores = scores or [0.1 * number for number in range(len(values))]
    for number, (value, score) in enumerate(zip(values, scores, strict=True)):
        point = {"x": value}
        proposal = {"event": "configuration", "configuration": number, "time": 1.0}
        proposal |= {"parameters": point, "resolved": point, "fingerprint": fingerprint(point)}
        EventLog(folder.event_log).append(proposal)
        for seed in (0, 1):
            result = {"event": "result", "configuration": number, "seed": seed, "time": 2.0}
            result |= {"state": "COMPLETE", "score": score, "step": 4, "reason": ""}
            EventLog(folder.event_log).append(result)
            run_dir = folder.trial(f"c{number:03d}-s{seed}")
            run_dir.mkdir(parents=True)
            record = {"step": 4, "time": 1.0, "eval/accuracy": score, "lr": number + seed / 2}
            (run_dir / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    return open_sweep(runs, name)


@pytest.mark.parametrize("kind", KINDS)
def test_every_view_shows_every_kind_of_value(tmp_path, capsys, kind):
    values = KINDS[kind]
    sweep = sweep_over(tmp_path, values)
    results = read_results(sweep)
    assert results.varied == ("x",)
    assert results.table.label.nunique() == len(values)
    assert results.table.x.notna().all() and results.table.x.nunique() == len(values)
    assert all(len(label) < 200 for label in results.table.label)
    place = ["--runs-dir", str(tmp_path)]
    best = ["export", "--output", str(tmp_path / "best.yaml")]
    for command in (["status"], ["report"], best):
        assert main([command[0], "values", *command[1:], *place]) == 0, command
    shown = capsys.readouterr().out
    assert len(shown) < 20_000
    page = (sweep.folder.report / "report.html").read_text("utf-8")
    assert "</script><b>" not in page
    write_study(sweep.spec, sweep.configurations, tmp_path / "study.db")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sampler", ["tpe", "gp"])
def test_a_sampler_goes_on_from_every_kind_of_value(tmp_path, kind, sampler):
    values = KINDS[kind]
    sweep = sweep_over(tmp_path, values)
    search = sweep.spec.search.model_copy(update={"sampler": sampler, "startup": 1})
    spec = sweep.spec.model_copy(update={"search": search})
    point = propose(spec, Space(spec.parameters), sweep.configurations[:-1])
    assert point == {"x": values[-1]}


@pytest.mark.parametrize("mode", ["max", "min"])
@pytest.mark.parametrize("sampler", ["tpe", "gp"])
def test_scores_may_be_as_large_as_a_float(tmp_path, mode, sampler):
    scores = [1e308, -1e308, 1.7e308, 0.5]
    sweep = sweep_over(tmp_path, [1, 2, 3, 4], scores)
    table = read_results(sweep).complete_means
    assert list(table) == scores
    search = sweep.spec.search.model_copy(update={"sampler": sampler, "startup": 1})
    objective = sweep.spec.objective.model_copy(update={"mode": mode})
    spec = sweep.spec.model_copy(update={"search": search, "objective": objective})
    point = propose(spec, Space(spec.parameters), sweep.configurations[:3])
    assert point == {"x": 4}
    assert main(["report", "values", "--runs-dir", str(tmp_path)]) == 0


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs", "Cc"]))
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab"), inner, max_size=2),
    max_leaves=5,
)


@UNHURRIED
@given(st.lists(VALUES, min_size=2, max_size=4, unique_by=lambda value: json.dumps(value)))
def test_any_values_have_labels_and_a_table(tmp_path_factory, values):
    # values that a space takes as one: 0 and false, 1 and 1.0
    plain = [value for value in values if not isinstance(value, bool | float)]
    if len(plain) < 2:
        return
    sweep = sweep_over(tmp_path_factory.mktemp("runs"), plain)
    results = read_results(SweepRecord(sweep.spec, sweep.folder))
    assert results.varied == ("x",)
    assert results.table.x.nunique() == len(plain)
    assert results.compared_with is not None
    for label in results.labels.values():
        results.changed(label)
