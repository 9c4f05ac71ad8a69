"""Records of other loops: which of their keeps would have been kept."""

import json
import math

import pytest

from dashboards.statistics.online_levels import lord_level
from loptune.errors import ConfigError, MissingError
from sweep.gate.loop_record import read_record, replay
from tests.refusals import refused

TABLE = """\
commit\tval_bpb\tmemory_gb\tstatus\tdescription
a1b2c3d\t0.997900\t44.0\tkeep\tbaseline
b2c3d4e\t0.993200\t44.2\tkeep\tincrease LR to 0.04, "warm"
c3d4e5f\t1.005000\t44.0\tdiscard\tswitch to GeLU activation
d4e5f6g\t0.000000\t0.0\tcrash\tdouble model width (OOM)
e5f6g7h\t0.953200\t44.0\tkeep\tlonger warmup
"""
NEMO = """\
index\tcommit\trecipe\tmetric_name\tmetric_value\tmemory_gb\tstatus\tdescription
1\tabc1234\tgrpo.yaml\tval_accuracy\t0.000000\t0.0\tcrash\tfailed before training
2\tdef5678\tgrpo.yaml\tval_accuracy\t0.742100\t43.9\tkeep\tcompact answer schema
3\tfedcba9\tgrpo.yaml\tval_accuracy\t0.751200\t44.1\tdiscard\tlarger rollout batch
"""
AUTORESEARCH_RL = """\
commit\tmetric_name\tmetric_value\tmemory_gb\tstatus\tdescription\tepisode_id\titer\tscore
a9f9a9e\teval_score\t0.520909\t0.0\tkeep\tconc=4\te92167e16168\t0\t-0.520909
a9f9a9e\teval_score\t0.422727\t0.0\tdiscard\tconc=4\te92167e16168\t1\t-0.520909
a9f9a9e\teval_score\t0.525455\t0.0\tkeep\tconc=4\te92167e16168\t2\t-0.525455
"""
LINES = [
    {"type": "config", "name": "tests", "metricName": "seconds", "bestDirection": "lower"},
    {"run": 1, "commit": "a", "metric": 10.0, "metrics": {}, "status": "keep", "description": "b"},
    {"run": 2, "commit": "b", "metric": 9.0, "metrics": {}, "status": "checks_failed"},
    {"run": 3, "commit": "c", "metric": 9.5, "metrics": {}, "status": "keep", "description": "c"},
    *({"run": 4 + k, "metric": 9.6 + 0.1 * k, "status": "discard"} for k in range(5)),
]


def test_a_table_of_autoresearch(tmp_path):
    path = tmp_path / "results.tsv"
    path.write_text(TABLE)
    record = read_record(path, None, None)
    assert (record.metric, record.mode, len(record.entries)) == ("val_bpb", "min", 5)
    assert [entry.score for entry in record.entries] == [0.9979, 0.9932, 1.005, None, 0.9532]
    assert record.entries[1].description == 'increase LR to 0.04, "warm"'
    replayed = replay(record, sd=0.005, false_keeps=0.1)
    first, second = replayed.keeps
    assert (first.number, second.number) == (2, 5)
    assert first.gain == pytest.approx(0.0047)
    assert second.gain == pytest.approx(0.04)
    assert first.error == pytest.approx(0.005 * math.sqrt(2))
    assert first.level == lord_level([], 1, 0.1)
    assert second.level == lord_level([], 4, 0.1)
    assert [first.would_keep, second.would_keep] == [False, True]
    assert replayed.fields()["would_keep"] == 1


def test_a_table_of_nemo_rl_and_of_autoresearch_rl(tmp_path):
    path = tmp_path / "auto_research_results.tsv"
    path.write_text(NEMO)
    record = read_record(path, None, None)
    assert (record.metric, record.mode) == ("val_accuracy", "max")
    assert [entry.score for entry in record.entries] == [None, 0.7421, 0.7512]
    assert record.entries[1].commit == "def5678"
    path.write_text(AUTORESEARCH_RL)
    record = read_record(path, None, None)
    assert (record.metric, record.mode) == ("eval_score", "max")
    assert [entry.score for entry in record.entries] == [0.520909, 0.422727, 0.525455]
    assert read_record(path, None, "min").mode == "min"


def test_noise_that_a_table_does_not_show_is_unknown(tmp_path):
    path = tmp_path / "results.tsv"
    path.write_text(TABLE)
    replayed = replay(read_record(path, None, None), sd=None, false_keeps=0.1)
    assert replayed.sd is None
    assert replayed.fields()["would_keep"] is None
    assert not any(keep.would_keep for keep in replayed.keeps)


def test_lines_of_pi_autoresearch(tmp_path):
    path = tmp_path / "autoresearch.jsonl"
    path.write_text("\n".join(map(json.dumps, LINES)))
    record = read_record(path, None, None)
    assert (record.metric, record.mode) == ("seconds", "min")
    assert [entry.score for entry in record.entries[:3]] == [10.0, None, 9.5]
    replayed = replay(record, sd=None, false_keeps=0.1)
    # deviations of 9.6 to 10.0 from their median 9.8: median 0.1
    assert replayed.sd == pytest.approx(0.1 * 1.4826)
    (keep,) = replayed.keeps
    assert keep.gain == pytest.approx(0.5)
    # 0.5 / (0.148 * sqrt(2)) = 2.38 standard errors; level 0.0109 of the second proposal: 2.29
    assert keep.would_keep == (0.5 / keep.error > 2.29) or keep.level < 0.01


def test_a_file_that_is_no_record(tmp_path):
    with refused("no-file", MissingError):
        read_record(tmp_path / "none.tsv", None, None)
    for text in ("a\tb\n1\t2\n", "", '{"run": 1}\nbroken\n'):
        path = tmp_path / "results.tsv"
        path.write_text(text)
        with refused("not-a-record", ConfigError):
            read_record(path, None, None)
    path.write_text("commit\tval_bpb\tstatus\nabc\tfast\tkeep\n")
    with refused("no-score", ConfigError) as caught:
        read_record(path, None, None)
    assert caught.value.where.endswith("results.tsv:2")


@pytest.mark.parametrize("word", ["Kept", "ACCEPTED", "keep (re-run)"])
def test_other_words_for_a_kept_change_are_read(tmp_path, word):
    path = tmp_path / "results.tsv"
    path.write_text(f"commit\tval_bpb\tstatus\na\t1.1\tbaseline\nb\t1.0\t{word}\n")
    assert [entry.status for entry in read_record(path, None, None).entries] == ["keep", "keep"]


def test_a_baseline_that_runs_again_is_no_kept_change(tmp_path):
    path = tmp_path / "results.tsv"
    path.write_text("commit\tval_bpb\tstatus\na\t1.1\tbaseline\na\t1.0\tbaseline\n")
    assert [entry.status for entry in read_record(path, None, None).entries] == ["keep", "discard"]


def test_an_unknown_status_is_not_taken_for_a_crash(tmp_path):
    path = tmp_path / "results.tsv"
    path.write_text("commit\tval_bpb\tstatus\na\t1.1\tkeep\nb\t1.0\tmaybe\n")
    with refused("unknown-status", names=["maybe", ":3"]):
        read_record(path, None, None)
