import re

from tests.paths import ROOT
from trainer.config.extends import variant_names
from trainer.config.schema import load_config


def test_every_run_of_the_paper_index_parses_and_every_variant_has_a_row(monkeypatch):
    monkeypatch.chdir(ROOT / "examples" / "rules")
    page = (ROOT / "docs/reference/paper_index.md").read_text()
    runs = re.findall(r"^\|.*`trainer run ([^`]+)`", page, re.MULTILINE)
    resolved = {run: load_config(run.split()[0], run.split()[1:]).algorithm for run in runs}
    assert len(set(map(str, resolved.values()))) == len(runs)  # no two rows are one setting
    assert {run for run in runs if run.startswith("papers:")} == {
        f"papers:{name}" for name in variant_names("papers")
    }
