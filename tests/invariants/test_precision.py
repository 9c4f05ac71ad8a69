"""bfloat16 on two ranks: policy, reference and engine say the same of a long text, whatever shares the weights."""

import pytest

from tests.conftest import random_model
from tests.invariants.ranks import run_ranks
from trainer.config.model import ModelConfig
from trainer.policy.load import load_tokenizer

CASES = {
    "ddp": {"parallel.strategy": "ddp"},
    **{f"zero-{n}": {"parallel.strategy": "deepspeed", "parallel.zero_stage": n} for n in (1, 3)},
}
# Two correct implementations differ by rounding: 2 ** -9 of a logit of this size.
ENGINE_BOUND = 0.05


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("precision")
    tokenizer = load_tokenizer(ModelConfig())
    model = random_model(vocab_size=len(tokenizer), max_position_embeddings=4096)
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    job = {"model": str(folder / "model"), "cases": CASES}
    return run_ranks("tests.invariants.precision_job", 2, job, folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_long_text_has_the_same_log_probabilities_everywhere(results, name):
    for rank in results:
        measured = rank[name]
        print(name, measured)
        assert measured["stored"] == ("bfloat16" if name in ("zero-1", "zero-3") else "float32")
        assert measured["buffers"] == ["torch.float32"]
        # The loader gives float32 models RMSNorm layers of its own on a CPU.
        assert measured["transformers"] <= (0.0 if measured["stored"] == "bfloat16" else 0.01)
        assert measured["reference"] == 0.0
        assert measured["engine"] < ENGINE_BOUND
