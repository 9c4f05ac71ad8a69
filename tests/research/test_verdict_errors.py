import math

import numpy as np
import pytest

from dashboards.statistics.verdict import verdict
from research.verdict_errors import (
    AFTER,
    FAILURES,
    TABLES,
    alone_tests,
    claims,
    coarse,
    named,
    noisy_baseline,
    normal,
    one_noisier,
    own_test,
)


@pytest.mark.parametrize("kind", [normal, noisy_baseline])
@pytest.mark.parametrize(("configurations", "seeds"), [(3, 4), (5, 3)])
def test_many_sweeps_at_once_are_decided_like_each_alone(kind, configurations, seeds):
    scores = kind(np.random.default_rng(1), (40, configurations, seeds))
    scores[::2, 1] += 8
    shown, best = AFTER(scores)
    alone = [verdict(named(sweep), "c0") for sweep in scores]
    assert shown.tolist() == [claims(judged) for judged in alone]
    assert [f"c{number}" for number in best] == [judged.best for judged in alone]
    assert 3 < shown.sum() < 35


def test_two_seeds_claim_nothing_however_large_the_difference():
    scores = normal(np.random.default_rng(1), (40, 3, 2))
    scores[:, 1] += 80
    assert not any(claims(verdict(named(sweep), "c0")) for sweep in scores)


def test_failed_seeds_are_counted_like_in_the_verdict():
    scores = normal(np.random.default_rng(2), (30, 4, 3))
    scores[::2, 2] += 6
    scores[:, 2, 1] = math.nan
    scores[::5, 0, 0] = math.nan
    shown, best = AFTER(scores)
    alone = [verdict(named(sweep), "c0") for sweep in scores]
    assert shown.tolist() == [claims(judged) for judged in alone]
    assert [f"c{number}" for number in best] == [judged.best for judged in alone]


@pytest.mark.parametrize("kind", FAILURES)
@pytest.mark.parametrize("shape", [(3, 3), (2, 16)])
def test_failed_seeds_make_no_false_claims(kind, shape):
    generator = np.random.default_rng(6)
    scores = normal(generator, (3000, *shape))
    scores[FAILURES[kind](generator, scores)] = math.nan
    scores = scores[np.isfinite(scores).any(axis=2).all(axis=1)]
    assert AFTER(scores)[0].mean() <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / len(scores))


@pytest.mark.parametrize("kind", [normal, coarse, one_noisier, noisy_baseline])
@pytest.mark.parametrize(("configurations", "seeds"), [(8, 3), (10, 3), (12, 5)])
def test_no_effect_gives_evidence_in_no_more_than_one_sweep_of_twenty(kind, configurations, seeds):
    scores = kind(np.random.default_rng(11), (4000, configurations, seeds))
    assert AFTER(scores)[0].mean() <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 4000)


def test_a_finalist_is_decided_like_in_its_verdict():
    scores = normal(np.random.default_rng(4), (60, 2, 7))
    scores[::2, 1] += 1.5
    shown = own_test(scores[:, :, :4], scores[:, :, 4:])
    alone = [verdict(named(sweep[:, :4]), "c0", earlier=named(sweep[:, 4:])) for sweep in scores]
    assert shown.tolist() == [claims(judged) for judged in alone]
    assert 5 < shown.sum() < 35


@pytest.mark.parametrize("finalists", [3, 8])
def test_shared_noise_finds_more_at_the_level_with_a_noisy_finalist(finalists):
    scores = one_noisier(np.random.default_rng(8), (4000, finalists + 1, 3))
    assert AFTER(scores)[0].mean() <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 4000)
    alike = normal(np.random.default_rng(9), (4000, finalists + 1, 3))
    alike[:, 1] += 2
    assert AFTER(alike)[0].mean() > alone_tests(alike)[:, 0].mean() + 0.05


def test_a_noisier_finalist_keeps_the_false_positive_rate():
    scores = one_noisier(np.random.default_rng(5), (4000, 2, 6))
    for shown in (own_test(scores[:, :, :3]), own_test(scores[:, :, :3], scores[:, :, 3:])):
        assert shown.mean() <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 4000)


@pytest.mark.parametrize("name", TABLES)
def test_every_table_prints(name, capsys):
    TABLES[name](16)
    assert capsys.readouterr().out.count("|") > 20
