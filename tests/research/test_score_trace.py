import pytest

from research.score_trace import traced


@pytest.mark.slow
def test_a_score_reaches_the_event_log_without_reading_the_record(tmp_path):
    trace = traced(tmp_path)
    way = trace.modules("trial")
    assert {"loptune.score", "sweep.search.trial_report", "sweep.search.searcher"} <= way
    assert not way & {"loptune.files", "sweep.record.sweep_record"}  # these read metrics.jsonl
    assert trace.types["trial"] == {
        "dashboards.trial.TrialRecord",
        "sweep.search.trial_report.TrialReport",
    }
    for stage in ("status", "report", "export", "judge"):
        assert "dashboards.trial.TrialRecord" in trace.types[stage]
