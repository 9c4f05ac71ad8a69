"""e-values and their levels, against other software, quadrature and enumeration."""

import itertools

import numpy as np
import pytest
from scipy import integrate, stats

from research import gate_campaigns, gate_evidence
from research.gate_campaigns import RATE, Levels, Look, even_spending

E_VALUES = [3.0, 1200.0, 0.1, 900.0, 500.0, 2.0, 420.0, 300.0, 0.5, 250.0, 260.0, 1e5]
LEVELS = [0.001220513, 0.001183176, 0.00229532, 0.002227689, 0.003244857, 0.004203526]
LEVELS += [0.004086155, 0.004967522, 0.005800196, 0.005646299, 0.006415417, 0.007143613]
KEPT = [False, True, False, True, True, False, True, True, False, True, True, True]


def decide(kind, values):
    """Return the levels and the decisions of one campaign."""
    levels = Levels(kind, 1, len(values))
    said = []
    for number, value in enumerate(values):
        level = float(levels.at(number)[0])
        levels.evidence[:, number] = value
        if value >= 1 / level:
            levels.keep(np.array([0]), number)
        said.append((level, value >= 1 / level))
    return said


def test_levels_of_e_lond_are_those_of_online_fdr():
    # online-fdr 1.0.0: ELond(0.1, gamma_seq) with the fractions of `even_spending`
    said = decide("even lond", E_VALUES)
    assert [level for level, _ in said] == pytest.approx(LEVELS, rel=1e-6)
    assert [keep for _, keep in said] == KEPT


def is_closed(values, kept, number):
    """Return whether the closure allows these keeps, by enumeration of all sets."""
    fractions = even_spending()
    for size in range(1, number + 2):
        for members in itertools.combinations(range(number + 1), size):
            weighed = sum(fractions[rank] * values[one] for rank, one in enumerate(members))
            share = len(set(members) & kept) / len(kept)
            if share > RATE * weighed * (1 + 1e-9):
                return False
    return True


@pytest.mark.parametrize("seed", range(5))
def test_closure_keeps_what_enumeration_allows(seed):
    generator = np.random.default_rng(seed)
    values = np.exp(generator.normal(6, 3, 9)).tolist()
    kept: set[int] = set()
    for number, (_, keep) in enumerate(decide("closed", values)):
        assert keep == is_closed(values, kept | {number}, number)
        if keep:
            kept.add(number)
    assert kept


def test_the_t_statistic_is_the_ratio_of_densities_of_t_under_its_prior():
    differences = np.array([[0.4, -0.1, 1.2, 0.7, np.nan, 0.9]])
    ran = differences[np.isfinite(differences)]
    count = len(ran)
    t = ran.mean() / (ran.std(ddof=1) / np.sqrt(count))

    def weighted(size):
        return 2 * stats.norm.pdf(size) * stats.nct.pdf(t, count - 1, size * np.sqrt(count))

    expected, _ = integrate.quad(weighted, 0, 8)
    value = gate_evidence.half_normal_t(differences)[0]
    assert value == pytest.approx(expected / stats.t.pdf(t, count - 1), rel=1e-6)


def test_the_t_statistic_has_expectation_one_after_each_seed_without_a_gain():
    noise = 3 * np.random.default_rng(0).standard_normal((200_000, 6))
    for seeds in (1, 2, 4, 6):
        ran = np.where(np.arange(6) < seeds, noise, np.nan)
        values = gate_evidence.half_normal_t(ran)
        assert values.mean() == pytest.approx(1, abs=5 * values.std() / 200_000**0.5)


def test_a_pooled_e_value_is_the_mean_of_ratios_of_student_densities_and_has_expectation_one():
    # With a known scale the ratio of densities of (gain - a) / error to gain / error has
    # expectation 1 without a gain: integrate it over Student's density by quadrature.
    dof, error = 12, 0.4

    def density(gain):
        return stats.t.pdf(gain / error, dof) / error

    def value(gain):
        nothing = np.empty((1, 0))
        look = Look(
            proposal=nothing,
            baseline=nothing,
            gain=np.array([gain]),
            error=np.array([error]),
            dof=np.array([dof]),
            level=np.array([0.1]),
        )
        return float(gate_evidence.pooled(look)[0])

    total, _ = integrate.quad(
        lambda gain: value(gain) * density(gain), -60, 60, points=[0, 1, 2], limit=400
    )
    assert total == pytest.approx(1, abs=1e-3)
    ratios = [density(1.3 - gain) / density(1.3) for gain in gate_evidence.GAINS]
    assert value(1.3) == pytest.approx(np.mean(ratios))


def test_candidates_keep_gains_and_hardly_anything_else():
    scenario = gate_campaigns.Scenario(gain=2.0, proposals=30)
    for name, rule in gate_evidence.CANDIDATES.items():
        if name == gate_evidence.TODAY:
            continue
        said = gate_campaigns.replay(rule, scenario, None, campaigns=20, seed=1)
        assert said.found > 0.8
        assert said.false_fraction < 0.1
