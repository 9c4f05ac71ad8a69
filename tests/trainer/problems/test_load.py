import json
import logging
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loptune.errors import ConfigError
from rewards import REWARDS
from tests.paths import DATA
from tests.refusals import refused
from tests.tables import table
from tests.trainer.problems.test_rows import write_jsonl
from tests.trainer.tokenizers_for_tests import CHAT_TEMPLATE, byte_tokenizer
from trainer.config.data import DataConfig, DatasetConfig
from trainer.config.model import ModelConfig
from trainer.config.schema import TrainConfig, load_config
from trainer.policy.load import load_tokenizer
from trainer.problems.load import encode_prompt, load_evaluation_sets, load_problems, metric_names
from trainer.problems.rows import read_rows
from trainer.problems.tasks import TASKS
from trainer.problems.tasks.puzzle_generator import generate
from trainer.types import Problem

KNIGHTS, MINERVA, DEEPSCALER = (
    str(DATA / f"{n}.parquet") for n in ("knights_knaves", "minerva", "deepscaler")
)
PLAIN = byte_tokenizer()
CHAT = byte_tokenizer(CHAT_TEMPLATE)
TINY = load_tokenizer(ModelConfig())
LONG = 4000  # tokens; one per byte


def load(source, tokenizer=PLAIN, task="custom", data=None, **dataset):
    config = DataConfig(task=task, **{"max_prompt_tokens": LONG, **(data or {})})
    return load_problems(DatasetConfig(source=str(source), **dataset), config, tokenizer)


def test_generated_puzzles_for_a_word_tokenizer_are_compact():
    problems = load("generated", TINY, "knights_knaves", size=50, people=[2, 3])
    assert len(problems) == len({problem.problem_id for problem in problems}) == 50
    assert Counter(problem.difficulty for problem in problems) == {"2": 25, "3": 25}
    for problem in problems:
        assert problem.prompt.startswith("people : ") and problem.prompt.endswith(" ;")
        assert problem.prefill == "<think>"
        assert TINY.decode(encode_prompt(TINY, problem)) == problem.prompt + "<think>"
        right = f"<think></think><answer>{problem.answer}</answer>"
        assert REWARDS["knights_knaves"](right, problem.answer).correct


def test_generated_puzzles_for_other_tokenizers_have_the_public_wording():
    (chat,) = load("generated", CHAT, "knights_knaves", size=1)
    (raw,) = load("generated", PLAIN, "knights_knaves", size=1)
    (puzzle,) = generate("train", [2, 3], 1, 0)
    assert chat.prompt.endswith(f"<user>{puzzle.text}</user><assistant>")
    assert raw.prompt.endswith(
        f"<|im_start|>user\n{puzzle.text}\n<|im_end|>\n<|im_start|>assistant\n"
    )
    assert (chat.prefill, raw.prefill) == ("<think>", "<think>")
    assert chat.problem_id == raw.problem_id == puzzle.key
    assert chat.answer == puzzle.solution_text


def test_published_knights_knaves_file():
    problems = load(KNIGHTS, CHAT, "knights_knaves")
    rows = pq.read_table(KNIGHTS).to_pylist()
    assert len(problems) == len({problem.problem_id for problem in problems}) == 20
    for problem, row in zip(problems, rows, strict=True):
        assert problem.prompt + problem.prefill == row["prompt"][0]["content"]
        assert problem.prefill == "<think>"
        assert problem.answer == row["solution_text_format"]
        assert problem.difficulty == str(len(row["names"]))
        assert problem.source == "kk_logic"


