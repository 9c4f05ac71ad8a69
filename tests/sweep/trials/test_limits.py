import pytest

from sweep.trials import limits


@pytest.mark.parametrize(
    ("own", "limit", "counter", "word"),
    [
        ("8:pids:/box", "pids/box/pids.max", "pids.events", "max"),
        ("0::/box/unseen", "box/memory.max", "memory.events", "oom_kill"),
        (
            "4:memory:/unseen",
            "memory/memory.limit_in_bytes",
            "memory.oom_control",
            "under_oom 0\noom_kill",
        ),
    ],
)
def test_a_limit_that_was_reached_since_the_start_is_named_with_its_place(
    tmp_path, monkeypatch, own, limit, counter, word
):
    path = tmp_path / limit
    path.parent.mkdir(parents=True)
    path.write_text("64\n")
    path.with_name(counter).write_text(f"{word} 2\n")
    (tmp_path / "own").write_text(own)
    monkeypatch.setattr(limits, "_GROUPS", tmp_path)
    monkeypatch.setattr(limits, "_OWN", tmp_path / "own")
    monkeypatch.setattr(limits, "_AT_START", dict(limits.reached()))
    assert limits.with_limits("rank 0 died") == "rank 0 died"
    path.with_name(counter).write_text(f"{word} 3\n")
    assert limits.with_limits("rank 0 died") == f"rank 0 died; limit reached: {path} is 64"
    (tmp_path / "own").unlink()
    assert limits.with_limits("rank 0 died") == "rank 0 died"
