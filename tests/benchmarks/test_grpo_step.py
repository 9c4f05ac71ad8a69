from argparse import Namespace

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.grpo_step import copy_model, run_ours
from tests.conftest import random_model
from tests.trainer.tokenizers_for_tests import byte_tokenizer


def test_a_copied_model_computes_the_same_and_never_ends_a_completion(tmp_path, capsys):
    source = tmp_path / "source"
    copy = tmp_path / "copy"
    model = random_model("llama", vocab_size=258)
    model.save_pretrained(source)
    byte_tokenizer().save_pretrained(source)
    copy.mkdir()
    copy_model(copy, str(source))
    copied = AutoModelForCausalLM.from_pretrained(copy)
    ids = torch.arange(20)[None]
    assert torch.equal(copied(ids).logits, model(ids).logits)
    assert (
        AutoTokenizer.from_pretrained(copy).eos_token_id
        == 258
        == copied.generation_config.eos_token_id
    )

    seconds = run_ours(
        copy,
        Namespace(
            prompts=2, prompt_tokens=3, tokens=5, steps=1, dtype="float32", checkpointing=True
        ),
    )
    assert len(seconds) == 2
    assert capsys.readouterr().err.count("length 5") == 2
