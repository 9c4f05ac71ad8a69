"""No rank frees a gradient that the reduction stream still uses."""

import pytest

from tests.conftest import random_model
from tests.invariants.ranks import run_ranks

pytestmark = pytest.mark.slow


def test_gradients_are_freed_early_only_above_the_bucket_and_no_parameter_exceeds_ours(tmp_path):
    random_model().save_pretrained(tmp_path / "model")
    job = {"model": str(tmp_path / "model")}
    ranks = run_ranks("tests.invariants.stream_job", 2, job, tmp_path)
    # the control: DeepSpeed frees gradients above the bucket on ranks that do not own them
    assert all(rank["below"]["oversized"] == 3 for rank in ranks)
    assert sum(rank["below"]["freed_early"] for rank in ranks) == 2
    assert all(rank["ours"] == {"oversized": 0, "freed_early": 0} for rank in ranks)
