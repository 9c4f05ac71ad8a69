"""Train the built-in tiny model, a Qwen2 of 105,920 parameters that solves some of the small
puzzles.

    python -m research.tiny_policy FOLDER

trains the weights and the tokenizer of `trainer/policy/tiny` from scratch, by supervised learning
on the demonstrations of `research.tiny_teacher`. It takes about a minute on one core. Processors
with other instructions round differently, so the weights are not bitwise equal to the weights in
the package, but the model is as good.
"""

import argparse
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase, Qwen2Config, Qwen2ForCausalLM

from research.tiny_teacher import END, build_tokenizer, demonstration
from trainer.problems.tasks.knights_knaves import NAMES, PREFILL, Puzzle, compact_prompt
from trainer.problems.tasks.puzzle_generator import existing, generate, renumber

_IGNORED = -100  # label of positions without a loss


@dataclass(frozen=True)
class TinyRecipe:
    """Size, demonstrations and optimization of the model."""

    seed: int = 0
    people: tuple[int, ...] = (2, 3)
    puzzles: int = 12000
    value_error: float = 0.12
    verdict_error: float = 0.01
    width: int = 64
    layers: int = 2
    heads: int = 2  # of size 32, because vLLM has no CPU kernels for heads of size 16
    feed_forward: int = 176
    embedding_std: float = 0.25
    residual_scale: float = 0.1
    steps: int = 1500
    batch_size: int = 16
    lr: float = 4e-3
    betas: tuple[float, float] = (0.9, 0.98)
    decay_fraction: float = 0.4  # fraction of the steps, at the end, with a linearly falling rate


def write_policy(folder: Path, recipe: TinyRecipe | None = None) -> Path:
    """Train the model, save it (safetensors and tokenizer), and return the folder."""
    model, tokenizer = warm_start(recipe or TinyRecipe())
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def demonstrations(recipe: TinyRecipe, count: int) -> list[tuple[str, str]]:
    """Return pairs of prompt (prefill included) and completion (end token included).

    If there are fewer puzzles than demonstrations, puzzles are repeated with other names and
    another order of people.
    """
    rng = random.Random(recipe.seed)
    sizes = recipe.people
    fraction = -(-count // len(sizes))
    puzzles = [
        generate(
            "train", [people], min(fraction, existing("train", people) or fraction), recipe.seed
        )
        for people in sizes
    ]
    shown = []
    for index in range(count):
        of_size = puzzles[index % len(sizes)]
        turn = index // len(sizes)
        puzzle = disguised(of_size[turn % len(of_size)], rng)
        completion = demonstration(puzzle, rng, recipe.value_error, recipe.verdict_error)
        shown.append((compact_prompt(puzzle) + PREFILL, completion + END))
    return shown


def disguised(puzzle: Puzzle, rng: random.Random) -> Puzzle:
    """Return a puzzle under other names, with its people in another order."""
    order = rng.sample(range(len(puzzle.names)), len(puzzle.names))
    numbers = {person: number for number, person in enumerate(order)}
    return Puzzle(
        tuple(rng.sample(NAMES, len(order))),
        tuple(renumber(puzzle.statements[person], numbers) for person in order),
        tuple(puzzle.solution[person] for person in order),
    )


def warm_start(recipe: TinyRecipe) -> tuple[Qwen2ForCausalLM, PreTrainedTokenizerBase]:
    """Train the model from scratch on one thread, without changing the global random state."""
    started = time.monotonic()
    _report(f"{recipe.steps} supervised steps, about a minute")
    tokenizer = build_tokenizer()
    with torch.random.fork_rng(devices=[]), _one_thread():
        torch.manual_seed(recipe.seed)
        model = _initial_model(recipe, tokenizer)
        batches = _batches(recipe, tokenizer)
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=recipe.lr, betas=recipe.betas, weight_decay=0.0
        )
        for step in range(recipe.steps):
            for group in optimizer.param_groups:
                group["lr"] = recipe.lr * min(
                    1.0, (1 - step / recipe.steps) / recipe.decay_fraction
                )
            loss = _loss(model, *next(batches))
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if (step + 1) % max(1, recipe.steps // 5) == 0:
                seconds = time.monotonic() - started
                _report(
                    f"  step {step + 1}/{recipe.steps}, loss {loss.item():.3f}, {seconds:.0f} s"
                )
    return model.eval(), tokenizer


def _initial_model(recipe: TinyRecipe, tokenizer: PreTrainedTokenizerBase) -> Qwen2ForCausalLM:
    """Return a model with random weights: 1 / sqrt(fan_in) for linear layers, small values for
    outputs into the residual stream, 0 for biases.
    """
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=recipe.width,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.heads,
        intermediate_size=recipe.feed_forward,
        tie_word_embeddings=True,
        max_position_embeddings=1024,
        rope_theta=10000.0,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    model = Qwen2ForCausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_tokens" in name:
                parameter.normal_(std=recipe.embedding_std)
            elif parameter.ndim == 2:
                residual = name.endswith(("o_proj.weight", "down_proj.weight"))
                scale = recipe.residual_scale if residual else 1.0
                parameter.normal_(std=scale / parameter.shape[1] ** 0.5)
    return model


def _batches(
    recipe: TinyRecipe, tokenizer: PreTrainedTokenizerBase
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (input_ids, labels), [batch, T], without end: right-padded, of similar lengths,
    reshuffled in every epoch.
    """
    examples = []
    for prompt, completion in demonstrations(recipe, recipe.puzzles):
        prompt_ids, completion_ids = (tokenizer(text)["input_ids"] for text in (prompt, completion))
        examples.append((prompt_ids + completion_ids, len(prompt_ids)))
    rng = random.Random(recipe.seed)
    while True:
        rng.shuffle(examples)
        # A stable sort keeps the order within one length random.
        examples.sort(key=lambda example: len(example[0]))
        groups = [
            examples[i : i + recipe.batch_size] for i in range(0, len(examples), recipe.batch_size)
        ]
        rng.shuffle(groups)
        for group in groups:
            length = max(len(ids) for ids, _ in group)
            input_ids = torch.full((len(group), length), tokenizer.pad_token_id)
            labels = torch.full((len(group), length), _IGNORED)
            for row, (ids, prompt_length) in enumerate(group):
                input_ids[row, : len(ids)] = torch.tensor(ids)
                labels[row, prompt_length : len(ids)] = torch.tensor(ids[prompt_length:])
            yield input_ids, labels


def _loss(model: Qwen2ForCausalLM, input_ids: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of the completion tokens. Padding is on the right, so causal
    attention ignores it.
    """
    logits = model(input_ids=input_ids[:, :-1], use_cache=False).logits
    return nn.functional.cross_entropy(
        logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=_IGNORED
    )


@contextmanager
def _one_thread() -> Iterator[None]:
    """Use one thread within the block, so that the weights do not depend on the number of cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=TinyRecipe.seed)
    arguments = parser.parse_args()
    write_policy(arguments.folder, TinyRecipe(seed=arguments.seed))


if __name__ == "__main__":
    main()
