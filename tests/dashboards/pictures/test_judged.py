from dataclasses import replace

from dashboards.pictures.judged import comparable, plain_baseline
from dashboards.pictures.verdict import verdict
from tests.dashboards.table import sweep_of


def test_the_baseline_is_the_plain_configuration_started_first() -> None:
    assert plain_baseline(comparable(sweep_of())) == "#0 grpo"
    trials = sweep_of().trials
    assert "no plain baseline" in verdict(replace(sweep_of(), trials=trials[trials.alpha + trials.eta > 0]))[0]