def test_published_math_files():
    minerva = load(MINERVA, CHAT, "math")
    assert minerva[0].answer == ["9.6"]
    assert minerva[0].prompt.startswith("<user>If the Bohr energy levels")
    assert minerva[0].prompt.count("\\boxed{}") == 1
    assert (minerva[0].prefill, minerva[0].difficulty) == ("", "")
    deepscaler = load(DEEPSCALER, PLAIN, "math")
    assert (deepscaler[0].answer, deepscaler[0].difficulty, deepscaler[0].source) == (
        "96",
        "20-40",
        "deepscaler",
    )
    score = REWARDS["math"]
    for problem in minerva + deepscaler:
        accepted = problem.answer[0] if isinstance(problem.answer, list) else problem.answer
        assert score(f"\\boxed{{{accepted}}}", problem.answer).correct


def test_columns_are_mapped_by_dotted_names(tmp_path):
    path = write_jsonl(
        tmp_path / "a.jsonl", [{"q": {"text": "1+1?"}, "a": {"final": 2.0}, "lvl": 3, "from": "me"}]
    )
    (problem,) = load(
        path,
        task="math",
        columns={"prompt": "q.text", "answer": "a.final", "difficulty": "lvl", "source": "from"},
    )
    assert problem.prompt.startswith("1+1? Let's")
    assert (problem.answer, problem.difficulty, problem.source) == (2, "3", "me")


def test_an_evaluation_set_finds_the_columns_that_training_maps(tmp_path):
    path = write_jsonl(tmp_path / "dev.jsonl", [{"frage": "1+1?", "loesung": "2"}])
    train = {"source": "train.jsonl", "columns": {"prompt": "frage", "answer": "loesung"}}
    (problem,) = load(path, data={"train": train})
    assert (problem.prompt, problem.answer) == ("1+1?", "2")
    with refused("column-missing") as caught:
        load(path)
    assert f"{{source: {path}, columns: {{prompt: frage}}}}" in caught.value.hint
    path = write_jsonl(tmp_path / "b.jsonl", [{"prompt": "2?", "answer": "3", "frage": "x"}])
    assert load(path, data={"train": {**train, "columns": {"prompt": "frage"}}})[0].prompt == "2?"


def test_problem_ids_do_not_depend_on_tokenizer_or_prompt():
    ids = {
        tuple(problem.problem_id for problem in load(MINERVA, tokenizer, "math", data=data))
        for tokenizer, data in (
            (PLAIN, {}),
            (CHAT, {"prompt_format": "chat"}),
            (CHAT, {"prompt_template": "{question}!"}),
        )
    }
    assert len(ids) == 1


def test_too_long_prompts_are_dropped_and_counted_by_source(tmp_path, caplog):
    sources = []
    for name, lengths in (("a", (5, 11, 10)), ("b", (50, 7))):
        rows = [{"prompt": name * length, "answer": "1"} for length in lengths]
        sources.append(DatasetConfig(source=str(write_jsonl(tmp_path / f"{name}.jsonl", rows))))
    with caplog.at_level(logging.WARNING):
        mixed = load_problems(sources, DataConfig(task="custom", max_prompt_tokens=10), PLAIN)
    assert Counter(len(problem.prompt) for problem in mixed) == {5: 1, 10: 1, 7: 1}
    first, second = (record.getMessage() for record in caplog.records)
    assert "a.jsonl" in first and "1 of 3" in first and " 10 " in first
    assert "b.jsonl" in second and "1 of 2" in second
    with refused("prompts-too-long", ConfigError, names=(" 3 ",)):
        load(tmp_path / "a.jsonl", data={"max_prompt_tokens": 4})


def test_the_embedded_policy_refuses_other_text():
    with refused("word-unknown", key="model.name_or_path"):
        load(MINERVA, TINY, "math")


@pytest.mark.parametrize(
    ("rows", "where"),
    [
        ([{"prompt": "a", "answer": "1"}, {"prompt": None, "answer": "1"}], "row 2, column prompt"),
        ([{"prompt": "a", "answer": "1"}, {"prompt": "  ", "answer": "1"}], "row 2, column prompt"),
        ([{"prompt": "a", "answer": "1"}] * 2 + [{"prompt": "a"}], "row 3, column answer"),
        ([{"prompt": 3, "answer": "1"}], "row 1, column prompt"),
        ([{"prompt": "a", "answer": float("nan")}], "row 1, column answer"),
    ],
)
def test_a_bad_row_is_named(tmp_path, rows, where):
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    with pytest.raises(ConfigError) as refused:
        load(path)
    assert refused.value.where == f"{path}, {where}"


