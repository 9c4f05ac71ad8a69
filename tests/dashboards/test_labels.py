from dataclasses import replace

import pandas as pd
import pytest

from dashboards.labels import configuration_labels
from dashboards.results import Results
from dashboards.trial import Objective, TrialRecord
from loptune.parameter_names import short_name, short_names


def test_short_names_say_the_section_where_the_last_part_says_nothing():
    assert [short_name(key) for key in ("optim.lr", "data.name", "seed")] == ["lr", "data", "seed"]
    alike = ["rollout.temperature", "evaluation.temperature", "optim.lr"]
    assert list(short_names(alike).values()) == [
        "rollout.temperature",
        "evaluation.temperature",
        "lr",
    ]


@pytest.mark.parametrize(
    ("arms", "labels"),
    [
        (["", "", ""], ["#0 grpo lr=0.0003", "#1 grpo α 0.3 lr=1e-05", "#2 grpo α 0.3 η 0.5"]),
        # In an arm of one's own nothing is tuned: what another arm tunes does not apply.
        (["GRPO", "AR", "AR"], ["#0 GRPO", "#1 AR α 0.3", "#2 AR α 0.3 η 0.5"]),
        (
            ["GRPO", "GRPO", "AR"],
            ["#0 GRPO lr=0.0003", "#1 GRPO α 0.3 lr=1e-05", "#2 AR α 0.3 η 0.5"],
        ),
    ],
)
def test_a_label_names_the_rule_and_what_else_differs(arms, labels):
    trials = pd.DataFrame(
        {
            "configuration": ["0", "1", "2"],
            "arm": arms,
            "algorithm": "grpo",
            "algorithm.ar_alpha": [0.0, 0.3, 0.3],
            "algorithm.lopti_eta": [0.0, 0.0, 0.5],
            "optim.lr": [3e-4, 1e-5, None],
            "rollout.temperature": 1.0,
        }
    )
    assert (
        list(
            configuration_labels(trials, ["algorithm.ar_alpha", "optim.lr", "rollout.temperature"])
        )
        == labels
    )


def test_finalists_keep_the_label_that_they_have_in_the_search():
    finalist = TrialRecord(
        name="c000-s5", configuration="7", seed="5", state="COMPLETE", score=0.5, algorithm="rloo"
    )
    fresh = Results(
        name="demo-confirm", objective=Objective("score"), trials=(finalist,), searched=()
    )
    assert fresh.table.label.tolist() == ["#7 rloo"]
    known = replace(fresh, search_labels={"7": "#7 RLOO lr=0.0003"})
    assert known.table.label.tolist() == ["#7 RLOO lr=0.0003"]
