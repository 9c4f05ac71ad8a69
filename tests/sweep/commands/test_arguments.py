from pathlib import Path

import pytest

from sweep.cli import _parser


@pytest.mark.parametrize("verb", ["resume", "status", "stop", "confirm", "decide", "export", "ui"])
def test_a_command_on_a_sweep_takes_its_name_and_its_folder(verb: str) -> None:
    usual = _parser().parse_args([verb, "demo"])
    assert (usual.name, usual.runs_dir, usual.json) == ("demo", Path("runs"), False)
    assert _parser().parse_args([verb, "--runs-dir", "/other", "demo"]).runs_dir == Path("/other")
    with pytest.raises(SystemExit):
        _parser().parse_args([verb])
