import json

import pandas as pd
import pytest

from dashboards.sources.run_tables import read_files
from loptune.errors import ConfigError, MissingError, StorageError


def test_kinds_of_files_have_the_same_rows(tmp_path):
    table = pd.DataFrame({"loss": ["a", "b"], "seed": [0, 1], "acc": [0.5, 0.25]})
    table.to_csv(tmp_path / "runs.csv", index=False)
    table.to_parquet(tmp_path / "runs.parquet")
    (tmp_path / "runs.jsonl").write_text(
        "\n".join(json.dumps(row) for row in table.to_dict("records"))
    )
    for kind in ("csv", "parquet", "jsonl"):
        assert read_files(str(tmp_path / f"runs.{kind}")).to_dict("records") == table.to_dict(
            "records"
        )


def test_parts_of_paths_and_settings_beside_a_file_become_columns(tmp_path):
    for loss, seed in [("a", 0), ("b", 1)]:
        folder = tmp_path / "out" / f"{loss}-s{seed}"
        folder.mkdir(parents=True)
        (folder / "metrics.jsonl").write_text(json.dumps({"step": 1, "data": {"val/acc": 0.5}}))
        (folder / "config.yaml").write_text(
            f"algorithm: {{loss: {loss}, list: [1]}}\nseed: {seed}\n"
        )
    table = read_files(str(tmp_path / "out/{loss}-s{seed}/*.jsonl"))
    assert table.to_dict("records")[1] == {
        **{"step": 1, "val/acc": 0.5, "loss": "b", "seed": "1"},
        **{
            "config.yaml:algorithm.loss": "b",
            "config.yaml:algorithm.list": "[1]",
            "config.yaml:seed": 1,
        },
    }
    assert len(read_files(str(tmp_path / "**/metrics.jsonl"))) == 2


def test_files_that_cannot_be_read_are_named(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"step"')
    (tmp_path / "b.md").touch()
    (tmp_path / "c.csv").touch()
    (tmp_path / "empty.jsonl").touch()
    for name, error in [
        ("a.jsonl", ConfigError),
        ("c.csv", StorageError),
        ("empty.jsonl", StorageError),
        ("b.md", ConfigError),
        ("d*.csv", MissingError),
        ("{a}{a}.csv", ConfigError),
    ]:
        with pytest.raises(error) as caught:
            read_files(str(tmp_path / name))
        assert name in caught.value.where


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "loss,acc,acc\na,.4,.5\n"),
        ("a.csv", "loss,acc\na,0,.5\n"),
        ("a.jsonl", '{"acc": 0.5, "acc": 0.6}\n'),
        ("a.jsonl", "3\n"),
    ],
)
def test_rows_that_would_be_shifted_or_renamed_are_refused(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_files(str(tmp_path / name))
    assert caught.value.where.startswith(f"{tmp_path / name}, line ")
