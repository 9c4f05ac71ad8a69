import json
import shutil

import pytest

from loptune.errors import ConfigError, MissingError, StorageError
from loptune.files import read_records
from tests.refusals import refused
from tests.trainer.test_loop import small_config
from trainer.cli import main
from trainer.commands import evaluation_run
from trainer.commands.evaluate import (
    evaluation_config,
    last_checkpoints,
    parse_set,
    record_name,
    resolve_model,
)
from trainer.config.schema import load_config, save_config
from trainer.loop import Trainer
from trainer.tracking.tracker import Tracker
from trainer.types import RunContext

COMPLETIONS = "evaluation.completions_per_problem"


@pytest.fixture(scope="module")
def run(tiny_policy, tmp_path_factory):
    """A run of two steps with sampled evaluations, as `trainer run` leaves it."""
    folder = tmp_path_factory.mktemp("runs") / "trained"
    config = small_config(
        tiny_policy,
        **{"max_steps": 2, "tracking.offline": True, "evaluation.completions_per_problem": 3},
        **{"checkpoint.every_steps": 1, "checkpoint.keep_last": 2, "evaluation.every_steps": 1},
    )
    context = RunContext(folder, folder.parent, "test", "trained")
    trainer = Trainer(config, context, Tracker(config, context))
    trainer.train()
    trainer.close()
    save_config(config, folder / "config.yaml")
    return folder


def last_evaluation(folder):
    records = read_records(folder / "metrics.jsonl")
    return [record for record in records if "eval/accuracy" in record][-1]


def test_an_evaluation_whose_results_cannot_be_printed_is_recorded_as_finished(
    run, tmp_path, monkeypatch
):
    def refuse(*_):
        raise BrokenPipeError

    statuses = []
    close = Tracker.close

    def closed(tracker, status):
        statuses.append(status)
        close(tracker, status)

    monkeypatch.setattr(Tracker, "close", closed)
    monkeypatch.setattr(evaluation_run, "print_table", refuse)
    config = evaluation_config(resolve_model(str(run)), None, [], {"tracking.offline": True})
    with pytest.raises(BrokenPipeError):
        evaluation_run.run_evaluations([config], [0], ["piped"], None, tmp_path, False)
    assert statuses == ["FINISHED"]
    assert (tmp_path / "piped" / "evaluation.json").is_file()


def test_last_evaluates_each_checkpoint_and_averages_them(run, tmp_path, typed):
    printed = json.loads(typed(f"trainer evaluate {run} --last 2 --offline --name mean --json"))
    assert printed == json.loads((tmp_path / "mean" / "evaluation.json").read_text())
    assert printed["steps"] == [1, 2]
    first, second = (
        json.loads((tmp_path / f"mean-step-{step}" / "evaluation.json").read_text())
        for step in (1, 2)
    )
    mean = printed["rows"][0]
    for column in ("accuracy", "reward", "completion_length", "pass_at_k"):
        values = [one["rows"][0][column] for one in (first, second)]
        assert mean[column] == pytest.approx(sum(values) / 2)
    assert (mean["low"], mean["problems"]) == (None, 8)
    table = typed(f"trainer evaluate {run} --last 1 --offline --name one")
    assert f"{second['rows'][0]['accuracy']:.3f}" in table


def test_last_is_refused_if_the_run_has_fewer_checkpoints(run, typed):
    assert "[too-few-checkpoints]" in typed(f"trainer evaluate {run} --last 3 --offline", code=3)


def test_last_is_refused_for_anything_but_a_run(run, typed):
    for model in ("Qwen/Qwen2.5-0.5B", "tiny", run / "checkpoints" / "step-2", "no-such-run"):
        assert "[not-a-run]" in typed(f"trainer evaluate {model} --last 3 --offline", code=2)


def test_last_needs_every_name_that_it_records(run, tmp_path, typed):
    line = f"trainer evaluate {run} --last 2 --offline --name"
    (tmp_path / "stopped-step-1").mkdir()  # left by an evaluation that was stopped
    assert "stopped-step-1 already exists" in typed(f"{line} stopped", code=2)
    assert "[invalid-name]" in typed(f"{line} {'a' * 60}", code=2)


