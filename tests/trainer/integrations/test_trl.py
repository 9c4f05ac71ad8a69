"""LoptiGRPOTrainer against the trainer's own step, its tool tokens, its refusals and its record."""

import asyncio
import copy
import signal

import pytest
import torch

from loptune.errors import ConfigError
from loptune.files import JsonLines, read_records
from tests.conftest import random_model
from tests.invariants.update_job import PROMPTS, SIZES, STEPS, Updates, update_config
from tests.refusals import refused
from tests.trainer.algorithm.batches import make_groups
from trainer.config.model import ModelConfig
from trainer.parallel.strategy import make_parallel
from trainer.policy.load import load_tokenizer

pytest.importorskip("trl", reason="needs TRL: pip install 'loptune[trl]'")
from datasets import Dataset
from transformers import AddedToken, TrainerCallback
from trl import GRPOConfig

from trainer.integrations.trl import LoptiGRPOTrainer, RunRecorder

TOKENIZER = load_tokenizer(ModelConfig(name_or_path="tiny"))


def grpo_config(folder, **settings):
    usual = {
        "beta": 0.1,
        "learning_rate": 1e-3,
        "max_grad_norm": 0.5,
        "temperature": 0.9,
        "epsilon_high": 0.24,
    }
    usual |= {
        "adam_epsilon": 1e-3,
        "lr_scheduler_type": "constant",
        "scale_rewards": "none",
        "max_steps": STEPS,
    }
    usual |= {
        "use_bias_correction_kl": False,
        "bf16": False,
        "gradient_checkpointing": False,
        "use_cpu": True,
    }
    usual |= {
        "per_device_train_batch_size": 16,
        "gradient_accumulation_steps": 2,
        "num_generations": 4,
    }
    return GRPOConfig(
        str(folder), report_to="none", save_strategy="no", disable_tqdm=True, **usual | settings
    )


def train_by_trl(policy, folder, settings=(), **named):
    steps = iter(range(STEPS))

    def rollouts(prompts, trainer):
        batch = [
            rollout
            for group in make_groups(SIZES, PROMPTS, next(steps))
            for rollout in group.rollouts
        ]
        return {
            "fixed": [rollout.reward for rollout in batch],
            "prompt_ids": [list(rollout.prompt_ids) for rollout in batch],
            "completion_ids": [list(rollout.completion.token_ids) for rollout in batch],
            "logprobs": None,
        }

    trainer = LoptiGRPOTrainer(
        str(policy),
        lambda fixed, **_: fixed,
        grpo_config(folder, **dict(settings)),
        train_dataset=Dataset.from_dict({"prompt": [""] * len(SIZES)}),
        processing_class=TOKENIZER,
        rollout_func=rollouts,
        **named,
    )
    trainer.train()
    return trainer.model.state_dict()


def weights_by_own_step(policy, ar_alpha=0.0, lopti_eta=0.0):
    rule = {
        "algorithm.ar_alpha": ar_alpha,
        "algorithm.lopti_eta": lopti_eta,
        "algorithm.advantage": "dr_grpo",
    }
    config = update_config(
        policy, rule | {"optim.update_batch_size": 32, "algorithm.kl_log_ratio_clamp": None}
    )
    updates = Updates(config, make_parallel(config))
    updates.optimizer.param_groups[0]["weight_decay"] = 0.0
    for step in range(STEPS):
        updates.step(step)
    return updates.causal_lm.state_dict()


RULES = {"plain": (0.0, 0.0), "AR": (0.3, 0.0), "Lopti": (0.0, 0.02), "both": (0.3, 0.02)}


def test_three_steps_end_with_the_weights_of_the_own_trainer(random_policy, tmp_path):
    """As near as those of TRL's plain rule, and far from the plain rule's weights."""
    distance = {}
    moved = {}
    plain = weights_by_own_step(random_policy)
    for name, (ar_alpha, lopti_eta) in RULES.items():
        ours = weights_by_own_step(random_policy, ar_alpha, lopti_eta)
        by_trl = train_by_trl(random_policy, tmp_path, ar_alpha=ar_alpha, lopti_eta=lopti_eta)
        distance[name] = max(
            float((ours[key] - by_trl[key]).norm() / ours[key].norm()) for key in ours
        )
        moved[name] = max(float((ours[key] - plain[key]).norm() / ours[key].norm()) for key in ours)
    print(distance, moved)
    assert max(distance.values()) < 3 * distance["plain"] + 1e-7
    assert all(moved[name] > 100 * distance[name] for name in RULES if name != "plain")


