import pytest

from sweep.space.file import load_space
from trainer.config.schema import load_config
from trainer.errors import ConfigError

TRL = "model_name_or_path: m\nlearning_rate: 1.0e-5\nnum_generations: 8\n"
WANDB = "program: train.py\nmethod: bayes\nmetric: {name: loss}\nparameters: {lr: {min: 0.1, max: 1}}\n"
VERL = "actor_rollout_ref: {model: {path: m}}\ntrainer: {total_epochs: 1}\n"
SPACE = "name: x\ntrainer: base\nparameters: {}\nsearch: {configurations: 1}\n"
RUN = "extends: base\nmodel: {name_or_path: m}\n"


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        (TRL, "a configuration of TRL", "learning_rate -> optim.lr, num_generations -> rollout.group_size"),
        (WANDB, "a W&B sweep", "method -> search.sampler"),
        (VERL, "a configuration of verl", "actor_rollout_ref -> model, rollout, algorithm and optim"),
    ],
)
@pytest.mark.parametrize("read", [lambda path: load_config(str(path)), load_space], ids=["run", "space"])
def test_files_of_other_programs_are_named(tmp_path, text, what, hint, read):
    (tmp_path / "other.yaml").write_text(text)
    with pytest.raises(ConfigError, match=what) as caught:
        read(tmp_path / "other.yaml")
    assert hint in caught.value.hint and caught.value.where == str(tmp_path / "other.yaml")


def test_a_run_and_a_space_in_the_place_of_each_other(tmp_path):
    (tmp_path / "space.yaml").write_text(SPACE)
    (tmp_path / "run.yaml").write_text(RUN)
    with pytest.raises(ConfigError, match="this is a search space, not a run") as caught:
        load_config(str(tmp_path / "space.yaml"))
    assert caught.value.hint == f"sweep run {tmp_path / 'space.yaml'}"
    with pytest.raises(ConfigError, match="this is a run file, not a search space") as caught:
        load_space(tmp_path / "run.yaml")
    assert caught.value.hint.startswith(f"trainer run {tmp_path / 'run.yaml'}")


@pytest.mark.parametrize(
    ("text", "key", "hint"),
    [
        ("searchh: {configurations: 1}\n", "searchh", "did you mean search?"),
        ("search: {configuration: 1}\n", "search.configuration", "did you mean configurations?"),
    ],
)
def test_a_misspelt_section_is_named_before_what_is_missing_without_it(tmp_path, text, key, hint):
    (tmp_path / "space.yaml").write_text(f"name: x\ntrainer: base\n{text}")
    with pytest.raises(ConfigError, match=f"unknown key {key}") as caught:
        load_space(tmp_path / "space.yaml")
    assert caught.value.hint == hint


def test_a_key_without_its_section_is_found_in_it(tmp_path):
    (tmp_path / "run.yaml").write_text("extends: base\nlr: 1.0e-5\n")
    with pytest.raises(ConfigError) as caught:
        load_config(str(tmp_path / "run.yaml"))
    assert caught.value.hint == "did you mean optim.lr?"
    (tmp_path / "space.yaml").write_text("name: x\ntrainer: base\nsearch: {configurations: 1}\n")
    with pytest.raises(ConfigError) as caught:
        load_space(tmp_path / "space.yaml", ["configurations=4"])
    assert caught.value.hint == "did you mean search.configurations?"
