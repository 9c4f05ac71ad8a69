import json

from trainer.cli import main
from trainer.config.schema import load_config


def test_a_preset_is_printed_as_a_file_with_its_memory_below(tmp_path, capsys):
    assert main(["presets", "kk_0.5b", "--gpu-gb", "24"]) == 0
    printed = capsys.readouterr().out
    assert "# memory of one rank on a GPU of 24.0 GB, simulated:" in printed
    (tmp_path / "run.yaml").write_text(printed)
    assert load_config(str(tmp_path / "run.yaml")) == load_config("kk_0.5b")


def test_presets_are_listed_with_their_first_line(capsys):
    assert main(["presets", "--json"]) == 0
    presets = {row["name"]: row["description"] for row in json.loads(capsys.readouterr().out)}
    assert "one CPU core" in presets["tiny_kk"]
    assert main(["presets"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].split() == ["name", "description", "variants"]
    assert printed[-1] == "One of a preset's variants: trainer run NAME:VARIANT"
