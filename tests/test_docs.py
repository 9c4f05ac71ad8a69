"""README and pages: links lead somewhere, commands parse, names exist, references are complete."""

import fnmatch
import re
import shlex
from typing import get_args

import pytest
from pydantic import BaseModel

import sweep.cli
import trainer.cli
from docs.generate import pages
from loptune.terminal.arguments import parse_arguments
from rewards import REWARDS
from sweep.programs.loptune import LoptuneProgram
from sweep.space.file import load_space
from sweep.space.parameters import KINDS
from sweep.space.spec import SearchSpec, SweepSpec
from tests.paths import ROOT
from trainer.config.data import DatasetConfig
from trainer.config.reward import RewardConfig
from trainer.config.schema import TrainConfig, dotted_keys, load_config
from trainer.problems.tasks import TASKS
from trainer.rules.kinds import KINDS as RULE_KINDS

PAGES = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\((?!http)([^)#]*)#?([^)]*)\)")
PARSERS = {"trainer": trainer.cli.build_parser, "sweep": lambda words: sweep.cli.build_parser()}


def text_of(name):
    return (ROOT / name).read_text(encoding="utf-8")


def row_of(table, key):
    """The line of a table whose first cell names the key."""
    (row,) = re.findall(rf"^\|[^|]*`{re.escape(key)}`[^|]*\|.*$", table, re.MULTILINE)
    return str(row)


def commands(text):
    """The words of every indented `trainer` and `sweep` command, without comments and what precedes
    it.
    """
    lines = re.findall(r"^ {4,}(.+)$", text.replace("\\\n", " "), re.MULTILINE)
    examples = []
    for line in lines:
        match = re.search(r"(?:^|-m |^[A-Z_=0-9,]+ )((?:trainer|sweep) .*)", line)
        if match and not line.startswith(("#", "`")):
            examples.append(shlex.split(match[1], comments=True))
    return examples


def anchors(page):
    """The addresses of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page):
    for target, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        file = page.parent / target if target else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), f"{target}#{anchor}"


def test_the_index_leads_to_every_page():
    linked = {
        (ROOT / "docs" / target).resolve() for target, _ in LINK.findall(text_of("docs/index.md"))
    }
    assert {page for page in PAGES if page.name not in ("README.md", "index.md")} <= linked


def test_titles_of_pages_are_those_of_the_menu():
    for title, target in re.findall(
        r"^\| \[(.+?)\]\(([\w./]+\.md)\)", text_of("docs/index.md"), re.M
    ):
        page = (ROOT / "docs" / target).read_text(encoding="utf-8")
        # a skill has the name by which agents load it
        shown = "loptune" if target.startswith("skills/") else title
        assert re.search(r"^# (.+)$", page, re.MULTILINE)[1] == shown, target


@pytest.mark.parametrize("name", pages())
def test_generated_pages_are_those_of_the_code(name):
    assert text_of(f"docs/reference/{name}") == pages()[name], "type: python docs/generate.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_parse(page):
    for program, *arguments in commands(page.read_text(encoding="utf-8")):
        parse_arguments(PARSERS[program](arguments), arguments, dotted_keys)


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / "docs/pictures/layers.svg"], ids=lambda page: page.name
)
def test_named_files_folders_and_modules_exist(page):
    text = page.read_text(encoding="utf-8")
    folders = (
        "trainer|sweep|dashboards|rewards|tests|docs|benchmarks|research|examples|search_spaces"
    )
    for path in re.findall(rf"(?<![\w./-])((?:{folders})/[\w./-]*)", text):
        assert (ROOT / path.rstrip(".")).exists(), path
    for module in re.findall(rf"python -m ((?:{folders})\.[\w.]+)", text):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_keys_of_a_run_exist(page):
    sections = "|".join(TrainConfig.model_fields)
    for key in re.findall(
        rf"[ `({{]((?:{sections})(?:\.[a-z_*]+)+)", page.read_text(encoding="utf-8")
    ):
        model = TrainConfig
        # a rule's parameter; one of a user's own stands in its own file
        if key.rpartition(".")[0] in RULE_KINDS:
            continue
        for name in key.split("."):
            if isinstance(model, type) and issubclass(model, BaseModel):
                matches = fnmatch.filter(model.model_fields, name)
                assert matches, key
                model = model.model_fields[matches[0]].annotation


def test_the_commands_of_the_readme_are_found():
    verbs = {tuple(words[:2]) for words in commands(text_of("README.md"))}
    assert {
        ("trainer", "run"),
        ("trainer", "evaluate"),
        ("sweep", "run"),
        ("sweep", "judge"),
        ("sweep", "confirm"),
    } <= verbs


def keys(model, prefix=""):
    return [prefix + (field.alias or name) for name, field in model.model_fields.items()]


def test_the_search_space_page_names_every_key_and_range():
    text = text_of("docs/reference/search_space.md")
    sections = {"objective", "search", "resources", "limits"}
    for key in set(keys(SweepSpec)) - sections - {"trainer"}:
        assert f"`{key}`" in text
    for section in sections:
        annotation = SweepSpec.model_fields[section].annotation
        assert isinstance(annotation, type) and issubclass(annotation, BaseModel)
        for key in keys(annotation, f"{section}."):
            assert f"`{key}`" in text
    for key in set(keys(LoptuneProgram)) - {"config"}:  # which only space.lock.yaml has
        assert f"`trainer.{key}`" in text
    for kind in KINDS:
        assert f"`{kind}: " in text
    for sampler in get_args(SearchSpec.model_fields["sampler"].annotation):
        assert f"`{sampler}`" in row_of(text, "search.sampler")


def test_the_page_on_data_sets_names_every_key_and_default_column():
    text = text_of("docs/guides/datasets.md")
    for key in keys(DatasetConfig):
        assert f"`{key}`" in text
    for name, task in TASKS.items():
        row = row_of(text, name)
        for column in (*task.prompt_columns, *task.answer_columns, *task.difficulty_columns):
            assert f"`{column}`" in row


def test_the_page_on_rewards_names_every_reward_and_limit():
    text = text_of("docs/guides/rewards.md")
    for name in REWARDS:
        assert row_of(text, name)
    for key, field in RewardConfig.model_fields.items():
        if key != "functions":
            shown = "none" if key == "environment" else f"{field.default:g}"
            assert shown in row_of(text, key).rsplit("|", 2)[1]


@pytest.mark.parametrize("page", ["docs/guides/datasets.md", "docs/guides/rewards.md"])
def test_yaml_of_runs_is_accepted(page, tmp_path):
    blocks = re.findall(r"```yaml\n(.*?)```", text_of(page), re.DOTALL)
    assert blocks
    for block in blocks:
        file = tmp_path / "run.yaml"
        file.write_text(
            block if "extends:" in block else f"extends: tiny_kk\n{block}", encoding="utf-8"
        )
        load_config(str(file))


def test_the_search_spaces_of_the_page_are_accepted(tmp_path):
    space, tournament, grid = re.findall(
        r"```yaml\n(.*?)```", text_of("docs/reference/search_space.md"), re.DOTALL
    )
    (tmp_path / "my_run.yaml").write_text("extends: tiny_kk\n", encoding="utf-8")
    (tmp_path / "space.yaml").write_text(space, encoding="utf-8")
    assert load_space(tmp_path / "space.yaml").trainer.base.max_steps == 200
    for name, text in {"tournament": tournament, "grid": grid}.items():
        file = tmp_path / f"{name}.yaml"
        file.write_text("name: t\ntrainer: {preset: my_run.yaml}\n" + text, encoding="utf-8")
        assert load_space(file).search.tune_within == "rule"


def test_the_page_on_faults_names_tests_that_there_are():
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text_of("docs/development/faults.md"))
    assert len(named) > 40
    for file, function in named:
        assert not function or re.search(rf"^def {function}\(", text_of(file), re.MULTILINE), (
            f"{file}::{function}"
        )
