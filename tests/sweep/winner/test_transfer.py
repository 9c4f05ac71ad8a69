from pathlib import Path

import pytest

from sweep.cli import main
from sweep.record.folder import sweep_folder
from sweep.record.sweep_record import SweepRecord, open_sweep
from sweep.winner.transfer import transfer_lines, transfer_space
from tests.sweep.ended_sweeps import write_sweep
from tests.sweep.winner.test_confirm import with_parameters
from trainer.errors import ConfigError, MissingError

ALPHA, LR = "algorithm.ar_alpha", "optim.lr"
PARAMETERS = {ALPHA: {"uniform": [0.0, 0.9]}, LR: {"uniform": [1e-5, 1e-3]}}
# Configuration 3 failed on a seed; the others score as their number.
BEFORE: dict[int, dict[int, float | str]] = {
    number: {0: 0.1 * number, 2: 0.1 * number if number != 3 else "diverged"} for number in range(8)
}


def before(folder: Path, baseline: float = 0.0) -> SweepRecord:
    scores = {**BEFORE, 0: dict.fromkeys((0, 2), baseline)}
    write_sweep(folder, "small", scores, seeds=[0, 2], parameters=PARAMETERS)
    sweep = open_sweep(folder, "small")
    return with_parameters(sweep, {n: {ALPHA: n / 10, LR: 1e-4 * (1 + n % 2)} for n in BEFORE})


def test_anchors_are_spread_over_the_scores_and_run_on_fresh_seeds(tmp_path: Path) -> None:
    sweep = before(tmp_path)
    spec = transfer_space(sweep, "large", 4, None, ["trainer.max_steps=40"])
    assert [point[ALPHA] for point in spec.baselines] == [0.0, 0.2, 0.5, 0.7]  # of 0, 1, 2, 4, 5, 6 and 7
    assert (spec.base.max_steps, spec.base.model, spec.seeds) == (40, sweep.spec.base.model, [3, 4])
    assert spec.search.configurations == 0 and spec.confirms is None
    other = transfer_space(sweep, "large", 5, "tiny_kk", [])
    assert other.base.max_steps == 50 and sweep.spec.base.max_steps == 4
    middle = transfer_space(before(tmp_path / "middle", baseline=0.45), "large", 4, "tiny_kk", [])
    assert [point[ALPHA] for point in middle.baselines] == [0.0, 0.1, 0.5, 0.7]  # the baseline, in place of 4
    with pytest.raises(MissingError, match="7 configurations of small are complete, and 8 anchors are wanted"):
        transfer_space(sweep, "large", 8, "tiny_kk", [])
    with pytest.raises(ConfigError, match="did you mean"):
        transfer_space(sweep, "large", 4, None, ["trainer.max_step=40"])


def trained(folder: Path, sweep: SweepRecord, scores: list[float | str]) -> SweepRecord:
    """The anchors of a sweep with these scores."""
    spec = transfer_space(sweep, "large", len(scores), "tiny_kk", [])
    results = {number: dict.fromkeys(spec.seeds, score) for number, score in enumerate(scores)}
    write_sweep(folder, "large", results, seeds=spec.seeds, parameters=PARAMETERS, baselines=spec.baselines)
    return with_parameters(open_sweep(folder, "large"), dict(enumerate(spec.baselines)))


def test_what_carries_over_is_told_by_parameter(tmp_path: Path) -> None:
    sweep = before(tmp_path)
    lines = transfer_lines(sweep, trained(tmp_path, sweep, [0.1, 0.3, 0.2, 0.5, 0.6]))
    assert lines[0].startswith("order of 5 anchors in small and large: Kendall's tau +0.80 (90 % interval +0.0")
    assert [line.split(":")[0] for line in lines[1:3]] == ["  by ar_alpha", "  by lr"]
    assert lines[3].startswith(
        "the best anchor of small, configuration 7, scores 0.6 there; the best there is configuration 7"
    )
    # The pair that has changed places, 2 and 4, has one lr.
    assert lines[2].startswith("  by lr: Kendall's tau +1.00")
    assert lines[4] == "carry over lr; 5 anchors cannot tell of ar_alpha"
    *_, told = transfer_lines(sweep, trained(tmp_path / "more", sweep, [0.6, 0.5, 0.4, 0.3, 0.2, 0.1]))
    assert told == "not ar_alpha, lr, whose order is reversed"


def test_the_command_says_what_is_missing_and_tells_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep, runs = before(tmp_path), ["--runs-dir", str(tmp_path)]
    assert main(["transfer", "small", *runs]) == 2
    assert "add --on PRESET, or trainer.max_steps=N" in capsys.readouterr().err
    trained(tmp_path, sweep, [0.1, 0.3, 0.2, "diverged"])
    assert main(["transfer", "small", "--to", "large", *runs]) == 0
    assert capsys.readouterr().out.startswith("3 anchors of 4 complete, 4 are needed: ")
    assert main(["transfer", "small", "--to", "large", "--on", "tiny_kk", *runs]) == 2
    assert "sweep large exists already" in capsys.readouterr().err
    assert not sweep_folder(tmp_path, "small-transfer").exists()
