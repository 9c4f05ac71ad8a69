"""Reading and writing search spaces."""

import importlib.resources
import pickle
from pathlib import Path

import pytest

from sweep.space.file import dump_space, load_space
from tests.sweep.spaces import make_spec, parameters, write_space
from trainer.errors import ConfigError, MissingError

ALPHA = "algorithm.ar_alpha"


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(MissingError):
        load_space(tmp_path / "none.yaml")
    with pytest.raises(MissingError, match=r"other\.yaml"):
        load_space(write_space(tmp_path, trainer={"preset": "other.yaml"}))


def test_python_tags_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text("name: !!python/object/apply:os.system ['touch planted']\n")
    with pytest.raises(ConfigError, match="not valid YAML"):
        load_space(path)
    assert not Path("planted").exists()


def test_everything_of_a_space_is_read(tmp_path: Path) -> None:
    spec = make_spec(
        tmp_path,
        scheduler={"asha": {"grace_period": 2, "reduction_factor": 3}},
        trainer={"preset": "base.yaml", "overrides": {"parallel.strategy": "ddp"}},
        resources={"gpus_per_trial": 4, "workers_per_trial": 4},
    )
    assert spec.base.max_steps == 60
    assert spec.evaluations == 6
    assert spec.scheduler.asha is not None and spec.scheduler.asha.grace_period == 2
    assert spec.scheduler.median is None
    assert spec.resources.gpus_per_worker == 1
    assert spec.limits.max_failures == 2
    assert spec.parameters["algorithm.lopti_eta"].otherwise == 0.0


@pytest.mark.parametrize("written", ["none", None])
def test_no_scheduler(written: str | None, tmp_path: Path) -> None:
    path = write_space(tmp_path)
    path.write_text(path.read_text() + ("scheduler: none\n" if written else "scheduler:\n"))
    spec = load_space(path)
    assert spec.scheduler.asha is None and spec.scheduler.median is None


def test_the_locked_space_needs_no_other_file_and_is_the_same(tmp_path: Path) -> None:
    spec = make_spec(tmp_path, trainer={"preset": "base.yaml", "overrides": {"optim.lr": "1e-4"}})
    lock = tmp_path / "elsewhere" / "space.lock.yaml"
    lock.parent.mkdir()
    lock.write_text(dump_space(spec))
    (tmp_path / "base.yaml").unlink()
    again = load_space(lock)
    assert again == spec
    assert again.base.optim.lr == 1e-4
    assert dump_space(again) == dump_space(spec)
    assert pickle.loads(pickle.dumps(spec)) == spec


def test_overrides(tmp_path: Path) -> None:
    path = write_space(tmp_path)
    spec = load_space(
        path,
        [
            "search.configurations=7",
            "seeds=[4]",
            "trainer.optim.lr=1e-4",
            "trainer.overrides.rollout.group_size=4",
            "parameters.algorithm.ar_alpha={uniform: [0.1, 0.2]}",
            "scheduler=asha",
            "objective.window=1",
        ],
    )
    assert spec.search.configurations == 7 and spec.search.startup == 2
    assert spec.seeds == [4]
    assert spec.base.optim.lr == 1e-4 and spec.base.rollout.group_size == 4 and spec.base.max_steps == 60
    assert spec.parameters[ALPHA].uniform == (0.1, 0.2)
    assert spec.scheduler.asha is not None
    assert spec.objective.window == 1


def test_override_of_the_trainer_written_as_one_word(tmp_path: Path) -> None:
    spec = load_space(write_space(tmp_path, trainer="base.yaml"), ["trainer.max_steps=20"])
    assert spec.base.max_steps == 20 and spec.evaluations == 2


@pytest.mark.parametrize(
    ("override", "what", "hint"),
    [
        ("serch.configurations=4", "unknown key serch.configurations", "did you mean search?"),
        ("optim.lr=1e-4", "unknown key optim.lr", "write trainer.optim.lr=1e-4"),
        ("trainer.optim.learning=1", "unknown key optim.learning", "did you mean optim.lr?"),
        ("search.configurations=many", "search.configurations", "change the value"),
        ("seeds", "not an override", "key=value"),
    ],
)
def test_refused_overrides_blame_the_command_line(override: str, what: str, hint: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_space(write_space(tmp_path), [override])
    assert what in caught.value.what
    assert hint in caught.value.hint
    assert "command line" in caught.value.where


def test_numbers_that_yaml_reads_as_text(tmp_path: Path) -> None:
    spec = make_spec(
        tmp_path,
        parameters=parameters(
            optim__lr={"choice": ["1e-6", "3e-6"]}, algorithm__kl_coef={"loguniform": ["1e-4", "1e-2"]}
        ),
        baselines=[{"lopti": False, "optim.lr": "3e-6"}],
    )
    assert spec.parameters["optim.lr"].options == [1e-6, 3e-6]
    assert spec.parameters["algorithm.kl_coef"].loguniform == (1e-4, 1e-2)
    assert spec.baselines[0]["optim.lr"] == 3e-6


def test_evaluations_are_unknown_where_data_or_a_parameter_decides(tmp_path: Path) -> None:
    searched = make_spec(tmp_path, parameters=parameters(max_steps={"choice": [20, 40]}))
    assert searched.evaluations is None
    assert load_space(write_space(tmp_path), ["trainer.max_steps=null"]).evaluations is None
    assert load_space(write_space(tmp_path), ["trainer.max_steps=61"]).evaluations == 7


def test_the_spaces_that_come_with_the_project_are_valid() -> None:
    folder = Path(str(importlib.resources.files("search_spaces")))
    names = sorted(path.name for path in folder.glob("*.yaml"))
    assert "quickstart.yaml" in names
    for name in names:
        assert load_space(folder / name).name


def test_the_quickstart_is_eight_trials() -> None:
    spec = load_space(Path(str(importlib.resources.files("search_spaces"))) / "quickstart.yaml")
    assert (len(spec.baselines) + (spec.search.configurations or 0)) * len(spec.seeds) == 8
    assert [(b["algorithm.ar_alpha"], b.get("algorithm.lopti_eta", 0)) for b in spec.baselines] == [
        (0.0, 0),
        (0.3, 0),
        (0.0, 0.5),
        (0.3, 0.5),
    ]


def test_a_space_with_a_key_that_was_renamed_is_read_as_today(tmp_path: Path) -> None:
    spec = make_spec(
        tmp_path,
        parameters={
            "algorithm.name": {"choice": ["grpo", "rloo"]},
            ALPHA: {"uniform": [0.1, 0.5], "when": {"algorithm.name": "grpo"}},
        },
        baselines=[{"algorithm.name": "grpo", ALPHA: 0.3}],
    )
    assert list(spec.parameters) == ["algorithm.advantage", ALPHA]
    assert spec.parameters[ALPHA].when == {"algorithm.advantage": "grpo"}
    assert spec.baselines == [{"algorithm.advantage": "grpo", ALPHA: 0.3}]