def test_an_answer_of_bytes_is_refused(tmp_path):
    pq.write_table(pa.table({"prompt": ["a"], "answer": [b"7"]}), tmp_path / "a.parquet")
    with refused("value-bytes") as caught:
        load(tmp_path / "a.parquet")
    assert caught.value.where.endswith("row 1, column answer")


@pytest.mark.parametrize(("task", "answer"), [("knights_knaves", "42"), ("math", {"a": 1})])
def test_an_answer_the_reward_cannot_use_is_named(tmp_path, task, answer):
    path = write_jsonl(tmp_path / "a.jsonl", [{"prompt": "a", "answer": answer}])
    with pytest.raises(ConfigError) as refused:
        load(path, task=task)
    assert refused.value.where.startswith(f"{path}, row 1, column answer")


@pytest.mark.parametrize(("row", "answer", "difficulty"), table("hub_mathematics"))
def test_the_hubs_mathematics_sets_need_no_mapping(monkeypatch, row, answer, difficulty):
    import datasets

    monkeypatch.setattr(
        datasets, "load_dataset_builder", lambda source, name: SimpleNamespace(name="parquet")
    )
    monkeypatch.setattr(
        datasets, "load_dataset", lambda source, name, split: datasets.Dataset.from_list([row])
    )
    (problem,) = load("org/set", task="math")
    assert problem.prompt.startswith("1+1? Let's think step by step")
    assert (problem.answer, problem.difficulty) == (answer, difficulty)
    accepted = answer[0] if isinstance(answer, list) else answer
    assert REWARDS["math"](f"\\boxed{{{accepted}}}", problem.answer).correct


