"""Small random models whose attention heads vLLM's CPU kernels support, and what is compared with
them.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import (
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

VOCABULARY = 128
STOP = 5
AGREEMENT = 1e-4  # nats in float32; a stale weight costs more than 1e-2


def random_qwen(
    tied: bool, layers: int = 4, seed: int = 0, vocabulary: int = VOCABULARY
) -> PreTrainedModel:
    """A Qwen2 of 3 million parameters, float32, with peaked distributions."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=1024,
        tie_word_embeddings=tied,
        initializer_range=0.08,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    return Qwen2ForCausalLM(config).eval()


def random_experts(seed: int = 0, vocabulary: int = VOCABULARY) -> PreTrainedModel:
    """A mixture of eight experts, whose sizes vLLM's CPU kernel supports."""
    torch.manual_seed(seed)
    config = Qwen3MoeConfig(
        vocab_size=vocabulary,
        hidden_size=128,
        intermediate_size=256,
        moe_intermediate_size=64,
        num_experts=8,
        num_experts_per_tok=2,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        initializer_range=0.08,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    return Qwen3MoeForCausalLM(config).eval()


def saved_config(folder: Path, model: PreTrainedModel) -> str:
    """A folder with the model's config.json and no weights: an engine needs no more."""
    model.config.architectures = [type(model).__name__]  # as in a published model
    model.config.save_pretrained(folder)
    return str(folder)


def prompts(lengths: Sequence[int], seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randint(6, VOCABULARY, (length,), generator=generator).tolist() for length in lengths
    ]


@torch.no_grad()
def completion_logits(
    model: PreTrainedModel, prompt: Sequence[int], completion: Sequence[int]
) -> Tensor:
    """Logits that predict the completion's tokens, [T, vocabulary]."""
    ids = torch.tensor([[*prompt, *completion]])
    return model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float()


def completion_logprobs(
    model: PreTrainedModel, prompt: Sequence[int], completion: Sequence[int], temperature: float
) -> Tensor:
    """log_softmax(logits / temperature) at the completion's tokens, [T]."""
    logprobs = (completion_logits(model, prompt, completion) / temperature).log_softmax(dim=-1)
    return logprobs.gather(-1, torch.tensor(completion)[:, None])[:, 0]


def largest_difference(model, all_prompts, all_samples, temperature: float) -> float:
    """Largest |engine - model| log-probability over all sampled tokens [nats]."""
    return max(
        float(
            (
                torch.tensor(sample.rollout_logprobs)
                - completion_logprobs(model, prompt, sample.token_ids, temperature)
            )
            .abs()
            .max()
        )
        for prompt, group in zip(all_prompts, all_samples, strict=True)
        for sample in group
    )


def adamw_step(model, optimizer, all_prompts, all_samples) -> None:
    """One real update on the sampled completions: those of even index made likelier, the others
    less likely.
    """
    for prompt, group in zip(all_prompts, all_samples, strict=True):
        for index, sample in enumerate(group):
            ids = torch.tensor([[*prompt, *sample.token_ids]])
            logprobs = (
                model(input_ids=ids, use_cache=False)
                .logits[0, len(prompt) - 1 : -1]
                .log_softmax(dim=-1)
            )
            chosen = logprobs.gather(-1, ids[0, len(prompt) :, None])
            loss = -chosen.mean() * (1 if index % 2 == 0 else -0.5)
            loss.backward()
    optimizer.step()
    optimizer.zero_grad()
