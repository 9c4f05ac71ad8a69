"""Every script of ``examples/paper`` runs, and its figures are those of a hand-made case."""

import json
import math

import pandas as pd
import pytest
import torch

from examples.paper import diagnose, diagnose_rules, draw_diagnosis, language, table_1
from tests.trainer.test_loop import build, parameters, small_config
from trainer.config.schema import dump_config
from trainer.metrics.step import Stopwatch
from trainer.policy.architectures import TINY_FOLDER


def test_figures_1_to_3_of_the_built_in_model_are_those_of_the_paper(tmp_path, capsys, monkeypatch):
    changes = {
        "rollout.prompts_per_step": 6,
        "algorithm.ar_alpha": 0.0,
        "parallel.strategy": "deepspeed",
    }
    spec = tmp_path / "spec.yaml"
    spec.write_text(dump_config(small_config(TINY_FOLDER, **changes)))
    output = tmp_path / "out"
    options = ["--output", str(output), "--after-steps", "2", "--sample", "20"]
    assert diagnose.main([str(spec), *options]) == 0
    printed = capsys.readouterr().out
    assert "updating a copy: AR 0.3" in printed and f"tables:      {output}/*.csv" in printed
    tokens = pd.read_csv(output / "tokens.csv")
    assert tokens.gradient_norm.corr(1 - tokens.probability) > 0.95
    ratios = (tokens.gradient_norm / (1 - tokens.probability))[tokens.probability < 1 - 1e-4]
    assert 1 < ratios.min() < ratios.max() <= math.sqrt(2) + 1e-3  # proposition 4.2
    assert tokens.parameter_gradient_norm.notna().sum() <= 20
    rows = pd.read_csv(output / "bands.csv").set_index(["update", "band"])
    lowest, *_, highest = diagnose.PUBLISHED_BANDS
    norms = rows.loc["all tokens"].gradient_norm.dropna()
    assert norms.is_monotonic_decreasing
    per_token = rows.loc["all tokens"].gradient_fraction / rows.loc["all tokens"].tokens
    assert per_token[lowest] > 5 * per_token[highest]
    # Updating the most probable tokens changes them less than updating only the least probable ones
    # does.
    of_highest = rows.change_abs[:, highest]
    assert of_highest[diagnose.HIGHEST] < of_highest[diagnose.LOWEST]
    drawing = draw_diagnosis.draw({"puzzles": tokens, "sums": tokens})
    assert len(drawing.data) == 2 * (4 + 2 + 3 + 3)
    # The picture of all rules, here of two.
    monkeypatch.setattr(diagnose_rules, "RULES", {"grpo": {}, "cispo": {"algorithm.loss": "cispo"}})
    monkeypatch.setattr(diagnose_rules, "COLUMNS", 2)
    monkeypatch.setattr(
        diagnose_rules, "write_png", lambda drawing, path: path.write_text(str(len(drawing.data)))
    )
    small = small_config(
        TINY_FOLDER, **{"rollout.prompts_per_step": 4, "optim.update_batch_size": 4}
    )
    monkeypatch.setattr(diagnose_rules, "load_config", lambda spec, overrides=None: small)
    assert diagnose_rules.main([str(tmp_path / "rules.png")]) == 0
    assert (tmp_path / "rules.png").read_text() == "6"


def next_batch(trainer):
    sample = trainer.source.next_groups(trainer.step, Stopwatch())
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
        (first,) = diagnose.after_passes(
            trainer, rewarded, plan, [batch.completion_mask], optimizer
        )
        (again,) = diagnose.after_passes(
            trainer, rewarded, plan, [batch.completion_mask], optimizer
        )
        assert torch.equal(first, again)
        # All advantages positive: the mean log-probability of the batch rises.
        assert first.sum() > batch.old_logprobs.sum()
        assert all(torch.equal(a, b) for a, b in zip(kept, parameters(trainer), strict=True))
        # Without momentum, no gradient is no step: what training did before does not carry on.
        still = type(batch)(
            **{**vars(batch), "advantages": torch.zeros_like(ones), "ref_logprobs": None}
        )
        (unmoved,) = diagnose.after_passes(trainer, still, plan, [batch.completion_mask], optimizer)
        assert torch.equal(unmoved, batch.old_logprobs)
    finally:
        trainer.close()


def by_hand():
    """Four tokens of probability .5 .5 .8 .8, two in each of the upper bands."""
    before = torch.tensor([0.5, 0.5, 0.8, 0.8]).log()
    return diagnose.Diagnosis(
        vocabulary=2,
        after_steps=1,
        logprobs=before,
        bands=torch.tensor([2, 2, 3, 3]),
        advantages=torch.tensor([1.0, -2.0, 1.0, -1.0]),
        gradient_norms=(1 - before.exp()) * math.sqrt(2),
        parameter_norms=torch.tensor([5.0, math.nan, 4.0, 3.0]),
        updates=[diagnose.Update("all tokens", torch.tensor([0.6, 0.7, 0.7, 0.8]).log())],
    )


