import re

from tests.paths import ROOT
from trainer.config.extends import variant_names
from trainer.config.schema import load_config


def test_every_run_of_the_paper_index_parses_and_every_variant_has_a_row():
    runs = re.findall(r"^\|.*`trainer run ([^` ]+)`", (ROOT / "docs" / "paper_index.md").read_text(), re.MULTILINE)
    resolved = {run: load_config(run).algorithm for run in runs}
    assert len(set(map(str, resolved.values()))) == len(runs)  # no two rows are one setting
    assert {run for run in runs if run.startswith("papers:")} == {f"papers:{name}" for name in variant_names("papers")}