def test_the_hubs_knights_and_knaves(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "knights-and-knaves"
    folder.mkdir()
    columns = ("quiz", "names", "solution", "solution_text_format", "statements")
    for people in (3, 4):
        rows = [row for row in pq.read_table(KNIGHTS).to_pylist() if len(row["names"]) == people][
            :3
        ]
        assert len(rows) == 3
        write_jsonl(
            folder / f"people{people}.jsonl",
            [{name: row[name] for name in columns} for row in rows],
        )
    files = "".join(f"  - split: {n}ppl\n    path: people{n}.jsonl\n" for n in (3, 4))
    (folder / "README.md").write_text(
        f"---\nconfigs:\n- config_name: test\n  data_files:\n{files}---\n"
    )
    problems = load(folder, CHAT, "knights_knaves", name="test", split="3ppl[:2]+4ppl")
    assert [problem.difficulty for problem in problems] == ["3", "3", "4", "4", "4"]
    assert problems[0].prefill == "<think>"
    row = next(row for row in pq.read_table(KNIGHTS).to_pylist() if len(row["names"]) == 3)
    assert row["quiz"] in problems[0].prompt
    assert problems[0].answer == row["solution_text_format"]


def test_conversations_of_the_orz_files(tmp_path):
    rows = [
        [
            {"from": "human", "value": f"What is {n}+1?"},
            {"from": "assistant", "ground_truth": {"value": str(n + 1), "answer": None}},
        ]
        for n in (1, 2)
    ]
    path = tmp_path / "orz_math_57k_collected.json"
    path.write_text(json.dumps(rows))
    first, second = load(path, task="math")
    assert first.prompt.startswith("What is 1+1? Let's think step by step")
    assert (first.answer, second.answer) == ("2", "3")
    assert first.source == "orz_math_57k_collected"


@pytest.mark.parametrize(
    ("task", "row", "column"),
    [
        ("knights_knaves", {"answer": ["(1) Zoey is a knight"]}, "answer"),
        ("math", {"answer": {"value": 1}}, "answer"),
        ("math", {"answer": "1", "difficulty": "hard"}, "difficulty"),
        ("math", {"answer": "1", "difficulty": float("inf")}, "difficulty"),
        ("math", {"answer": "1", "difficulty": [1]}, "difficulty"),
    ],
)
def test_a_value_that_cannot_be_read_is_reported_with_its_row(tmp_path, task, row, column):
    rows = [{"prompt": "a?", "answer": "(1) Zoey is a knight", "difficulty": 12.5}]
    path = write_jsonl(tmp_path / "a.jsonl", [*rows, {"prompt": "b?", **row}])
    with refused("value-unusable") as caught:
        load(path, task=task)
    assert caught.value.where == f"{path}, row 2, column {column}"


def test_whatever_a_task_raises_for_an_answer_is_reported_with_its_row(tmp_path, monkeypatch):
    def fail(answer):
        raise OverflowError("too long")

    monkeypatch.setitem(TASKS, "custom", replace(TASKS["custom"], read_answer=fail))
    path = write_jsonl(tmp_path / "a.jsonl", [{"prompt": "a?", "answer": "1"}])
    with refused("value-unusable", names=("OverflowError: too long", "row 1, column answer")):
        load(path)


@pytest.mark.parametrize(
    ("task", "dataset", "code"),
    [("math", {}, "no-generator"), ("knights_knaves", {"split": "valid"}, "unknown-split")],
)
def test_the_generator_refuses_other_tasks_and_splits(task, dataset, code):
    with refused(code):
        load("generated", TINY, task, **dataset)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ("data.train={split: valid}", "data.train.split"),
        ("data.train=[{size: 1}, {split: valid}]", "data.train.1.split"),
        ("evaluation.sets.dev.split=valid", "evaluation.sets.dev.split"),
    ],
)
def test_an_unknown_split_is_reported_with_the_key_that_names_it(change, key):
    config = load_config("tiny_kk", [change])
    with refused("unknown-split", key=key) as caught:
        load_problems(config.data.train, config.data, TINY)
        load_evaluation_sets(config, TINY)
    assert caught.value.where == key


def test_a_conversation_that_the_template_rejects_is_reported_with_its_evaluation_set(tmp_path):
    path = tmp_path / "exam.jsonl"
    write_jsonl(path, [{"prompt": "ok?", "answer": "yes"}])
    changes = {"data": {"task": "custom"}, "evaluation": {"sets": {"exam": {"source": str(path)}}}}
    rejecting = byte_tokenizer("{{ raise_exception('no question is good enough') }}")
    with refused("template-refused", key="evaluation.sets.exam"):
        load_evaluation_sets(TrainConfig.model_validate(changes), rejecting)


@pytest.mark.parametrize(
    ("row", "dataset", "code", "key"),
    [
        ({}, {"source": "generated"}, "no-generator", "data.task"),
        ({}, {"source": "generated", "task": "math"}, "no-generator", "SET.task"),
        ({"prompt": "<|im_start|>user\nb?<|im_end|>\n"}, {}, "already-templated", "data.FORMAT"),
        (
            {"prompt": "<|im_start|>user\nb?<|im_end|>\n"},
            {"prompt_format": "chat"},
            "already-templated",
            "SET.FORMAT",
        ),
        (
            {"tools": [{"name": "f"}]},
            {"prompt_format": "raw"},
            "tool-calls-without-template",
            "SET.FORMAT",
        ),
        ({}, {"split": "train["}, "split-invalid", "SET.split"),
        ({}, {"split": "dev", "source": "folder"}, "no-such-split", "SET.split"),
    ],
)
def test_errors_name_the_setting_that_an_evaluation_set_overrides(
    tmp_path, monkeypatch, row, dataset, code, key
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "folder").mkdir()
    for file in ("exam.jsonl", "folder/test.jsonl"):
        write_jsonl(tmp_path / file, [{"prompt": "b?", "answer": "1", **row}])
    section = {"source": "exam.jsonl", **dataset}
    data = {"task": "custom", "prompt_format": "chat", "max_prompt_tokens": LONG}
    changes = {"data": data, "evaluation": {"sets": {"exam": section}}}
    key = key.replace("SET", "evaluation.sets.exam").replace("FORMAT", "prompt_format")
    with refused(code, key=key) as caught:
        load_evaluation_sets(TrainConfig.model_validate(changes), CHAT)
    assert caught.value.where.startswith(key)


