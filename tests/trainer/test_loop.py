import json
import re
import shutil
import signal
import threading
import time

import pytest
import torch
from peft import PeftModel

from loptune.errors import DivergedError, RewardError, StorageError
from loptune.progress import ProgressReport
from tests.refusals import refused
from tests.run_cli import run_cli, start_cli
from trainer.checkpoint.on_disk import steps_on_disk, write_checkpoint
from trainer.config.schema import apply_overrides, load_config
from trainer.loop import Trainer
from trainer.policy.adapters import adapter_disabled
from trainer.policy.load import load_policy
from trainer.policy.weights import optimizer_tensors
from trainer.tracking.tracker import NullTracker
from trainer.types import RunContext


class Recorder(NullTracker):
    """Keeps what the trainer logs."""

    def __init__(self):
        self.steps = {}
        self.summary = {}
        self.rewound_to = None
        self.completions = []  # step and set of each

    def log_completions(self, rows, step):
        self.completions += [(step, row["set"]) for row in rows]

    def log(self, metrics, step):
        self.steps.setdefault(step, {}).update(metrics)

    def summarize(self, metrics):
        self.summary.update(metrics)

    def rewind(self, step):
        self.rewound_to = step

    def close(self, status="FINISHED"):
        self.status = status
        return True


def small_config(tiny_policy, **overrides):
    settings = {
        "model.name_or_path": str(tiny_policy),
        "data.train": {"source": "generated", "size": 20},
        "evaluation.sets": {"dev": {"source": "generated", "split": "dev", "size": 8}},
        "evaluation.every_steps": 2,
        "checkpoint.every_steps": 2,
        "rollout.prompts_per_step": 3,
        "rollout.group_size": 4,
        "rollout.max_new_tokens": 40,
        "optim.update_batch_size": 6,
        "optim.tokens_per_microbatch": 400,
        "algorithm.lopti_eta": 0.5,
        "algorithm.ar_alpha": 0.3,
        "algorithm.kl_coef": 0.01,
        "max_steps": 4,
    }
    return apply_overrides(load_config("tiny_kk"), settings | overrides)


def build(config, folder):
    return Trainer(config, RunContext(folder, folder.parent, "test", folder.name), Recorder())


def parameters(trainer):
    return [p.detach().clone() for p in trainer.models.causal_lm.parameters()]


def without_times(metrics):
    return {name: value for name, value in metrics.items() if not name.startswith("time/")}


def resumed_after_two_steps(config, folder):
    """Trained to its end after a stop at step 2, with work behind its checkpoint lost; closed."""
    first = build(config, folder)
    # an evaluation of an attempt before goes too
    assert (first.resume(), first.tracker.rewound_to) == (0, -1)
    first.train_until_evaluation()  # evaluation at the start
    first.train_until_evaluation()  # steps 1 and 2, checkpoint
    first.training_step()  # work that is lost
    first.close("KILLED")
    second = build(config, folder)
    assert second.resume() == 2
    assert second.tracker.rewound_to == 2
    second.train()
    second.close()
    return second


def assert_same_end(whole, resumed):
    """Bitwise equal weights, and equal metrics of steps 3 and 4."""
    assert all(
        torch.equal(a, b) for a, b in zip(parameters(whole), parameters(resumed), strict=True)
    )
    for step in (3, 4):
        assert without_times(resumed.tracker.steps[step]) == without_times(
            whole.tracker.steps[step]
        )


@pytest.fixture(scope="module")
def undisturbed(tiny_policy, tmp_path_factory):
    trainer = build(small_config(tiny_policy), tmp_path_factory.mktemp("runs") / "whole")
    trainer.train()
    yield trainer
    trainer.close()


def test_a_run_trains_evaluates_and_keeps_checkpoints(undisturbed):
    assert undisturbed.done
    assert [step for step, _ in undisturbed.evaluations] == [0, 2, 4]
    assert steps_on_disk(undisturbed.context.run_dir / "checkpoints") == [4, 2]
    of_training = [(step, name) for step in (2, 4) for name in ("train", "dev")]
    assert list(dict.fromkeys(undisturbed.tracker.completions)) == [(0, "dev"), *of_training]
    metrics = undisturbed.tracker.steps[1]
    assert metrics["optim/updates"] == 4  # two update batches, two passes
    assert metrics["policy/ratio_max"] > 1
    assert metrics["rollout/engine_logprob_diff_max"] < 1e-4
    accuracies = [accuracy for _, accuracy in undisturbed.evaluations]
    assert undisturbed.tracker.summary["final/accuracy"] == pytest.approx(sum(accuracies) / 3)
    assert undisturbed.tracker.summary["final/best_accuracy"] == max(accuracies)


