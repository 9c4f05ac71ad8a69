import gzip
import json
import os
import resource
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loptune import row_files
from loptune.errors import MissingError, StorageError
from tests.paths import DATA
from tests.refusals import refused
from trainer.config.data import DatasetConfig
from trainer.problems.rows import Row, check_fields, read_rows, require_column, value_at

KNIGHTS = DATA / "knights_knaves.parquet"


def rows_of(source, **dataset):
    return read_rows(DatasetConfig(source=str(source), **dataset))


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("prompt,answer,answer\na,1,2\n", "column-twice"),
        ("prompt,answer\na,1,2\n", "csv-too-many-values"),
        ("prompt;answer\nx;1\n", "csv-separator"),
        ("prompt\tanswer\nx\t1\n", "csv-separator"),
    ],
)
def test_csv_whose_columns_are_unclear_is_refused(tmp_path, text, code):
    path = tmp_path / "twice.csv"
    path.write_text(text)
    with refused(code):
        read_rows(DatasetConfig(source=str(path)))


def test_a_key_that_stands_twice_in_an_object_is_refused(tmp_path):
    (tmp_path / "a.jsonl").write_text(
        '{"prompt": "a", "answer": 1}\n{"prompt": "b", "prompt": "c", "answer": 2}\n'
    )
    with refused("column-twice") as caught:
        rows_of(tmp_path / "a.jsonl")
    assert caught.value.where == f"{tmp_path / 'a.jsonl'}, line 2"


def test_csv_values_stay_text(tmp_path):
    path = tmp_path / "codes.csv"
    path.write_text('prompt,answer\n"say, please",007\n')
    (row,) = rows_of(path)
    assert dict(row.values) == {"prompt": "say, please", "answer": "007"}
    assert row.where("answer") == f"{path}, row 1, column answer"


@pytest.mark.parametrize(
    ("folder", "split", "places"),
    [
        ("both", "train", ["train-00000-of-00002.csv 1", "train-00001-of-00002.csv 1"]),
        ("both", "test", ["test-00000-of-00001.csv 1"]),
        ("both/train-*.csv", "train", ["train-00000-of-00002.csv 1", "train-00001-of-00002.csv 1"]),
        ("packed", "train", ["packed 1", "packed 2"]),
    ],
)
def test_shards_are_read_as_written(tmp_path, monkeypatch, folder, split, places):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    shards = {"train-00000-of-00002": "007", "train-00001-of-00002": "NA"}
    for name in ("both", "packed"):
        (tmp_path / name).mkdir()
    for name, answer in {**shards, "test-00000-of-00001": "1.50"}.items():
        text = f"prompt,answer\n{name},{answer}\n"
        (tmp_path / "both" / f"{name}.csv").write_text(text)
        (tmp_path / "packed" / f"{name}.csv.gz").write_bytes(gzip.compress(text.encode()))
    rows = rows_of(tmp_path / folder, split=split)
    answers = ["1.50"] if split == "test" else ["007", "NA"]
    assert [row.values["answer"] for row in rows] == answers
    assert [f"{Path(row.place).name} {row.number}" for row in rows] == places


def test_a_split_that_a_folder_lacks_and_a_pattern_without_a_match_are_refused(tmp_path):
    write_jsonl(tmp_path / "test.jsonl", [{"prompt": "a", "answer": "1"}])
    with refused("no-such-split", names=("train", "test")):
        rows_of(tmp_path)
    with refused("data-file-missing", MissingError, names=("train-*.jsonl",)):
        rows_of(tmp_path / "train-*.jsonl")


@pytest.mark.parametrize(
    ("split", "answers"),
    [
        ("train[:50%]", ["007", "2024-05-01"]),
        ("train[-1:]", ["1e3"]),
        ("train[1:2]+test", ["2024-05-01", "1.50"]),
        ("test+train[:1]", ["1.50", "007"]),
    ],
)
def test_parts_of_splits_are_read_as_written(tmp_path, split, answers):
    train = [{"prompt": "a", "answer": answer} for answer in ("007", "2024-05-01", 7, "1e3")]
    write_jsonl(tmp_path / "train.jsonl", train)
    write_jsonl(tmp_path / "test.jsonl", [{"prompt": "b", "answer": "1.50"}])
    assert [row.values["answer"] for row in rows_of(tmp_path, split=split)] == answers
    if "test" not in split:
        file = tmp_path / "train.jsonl"
        assert [row.values["answer"] for row in rows_of(file, split=split)] == answers


@pytest.mark.parametrize("split", ["train[", "train[:1]+test[:1]", "train[:200%]"])
def test_a_split_that_a_file_does_not_have_is_refused(tmp_path, split):
    write_jsonl(tmp_path / "train.jsonl", [{"prompt": "a", "answer": "1"}])
    with refused("split-invalid", names=(split, "train[:10%]")):
        rows_of(tmp_path / "train.jsonl", split=split)


