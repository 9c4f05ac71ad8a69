from dataclasses import replace

from dashboards.pictures.judged import baseline
from dashboards.pictures.verdict import verdict
from tests.dashboards.table import sweep_of


def test_the_baseline_is_the_plain_configuration_started_first() -> None:
    assert baseline(sweep_of()) == "#0 grpo"
    trials = sweep_of().trials
    without = replace(sweep_of(), trials=trials[trials.alpha + trials.eta > 0])
    assert "no plain configuration (alpha 0, eta 0) ran to its end" in verdict(without)[0]
