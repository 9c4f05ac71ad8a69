from dataclasses import replace
from pathlib import Path

import pytest

from dashboards.pages.comparison import COMPARISON_FILE, compared, contenders, differing_settings, write_comparison
from dashboards.queries import Objective, Sweep
from tests.dashboards.table import sweep_of
from trainer.errors import ConfigError, MissingError


def shifted(name: str, gain: float, **fixed: str) -> Sweep:
    sweep = sweep_of()
    trials = sweep.trials.assign(score=sweep.trials.score + gain)
    return replace(sweep, name=name, trials=trials, fixed={"optim.lr": "0.1", **fixed})


def test_contenders_are_the_best_and_the_plain_baseline() -> None:
    best, base = contenders(shifted("a", 0.0))
    assert (best.role, best.name, best.scores) == ("best", "a: #1 grpo α 0.3", {"0": 0.7, "1": 0.8})
    assert (base.role, base.name, base.mean) == ("baseline", "a: #0 grpo (baseline)", pytest.approx(0.55))


def test_sweeps_that_differ_in_what_they_search_are_compared_on_matched_seeds() -> None:
    ours, theirs = shifted("a", 0.0), shifted("b", 0.05)
    theirs = replace(
        theirs, trials=theirs.trials.assign(score=theirs.trials.score + 0.01 * (theirs.trials.seed == "1"))
    )
    first, second, *own = compared([ours, theirs])
    assert first == "Highest mean: b: #1 grpo α 0.3 with eval/accuracy 0.805."
    # differences 0.05 and 0.06: mean 0.055, half width 12.706 * 0.005
    assert second.startswith(
        "+0.055 against a: #1 grpo α 0.3 (0.750) on 2 matched seeds, 95 % interval -0.009 to +0.119: not shown"
    )
    assert [line[:8] for line in own] == ["a: Best:", "b: Best:"]


def test_sweeps_with_other_settings_are_not_matched() -> None:
    ours, theirs = shifted("a", 0.1), shifted("b", 0.0, **{"optim.lr": "0.2"})
    assert differing_settings(ours, theirs) == {"optim.lr": ("0.1", "0.2")}
    assert (
        "seeds do not match" in compared([ours, theirs])[1] and "optim.lr 0.1 / 0.2" in compared([ours, theirs])[1]
    )


def test_a_comparison_is_one_page_with_its_numbers(demo_uri: str, tmp_path: Path) -> None:
    path = write_comparison(["demo", "demo"], demo_uri, tmp_path)
    page = path.read_text(encoding="utf-8")
    assert path.name == COMPARISON_FILE and page.endswith("</html>") and "<h1>demo / demo</h1>" in page
    assert {file.name for file in (tmp_path / "data").iterdir()} == {"contenders.csv", "scores.csv"}
    with pytest.raises(MissingError, match="did you mean demo"):
        write_comparison(["demo", "dem0"], demo_uri, tmp_path)


def test_other_objectives_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sweeps = {"a": shifted("a", 0), "b": replace(shifted("b", 0), objective=Objective("eval/reward"))}
    monkeypatch.setattr("dashboards.pages.comparison.read_sweep", lambda name, uri: sweeps[name])
    with pytest.raises(ConfigError, match="a optimises max eval/accuracy, b max eval/reward"):
        write_comparison(["a", "b"], "sqlite://", tmp_path)