@pytest.mark.parametrize(
    ("steps", "last", "missing"),
    [
        ([6, 7, 8], 3, ""),
        ([4, 7, 8], 2, ""),
        ([4, 7, 8], 3, "deleted or damaged: step 5, 6"),  # 4 is the best one
        ([6, 8], 2, "deleted or damaged: step 7"),
    ],
)
def test_last_takes_no_older_checkpoint_for_one_of_the_last(run, tmp_path, steps, last, missing):
    folder = tmp_path / "copy"
    shutil.copytree(run, folder, ignore=shutil.ignore_patterns("step-1"))
    checkpoints = folder / "checkpoints"
    for step in steps:
        shutil.copytree(checkpoints / "step-2", checkpoints / f"step-{step}")
    shutil.rmtree(checkpoints / "step-2")
    if not missing:
        found = last_checkpoints(folder, last)
        assert [each.step for each in found] == steps[-last:]
        return
    with refused("last-checkpoints-missing", MissingError) as refusal:
        last_checkpoints(folder, last)
    assert missing in str(refusal.value)


def test_a_run_is_evaluated_as_it_evaluated_itself(run, tmp_path, typed):
    printed = json.loads(typed(f"trainer evaluate {run} --offline --name again --json"))
    assert json.loads((tmp_path / "again" / "evaluation.json").read_text()) == printed
    trained = last_evaluation(run)
    again = last_evaluation(tmp_path / "again")
    assert again["step"] == trained["step"] == printed["step"] == 2
    for name in trained:
        if name.startswith("eval/"):
            assert again[name] == pytest.approx(trained[name]), name
    whole = printed["rows"][0]
    assert (whole["set"], whole["problems"], whole["completions"], whole["k"]) == ("dev", 8, 24, 3)
    assert whole["accuracy"] == again["eval/accuracy"]
    assert (
        whole["low"]
        == again["eval/accuracy_low"]
        <= whole["accuracy"]
        <= again["eval/accuracy_high"]
    )
    assert len((tmp_path / "again" / "completions.jsonl").read_text().splitlines()) == 24


def test_sets_limits_and_completions_are_those_asked_for(tiny_policy, tmp_path, typed):
    problems = tmp_path / "own.jsonl"
    line = f"trainer evaluate {tiny_policy} --spec tiny_kk --offline --name two"
    assert "[data-file-missing]" in typed(f"{line} --sets own={problems}", code=3)
    unknown = "reward.functions={nonsense: 1}"
    printed = typed(line, unknown, code=2)
    assert "[reward-unusable]" in printed and "nonsense" in printed
    assert not (tmp_path / "two").exists()
    sets = ["a={source: generated, people: [2], size: 3}", "b={source: generated, limit: 3}"]
    assert "@2" in typed(f"{line} rollout.max_new_tokens=20 -k 2 --sets", *sets)
    record = json.loads((tmp_path / "two" / "evaluation.json").read_text())
    assert [
        (r["set"], r["problems"], r["completions"]) for r in record["rows"] if r["by"] == "all"
    ] == [("a", 3, 6), ("b", 3, 6)]
    assert load_config(str(tmp_path / "two" / "config.yaml")).evaluation.sets["b"].split == "test"
    assert "two already exists" in typed(line, code=2)


def test_scoring_that_fails_is_refused(tiny_policy, tmp_path, typed):
    line = f"trainer evaluate {tiny_policy} --spec tiny_kk --offline --name f -k 1"
    failing = "reward.functions={'tests.trainer.failing_rewards:raising': 1.0}"
    small = ["rollout.max_new_tokens=10", "evaluation.sets.dev.size=3"]
    printed = typed(line, *small, failing, code=2)
    assert "[scoring-failed]" in printed and "1 of 3" in printed
    assert not (tmp_path / "f" / "evaluation.json").exists()


@pytest.mark.slow
def test_the_result_reaches_mlflow(tiny_policy, tmp_path, typed):
    from mlflow import MlflowClient

    arguments = ["evaluate", str(tiny_policy), "--spec", "tiny_kk", "rollout.max_new_tokens=10"]
    typed("trainer", *arguments, "evaluation.sets.dev.size=2", "--name", "seen")
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    experiment = client.get_experiment_by_name("evaluate")
    (recorded,) = client.search_runs([experiment.experiment_id])
    assert recorded.info.status == "FINISHED"
    assert recorded.data.tags["loptune.model"] == str(tiny_policy)
    assert {"eval/accuracy", "eval/accuracy_low", "eval/pass_at_k"} <= set(recorded.data.metrics)
    assert "evaluation.json" in {file.path for file in client.list_artifacts(recorded.info.run_id)}


