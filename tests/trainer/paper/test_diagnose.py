import math
import re

import pytest
import torch

from tests.trainer.test_loop import build, parameters, small_config
from trainer.cli import main
from trainer.config.schema import dump_config
from trainer.errors import ConfigError
from trainer.metrics.bands import BANDS, PUBLISHED_BANDS, RESOLUTION
from trainer.metrics.declared import declaration
from trainer.metrics.stopwatch import Stopwatch
from trainer.paper.diagnose import HIGHEST, LOWEST, Diagnosis, Update, _after_passes, _parameter_norms, diagnose
from trainer.policy.architectures import TINY_FOLDER


@pytest.fixture(scope="module")
def policy():
    # It is sure of most tokens: a policy that is sure of none has no probable quarter.
    return TINY_FOLDER


@pytest.fixture(scope="module")
def found(policy, tmp_path_factory) -> Diagnosis:
    # The published presets train several ranks; a diagnosis is made by one process whatever they say.
    changes = {"rollout.prompts_per_step": 6, "algorithm.ar_alpha": 0.0, "parallel.strategy": "deepspeed"}
    config = small_config(policy, **changes)
    return diagnose(config, tmp_path_factory.mktemp("diagnose"), after_steps=2, sample=20)


@pytest.mark.parametrize(("token_filter", "moves"), [("rsi", False), ("drop_low", True)])
def test_a_token_filter_holds_for_every_copy_unless_it_drops_by_eta(policy, tmp_path, token_filter, moves):
    nothing = {"algorithm.rsi_low": 1e6, "algorithm.rsi_high": 2e6}  # no token is so improbable for its distribution
    config = small_config(policy, **{"algorithm.token_filter": token_filter, "algorithm.lopti_eta": 0.5, **nothing})
    found = diagnose(config, tmp_path, after_steps=1, sample=0)
    for update in found.updates:
        assert bool(((update.logprobs - found.logprobs).abs() > RESOLUTION).any()) == moves


def by_hand() -> Diagnosis:
    """Four tokens of probability .5 .5 .8 .8, two in each of the upper bands."""
    before = torch.tensor([0.5, 0.5, 0.8, 0.8]).log()
    return Diagnosis(
        vocabulary=2,
        after_steps=1,
        logprobs=before,
        bands=torch.tensor([2, 2, 3, 3]),
        advantages=torch.tensor([1.0, -2.0, 1.0, -1.0]),
        gradient_norms=(1 - before.exp()) * math.sqrt(2),
        parameter_norms=torch.tensor([5.0, math.nan, 4.0, 3.0]),
        updates=[Update("all tokens", torch.tensor([0.6, 0.7, 0.7, 0.8]).log())],
    )


def test_rows_by_hand():
    (row,) = by_hand().share_rows()
    assert row["tokens"] == 4
    assert row["moved"] == 0.75
    assert row["change_abs"] == pytest.approx((0.1 + 0.2 + 0.1 + 0) / 4)
    assert row["change_positive"] == pytest.approx((0.1 - 0.1) / 2, abs=1e-6)
    assert row["change_negative"] == pytest.approx(0.1, abs=1e-6)
    # Of the tokens that moved: one of two with positive advantage rose, the one with a negative did not fall.
    assert (row["positive_rose"], row["negative_fell"]) == (0.5, 0.0)
    empty, _, middle, upper = by_hand().band_rows()
    assert (empty["tokens"], middle["band"], middle["advantage_abs"]) == (0, "0.50-0.75", 1.5)
    assert math.isnan(empty["change_abs"]) and empty["gradient_share"] == 0
    # |A| x (1 - probability): .5 and 1 against .2 and .2.
    assert middle["gradient_share"] == pytest.approx(1.5 / 1.9)
    assert upper["gradient_share"] == pytest.approx(0.4 / 1.9)


def test_correlations_by_hand():
    assert by_hand().correlation() == pytest.approx(1)
    # Norms 5, 4, 3 against 1 - probability .5, .2, .2 (in float32 the last two differ by nothing).
    assert by_hand().parameter_correlation() == pytest.approx(math.sqrt(3) / 2, abs=1e-6)
    assert by_hand().bound_ratios() == pytest.approx((math.sqrt(2), math.sqrt(2)), abs=1e-6)


def test_gradient_norms_follow_one_minus_probability_within_the_bounds(found):
    assert found.correlation() > 0.95
    low, high = found.bound_ratios()
    lower, upper = found.bounds()
    assert (lower, upper) == (math.sqrt(found.vocabulary / (found.vocabulary - 1)), math.sqrt(2))
    assert lower - 1e-3 <= low < high <= upper + 1e-3


def test_tokens_below_a_quarter_move_the_policy(found):
    rows = {(row["update"], row["band"]): row for row in found.band_rows()}
    lowest, *_, highest = PUBLISHED_BANDS
    norms = [rows["all tokens", band]["gradient_norm"] for band in PUBLISHED_BANDS]
    assert norms == sorted(norms, reverse=True)
    per_token = [
        rows["all tokens", band]["gradient_share"] / rows["all tokens", band]["tokens"] for band in (lowest, highest)
    ]
    assert per_token[0] > 5 * per_token[1]
    # Updating the most probable tokens changes them less than updating only the least probable ones does.
    assert rows[HIGHEST, highest]["change_abs"] < rows[LOWEST, highest]["change_abs"]