class Gradients(TrainerCallback):
    def __init__(self):
        self.sum = 0

    def on_pre_optimizer_step(self, args, state, control, model, **_):
        self.sum = self.sum + torch.cat(
            [parameter.grad.flatten() for parameter in model.parameters()]
        )


@pytest.mark.parametrize("loss_type", ["dapo", "dr_grpo", "cispo", "luspo"])
def test_gradients_of_both_passes_add_up_to_those_of_all_tokens(random_policy, tmp_path, loss_type):
    settings = {"loss_type": loss_type, "learning_rate": 0.0, "max_grad_norm": 0.0, "max_steps": 1}
    one_pass = Gradients()
    two_passes = Gradients()
    train_by_trl(random_policy, tmp_path, settings, callbacks=[one_pass])
    train_by_trl(random_policy, tmp_path, settings, callbacks=[two_passes], lopti_eta=0.02)
    torch.testing.assert_close(
        two_passes.sum, one_pass.sum, rtol=1e-4, atol=1e-5 * float(one_pass.sum.abs().max())
    )


class Village:
    """An environment that answers one question; its reward differs within a group."""

    made = 0

    def __init__(self):
        Village.made += 1
        self.reward = float(Village.made % 3)

    def reset(self, **row):
        return " Mia says not Ava knight"

    def ask(self, person: str) -> str:  # TRL tells the model these types
        """Ask a person.

        Args:
            person: whom.
        """
        self.reward += 1
        return f" {person} knight fits"

    def get_reward(self):
        return self.reward


CALL = '<tool_call>\n{"name": "ask", "arguments": {"person": "Ava"}}\n</tool_call>'
CHAT = """{% for m in messages %}{{ m.role }} :{{ m.content }}\
{% for call in m.tool_calls or [] %}<tool_call>
{{ call.function | tojson }}
</tool_call>{% endfor %}{% endfor %}"""


def test_observations_have_no_gradient_and_count_in_no_denominator(tmp_path):
    from trl.chat_template_utils import qwen3_template

    tokenizer = copy.deepcopy(TOKENIZER)
    tokenizer.add_tokens([AddedToken(CALL, normalized=False)])
    tokenizer.chat_template = CHAT
    tokenizer.response_template = qwen3_template
    random_model(vocab_size=len(tokenizer)).save_pretrained(tmp_path)
    losses = []

    class Watched(LoptiGRPOTrainer):
        def _compute_loss(self, model, inputs):
            losses.append(
                {"generated": inputs["completion_mask"] * inputs["tool_mask"], "inputs": inputs}
            )
            return super()._compute_loss(model, inputs)

        def _get_per_token_logps_and_entropies(self, *args, **named):
            scores = super()._get_per_token_logps_and_entropies(*args, **named)
            if scores[0].requires_grad:
                scores[0].retain_grad()
                losses[-1]["logprobs"] = scores[0]
            return scores

    def call_first(prompts, trainer):
        prompt_ids = tokenizer.apply_chat_template(prompts, return_dict=False)
        call = tokenizer.encode(CALL)
        return {"prompt_ids": prompt_ids, "completion_ids": [call] * len(prompts), "logprobs": None}

    once = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "max_steps": 1}
    once |= {"beta": 0.0, "learning_rate": 1e-5}  # no ratio leaves the clip range
    Watched(
        str(tmp_path),
        args=grpo_config(tmp_path, **once, max_completion_length=40, max_tool_calling_iterations=1),
        train_dataset=Dataset.from_dict(
            {"prompt": [[{"role": "user", "content": " Ava says"}]] * 2}
        ),
        processing_class=tokenizer,
        rollout_func=call_first,
        environment_factory=Village,
        ar_alpha=0.3,
        lopti_eta=0.02,
    ).train()

    first, second = losses
    generated = first["generated"].bool()
    observed = first["inputs"]["completion_mask"].bool() & ~generated
    assert observed.sum() > 0 and generated.sum() > 8
    old = first["inputs"]["old_per_token_logps"]
    low = generated & (old.exp() < 0.02)
    weights = first["inputs"]["advantages"][:, None] * (0.3 * old.exp() + 0.7) / generated.sum()
    torch.testing.assert_close(first["logprobs"].grad, -weights * low)
    gradient = second["logprobs"].grad
    assert torch.equal(gradient != 0, generated & ~low & (weights != 0))
    assert first["logprobs"].grad[observed].abs().max() == gradient[observed].abs().max() == 0


