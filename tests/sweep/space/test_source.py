"""What was edited in the file of a started sweep."""

import pytest
import yaml

from sweep.record.warm_start import warm_started
from sweep.space.file import dump_space, load_space
from sweep.space.source import SpaceSource, edits_since, write_source
from tests.paths import ROOT
from tests.sweep.spaces import kk_space

SPACES = ROOT / "search_spaces"
OVERRIDES = ["search.configurations=5", 'name="other"']


@pytest.fixture
def started(tmp_path):
    """The file of a sweep's space, and the space that the sweep was started with."""
    path = kk_space(tmp_path)
    write_source(tmp_path, SpaceSource(str(path), OVERRIDES))
    return path, load_space(path, OVERRIDES)


def edit(path, **changes):
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **changes}))


def test_an_unchanged_file_has_no_edits(started, tmp_path):
    path, spec = started
    path.write_text("# a comment\n" + path.read_text())
    offline = spec.with_program(spec.program.with_tracking(offline=True))
    assert edits_since(tmp_path, offline) == []


def test_values_that_follow_from_a_baselines_switch_are_no_edits(tmp_path):
    path = SPACES / "ablation_order.yaml"
    write_source(tmp_path, SpaceSource(str(path), []))
    (tmp_path / "space.lock.yaml").write_text(
        dump_space(warm_started(load_space(path), tmp_path, "")[0])
    )
    assert edits_since(tmp_path, load_space(tmp_path / "space.lock.yaml")) == []


def test_overrides_that_the_sweeps_copy_has_resolved_are_no_edits(tmp_path):
    path = kk_space(tmp_path)
    edit(path, trainer={"preset": "base.yaml", "overrides": {"max_steps": 20}})
    write_source(tmp_path, SpaceSource(str(path), []))
    copy = tmp_path / "space.lock.yaml"
    copy.write_text(dump_space(load_space(path)))
    assert edits_since(tmp_path, load_space(copy)) == []
    edit(path, trainer={"preset": "base.yaml", "overrides": {"max_steps": 30}})
    (line,) = edits_since(tmp_path, load_space(copy))
    assert line.endswith("max_steps: 20 -> 30")


@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        ({"seeds": [0, 1, 2]}, ["seeds"]),
        ({"limits": {"max_failures": 0}}, ["limits.max_failures"]),
        ({"objective": {"window": 1, "mode": "min"}}, ["objective.mode", "objective.window"]),
        ({"baselines": []}, ["baselines"]),
        ({"trainer": {"preset": "base.yaml", "overrides": {"max_steps": 20}}}, ["max_steps"]),
        ({"search": {"sampler": "tpe", "configurations": 1, "seed": 7, "startup": 2}}, ["seed"]),
    ],
)
def test_every_edited_key_is_listed(changes, keys, started, tmp_path):
    path, spec = started
    edit(path, **changes)
    edits = edits_since(tmp_path, spec)
    named = " ".join(edit.partition(":")[0] for edit in edits)
    assert all(key in named for key in keys)
    assert all(" -> " in edit for edit in edits)


def test_an_edited_range_shows_both_values(started, tmp_path):
    path, spec = started
    text = path.read_text()
    assert "- 0.0\n    - 0.5" in text
    path.write_text(text.replace("- 0.0\n    - 0.5", "- 0.0\n    - 0.7", 1))
    [edited] = edits_since(tmp_path, spec)
    assert edited.endswith(": [0.0, 0.5] -> [0.0, 0.7]")


def test_an_extended_sweep_has_no_edits(started, tmp_path):
    _, spec = started
    more = spec.search.model_copy(update={"configurations": 9})
    assert edits_since(tmp_path, spec.model_copy(update={"search": more})) == []


def test_a_file_that_is_no_space_any_more_or_gone(started, tmp_path):
    path, spec = started
    path.write_text("name: [")
    assert len(edits_since(tmp_path, spec)) == 1
    path.unlink()
    assert edits_since(tmp_path, spec) == []
    (tmp_path / "space.source.json").unlink()
    assert edits_since(tmp_path, spec) == []
