import pytest

from trainer.metrics.declared import METRIC_FAMILIES, METRICS, declaration


def test_a_family_declares_every_name_that_continues_it():
    assert declaration("eval/accuracy").name == "eval/accuracy"
    assert declaration("eval/accuracy/5").name == "eval/accuracy/"
    assert declaration("tokens/gradient_share/0.00-0.25").unit == "share"


@pytest.mark.parametrize("name", ["eval/acuracy", "eval/accuracy/", "accuracy", "tokens/entropy"])
def test_an_undeclared_name_is_refused(name):
    with pytest.raises(KeyError, match=f"{name} is not declared"):
        declaration(name)


def test_every_metric_has_a_section_a_formula_and_a_unit():
    for name, metric in (METRICS | METRIC_FAMILIES).items():
        assert name == metric.name
        assert name.count("/") >= 1
        assert metric.formula and metric.unit
        assert metric.reduction in ("mean", "sum", "max")


def test_what_takes_time_is_as_long_as_the_slowest_rank_takes():
    times = [metric for metric in METRICS.values() if metric.unit == "s"]
    assert len(times) >= 7
    assert {metric.reduction for metric in times} == {"max"}
