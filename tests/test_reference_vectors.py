import pytest

from tests import update_rule_vectors
from tests.reference_vectors import BUNDLED, FAMILIES, TOLERANCE, compare
from tests.run_cli import run_cli

PUBLISHED, PEERS = BUNDLED


def test_every_family_agrees_with_the_published_implementation():
    outcomes = compare(PUBLISHED)
    assert set(outcomes) == set(FAMILIES)
    assert {
        family: outcome.error for family, outcome in outcomes.items() if outcome.error > TOLERANCE
    } == {}


def test_every_rule_agrees_with_the_trainers_that_have_it():
    outcomes = compare(PEERS)
    assert set(outcomes) == set(update_rule_vectors.FAMILIES)
    assert all(outcome.compared == outcome.cases > 0 for outcome in outcomes.values())
    assert {
        family: outcome.error for family, outcome in outcomes.items() if outcome.error > TOLERANCE
    } == {}


@pytest.mark.parametrize(
    ("file", "right", "wrong", "family"),
    [
        (PUBLISHED, '"alpha": 0.3', '"alpha": 0.31', "advantage_reweighting"),
        (PEERS, '"tau_pos":2.0', '"tau_pos":2.1', "sapo_loss"),
    ],
)
def test_a_wrong_number_fails_the_command(tmp_path, file, right, wrong, family):
    text = file.read_text()
    broken = tmp_path / "broken.json"
    broken.write_text(text.replace(right, wrong))
    assert broken.read_text() != text
    result = run_cli("tests.reference_vectors", broken)
    assert result.returncode == 1
    assert next(line for line in result.stdout.splitlines() if line.startswith(family)).endswith(
        "FAILED"
    )
