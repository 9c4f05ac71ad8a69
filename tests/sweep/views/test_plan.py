"""Slots, disk and forecast of a sweep, by hand."""

import json
import re
from dataclasses import replace

import psutil
import pytest
import torch
from safetensors.torch import save_file

from sweep.record.folder import sweep_folder
from sweep.record.sweep_record import SweepRecord
from sweep.space.file import load_space
from sweep.space.parameters import ParameterSpec
from sweep.trials.cluster import Node
from sweep.views.plan import Disk, _range, make_plan, short_memory
from tests.sweep.harness import FOUR_GPUS, SHORT, write_space
from trainer.planning.memory import Device, Footprint

ZERO_2 = {"parallel.strategy": "deepspeed", "parallel.zero_stage": 2}


def plan_of(folder, overrides, nodes, **changes):
    space = write_space(
        folder / "space.yaml",
        trainer={"preset": "tiny_kk", "overrides": {**SHORT, **overrides}},
        **changes,
    )
    return make_plan(
        SweepRecord(load_space(space), sweep_folder(folder / "runs", "fake")),
        nodes,
        90.0,
        folder / "noise",
    )


def test_two_nodes_of_eight_gpus_run_four_trials_at_a_time(tmp_path):
    plan = plan_of(
        tmp_path, ZERO_2, [Node(64, 8)] * 2, resources=FOUR_GPUS, seeds=[0, 1, 2], limits={}
    )
    assert (plan.trials, plan.slots, plan.waiting) == (9, 4, 5)
    assert plan.seconds == 3 * 4 * 90  # three waves of four steps
    assert plan.gpu_hours == pytest.approx(9 * 4 * 90 * 4 / 3600)


@pytest.mark.parametrize(
    ("overrides", "bytes_a_parameter"),
    [
        ({}, 4 + 8),  # float32 weights, two moments
        # the module holds float32 weights and computes in bfloat16
        ({"model.dtype": "bfloat16"}, 4 + 8),
        ({"model.dtype": "bfloat16", **ZERO_2}, 2 + 8 + 4),
        (ZERO_2, 4 + 8 + 4),
        ({"parallel.strategy": "deepspeed", "parallel.zero_stage": 0}, 4 + 8),
    ],
)
def test_a_checkpoint_holds_weights_and_optimizer_state(tmp_path, overrides, bytes_a_parameter):
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    save_file(
        {"a": torch.zeros(3, 5, dtype=torch.bfloat16), "b": torch.zeros(7)},
        model / "model.safetensors",
    )
    plan = plan_of(tmp_path, {"model.name_or_path": str(model), **overrides}, [Node(2, 0)])
    # Two trials that run keep the last three and the best, and write one more; the third has ended.
    weights = 2 if bytes_a_parameter == 2 + 8 + 4 else 4
    ended = 22 * weights * 4
    assert plan.disk == Disk(22 * bytes_a_parameter, ended, 22 * 2 * 5 * bytes_a_parameter + ended)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("Qwen/Qwen2.5-3B-Instruct", 3.085938688),  # known
        ("gpt2", None),
    ],
)
def test_a_hub_models_size_is_known_or_not(tmp_path, name, billions):
    plan = plan_of(tmp_path, {"model.name_or_path": name}, [Node(2, 0)])
    expected = None if billions is None else pytest.approx(billions * 1e9 * 12, rel=1e-12)
    assert (plan.disk and plan.disk.one_checkpoint) == expected


def test_the_memory_of_a_trial_with_gpus_is_estimated(tmp_path, monkeypatch, typed):
    trainer = {"preset": "kk_7b", "overrides": {"max_steps": 2, "evaluation.every_steps": 1}}
    space = write_space(tmp_path / "space.yaml", trainer=trainer, resources=FOUR_GPUS, limits={})
    plan = make_plan(
        SweepRecord(load_space(space), sweep_folder(tmp_path / "runs", "fake")),
        [Node(64, 4)],
        90.0,
        tmp_path / "noise",
    )
    assert plan.memory is not None
    assert plan.memory.ranks == 4
    assert 7e9 < plan.memory.margin < 8e9
    assert (
        json.loads(typed("sweep plan", space, "--json"))["memory"]["margin"] == plan.memory.margin
    )
    monkeypatch.setattr("sweep.programs.loptune.gpu_bytes", lambda: 40 * 10**9)
    shortage = next(
        line for line in typed("sweep plan", space).splitlines() if "GPU memory" in line
    )
    assert re.fullmatch(r"NOT ENOUGH   GPU memory: \d\d\.\d GB .*40\.0 GB .*", shortage)


def test_the_longest_trial_may_be_one_where_a_condition_fails(tmp_path):
    data = {"source": "generated", "size": 100}
    prompts = {"choice": [40, 50], "when": {"algorithm.lopti_eta": 0.5}, "else": 20}
    plan = plan_of(
        tmp_path,
        {"max_steps": None, "epochs": 2, "data.train": data},
        [Node(2, 0)],
        parameters={
            "algorithm.lopti_eta": {"choice": [0.0, 0.5]},
            "rollout.prompts_per_step": prompts,
        },
        baselines=[],
    )
    assert plan.steps == 10  # 200 problems, 20 a step