def test_a_model_is_found_as_run_checkpoint_folder_or_name(run, tiny_policy, tmp_path):
    newest = str(run / "checkpoints" / "step-2")
    for given in (str(run), newest):
        model = resolve_model(given)
        assert (model.name_or_path, model.run_config, model.step) == (
            newest,
            run / "config.yaml",
            2,
        )
    assert resolve_model(str(tiny_policy)).run_config is None
    assert resolve_model("Qwen/Qwen2.5-7B").name_or_path == "Qwen/Qwen2.5-7B"
    (tmp_path / "config.yaml").write_text("seed: 1\n")
    with refused("no-checkpoint", MissingError):
        resolve_model(str(tmp_path))


def test_a_damaged_checkpoint_is_not_evaluated(run, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("step-1"))
    weights = copy / "checkpoints" / "step-2" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with refused("checkpoint-damaged", StorageError, names=("model.safetensors",)):
        resolve_model(str(copy / "checkpoints" / "step-2"))
    with refused("no-checkpoint", MissingError):
        resolve_model(str(copy))


def test_a_runs_configuration_is_changed_to_one_whole_model(run):
    model = resolve_model(str(run))
    config = evaluation_config(model, "kk_7b:rpp_ar", [], {})
    assert config.model.name_or_path == model.name_or_path
    assert (config.parallel.strategy, config.parallel.offload) == ("none", "none")
    flags = {COMPLETIONS: 5, "evaluation.temperature": 0.5}
    evaluation = evaluation_config(model, None, ["evaluation.top_p=0.9"], flags).evaluation
    assert (evaluation.top_p, evaluation.completions_per_problem, evaluation.temperature) == (
        0.9,
        5,
        0.5,
    )


def test_what_cannot_be_evaluated_is_refused_with_the_next_step(run):
    with pytest.raises(ConfigError) as caught:
        evaluation_config(resolve_model("some/model"), None, [], {})
    assert "--spec" in caught.value.hint
    with refused(
        "identical-completions", ConfigError, names=("evaluation.completions_per_problem",)
    ):
        evaluation_config(
            resolve_model(str(run)), None, [], {COMPLETIONS: 4, "evaluation.temperature": 0.0}
        )
    with refused("unknown-key", ConfigError, names=("sorce",)):
        evaluation_config(resolve_model(str(run)), None, [], {"evaluation.sets": ["a={sorce: x}"]})


def test_a_sweep_is_no_model(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "s").mkdir(parents=True)
    (tmp_path / "runs" / "s" / "space.lock.yaml").touch()
    for command in ("evaluate", "export"):
        assert main([command, "s"]) == 3
        message = capsys.readouterr().err
        assert "error: s is a sweep" in message and "runs/s/trials/ID" in message


def test_flags_hold_for_every_set_of_the_run(run):
    asked = {COMPLETIONS: 4, "evaluation.temperature": 0.5}
    for overrides, flags in (([], asked), ([f"{key}={value}" for key, value in asked.items()], {})):
        evaluation = evaluation_config(
            resolve_model(str(run)), "math_7b", overrides, flags
        ).evaluation
        sections = [evaluation.of_set(name) for name in evaluation.sets]
        assert {(section.completions_per_problem, section.temperature) for section in sections} == {
            (4, 0.5)
        }


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("dev", "no-value"),
        ("=x", "invalid-override"),
        ("dev=", "no-value"),
        ("a={source: x", "invalid-yaml"),
        ("a=3", "invalid-source"),
    ],
)
def test_malformed_sets_are_refused(text, code):
    with refused(code, ConfigError):
        parse_set(text)


def test_sets_take_the_test_split_unless_they_name_another():
    assert parse_set("dev=some/data") == ("dev", {"split": "test", "source": "some/data"})
    assert parse_set("dev={source: a, split: dev}") == ("dev", {"split": "dev", "source": "a"})
    assert parse_set("d=a=b.jsonl")[1]["source"] == "a=b.jsonl"


def test_records_are_named_after_the_model():
    assert record_name("runs/x/checkpoints/step-40").startswith("evaluate-x-step-40-")
    assert len(record_name("a" * 200)) <= 64
    assert len(record_name("a" * 200, room=len("-step-1000000"))) <= 64 - len("-step-1000000")