def test_the_memory_of_the_first_step_is_shown_once_beside_the_estimate(tiny_policy, tmp_path):
    notes = []
    progress = ProgressReport()
    progress.note = notes.append
    config = small_config(
        tiny_policy, **{"evaluation.at_start": False, "evaluation.every_steps": 1}
    )
    trainer = Trainer(
        config, RunContext(tmp_path / "run", tmp_path, "test", "run"), Recorder(), progress
    )
    trainer.train_until_evaluation()
    trainer.train_until_evaluation()
    trainer.close()
    [note] = notes
    # A process is taken to be 1 GB; the model has 105,920 parameters.
    measured, estimated = re.findall(r"[\d.]+ [GM]B", note)
    assert measured != "0 MB" and re.fullmatch(r"1\.[01] GB", estimated)


def test_an_adapter_run_resumes_bitwise_and_stores_only_the_adapter(tiny_policy, tmp_path):
    config = small_config(
        tiny_policy, **{"model.lora.r": 4, "model.lora.dropout": 0.1, "optim.lr": 1e-3}
    )
    whole = build(config, tmp_path / "whole")
    whole.train()
    assert whole.tracker.steps[1]["policy/kl"] == 0.0 < whole.tracker.steps[2]["policy/kl"]
    second = resumed_after_two_steps(config, tmp_path / "run")
    whole.close()
    assert_same_end(whole, second)

    folder = tmp_path / "run" / "checkpoints" / "step-4"
    assert {"adapter_model.safetensors", "adapter_config.json"} <= {
        path.name for path in folder.iterdir()
    }
    assert not list(folder.glob("model*.safetensors"))
    base = load_policy(config.model, torch.device("cpu"))
    theirs = PeftModel.from_pretrained(base, folder)
    ours = second.models.causal_lm
    ids = torch.arange(3, 7)[None]
    with torch.no_grad():
        torch.testing.assert_close(theirs(input_ids=ids).logits, ours(input_ids=ids).logits)
        with theirs.disable_adapter(), adapter_disabled(ours):
            torch.testing.assert_close(theirs(input_ids=ids).logits, ours(input_ids=ids).logits)


def test_a_run_on_engine_logprobs_measures_and_resumes_alike(undisturbed, tiny_policy, tmp_path):
    config = small_config(
        tiny_policy, **{"optim.old_logprobs": "rollout", "algorithm.rollout_correction.cap": 2.0}
    )
    whole = build(config, tmp_path / "whole")
    whole.train()
    recomputed = undisturbed.tracker.steps[1]
    measured = whole.tracker.steps[1]
    assert not measured.keys() - recomputed.keys()
    absent = {name.rsplit("/", 1)[0] for name in recomputed.keys() - measured.keys()}
    assert absent == {"policy", "rollout", "tokens/entropy", "tokens/gradient_fraction"}
    for name in ("optim/grad_norm", "tokens/token_fraction/0.75-0.99"):
        assert measured[name] == pytest.approx(recomputed[name], rel=0.02)
    second = resumed_after_two_steps(config, tmp_path / "run")
    whole.close()
    assert_same_end(whole, second)


def test_resume_equals_never_having_stopped(undisturbed, tiny_policy, tmp_path, monkeypatch):
    trained = threading.Event()

    def write_late(*arguments):
        assert trained.wait(120)
        return write_checkpoint(*arguments)

    monkeypatch.setattr("trainer.loop.write_checkpoint", write_late)
    first = build(small_config(tiny_policy), tmp_path / "run")
    first.train_until_evaluation()  # evaluation at the start
    first.train_until_evaluation()  # steps 1 and 2, checkpoint
    first.training_step()
    assert not (tmp_path / "run" / "checkpoints").exists()
    trained.set()
    first.close("KILLED")
    second = build(small_config(tiny_policy), tmp_path / "run")
    assert second.resume() == 2
    second.train()
    second.close()
    assert_same_end(undisturbed, second)
    moments = optimizer_tensors(undisturbed.models.causal_lm, undisturbed.models.optimizer)
    resumed = optimizer_tensors(second.models.causal_lm, second.models.optimizer)
    assert moments.keys() == resumed.keys()
    assert all(torch.equal(moments[name], resumed[name]) for name in moments)


def test_a_checkpoint_that_cannot_be_written_ends_the_run(tiny_policy, tmp_path, monkeypatch):
    def refuse(*_):
        raise StorageError("No space left on device", code="not-written")

    monkeypatch.setattr("trainer.loop.write_checkpoint", refuse)
    trainer = build(small_config(tiny_policy), tmp_path / "run")
    with refused("not-written", StorageError, names=("No space left",)):
        trainer.train()
    trainer.close("FAILED")


def test_resume_passes_over_a_damaged_checkpoint(undisturbed, tiny_policy, tmp_path, caplog):
    shutil.copytree(undisturbed.context.run_dir, tmp_path / "run")
    weights = tmp_path / "run" / "checkpoints" / "step-4" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    second = build(small_config(tiny_policy), tmp_path / "run")
    assert second.resume() == 2
    assert "model.safetensors" in caplog.text
    second.close()