def test_a_missing_column_is_mapped_to_one_of_a_similar_name(tmp_path):
    file = tmp_path / "spaces.csv"
    file.write_text("Prompt, answer\n1+1?, 2\n")
    (row,) = rows_of(file)
    for field, column in (("prompt", "prompt: Prompt}"), ("answer", 'answer: " answer"}')):
        with refused("column-missing", names=(column,)):
            require_column(row, field, {}, [field])


@pytest.mark.parametrize("name", ["train.jsonl", "train.parquet", "train.csv"])
def test_a_pointer_of_git_lfs_is_named(tmp_path, name):
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\nsize 12\n")
    with refused("lfs-pointer", StorageError, names=("git lfs pull", name)):
        rows_of(tmp_path / name)


@pytest.mark.parametrize("dtype", [pa.float16(), pa.float32(), pa.float64()])
def test_numbers_keep_the_digits_that_were_written(tmp_path, dtype):
    numbers = pa.array([0.1, -2.5, None, float("inf")], pa.float64()).cast(dtype)
    table = pa.table({"prompt": ["a"] * 4, "answer": numbers})
    pq.write_table(table, tmp_path / "narrow.parquet")
    answers = [row.values["answer"] for row in rows_of(tmp_path / "narrow.parquet")]
    assert answers == [0.1, -2.5, None, float("inf")]


def test_an_array_of_rows_in_a_file_of_lines_is_refused(tmp_path):
    file = tmp_path / "array.jsonl"
    file.write_text('[{"prompt": "a", "answer": "1"}, {"prompt": "b", "answer": "2"}]\n')
    with refused("row-no-object", names=("*.json",)):
        rows_of(file)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".json"])
def test_files_of_windows_programs_are_read(tmp_path, encoding, suffix):
    texts = {
        ".csv": "prompt,answer\r\ngroß,1\r\n",
        ".jsonl": '{"prompt": "groß", "answer": "1"}\r\n',
        ".json": '[\r\n{"prompt": "groß", "answer": "1"}]',
    }
    path = tmp_path / f"rows{suffix}"
    path.write_bytes(texts[suffix].encode(encoding))
    assert [dict(row.values) for row in rows_of(path)] == [{"prompt": "groß", "answer": "1"}]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".json"])
def test_another_encoding_is_named(tmp_path, suffix):
    path = tmp_path / f"rows{suffix}"
    path.write_bytes('{"prompt": "groß"}\n'.encode("latin-1"))
    with refused("not-utf-8", names=("0xdf",)):
        rows_of(path)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".json"])
def test_a_damaged_utf_16_file_is_not_called_another_encoding(tmp_path, suffix):
    path = tmp_path / f"rows{suffix}"
    path.write_bytes('[{"prompt": "groß"}]\n'.encode("utf-16")[:-1])
    with refused("damaged-utf-16", names=("UTF-16",)):
        rows_of(path)


def test_a_line_separator_inside_a_json_string_does_not_end_the_row(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "a\u2028b", "answer": "1"}\n\n', encoding="utf-8")
    assert [row.values["prompt"] for row in rows_of(path)] == ["a\u2028b"]


def test_the_forms_of_json(tmp_path):
    rows = [{"prompt": "a"}, {"prompt": "b"}]
    array = tmp_path / "array.json"
    lines = tmp_path / "lines.json"
    array.write_text(json.dumps(rows, indent=1))
    lines.write_text("\n".join(map(json.dumps, rows)))
    assert (
        [dict(row.values) for row in rows_of(array)]
        == [dict(row.values) for row in rows_of(lines)]
        == rows
    )


def test_limit_takes_the_first_rows(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [{"n": n} for n in range(5)])
    assert [(row.number, row.values["n"]) for row in rows_of(path, limit=2)] == [(1, 0), (2, 1)]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("a", 1),
        ("b.c", "x"),
        ("d.e", "dotted name"),
        ("b.none", None),
        ("blank", None),
        ("nan", None),
        ("zero", 0),
    ],
)
def test_values_are_reached_by_dotted_names_and_empty_ones_are_none(column, value):
    values = {
        "a": 1,
        "b": {"c": "x"},
        "d.e": "dotted name",
        "blank": " \n",
        "nan": float("nan"),
        "zero": 0,
    }
    assert value_at(Row(values, "file", 1), column) == value


def test_missing_columns_name_those_there_are():
    row = Row({"text": "a", "reward_model": {"truth": "1"}}, "file", 1)
    with refused("column-missing") as caught:
        require_column(row, "prompt", {}, ("prompt",))
    assert "text, reward_model.truth" in caught.value.what
    with refused("column-unknown") as caught:
        require_column(row, "prompt", {"prompt": "tex"}, ("prompt",))
    assert "text" in caught.value.hint
    with refused("field-unknown") as caught:
        check_fields(DatasetConfig(source="file", columns={"promt": "text"}))