@pytest.mark.parametrize(
    "settings, named",
    [
        ({"loss_type": "grpo"}, "loss_type=grpo"),
        ({"importance_sampling_level": "sequence"}, "importance_sampling_level=sequence"),
        ({"steps_per_generation": 1}, "gradient_accumulation_steps, 2"),
    ],
)
def test_arguments_that_change_denominators_are_refused(tmp_path, settings, named):
    with refused("lopti-not-possible", ConfigError, names=(named,)):
        LoptiGRPOTrainer("nowhere", len, grpo_config(tmp_path, **settings), lopti_eta=0.5)


def train_with_record(folder, policy, correct_in_step, resume=False):
    """Four steps with an evaluation of two problems every second one; ``correct_in_step`` rewards a
    completion.
    """
    record = RunRecorder(folder)

    def rollouts(prompts, trainer):
        ids = [[5 + number % 2, 2] for number in range(len(prompts))]
        return {"prompt_ids": [[4]] * len(prompts), "completion_ids": ids, "logprobs": None}

    def is_correct(completion_ids, problem_id, trainer_state, **_):
        step = trainer_state.global_step
        return [
            correct_in_step(step, ids[0], problem)
            for ids, problem in zip(completion_ids, problem_id, strict=True)
        ]

    problems = Dataset.from_dict({"prompt": ["", ""], "problem_id": ["b", "a"]})
    sizes = {
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "gradient_accumulation_steps": 2,
    }
    steps = {
        "max_steps": 4,
        "eval_steps": 2,
        "eval_strategy": "steps",
        "beta": 0.0,
        "save_only_model": False,
    }
    trainer = LoptiGRPOTrainer(
        str(policy),
        record.accuracy(is_correct),
        grpo_config(folder, **sizes, **steps),
        train_dataset=problems,
        eval_dataset=problems,
        processing_class=TOKENIZER,
        callbacks=[record],
        rollout_func=rollouts,
        lopti_eta=0.5,
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer.state


@pytest.mark.parametrize("is_async", [False, True])
def test_a_reward_is_recorded_in_evaluations_alone(is_async, tmp_path):
    def right(prompts, **columns):
        return [1.0, 0.0]

    async def asked(prompts, **columns):
        return right(prompts)

    record = RunRecorder(tmp_path)
    reward = record.accuracy(asked if is_async else right)
    for record._is_training in (True, False):
        values = reward(prompts=["a", "b"])
        assert (asyncio.run(values) if is_async else values) == [1.0, 0.0]
    assert record._scores == [("a", True), ("b", False)]


def test_evaluations_are_recorded_by_problem_and_a_stopped_run_goes_on(random_policy, tmp_path):
    def stopped(step, token, problem):
        if step == 4:  # the first pass of the third batch of completions
            signal.raise_signal(signal.SIGTERM)
        return float(token == 5 or (problem == "a" and step >= 8))

    handler = signal.getsignal(signal.SIGTERM)
    assert train_with_record(tmp_path, random_policy, stopped).global_step == 6
    assert signal.getsignal(signal.SIGTERM) is handler
    metrics = tmp_path / "metrics.jsonl"
    (first,) = read_records(metrics)
    assert (first["step"], first["eval/accuracy"], first["eval/reward"]) == (2, 0.5, 0.5)

    # of what ran on after its last checkpoint
    JsonLines(metrics).append({"step": 4, "eval/accuracy": 0.9})
    assert train_with_record(tmp_path, random_policy, stopped, resume=True).global_step == 8
    assert [(line["step"], line["eval/accuracy"]) for line in read_records(metrics)] == [
        (2, 0.5),
        (4, 0.75),
    ]
    assert [line["sets"]["eval"] for line in read_records(tmp_path / "correctness.jsonl")] == [
        {"completions": 4, "correct": [2, 2]},
        {"completions": 4, "correct": [4, 2]},
    ]