def test_no_reference_is_loaded_without_a_kl_coefficient(tiny_policy, tmp_path):
    trainer = build(small_config(tiny_policy, **{"algorithm.kl_coef": 0.0}), tmp_path / "r")
    assert trainer.models.reference is None
    assert "policy/kl" not in trainer.training_step()
    trainer.close()


def test_a_reward_that_always_raises_stops_the_run(tiny_policy, tmp_path):
    overrides = {"reward.functions": {"tests.trainer.failing_rewards:raising": 1.0}}
    with refused("scoring-failed", RewardError) as caught:
        build(small_config(tiny_policy, **overrides), tmp_path / "r")
    assert "RuntimeError: no such luck" in caught.value.what
    overrides = {"reward.functions": {"tests.trainer.failing_rewards:raising_on_completions": 1.0}}
    trainer = build(small_config(tiny_policy, **overrides), tmp_path / "r")
    with refused("scoring-failed", RewardError, names=("no such luck",)):
        trainer.training_step()
    trainer.close("FAILED")


def test_the_record_ends_and_the_processes_do_if_the_engine_does_not(
    tiny_policy, tmp_path, monkeypatch
):
    trainer = build(small_config(tiny_policy), tmp_path / "r")
    ended = []
    monkeypatch.setattr(trainer.parallel, "close", lambda: ended.append("parallel"))
    close_source = trainer.source.close

    def failing():
        close_source()
        raise RuntimeError("the engine does not end")

    monkeypatch.setattr(trainer.source, "close", failing)
    with pytest.raises(RuntimeError, match="does not end"):
        trainer.close("FAILED")
    assert (trainer.tracker.status, ended) == ("FAILED", ["parallel"])


def test_nan_weights_are_reported_with_the_step(tiny_policy, tmp_path):
    trainer = build(small_config(tiny_policy), tmp_path / "r")
    trainer.train_until_evaluation()
    original = trainer.models.optimizer.step

    def poisoned(*args, **kwargs):
        result = original(*args, **kwargs)
        with torch.no_grad():
            next(iter(trainer.models.causal_lm.parameters())).fill_(float("nan"))
        return result

    trainer.models.optimizer.step = poisoned
    with pytest.raises(DivergedError) as caught:
        trainer.train_until_evaluation()
    assert caught.value.step == 1
    trainer.close("FAILED")


@pytest.mark.slow
def test_interrupt_prints_the_command_that_resumes(tiny_policy, tmp_path):
    overrides = [f"model.name_or_path={tiny_policy}", "max_steps=400", "rollout.prompts_per_step=2"]
    overrides += [
        "evaluation.every_steps=200",
        "checkpoint.every_steps=200",
        "optim.update_batch_size=16",
    ]
    overrides += ["rollout.max_new_tokens=30", "evaluation.sets={dev: {split: dev, size: 4}}"]
    process = start_cli(
        "trainer", "run", "tiny_kk", *overrides, "--name", "interrupted", "--runs-dir", tmp_path
    )
    metrics = tmp_path / "interrupted" / "metrics.jsonl"
    deadline = time.monotonic() + 280
    while time.monotonic() < deadline and (
        not metrics.is_file() or "rollout/reward" not in metrics.read_text()
    ):
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=280)
    assert process.returncode == 130, errors
    reached = steps_on_disk(tmp_path / "interrupted" / "checkpoints")[0]
    message, command = output.strip().splitlines()[-2:]
    assert message == f"stopped at step {reached} of 400; saved at step {reached}; to resume:"
    assert command == f"trainer resume interrupted --runs-dir {tmp_path}"
    assert reached > 0
    again = run_cli(*command.split(), f"max_steps={reached + 1}", timeout=280)
    assert again.returncode == 0, again.stderr
    assert f"resuming interrupted at step {reached} of {reached + 1}" in again.stdout
    steps = [
        json.loads(line)["step"]
        for line in metrics.read_text().splitlines()
        if "rollout/reward" in line
    ]
    assert steps == list(range(1, reached + 2))


def test_dynamic_sampling_keeps_the_batch_size_and_counts_its_cost(tiny_policy, tmp_path):
    overrides = {
        "rollout.dynamic_sampling": True,
        "rollout.group_size": 2,  # groups of two often score alike
        "optim.update_batch_size": 6,
        "reward.overlong_buffer": 40,
        "algorithm.mask_truncated": True,
    }
    trainer = build(small_config(tiny_policy, **overrides), tmp_path / "r")
    metrics = [trainer.training_step() for _ in range(2)]
    sampled = trainer.source.sampler.state_dict()
    trainer.close()
    dropped = sum(step["rollout/dropped_groups"] for step in metrics)
    assert dropped > 0
    assert sampled["epoch"] * 20 + sampled["position"] == 2 * 3 + dropped
    assert all(-1 < step["reward/component/overlong"] < 0 for step in metrics)
