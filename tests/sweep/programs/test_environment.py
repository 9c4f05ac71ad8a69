from sweep.programs import environment
from sweep.programs.environment import command_environment, set_for_sweep, write_environment


def test_a_command_gets_what_was_typed_and_nothing_of_the_sweep(tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "_set_here", {})
    for name in ("RAY_AUTH_MODE", "TUNE_RESULT_DIR"):
        monkeypatch.setenv(name, "")  # undone at the end
        monkeypatch.delenv(name)
    monkeypatch.setenv("TYPED", "a b")
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setenv("PYTHONBREAKPOINT", "ray.util.rpdb.set_trace")
    set_for_sweep("RAY_AUTH_MODE", "token")
    path = tmp_path / "environment.json"
    write_environment(path)
    assert path.stat().st_mode & 0o777 == 0o600
    # the rank's own environment has more
    given = command_environment(path, {"RAY_JOB_ID": "1", "RANK": "0", "TYPED": "of the rank"})
    assert given["TYPED"] == "a b" and given["RAY_ADDRESS"] == "10.0.0.1:6379"
    assert not {"RAY_AUTH_MODE", "PYTHONBREAKPOINT", "RAY_JOB_ID", "RANK"} & set(given)
    # what the person typed stays, though the sweep would have set it
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("PYTHONBREAKPOINT", "ipdb.set_trace")
    write_environment(path)
    given = command_environment(path, {})
    assert (given["RAY_AUTH_MODE"], given["PYTHONBREAKPOINT"]) == ("disabled", "ipdb.set_trace")


def test_a_command_on_another_node_gets_the_nodes_variables_without_rays(tmp_path):
    of_rank = {
        "PATH": "/bin",
        "HF_HOME": "/models",
        "RAY_JOB_ID": "1",
        "RAY_AUTH_MODE": "token",
        "PYTHONBREAKPOINT": "ray.util.rpdb.set_trace",
        "MASTER_PORT": "1",
    }
    given = command_environment(tmp_path / "none.json", of_rank)
    assert given == {"PATH": "/bin", "HF_HOME": "/models"}
