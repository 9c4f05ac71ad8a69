import pytest
import torch

from tests.llm.scoring import TEMPERATURE, as_batch, chat, long_text, plain_logprobs
from trainer.policy.logprobs import LogprobModel

pytestmark = pytest.mark.llm

# Two prompts with three completions each, of different lengths, as a group of rollouts has them.
PROMPTS = ("What is 7 + 7?", "Name the three colors of a traffic light, from above to below.")
COMPLETIONS = ("14", "The sum of 7 and 7 is 14.", "Red, then yellow, and green at the bottom.")


def rows(tokenizer):
    completions = [[*tokenizer.encode(text, add_special_tokens=False), 2] for text in COMPLETIONS]
    return [
        (chat(tokenizer, prompt), completion) for prompt in PROMPTS for completion in completions
    ]


def largest_and_mean_difference(scores, model, rows):
    differences = torch.cat(
        [
            (
                scores.logprobs[row, : len(completion)] - plain_logprobs(model, prompt, completion)
            ).abs()
            for row, (prompt, completion) in enumerate(rows)
        ]
    )
    return float(differences.max()), float(differences.mean())


@torch.no_grad()
def test_packed_rows_agree_with_a_plain_forward(policy, plain_model, tokenizer):
    scorer = LogprobModel(policy, TEMPERATURE, chunk_tokens=16)
    assert scorer.layout == "shared_prompts"
    ids = long_text(tokenizer, 2000)
    short = rows(tokenizer)
    for batch in (short, [(ids[:1960], ids[1960:]), short[0]]):
        largest, _ = largest_and_mean_difference(scorer(*as_batch(batch)), plain_model, batch)
        assert largest < 1e-4


@torch.no_grad()
def test_bfloat16_costs_a_tenth_of_a_nat_at_most_on_average(policy, plain_model, tokenizer):
    scorer = LogprobModel(policy, TEMPERATURE, chunk_tokens=16, compute_dtype=torch.bfloat16)
    batch = rows(tokenizer)
    largest, mean = largest_and_mean_difference(scorer(*as_batch(batch)), plain_model, batch)
    print(f"bfloat16: {mean:.4f} nats on average, {largest:.4f} at most")
    assert mean < 0.1 and largest < 0.75  # 0.053 and 0.41 on an Intel Xeon
    assert largest > 1e-3, "this did not compute in bfloat16"
