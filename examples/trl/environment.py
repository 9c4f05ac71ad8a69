"""TRL with an environment and a tool. A random model learns to call the tool, in a minute on a CPU:
docs/guides/trl.md.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from datasets import Dataset
from transformers import (
    AddedToken,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint
from trl import GRPOConfig, TrlParser
from trl.chat_template_utils import qwen3_template

from trainer.integrations.trl import LoptiGRPOTrainer, RunRecorder
from trainer.policy.random_model import write_random_model

CALL = '<tool_call>\n{"name": "ask", "arguments": {"person": "Ava"}}\n</tool_call>'
CHAT = """{% for m in messages %}{{ m.role }}: {{ m.content }}\
{% for call in m.tool_calls or [] %}<tool_call>
{{ call.function | tojson }}
</tool_call>{% endfor %}{% endfor %}"""


@dataclass
class Rule:
    ar_alpha: float = 0.0
    lopti_eta: float = 0.0


class Village:
    """An environment with a tool that asks a person. Calling it is rewarded."""

    def reset(self, **row):
        self.asked = 0
        return " Who is a knight?"

    def ask(self, person: str) -> str:
        """Ask a person.

        Args:
            person: name of the person.
        """
        self.asked += 1
        return f" {person} is."

    def get_reward(self) -> float:
        return float(self.asked > 0)


def random_policy(folder: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return a random model with a token for a whole tool call. It would not learn to spell a call
    within a minute.
    """
    set_seed(0)
    write_random_model(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens([AddedToken(CALL, normalized=False)])
    tokenizer.chat_template = CHAT
    tokenizer.response_template = qwen3_template
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.resize_token_embeddings(len(tokenizer))
    return model, tokenizer


def main() -> None:
    parser = TrlParser((GRPOConfig, Rule))
    parser.set_defaults(
        output_dir="runs/environment",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        learning_rate=3e-3,
        lr_scheduler_type="constant",
        max_steps=10,
        per_device_train_batch_size=64,
        per_device_eval_batch_size=64,
        num_generations=16,
        max_completion_length=48,
        max_tool_calling_iterations=1,
        eval_strategy="steps",
        eval_steps=5,
        num_generations_eval=16,
        save_steps=5,
        report_to=["none"],
    )
    args, rule = parser.parse_args_and_config()
    model, tokenizer = random_policy(Path(args.output_dir) / "random")
    rows = Dataset.from_dict({"prompt": [[{"role": "user", "content": "Hello."}]] * 8})
    record = RunRecorder(args.output_dir)
    trainer = LoptiGRPOTrainer(  # was: GRPOTrainer(
        model=model,
        args=args,
        train_dataset=rows,
        eval_dataset=rows.select(range(4)),
        processing_class=tokenizer,
        environment_factory=Village,
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