def test_the_plan_of_imagined_machines_is_printed(tmp_path, typed):
    trainer = {"preset": "tiny_kk", "overrides": {**SHORT, **ZERO_2}}
    space = write_space(
        tmp_path / "space.yaml",
        trainer=trainer,
        resources=FOUR_GPUS,
        scheduler={"asha": {"grace_period": 1}},
        limits={},
    )
    line = f"sweep plan {space} --nodes 2 --gpus 6 --cpus 64 --step-seconds 90"
    out = typed(line)
    assert "2 x 6 GPUs and 64 CPUs" in out
    assert "2 trials; waiting: 1; idle: 4 GPUs\n" in out
    forecast = next(line for line in out.splitlines() if line.startswith("forecast"))
    for fact in ("at most 12m 00s", "1.2 GPU hours", "90 s per step", "(given)"):
        assert fact in forecast
    assert "4 GPUs, 4 CPUs; 4 steps" in out
    node = {"cpus": 64, "gpus": 6, "memory": psutil.virtual_memory().total}
    assert json.loads(typed(f"{line} --json"))["nodes"] == [node, node]


def test_arms_and_their_confirmation_are_priced(tmp_path, typed):
    arms = {
        "algorithm.advantage": {"choice": ["grpo", "rloo"]},
        "optim.lr": {"uniform": [1e-5, 1e-3]},
    }
    search = {"configurations": 5, "tune_within": "algorithm.advantage"}
    space = write_space(tmp_path / "space.yaml", parameters=arms, baselines=[], search=search)
    out = " ".join(typed(f"sweep plan {space} --step-seconds 3 --nodes 1").split())
    assert "trials 10: 10 configurations x 1 seed; sampler gp" in out
    assert "5 tuning trials for each of 2 values of algorithm.advantage" in out
    # 2 x 8 fresh trials of 4 steps of 3 s, two at a time where there are two cores
    minutes = {1: "3m 12s", 2: "1m 36s"}[min(2, psutil.cpu_count() or 1)]
    assert f"sweep confirm fake --runs-dir {tmp_path}`" in out, out
    assert f"8 fresh seeds: 16 trials, {minutes} more" in out, out


def test_what_is_short_is_named_with_what_is_needed_and_what_there_is(tmp_path, monkeypatch):
    gpus = {"resources": FOUR_GPUS, "limits": {}}
    assert plan_of(tmp_path, ZERO_2, [Node(64, 8)], **gpus).short == []
    assert plan_of(tmp_path, ZERO_2, [Node(64, 0), Node(2, 4)], **gpus).short == [
        "a trial needs 4 GPUs and 4 CPUs; available: 4 GPUs and 66 CPUs on 2 nodes, which fit 2 of "
        "its 4 workers"
    ]
    assert plan_of(tmp_path, ZERO_2, [Node(64, 0)], **gpus).short == [
        "a trial needs 4 GPUs and 4 CPUs; available: 0 GPUs and 64 CPUs"
    ]
    monkeypatch.setattr("sweep.views.plan.free_bytes", lambda path: 10**6)
    # 105,920 parameters of 12 bytes: two trials with five checkpoints each, and one that has ended
    # with four of 4.
    assert plan_of(tmp_path, {}, [Node(2, 0)]).short == ["disk: 14.4 MB needed, 1.0 MB free"]


def test_host_memory_is_short_if_concurrent_trials_take_more(tmp_path):
    gpu = Device(True, 80 * 10**9)
    memory = Footprint(
        4, gpu, held=0, training=70 * 10**9, sampling=0, host=30 * 10**9, checkpoint=0
    )
    large = Node(64, 8, memory=50 * 10**9)
    unknown = Node(64, 8)
    assert list(short_memory(memory, [large], 1)) == []
    (shortage,) = short_memory(memory, [large], 2)
    assert shortage.startswith("host memory ")
    assert "60.0 GB" in shortage and "50.0 GB" in shortage
    assert list(short_memory(memory, [large, large], 2)) == []
    assert list(short_memory(memory, [large, unknown], 4)) == []  # a cluster that does not say
    (shortage,) = short_memory(replace(memory, training=90 * 10**9), [large], 1)
    assert shortage.startswith("GPU memory: 90.0 GB needed, 80.0 GB ")


@pytest.mark.parametrize(
    ("fraction", "gpus", "at_a_time"),
    [
        (0.15, 8, "48 trials; waiting: 14; idle: 0.8 GPUs"),
        (0.5, 8, "16 trials; waiting: 46"),
        (1, 100, "62 trials; waiting: 0; idle: 38 GPUs"),
    ],
)
def test_gpus_that_stay_idle_are_named(tmp_path, typed, fraction, gpus, at_a_time):
    search = {"sampler": "random", "configurations": 60}
    trainer = {"preset": "tiny_kk", "overrides": SHORT}
    space = write_space(tmp_path / "space.yaml", trainer=trainer, search=search, limits={})
    out = typed(f"sweep plan {space} --gpus {gpus} --cpus 96 resources.gpus_per_trial={fraction}")
    lines = [line for line in out.splitlines() if line.startswith("at a time")]
    assert [at_a_time] == [line[13:].rstrip() for line in lines]


@pytest.mark.parametrize(
    ("parameter", "text"),
    [
        ({"int": [1, 10, 4]}, "int 1 to 10, step 4 (up to 9: the step does not divide the range)"),
        ({"int": [1, 9, 4]}, "int 1 to 9, step 4"),
        (
            {"quniform": [0.0, 1.0, 0.3]},
            "quniform 0 to 1, step 0.3 (up to 0.9: the step does not divide the range)",
        ),
        ({"quniform": [0.1, 0.5, 0.1]}, "quniform 0.1 to 0.5, step 0.1"),
    ],
)
def test_a_step_that_misses_the_upper_end_is_shown(parameter, text):
    assert _range(ParameterSpec.model_validate(parameter)) == text
