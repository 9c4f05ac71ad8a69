import pytest

from loptune.credentials import split_credentials
from loptune.errors import ConfigError
from tests.refusals import refused
from trainer.config.schema import apply_overrides, load_config


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://a:b%40c@host:5000/x?y=1", ("http://host:5000/x?y=1", "a", "b@c")),
        ("https://token@host", ("https://host", "token", "")),
        ("sqlite:////tmp/mlflow.db", ("sqlite:////tmp/mlflow.db", "", "")),
    ],
)
def test_the_user_part_of_a_url(url, expected):
    assert split_credentials(url) == expected


@pytest.mark.parametrize(
    "override",
    [
        "tracking.uri=http://me:hunter2@host:5000",
        "tracking.uri=https://hunter2@host",
        "tracking.uri=postgresql://me:hunter2@host/mlflow",
        "rollout.vllm.server_base_urls=['http://me:hunter2@host:8000']",
    ],
)
def test_credentials_in_a_configuration_are_refused_and_not_repeated(override):
    with refused("credentials-in-url", ConfigError) as caught:
        load_config("tiny_kk", [override])
    assert "hunter2" not in str(caught.value)
    assert "MLFLOW_TRACKING_PASSWORD" in caught.value.hint


def test_a_database_may_be_told_its_user():
    uri = "postgresql://me@host/mlflow"
    assert apply_overrides(load_config("tiny_kk"), {"tracking.uri": uri}).tracking.uri == uri


@pytest.mark.parametrize(
    "words", [["evidence"], ["judge", "mlflow:e", "--by=a", "--score=b", "--store"]]
)
def test_an_address_with_a_password_is_refused_and_not_printed(tmp_path, words, capsys):
    from sweep.cli import main

    assert main([*words, "http://me:hunter2@127.0.0.1:9", f"--runs-dir={tmp_path}"]) == 2
    printed = capsys.readouterr()
    assert "[credentials-in-url]" in printed.err and "hunter2" not in printed.out + printed.err
