import math
import re
from dataclasses import replace

from dashboards.pictures.confirmation import finalist_scores, finalists
from tests.dashboards.table import results_of, shown, with_trials


def fresh_finalists():
    """Trials of configurations 0 and 1 on two fresh seeds."""
    trials = results_of().table
    chosen = trials[trials.configuration.isin(["0", "1"])]
    return chosen.assign(
        seed=["2", "3", "2", "3"], score=[0.5, 0.5, 0.6, 0.7], test=[0.4, 0.5, 0.5, 0.6]
    )


def test_finalists_show_search_fresh_seeds_and_test():
    sweep = results_of()
    confirmed = replace(sweep, fresh=with_trials(sweep, fresh_finalists()))
    table = finalist_scores(confirmed, confirmed.fresh or sweep)
    means = table.groupby(["label", "kind"]).value.mean().round(6).to_dict()
    assert means == {
        ("#0 grpo", "searched"): 0.55,
        ("#0 grpo", "fresh"): 0.5,
        ("#0 grpo", "test"): 0.45,
        ("#1 grpo α 0.3", "searched"): 0.75,
        ("#1 grpo α 0.3", "fresh"): 0.65,
        ("#1 grpo α 0.3", "test"): 0.55,
    }
    assert finalists(sweep) is None
    picture = shown(finalists(confirmed))
    assert len(picture.figures) == 1
    numbers = re.findall(r"#\d|[-+]?0\.\d{3}", picture.sentence)
    assert numbers == ["#1", "0.650", "-0.100", "0.550", "#0", "0.500", "-0.050", "0.450"]
    assert "eval/accuracy/test" in picture.sentence


def test_a_failed_fresh_seed_has_no_score():
    sweep = results_of()
    lost = fresh_finalists()
    lost.loc[lost.index[-1], ["state", "score"]] = ["FAIL", math.nan]
    picture = shown(finalists(replace(sweep, fresh=with_trials(sweep, lost))))
    assert picture.sentence.startswith("#1 grpo α 0.3: 0.600 on fresh seeds")


def test_scores_on_held_out_problems_alone_are_shown_once():
    sweep = results_of()
    fresh = with_trials(sweep, fresh_finalists().assign(test=lambda trials: trials.score))
    assert fresh.objective.held_out_metric == "eval/accuracy/test"
    fresh = replace(fresh, objective=replace(fresh.objective, held_out=True))
    picture = shown(finalists(replace(sweep, fresh=fresh)))
    numbers = re.findall(r"#\d|[-+]?0\.\d{3}", picture.sentence)
    assert numbers == ["#1", "0.650", "#0", "0.500"]
    assert "eval/accuracy/test" not in picture.sentence
    names = {str(trace.name).removesuffix(", mean") for trace in picture.figures[0].data}
    assert names == {"in the search", "fresh seeds, held-out test"}


def test_finalists_are_the_same_where_less_tells_them_apart():
    sweep = results_of()
    ranks = sweep.table.assign(**{"model.lora.r": [4, 4, 8, 8, 4, 4, 4, 4, 4, 4]})
    searched = with_trials(sweep, ranks, searched=(*sweep.searched, "model.lora.r"))
    assert "#1 grpo α 0.3 r=8" in set(searched.table.label)
    fresh = sweep.table[sweep.table.configuration == "1"].assign(score=0.6)
    table = finalist_scores(searched, with_trials(sweep, fresh))
    assert set(table.label) == {"#1 grpo α 0.3"}
    assert list(table[table.kind == "searched"].value) == [0.7, 0.8]
