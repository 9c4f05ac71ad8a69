"""Weights in bfloat16 on two ranks: policy and reference are transformers' model, at positions far
away too.
"""

import pytest

from tests.conftest import random_model
from tests.invariants.ranks import run_ranks


@pytest.mark.slow
def test_a_long_text_has_the_log_probabilities_of_transformers(tmp_path):
    """Rounded rotary frequencies would be whole turns away there."""
    random_model(max_position_embeddings=4096).save_pretrained(tmp_path / "model")
    job = {"model": str(tmp_path / "model"), "stages": (1, 3)}
    expected = {"policy": 0.0, "reference": 0.0, "buffers": ["torch.float32"]}
    for rank in run_ranks("tests.invariants.precision_job", 2, job, tmp_path):
        assert rank == {"zero-1": expected, "zero-3": expected}
