from pathlib import Path

import pytest

from sweep.trials import limits

FILES = {
    "pids/box": {"pids.max": "64", "pids.events": "max {}"},
    "pids": {"pids.max": "max", "pids.events": "max 0"},
    "memory": {
        "memory.limit_in_bytes": "2000000000",
        "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill {}",
    },
    "unified/box/inner": {"memory.max": "1000", "memory.events": "oom 0\noom_kill {}"},
}


def write(groups: Path, count: int) -> None:
    for folder, files in FILES.items():
        (groups / folder).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (groups / folder / name).write_text(text.format(count) + "\n")


@pytest.mark.parametrize(
    ("own", "named"),
    [
        ("8:pids:/box", "64 processes and threads ({}/pids/box/pids.max)"),
        (
            "4:memory:/not/visible/here",
            "2000000000 bytes of memory ({}/memory/memory.limit_in_bytes)",
        ),
        ("0::/unified/box/inner", "1000 bytes of memory ({}/unified/box/inner/memory.max)"),
    ],
)
def test_a_limit_that_was_reached_since_the_start_is_named_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, named: str
) -> None:
    write(tmp_path, 2)
    (tmp_path / "own").write_text(own + "\n")
    monkeypatch.setattr(limits, "_GROUPS", tmp_path)
    monkeypatch.setattr(limits, "_OWN", tmp_path / "own")
    monkeypatch.setattr(limits, "_AT_START", dict(limits._reached()))
    assert limits.with_limits("rank 0 died") == "rank 0 died"
    write(tmp_path, 3)
    assert limits.with_limits("rank 0 died") == f"rank 0 died; limit reached: {named}".format(
        tmp_path
    )


def test_without_control_groups_nothing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "_OWN", tmp_path / "own")
    assert limits.with_limits("waits") == "waits"
