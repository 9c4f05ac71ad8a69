"""A TRL script on the built-in tiny model. Two marked lines add AR and Lopti:
docs/guides/trl.md.
"""

import os
from dataclasses import dataclass
from typing import Literal

from datasets import Dataset
from transformers.trainer_utils import get_last_checkpoint
from trl import GRPOConfig, TrlParser

from rewards.knights_knaves import score
from trainer.integrations.trl import LoptiGRPOTrainer, RunRecorder
from trainer.policy.architectures import TINY_FOLDER
from trainer.problems.tasks.knights_knaves import PREFILL, compact_prompt
from trainer.problems.tasks.puzzle_generator import generate
from trainer.problems.tasks.splits import Split


@dataclass
class Rule:
    ar_alpha: float = 0.0
    lopti_eta: float = 0.0
    eval_split: Literal["dev", "test"] = "dev"


def puzzles(split: Split, size: int) -> Dataset:
    rows = [
        {
            "problem_id": puzzle.key,
            "prompt": compact_prompt(puzzle) + PREFILL,
            "answer": puzzle.solution_text,
        }
        for puzzle in generate(split, [2, 3], size, seed=0)
    ]
    return Dataset.from_list(rows)


def is_right(completions, answer, **columns):
    pairs = zip(completions, answer, strict=True)
    return [float(score(PREFILL + text, solution).correct) for text, solution in pairs]


def main() -> None:
    parser = TrlParser((GRPOConfig, Rule))
    parser.set_defaults(
        output_dir="runs/trl",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        learning_rate=3e-4,
        lr_scheduler_type="constant",
        max_steps=20,
        per_device_train_batch_size=32,
        per_device_eval_batch_size=100,
        max_completion_length=160,
        eval_strategy="steps",
        eval_steps=10,
        num_generations_eval=4,
        save_steps=10,
        report_to=["none"],
    )
    args, rule = parser.parse_args_and_config()
    record = RunRecorder(args.output_dir)  # records problems, and stops in order on SIGTERM
    trainer = LoptiGRPOTrainer(  # was: GRPOTrainer(
        model=str(TINY_FOLDER),
        reward_funcs=record.accuracy(is_right),
        args=args,
        train_dataset=puzzles("train", 1000),
        eval_dataset=puzzles(rule.eval_split, 50),
        callbacks=[record],
        ar_alpha=rule.ar_alpha,
        lopti_eta=rule.lopti_eta,
    )
    checkpoint = args.resume_from_checkpoint
    if os.environ.get("LOPTUNE_RESUME") == "1":  # set by a sweep: docs/guides/any_trainer.md
        checkpoint = get_last_checkpoint(args.output_dir)
    # If the last step is already done, transformers would take one more.
    if checkpoint is None or not checkpoint.endswith(f"-{trainer.args.max_steps}"):
        trainer.train(resume_from_checkpoint=checkpoint)


if __name__ == "__main__":
    main()
