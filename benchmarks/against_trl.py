"""The parts that the benchmarks share to compare with TRL's GRPOTrainer: the group size and TRL's
run.
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.random_model import reward_tokens

GROUP_SIZE = 8


def train_with_trl(
    folder: Path,
    model: Any,
    prompts: Sequence[str],
    steps: int,
    tokens: int,
    adapter_rank: int = 0,
    **settings: Any,
) -> list[float]:
    """Return the seconds of every step of TRL's GRPOTrainer.

    Args:
        folder: folder with the tokenizer, also for the output.
        model: model to train.
        prompts: prompts of all steps.
        steps: number of steps.
        tokens: number of new tokens per completion.
        adapter_rank: rank of a PEFT adapter in all linear layers except the output layer; 0 trains
            the weights.
        settings: further settings of ``GRPOConfig``.
    """
    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    on_gpu = torch.cuda.is_available()
    seconds: list[float] = []

    class Timer(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            self.started = time.perf_counter()

        def on_step_end(self, args, state, control, **kwargs):
            if on_gpu:
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - self.started)
            print(f"  TRL step {seconds[-1]:.2f} s", file=sys.stderr)

    adapter = None
    if adapter_rank:
        from peft import LoraConfig

        adapter = LoraConfig(
            task_type="CAUSAL_LM",
            r=adapter_rank,
            lora_alpha=2 * adapter_rank,
            target_modules="all-linear",
        )
    trainer = GRPOTrainer(
        model=model,
        peft_config=adapter,
        processing_class=AutoTokenizer.from_pretrained(folder),
        reward_funcs=lambda completions, **_: [
            reward_tokens(text, "").reward for text in completions
        ],
        train_dataset=Dataset.from_dict({"prompt": list(prompts)}),
        args=GRPOConfig(
            output_dir=str(folder / "trl"),
            num_generations=GROUP_SIZE,
            max_completion_length=tokens,
            max_steps=steps,
            temperature=1.0,
            beta=0.001,
            learning_rate=1e-6,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            **settings,
        ),
        callbacks=[Timer()],
    )
    trainer.train()
    lengths = [entry.get("completions/mean_length") for entry in trainer.state.log_history]
    print(f"  TRL completion lengths {[x for x in lengths if x is not None][:3]}", file=sys.stderr)
    return seconds
