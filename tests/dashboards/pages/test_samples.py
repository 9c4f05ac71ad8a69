from dashboards.artifacts import Answered
from dashboards.pages.report import chapters_of, report_html
from dashboards.pages.samples import baseline_and_best, samples_html
from tests.dashboards.table import sweep_of


def test_completions_name_who_wrote_them_and_are_text() -> None:
    hostile = "</pre><script>alert(1)</script>"
    answered = Answered("who?", "42", "3", {"0-s0": (hostile, 0.0, False), "1-s0": ("42", 1.5, True)})
    sweep = sweep_of()
    page = samples_html(sweep, [answered])
    assert "#0 grpo: wrong, reward 0" in page and "#1 grpo α 0.3: right, reward 1.5" in page
    assert "&lt;/pre&gt;&lt;script&gt;alert(1)" in page and "<script" not in page
    report = report_html(sweep, chapters_of(sweep), [answered])
    assert page in report and 'id="completions"' in report


def test_a_sweep_without_any_has_no_such_section() -> None:
    assert samples_html(sweep_of(), []) == ""
    assert 'id="completions"' not in report_html(sweep_of(), chapters_of(sweep_of()))


def test_the_reports_baseline_and_best_answer_on_one_seed() -> None:
    assert list(baseline_and_best(sweep_of()).trial) == ["0-s0", "1-s0"]
    assert list(baseline_and_best(sweep_of("min")).trial) == ["0-s0", "3-s0"]
