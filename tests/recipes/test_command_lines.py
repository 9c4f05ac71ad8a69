"""The command line of each recipe in examples/other_trainers, read by the trainer's own parser."""

import ast
import sys
import typing
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
import typing_extensions
import yaml

from tests.paths import ROOT

FOLDER = ROOT / "examples/other_trainers"
# These trainers are not on the package index.
NOT_READ = ["nemo_rl", "prime_rl"]


def recipes(trainer):
    """The recipes of a trainer, and every value that they search: the file's name, key and value.

    ``None`` as the key stands for the baseline.
    """
    for path in sorted(FOLDER.glob(f"{trainer}*.yaml")):
        yield path.stem, None, None
        for key, parameter in yaml.safe_load(path.read_text())["parameters"].items():
            for value in next(iter(parameter.values())):  # choices, or the ends of a range
                yield path.stem, key, value


def words_of(recipe, key, value, behind):
    """The words behind the trainer's module in the command of a trial on seed 3."""
    program = yaml.safe_load((FOLDER / f"{recipe}.yaml").read_text())["program"]
    values = {**program["defaults"], "seed": 3, "out": "/runs/trial"}
    if key is not None:
        values[key] = value
    words = program["command"][program["command"].index(behind) + 1 :]
    for name, content in values.items():
        words = [word.replace(f"{{{name}}}", str(content)) for word in words]
    return words


def test_every_recipe_is_read_here_or_named_as_not_read():
    names = [path.stem for path in FOLDER.glob("*.yaml")]
    read = {
        name for trainer in ("verl", "tinker", "skyrl", "openrlhf") for name, *_ in recipes(trainer)
    }
    assert sorted([*read, *NOT_READ]) == sorted(names)


@pytest.mark.parametrize(("recipe", "key", "value"), recipes("verl"))
def test_verl_reads_its_recipes(recipe, key, value):
    from hydra import compose, initialize_config_module
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.trainer.ppo.v1 import get_trainer_cls
    from verl.utils.config import omega_conf_to_dataclass

    import_module("trainer.integrations.verl_trainer")  # as VERL_USE_EXTERNAL_MODULES does
    overrides = words_of(recipe, key, value, behind="verl.trainer.main_ppo")
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides)
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    get_policy_loss_fn(actor.policy_loss.loss_mode)
    get_trainer_cls(config.trainer.v1.trainer_mode)(config)
    seeds = config.data.seed, actor.data_loader_seed, config.actor_rollout_ref.rollout.seed
    assert seeds == (3, 3, 3)


@pytest.mark.parametrize(("recipe", "key", "value"), recipes("tinker"))
def test_tinkers_cookbook_reads_its_recipe(recipe, key, value):
    import chz
    from tinker_cookbook.recipes.math_rl.train import CLIConfig

    words = words_of(recipe, key, value, behind="tinker_cookbook.recipes.math_rl.train")
    config = chz.Blueprint(CLIConfig).make_from_argv(words)
    assert (config.seed, config.max_tokens, config.log_path) == (3, 512, "/runs/trial/log")
    if key is not None:
        assert getattr(config, key) == value


@pytest.mark.parametrize(("recipe", "key", "value"), recipes("skyrl"))
def test_skyrl_reads_its_recipe(recipe, key, value, monkeypatch):
    if sys.version_info < (3, 12):  # which SkyRL 0.3.0 needs for the schema of its types only
        monkeypatch.setattr(typing, "TypedDict", typing_extensions.TypedDict)
    from skyrl.train.config import SkyRLTrainConfig
    from skyrl.train.utils import validate_cfg

    words = words_of(recipe, key, value, behind="skyrl.train.entrypoints.main_base")
    config = SkyRLTrainConfig.from_cli_overrides(words)
    validate_cfg(config)
    assert (config.trainer.seed, config.trainer.resume_mode) == (3, None)
    assert config.trainer.ckpt_path == "/runs/trial/checkpoints"


def openrlhf_arguments():
    """OpenRLHF's parser and checks of its options: what its module does when it is the program, up
    to the training. The module itself imports DeepSpeed and flash-attention.
    """
    package = Path(next(iter(find_spec("openrlhf").submodule_search_locations)))
    module = ast.parse((package / "cli/train_ppo_ray.py").read_text())
    read = {}
    for node in module.body:
        if isinstance(node, ast.Import) or getattr(node, "module", None) == "datetime":
            exec(compile(ast.Module([node], []), "imports", "exec"), read)
    (program,) = [node for node in module.body if isinstance(node, ast.If)]
    read["train"] = lambda args: read.update(args=args)
    exec(compile(ast.Module(program.body, []), "train_ppo_ray.py", "exec"), read)
    return read["args"]


@pytest.mark.parametrize(("recipe", "key", "value"), recipes("openrlhf"))
def test_openrlhf_reads_its_recipe(recipe, key, value, monkeypatch):
    words = words_of(recipe, key, value, behind="openrlhf.cli.train_ppo_ray")
    monkeypatch.setattr(sys, "argv", ["train_ppo_ray", *words])
    args = openrlhf_arguments()
    assert (args.train.seed, args.ckpt.path, args.eval.steps) == (3, "/runs/trial/checkpoints", 5)
    assert args.logger.tensorboard_dir == "/runs/trial/tensorboard"
    read = {"actor.adam.lr": args.actor.adam.lr}
    read["algo.advantage.estimator"] = args.algo.advantage.estimator
    assert key is None or read[key] == value