def test_every_update_is_measured_and_the_published_strength_stands_in(found):
    assert [update.name for update in found.updates] == [
        *("all tokens", LOWEST, HIGHEST, "AR 0.3"),
        *("Lopti 0.5, low pass", "Lopti 0.5, then high"),
    ]
    everything, lowest, highest, reweighted, low, both = (found.change(update) for update in found.updates)
    assert all(change.abs().max() > 0 for change in (everything, lowest, highest, reweighted, low, both))
    assert not torch.equal(low, both) and not torch.equal(everything, reweighted)


def next_batch(trainer):
    sample = trainer.source.next_groups(trainer.step, trainer.step + 1, Stopwatch())
    return trainer.scorer.score(sample.scores.result().groups)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_copies_are_updated_and_the_policy_is_not(tiny_policy, tmp_path, optimizer):
    trainer = build(small_config(tiny_policy), tmp_path / "run")
    try:
        trainer.training_step()
        batch, plan = next_batch(trainer)
        kept = parameters(trainer)
        ones = torch.ones_like(batch.advantages) * batch.completion_mask
        rewarded = type(batch)(**{**vars(batch), "advantages": ones})
        (first,) = _after_passes(trainer, rewarded, plan, [batch.completion_mask], optimizer)
        (again,) = _after_passes(trainer, rewarded, plan, [batch.completion_mask], optimizer)
        assert torch.equal(first, again)
        # All advantages positive: the mean log-probability of the batch rises.
        assert first.sum() > batch.old_logprobs.sum()
        assert all(torch.equal(a, b) for a, b in zip(kept, parameters(trainer), strict=True))
        # Without momentum, no gradient is no step: what training did before does not carry on.
        still = type(batch)(**{**vars(batch), "advantages": torch.zeros_like(ones), "ref_logprobs": None})
        (unmoved,) = _after_passes(trainer, still, plan, [batch.completion_mask], optimizer)
        assert torch.equal(unmoved, batch.old_logprobs)
    finally:
        trainer.close()


def test_parameter_norms_are_those_of_the_whole_models_gradient(tiny_policy, tmp_path):
    trainer = build(small_config(tiny_policy), tmp_path / "run")
    try:
        batch, _ = next_batch(trainer)
        norms = _parameter_norms(trainer, batch, sample=10)
        measured = (~norms.isnan()).nonzero().flatten()
        assert 2 <= len(measured) <= 10
        rows, columns = batch.completion_mask.nonzero(as_tuple=True)
        for index in measured.tolist():
            row, position = rows[index], int(batch.prompt_lengths[rows[index]] + columns[index])
            trainer.models.causal_lm.zero_grad()
            logits = trainer.models.causal_lm(batch.input_ids[row : row + 1]).logits[0, position - 1]
            (logits / trainer.config.rollout.temperature).log_softmax(-1)[batch.input_ids[row, position]].backward()
            norm = sum(float(p.grad.square().sum()) for p in trainer.models.causal_lm.parameters()) ** 0.5
            assert float(norms[index]) == pytest.approx(norm, rel=1e-2, abs=1e-5)
    finally:
        trainer.close()


def test_command_writes_the_tables(tiny_policy, tmp_path, capsys):
    spec = tmp_path / "spec.yaml"
    spec.write_text(dump_config(small_config(tiny_policy)))
    output = tmp_path / "out"
    assert main(["diagnose", str(spec), "--output", str(output), "--after-steps", "1", "--sample", "5"]) == 0
    printed = capsys.readouterr().out
    first, *_ = printed.splitlines()
    assert first == f"{spec}: {tiny_policy}, 1 steps first"
    assert "step 1/1  reward" in printed and "updating a copy: AR 0.3" in printed
    assert re.search(r"^gradients by all parameters: \d tokens$", printed, re.MULTILINE)
    assert "correlation: 0.9" in printed and f"tables:      {output}/*.csv" in printed
    assert (output / "tokens.csv").stat().st_size > 1000


def test_a_batch_without_advantages_is_refused(tiny_policy, tmp_path):
    # One token is never an answer: all rewards are equal.
    config = small_config(tiny_policy, **{"rollout.max_new_tokens": 1})
    with pytest.raises(ConfigError, match="no token of the batch has an advantage"):
        diagnose(config, tmp_path, after_steps=1, sample=5)


def test_training_measures_bands_every_step_and_changes_every_second(tiny_policy, tmp_path):
    trainer = build(small_config(tiny_policy, **{"diagnostics.every_steps": 2}), tmp_path / "run")
    try:
        trainer.run_period()
        trainer.run_period()
        steps = trainer.tracker.steps
        for step in (1, 2):
            shares = [steps[step][f"tokens/token_share/{band}"] for band in BANDS]
            assert sum(shares) == pytest.approx(1)
            assert any(name.startswith("tokens/clip_fraction/") for name in steps[step])
            assert steps[step]["time/diagnostics"] < steps[step]["time/step"]
        assert not any(name.startswith("tokens/probability_change") for name in steps[1])
        assert any(name.startswith("tokens/probability_change") for name in steps[2])
        for name in steps[2]:
            assert declaration(name).formula
    finally:
        trainer.close()
