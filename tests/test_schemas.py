import json

import pytest
import yaml
from jsonschema import Draft202012Validator

from sweep.cli import main as sweep
from tests.paths import ROOT
from trainer.cli import main as trainer
from trainer.commands.init import write_project

RUNS = [*(ROOT / "trainer/config/presets").glob("*.yaml")]
SPACES = [*(ROOT / "search_spaces").glob("*.yaml")]


@pytest.mark.parametrize(
    ("command", "files", "kind"), [(trainer, RUNS, "run"), (sweep, SPACES, "space")]
)
def test_a_schema_takes_every_file_and_no_misspelt_key(tmp_path, capsys, command, files, kind):
    write_project(tmp_path / "mine")
    assert command(["schema"]) == 0
    printed = capsys.readouterr().out
    schema = Draft202012Validator(json.loads(printed))
    schema.check_schema(schema.schema)
    for file in (*files, tmp_path / "mine" / f"{kind}.yaml"):
        assert [
            error.message for error in schema.iter_errors(yaml.safe_load(file.read_text()))
        ] == [], file
    wrong = {"optim": {"learning_rate": 1}} if kind == "run" else {"search": {"trials": 3}}
    assert any(
        "unexpected" in error.message for error in schema.iter_errors({"name": "x", **wrong})
    )
    assert f"$schema={kind}.schema.json" in (tmp_path / "mine" / f"{kind}.yaml").read_text()
    if kind == "run":
        assert (tmp_path / "mine" / "run.schema.json").read_text() + "\n" == printed