def test_bos_is_added_where_the_tokenizer_adds_one_and_the_text_has_none():
    with_bos = byte_tokenizer(bos=True)
    bare, begun = (Problem("0", text, "p", "", "") for text in ("ab", "<s>ab"))
    body = tuple(PLAIN.encode("abp"))
    assert encode_prompt(PLAIN, bare) == body
    assert encode_prompt(with_bos, bare) == (0, *body)
    assert encode_prompt(with_bos, begun) == (0, *body)


@pytest.mark.parametrize(
    ("name", "text", "where", "code"),
    [
        (
            "a.jsonl",
            '{"prompt": "ok", "answer": "1"}\n{"prompt": "\\ud83d", "answer": "1"}\n',
            "line 2",
            "text-invalid",
        ),
        ("a.json", '[{"prompt": "ok"}, {"a": {"b": ["\\udc00"]}}]', "row 2", "text-invalid"),
        ("a.jsonl", "[" * 100_000, "line 1", "json-unreadable"),
        ("a.jsonl", '{"answer": ' + "9" * 5000 + "}", "line 1", "json-unreadable"),
    ],
)
def test_json_that_no_tokenizer_can_take_is_refused_with_its_place(
    tmp_path, name, text, where, code
):
    (tmp_path / name).write_text(text)
    with refused(code) as caught:
        read_rows(DatasetConfig(source=str(tmp_path / name)))
    assert caught.value.where == f"{tmp_path / name}, {where}"


def test_the_metrics_of_sets_and_a_set_called_like_a_difficulty():
    sets = "evaluation.sets={dev: {size: 4, people: [2, 3]}, NAME: {size: 4, people: [2, 3]}}"
    config = load_config("tiny_kk", [sets.replace("NAME", "hard")])
    named = set(metric_names(load_evaluation_sets(config, TINY)))
    assert {f"eval/accuracy{end}" for end in ("", "/2", "/hard", "/hard.3")} <= named
    assert "eval/reward/hard" in named
    assert not named & {"eval/accuracy/dev", "eval/accuracy/shrt", "eval/reward/2"}
    with refused("metric-name-taken", key="evaluation.sets.2") as caught:
        load_evaluation_sets(load_config("tiny_kk", [sets.replace("NAME", "'2'")]), TINY)
    assert "eval/accuracy/2" in caught.value.what


def test_evaluation_set_with_its_own_task_has_that_tasks_prompts():
    changes = {
        "data": {
            "prompt_template": "Puzzle: {question}",
            "prefill": "<think>",
            "max_prompt_tokens": LONG,
        },
        "evaluation": {
            "sets": {
                "puzzles": {"split": "dev", "size": 2},
                "sums": {"split": "dev", "size": 2, "task": "addition", "prompt_format": "raw"},
            }
        },
    }
    sets = load_evaluation_sets(TrainConfig.model_validate(changes), CHAT)
    assert all("<user>Puzzle: " in problem.prompt for problem in sets["puzzles"])
    assert [problem.prefill for problem in sets["puzzles"]] == ["<think>"] * 2
    (alone,) = load("generated", PLAIN, "addition", split="dev", size=1)
    assert sets["sums"][0].prompt == alone.prompt  # raw text, without the training's template
    assert sets["sums"][0].prefill == alone.prefill
