import io

from trainer.commands.progress import Progress, evaluation_line, step_line

METRICS = {
    "rollout/reward": 1.25,
    "rollout/accuracy": 0.625,
    "policy/kl": 0.00123,
    "policy/entropy": 0.41,
    "policy/clip_fraction": 0.0125,
    "rollout/completion_length": 88.4,
    "optim/grad_norm": 0.317,
    "time/tokens_per_s": 12345.6,
    "time/step": 3.14,
    "time/rollout": 2.0,
    "time/update": 1.0,
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_step_line_shows_every_figure_and_the_seconds_by_phase() -> None:
    assert step_line(7, 60, METRICS) == (
        "step  7/60  reward 1.250  acc 0.625  kl 0.0012  entropy 0.410  clip 1.25%  length 88  grad 0.317  "
        "12,346 tok/s  3.1 s (rollout 2.0, update 1.0)"
    )


def test_missing_metrics_are_left_out() -> None:
    assert step_line(1, 5, {"rollout/reward": -3.0}) == "step 1/5  reward -3.000"


def test_evaluation_line_shows_the_accuracy_of_each_difficulty() -> None:
    metrics = {
        "eval/accuracy": 0.5,
        "eval/reward": 0.1,
        "eval/accuracy/3 people": 0.4,
        "eval/accuracy/2 people": 0.6,
    }
    assert evaluation_line(20, metrics) == (
        "eval at step 20  accuracy 0.500  reward 0.100  [2 people 0.600, 3 people 0.400]"
    )


def test_a_file_gets_plain_lines() -> None:
    stream = io.StringIO()
    progress = Progress(2, stream)
    progress.step(1, {"rollout/reward": 0.5})
    progress.evaluation(1, {"eval/accuracy": 0.25})
    progress.close()
    assert stream.getvalue() == "step 1/2  reward 0.500\neval at step 1  accuracy 0.250\n"


def test_a_terminal_gets_the_lines_and_a_bar() -> None:
    stream = Terminal()
    progress = Progress(4, stream)
    progress.step(3, {"rollout/reward": 0.5})
    progress.close()
    assert "step 3/4  reward 0.500" in stream.getvalue()
    assert "training" in stream.getvalue() and "3/4" in stream.getvalue().replace("step 3/4", "")