def test_missing_empty_and_broken_files(tmp_path):
    with refused("data-file-missing", MissingError):
        rows_of(tmp_path / "none.parquet")
    cut = tmp_path / "cut.parquet"
    cut.write_bytes(Path(KNIGHTS).read_bytes()[:-100])
    with refused("parquet-invalid", MissingError):
        rows_of(cut)
    for name in ("empty.jsonl", "empty.csv", "empty.parquet"):
        path = tmp_path / name
        path.write_text("prompt,answer\n" if name.endswith("csv") else "")
        with pytest.raises(MissingError):
            rows_of(path)
    pq.write_table(pa.table({"prompt": pa.array([], pa.string())}), tmp_path / "norows.parquet")
    with refused("data-empty", MissingError):
        rows_of(tmp_path / "norows.parquet")
    torn = tmp_path / "torn.jsonl"
    torn.write_text('{"prompt": "a", "answer": "1"}\n{"prompt": "b", "ans')
    with refused("json-invalid") as caught:
        rows_of(torn)
    assert caught.value.where == f"{torn}, line 2"
    listed = write_jsonl(tmp_path / "list.jsonl", [["a", "1"]])
    with refused("row-no-object"):
        rows_of(listed)
    latin = tmp_path / "latin.csv"
    latin.write_bytes(b"prompt,answer\n\xff,1\n")
    with refused("not-utf-8"):
        rows_of(latin)
    quoted = tmp_path / "quoted.csv"
    quoted.write_text('prompt,answer\n"a,1\nb,2\n')
    with refused("data-file-unreadable", MissingError):
        rows_of(quoted)
    (tmp_path / "a.txt").write_text("a")
    with refused("data-file-type"):
        rows_of(tmp_path / "a.txt")


def test_a_parquet_file_that_unpacks_to_gigabytes_is_refused(tmp_path):
    text = pa.array(["a" * 10_000_000])
    shared = pa.DictionaryArray.from_arrays(pa.array([0] * 2000, pa.int32()), text)
    pq.write_table(pa.table({"prompt": shared}), tmp_path / "a.parquet", compression="zstd")
    limits = resource.getrlimit(resource.RLIMIT_AS)
    with refused("data-too-large") as caught:
        rows_of(tmp_path / "a.parquet")
    assert "2560 MiB" in caught.value.what
    assert resource.getrlimit(resource.RLIMIT_AS) == limits


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.json"])
def test_a_line_without_end_is_not_read_to_its_end(tmp_path, name, monkeypatch):
    monkeypatch.setattr(row_files, "_MAX_LINE_CHARS", 1000)
    first = "prompt,answer" if name == "a.csv" else '{"prompt": "a", "answer": 1}'
    (tmp_path / name).write_text(f"{first}\n{'a' * 1000}\n")
    with refused("line-too-long") as caught:
        rows_of(tmp_path / name)
    assert caught.value.where == f"{tmp_path / name}, line 2"


def test_packed_files_loops_and_devices_are_no_data(tmp_path):
    (tmp_path / "gz.jsonl").write_bytes(gzip.compress(b'{"prompt": "a"}\n'))
    with refused("not-utf-8"):
        rows_of(tmp_path / "gz.jsonl")
    (tmp_path / "loop.jsonl").symlink_to("loop.jsonl")
    (tmp_path / "zero.csv").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe.csv")
    for name in ("loop.jsonl", "zero.csv", "pipe.csv", "../none.jsonl"):
        with refused("data-file-missing", MissingError):
            rows_of(tmp_path / name)


def test_a_hub_dataset_that_cannot_be_had(monkeypatch):
    import datasets

    def unreachable(source, name, split):
        assert (source, name, split) == ("org/puzzles", "hard", "test")
        raise ConnectionError("no network\nand more")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with refused("dataset-not-loaded", MissingError):
        rows_of("org/puzzles", name="hard", split="test")


def test_a_folder_is_named_as_one(tmp_path):
    with refused("dataset-not-loaded", MissingError, names=(str(tmp_path),)) as raised:
        rows_of(tmp_path)
    assert ".parquet, .jsonl, .json, .csv" in raised.value.hint


@pytest.mark.parametrize("source", ["me.txt", "data/me.tsv", "./absent", "~/absent"])
def test_what_is_no_data_file_is_not_looked_for_on_the_hub(source):
    with refused("data-file-type"):
        read_rows(DatasetConfig(source=source))


def test_a_folder_of_save_to_disk_is_loaded(tmp_path):
    from datasets import Dataset, DatasetDict

    data = Dataset.from_list([{"prompt": "a", "answer": "1"}, {"prompt": "b", "answer": "2"}])
    data.save_to_disk(str(tmp_path / "one"))
    DatasetDict({"train": data, "test": data.select([1])}).save_to_disk(str(tmp_path / "splits"))
    assert [row.values["prompt"] for row in rows_of(tmp_path / "one")] == ["a", "b"]
    assert [row.values["prompt"] for row in rows_of(tmp_path / "splits")] == ["a", "b"]
    assert [row.values["prompt"] for row in rows_of(tmp_path / "splits", split="test")] == ["b"]
    with refused("dataset-not-loaded", MissingError) as caught:
        rows_of(tmp_path / "splits", split="dev")
    assert "dev" in caught.value.what