def test_rows_by_hand():
    (row,) = by_hand().fraction_rows()
    assert row["tokens"] == 4
    assert row["moved"] == 0.75
    assert row["change_abs"] == pytest.approx((0.1 + 0.2 + 0.1 + 0) / 4)
    assert row["change_positive"] == pytest.approx((0.1 - 0.1) / 2, abs=1e-6)
    assert row["change_negative"] == pytest.approx(0.1, abs=1e-6)
    # Of the tokens that moved: one of two with positive advantage rose, the one with a negative did
    # not fall.
    assert (row["positive_rose"], row["negative_fell"]) == (0.5, 0.0)
    empty, _, middle, upper = by_hand().band_rows()
    assert (empty["tokens"], middle["band"], middle["advantage_abs"]) == (0, "0.50-0.75", 1.5)
    assert math.isnan(empty["change_abs"]) and empty["gradient_fraction"] == 0
    # |A| x (1 - probability): .5 and 1 against .2 and .2.
    assert middle["gradient_fraction"] == pytest.approx(1.5 / 1.9)
    assert upper["gradient_fraction"] == pytest.approx(0.4 / 1.9)


def test_table_1_is_the_mean_over_checkpoints(tmp_path, capsys):
    folders = []
    for step, accuracy in ((330, 0.5), (350, 0.25)):
        folder = tmp_path / str(step)
        folder.mkdir()
        row = {"by": "all", "accuracy": accuracy, "pass_at_k": 2 * accuracy, "k": 2}
        rows = [
            row | {"set": "aime"},
            row | {"set": "amc"},
            row | {"set": "amc", "by": "difficulty"},
        ]
        (folder / "evaluation.json").write_text(json.dumps({"rows": rows}))
        folders.append(str(folder))
    assert table_1.main(folders) == 0
    printed = [line.rsplit(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert printed == [
        ["aime", "37.50"],
        ["aime pass@2", "75.00"],
        ["amc", "37.50"],
        ["mean", "50.00"],
    ]


def test_words_and_reward_of_figure_5_by_hand(tmp_path, capsys):
    # "so" makes 1 of 4 words in a rewarded completion and 2 of 2 in an unrewarded one.
    rows = [{"completion": "So Zoey lies here", "reward": 3.0}] * 8 + [
        {"completion": "so, so", "reward": -1.0}
    ] * 4
    (tmp_path / "completions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    results = {r.category: r for r in language.analyze(language.read_completions([tmp_path]))}
    so = results["conclusion indicator"]
    assert (so.occurrences, so.used_by) == (8 + 2 * 4, 1.0)
    assert so.per_100_words == pytest.approx((8 * 25 + 4 * 100) / 12)
    assert (so.correlation, so.low, so.high) == pytest.approx((-1.0, -1.0, -1.0))
    assert math.isnan(results["assumption"].correlation)
    assert language.main([str(tmp_path)]) == 0
    assert "12 completions, mean reward 1.667" in capsys.readouterr().out


def test_words_by_method_have_an_interval_over_runs(tmp_path, capsys):
    def run(name, texts):
        rows = [{"set": "dev", "completion": text, "reward": 1.0} for text in texts]
        folder = tmp_path / name
        folder.mkdir()
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "completions.jsonl").write_text(text)
        return folder

    # per 100 words: 25 and 50 in the runs of one method; 0 in the single run of the other
    grpo = [run("a", ["so b c d"]), run("b", ["so b"])]
    rows = language.by_method({"grpo": grpo, "lopti": [run("c", ["a b"])]})
    of_so = {row.method: row for row in rows if row.category == "conclusion indicator"}
    half = 12.706205 * (25 / math.sqrt(2)) / math.sqrt(2)  # t of 1 degree of freedom
    assert of_so["grpo"].per_100_words == pytest.approx(37.5)
    assert (of_so["grpo"].low, of_so["grpo"].high) == pytest.approx((37.5 - half, 37.5 + half))
    assert (of_so["lopti"].per_100_words, of_so["lopti"].runs) == (0.0, 1)
    assert len(language.plot(rows).data) == 2
    words = [f"grpo={grpo[0]},{grpo[1]}", f"lopti={tmp_path / 'c'}"]
    assert language.main(words) == 0
    assert "37.50" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("category", "text", "count"),
    [
        ("analysis", "Let us ANALYZE it: we analyzed, considered, looked  at and checked.", 5),
        ("analysis", "His analysis considers looking at checks; examiner.", 0),
        ("statement", "Ava's statement and Ben’s statements; the statement; Ava's stated", 2),
        (
            "conclusion indicator",
            "So, also SO; soon so-so. As a result, as result. Hence therefore.",
            7,
        ),
        ("assumption", "Assume A. If B is true then C, if D. Then E", 2),
        ("assertion", "", 0),
    ],
)
def test_the_papers_phrases_match_in_any_case_and_inflection(category, text, count):
    assert language.count_phrases(text, language.PAPER[category]) == count
