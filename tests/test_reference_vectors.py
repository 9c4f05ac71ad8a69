import subprocess
import sys

from tests.reference_vectors import BUNDLED, FAMILIES, TOLERANCE, largest_errors


def test_every_family_agrees_with_the_published_implementation():
    errors = largest_errors(BUNDLED)
    assert set(errors) == set(FAMILIES)
    assert {family: error for family, (_, error) in errors.items() if error > TOLERANCE} == {}


def test_a_wrong_number_fails_the_command(tmp_path):
    text = BUNDLED.read_text()
    broken = tmp_path / "broken.json"
    broken.write_text(text.replace('"alpha": 0.3', '"alpha": 0.31'))
    assert broken.read_text() != text
    result = subprocess.run(
        [sys.executable, "-m", "tests.reference_vectors", str(broken)], capture_output=True, text=True
    )
    assert result.returncode == 1
    assert "advantage_reweighting" in result.stdout
    assert "FAILED" in result.stdout
