"""The numbers of the pages in docs/results, computed again from the scores in research/data."""

import math
import re
from statistics import mean, stdev

import pandas as pd
import pytest
from scipy import stats

from dashboards.judging import judge
from dashboards.statistics.peaks import jackknife
from dashboards.statistics.tournament import Tuning, compare_rules
from loptune.files import read_json_lines
from research.learning_rate_peaks import peaks_of, read_scores
from tests.paths import ROOT

DATA = ROOT / "research/data"
RESULTS = ROOT / "docs/results"
NUMBER = re.compile(r"(?<![\w.-])[-+]?\d*\.?\d+(?:e-?\d+)?(?![\w.]*\.csv)")
SEEDS = list(range(6))
RULES = {  # of the page -> of the data
    "GRPO": "GRPO",
    "GRPO, two epochs": "two epochs",
    "two epochs": "two epochs",
    "random split": "random split",
    "Lopti": "Lopti",
    "Lopti 0.5": "Lopti",
    "AR": "AR",
    "AR 0.3": "AR",
}
RECENT = {
    "optimal token baseline": "token baseline",
    "IPO, as in prime-rl": "IPO",
    "entropy-shaped advantages": "entropy-shaped",
    "off-policy mask": "off-policy mask",
    "unbiased KL, r k3": "r k3",
    "quantile baseline": "quantile",
}


def tables(page):
    return tables_in((RESULTS / page).read_text(encoding="utf-8"))


def tables_in(text):
    """The tables of a text: a list of rows each, a row as a list of cells in plain text."""
    found = []
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", block).replace("**", "")
        rows = [line.strip("|").split("|") for line in plain.splitlines() if set(line) - set("|- ")]
        found.append([[cell.strip() for cell in row] for row in rows])
    return found


def agrees(cell, *values):
    """Whether the numbers in a cell are these values, to the digits that it prints."""
    printed = NUMBER.findall(cell)
    if len(printed) != len(values):
        return False
    for text, value in zip(printed, values, strict=True):
        digits, _, exponent = text.partition("e")
        unit = 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))
        if abs(float(text) - value) > 0.5001 * unit:
            return False
    return True


class Compared(list):
    """The cells of a table that differ from the data, as row, cell and the data's values."""

    def add(self, row, cells, expected):
        """Compare the cells of a row with tuples of values; an empty tuple is a cell without
        numbers.
        """
        for cell, values in zip(cells, expected, strict=True):
            if not agrees(cell, *values):
                self.append((row, cell, [float(f"{value:.6g}") for value in values]))


def paired(ours, theirs):
    """Mean difference over shared seeds, its standard error and the half width of its 90%
    interval, and on how many seeds ``ours`` is better.
    """
    differences = [ours[seed] - theirs[seed] for seed in theirs]
    error = stdev(differences) / math.sqrt(len(differences))
    half = stats.t.ppf(0.95, len(differences) - 1) * error
    return mean(differences), error, half, sum(value > 0 for value in differences)


def grid(folder):
    return read_scores(sorted((DATA / folder).iterdir()))


def by_seed(frame, column):
    return dict(zip(frame.seed, frame[column], strict=True))


@pytest.fixture(scope="module")
def at_peaks():
    """Score and held-out accuracy of each rule by seed: column -> rule -> seed -> value."""
    table = pd.read_csv(DATA / "lopti_at_peaks.csv")
    return {
        column: {rule: by_seed(rows, column) for rule, rows in table.groupby("rule")}
        for column in ("score", "test")
    }


@pytest.mark.parametrize(
    ("folder", "place", "number"), [("lopti_learning_rate", 0, 5), ("lopti_with_sgd", 4, 3)]
)
def test_means_and_peaks_on_the_grids_of_learning_rates(folder, place, number):
    scores = grid(folder)
    heads, *rows = tables("lopti_learning_rate.md")[place]
    rates = sorted(scores["GRPO"])
    compared = Compared()
    compared.add("heads", heads[1:8], [(rate,) for rate in rates])
    peaks = peaks_of(scores, SEEDS)
    rules = [row for row in rows if row[0] in RULES]
    assert len(rules) == number
    for name, *cells in rules:
        rule = RULES[name]
        means = [(mean(scores[rule][rate][seed] for seed in SEEDS),) for rate in rates]
        compared.add(name, cells, [*means, (peaks[rule].score,), (2 ** peaks[rule].octave,)])
    assert not compared


def test_differences_of_lopti_and_grpo_under_sgd():
    scores = grid("lopti_with_sgd")
    rows = {row[0]: row[1:8] for row in tables("lopti_learning_rate.md")[4]}
    found = [paired(scores["Lopti"][rate], scores["GRPO"][rate]) for rate in sorted(scores["GRPO"])]
    bounds = [(difference - half, difference + half) for difference, _, half, _ in found]
    compared = Compared()
    compared.add("Lopti", rows["Lopti - GRPO"], [one[:2] for one in found])
    compared.add("interval", rows["90% interval of Lopti - GRPO"], bounds)
    assert not compared


@pytest.mark.parametrize(
    ("folder", "place", "number"), [("lopti_learning_rate", 1, 6), ("lopti_with_sgd", 5, 3)]
)
def test_differences_of_the_peaks(folder, place, number):
    scores = grid(folder)
    full = peaks_of(scores, SEEDS)
    parts = [peaks_of(scores, [one for one in SEEDS if one != left]) for left in SEEDS]
    _, *rows = tables("lopti_learning_rate.md")[place]
    assert len(rows) == number
    compared = Compared()
    for name, *cells in rows:
        ours, theirs = (RULES[rule.removesuffix(" (primary)")] for rule in name.split(" - "))
        score = full[ours].score - full[theirs].score
        octaves = full[ours].octave - full[theirs].octave
        scores_left = [part[ours].score - part[theirs].score for part in parts]
        octaves_left = [part[ours].octave - part[theirs].octave for part in parts]
        bounds = jackknife(octaves, octaves_left)
        compared.add(name, cells, [(score,), jackknife(score, scores_left), (octaves, *bounds)])
    assert not compared


def test_rules_at_their_peaks_on_fresh_seeds(at_peaks):
    _, *rows = tables("lopti_learning_rate.md")[2]
    assert len(rows) == 5
    compared = Compared()
    for name, _rate, *cells in rows:
        expected = []
        for column in ("score", "test"):
            ours, theirs = at_peaks[column][RULES[name]], at_peaks[column]["GRPO"]
            difference, error, _, better = paired(ours, theirs)
            expected.append((mean(ours.values()),))
            expected += [(), ()] if name == "GRPO" else [(difference, error), (better, 8)]
        compared.add(name, cells, expected)
    assert not compared


def test_differences_on_fresh_seeds_with_intervals(at_peaks):
    _, *rows = tables("lopti_learning_rate.md")[3]
    assert len(rows) == 5
    compared = Compared()
    for name, *cells in rows:
        ours, theirs = (RULES[rule] for rule in name.split(" - "))
        expected = []
        for column in ("score", "test"):
            difference, _, half, _ = paired(at_peaks[column][ours], at_peaks[column][theirs])
            expected.append((difference, difference - half, difference + half))
        compared.add(name, cells, expected)
    assert not compared


@pytest.fixture(scope="module")
def recent():
    return pd.read_csv(DATA / "recent_rules.csv")


def test_thirteen_rules_on_fresh_seeds(recent):
    search = recent[recent.stage == "search"]
    fresh = recent[recent.stage == "confirm"]
    scores = {rule: by_seed(rows, "score") for rule, rows in fresh.groupby("rule")}
    tunings = {rule: Tuning(list(rows.score), 1) for rule, rows in search.groupby("rule")}
    intervals = {found.rule: found.interval for found in compare_rules(scores, "GRPO", tunings)}
    _, *rows = tables("recent_rules.md")[0]
    assert len(rows) == len(scores) == 13
    compared = Compared()
    for name, *cells in rows:
        rule = RECENT.get(name, RULES.get(name, name))
        runs = fresh[fresh.rule == rule]
        tuned = search[search.rule == rule].score.max()
        difference, error, _, better = paired(scores[rule], scores["GRPO"])
        against = [(difference, error), (better, 8), intervals.get(rule, ())]
        if rule == "off-policy mask":  # the same score as GRPO on every seed
            assert (difference, error) == (0, 0)
            against = [(0,), (), ()]
        if rule == "GRPO":
            against = [(), (), ()]
        means = [(tuned,), (runs.score.mean(),), (runs.test.mean(),)]
        compared.add(name, cells, [(runs.lr.iloc[0],), *means, *against])
    assert not compared


def test_the_token_baseline_on_sixteen_seeds(recent):
    again = recent[recent.stage == "confirm-2"]
    rows = {rule: by_seed(runs, "score") for rule, runs in again.groupby("rule")}
    difference, error, _, better = paired(rows["token baseline"], rows["GRPO"])
    text = " ".join((RESULTS / "recent_rules.md").read_text(encoding="utf-8").split())
    (printed,) = re.findall(r"On sixteen new seeds its mean is ([^)]*)\)", text)
    means = [mean(rows[rule].values()) for rule in ("token baseline", "GRPO")]
    assert agrees(printed, difference, *means, error) and better == 11
    (tested,) = re.findall(r"On the held-out test the accuracies are ([.\d]+ and [.\d]+)", text)
    assert agrees(tested, *again.groupby("rule").test.mean()[["token baseline", "GRPO"]])
    _, *verdicts = tables("recent_rules.md")[1]
    compared = Compared()
    for cells, score in zip(verdicts, ("score", "test"), strict=True):
        expected = []
        for pairing in ("unpaired", "paired"):
            found = judge(
                again,
                by=["rule"],
                baseline={"rule": "GRPO"},
                score=score,
                seed="seed",
                fresh=True,
                pairing=pairing,
                ignore=["stage", "configuration", "lr", "test" if score == "score" else "score"],
            ).verdict
            expected.append((*found.interval, found.p_value))
        compared.add(score, cells[1:], expected)
    assert not compared


def test_the_paper_index_has_the_numbers_of_the_pages(recent):
    text = (ROOT / "docs/reference/paper_index.md").read_text(encoding="utf-8")
    fresh = recent[recent.stage == "confirm"]
    scores = {rule: by_seed(rows, "score") for rule, rows in fresh.groupby("rule")}
    printed = re.findall(r"\) ([^|]+?) \|.*\| 20 steps ([-+.\d]+ ± [.\d]+)", text)
    assert len(printed) >= 9
    for name, cell in printed:
        rule = RECENT.get(name, RULES.get(name, name))
        difference, error, *_ = paired(scores[rule], scores["GRPO"])
        assert agrees(cell, difference, error), name


def sentence(page, pattern):
    """The one place of a page that matches, whose numbers stand in the pattern's groups; a space in
    the pattern is any white space.
    """
    text = re.sub(r"\s+", " ", (RESULTS / page).read_text(encoding="utf-8"))
    (found,) = re.finditer(pattern, text)
    return " ".join(found.groups())


def test_sentences_on_the_grids():
    adam, sgd = grid("lopti_learning_rate"), grid("lopti_with_sgd")
    page = "lopti_learning_rate.md"

    def gap(scores, ours, theirs, left=None, **options):
        seeds = [seed for seed in SEEDS if seed != left]
        peaks = peaks_of(scores, seeds, **options)
        return peaks[ours].score - peaks[theirs].score

    near = gap(adam, "Lopti", "two epochs", near=5)
    assert agrees(sentence(page, r"each rule's best mean, gives (\S+)\."), near)
    near = gap(sgd, "Lopti", "two epochs", near=5)
    parts = [gap(sgd, "Lopti", "two epochs", left, near=5) for left in SEEDS]
    printed = sentence(page, r"best one, the difference is (\S+ \([^)]*\))")
    assert agrees(printed, near, *jackknife(near, parts))
    gains = [
        paired(adam["Lopti"][rate], adam["GRPO"][rate])[0]
        for rate in (sorted(adam["GRPO"])[0], 3e-4)
    ]
    assert agrees(sentence(page, r"Lopti minus GRPO is (\S+) at 7.5e-5 and (\S+) at 3e-4"), *gains)
    for scores, pattern in (
        (adam, r"largest residual of a mean is (\S+)\."),
        (sgd, r"the parabolas miss a mean by up to (\S+)\. With"),
    ):
        largest = max(peak.max_residual for peak in peaks_of(scores, SEEDS).values())
        assert agrees(sentence(page, pattern), largest)
    doubled = []
    for rate in sorted(sgd["GRPO"])[:2]:
        twice = min(sgd["GRPO"], key=lambda other: abs(other - 2 * rate))
        difference, _, half, _ = paired(sgd["two epochs"][rate], sgd["GRPO"][twice])
        doubled += [difference, difference - half, difference + half]
    pattern = r"they are (\S+) \(90% interval ([^)]*)\) and (\S+) \(([^)]*)\) above GRPO at twice"
    assert agrees(sentence(page, pattern), *doubled)


def test_sentences_on_fresh_seeds(recent):
    table = pd.read_csv(DATA / "lopti_at_peaks.csv")
    page = "lopti_learning_rate.md"
    found = {}
    for score, other in (("score", "test"), ("test", "score")):
        found[score] = judge(
            table,
            by=["rule"],
            baseline={"rule": "GRPO"},
            score=score,
            seed="seed",
            ignore=[other],
            fresh=True,
        ).verdict
    dev, held_out = found["score"], found["test"]
    printed = sentence(page, r"the (\S+) of two epochs \(90% interval (\S+ to \S+), corrected")
    assert agrees(printed, dev.difference, *dev.interval)
    printed = sentence(page, r"and their (\S+) on the held-out puzzles \(([^)]*)\)")
    assert agrees(printed, held_out.difference, *held_out.interval)
    assert agrees(sentence(page, r"Eight seeds detect (\S+) with 80% power"), dev.detectable)
    of_all = judge(
        recent[recent.stage == "confirm"],
        by=["rule"],
        baseline={"rule": "GRPO"},
        score="score",
        seed="seed",
        ignore=["stage", "configuration", "lr", "test"],
        fresh=True,
    ).verdict
    page = "recent_rules.md"
    printed = sentence(page, r"90% interval (\S+ to \S+), one-sided p = (\S+), corrected for 12")
    assert agrees(printed, *of_all.interval, of_all.p_value)
    assert agrees(
        sentence(page, r"improvement that would be detected with 80% power is (\S+),"),
        of_all.detectable,
    )


SMALL = DATA / "paper_small"
GRIDS = {*SMALL.glob("alpha_eta_grid*")}  # their tables have a row per alpha and a column per eta


@pytest.mark.parametrize("folder", sorted({*SMALL.iterdir()} - GRIDS), ids=lambda path: path.name)
def test_experiments_of_the_paper_at_reduced_size(folder):
    """The first table behind the name of a ledger has its scores: a row per configuration in the
    ledger's order, a column per seed, and the mean.
    """
    by_configuration = {}
    for event, _ in read_json_lines(folder / "events.jsonl"):
        if event["event"] == "result":
            assert event["state"] == "COMPLETE"
            scores = by_configuration.setdefault(event["configuration"], {})
            scores[event["seed"]] = event["score"]
    text = (RESULTS / "paper.md").read_text(encoding="utf-8")
    _, *rows = tables_in(text.split(f"`research/data/paper_small/{folder.name}`", 1)[1])[0]
    compared = Compared()
    for row, scores in zip(rows, map(by_configuration.get, sorted(by_configuration)), strict=True):
        expected = [scores[seed] for seed in sorted(scores)]
        if len(expected) > 1:
            expected.append(mean(expected))
        compared.add(row[0], row[1:], [(value,) for value in expected])
    assert not compared


@pytest.mark.parametrize("folder", sorted(GRIDS), ids=lambda path: path.name)
def test_the_grid_of_figure_6_at_reduced_size(folder):
    settings = {}
    scores = {}
    for event, _ in read_json_lines(folder / "events.jsonl"):
        if event["event"] == "configuration":
            resolved = event["resolved"]
            place = resolved["algorithm.ar_alpha"], resolved["algorithm.lopti_eta"]
            settings[event["configuration"]] = place
        elif event["event"] == "result":
            scores[settings[event["configuration"]]] = event["score"]
    text = (RESULTS / "paper.md").read_text(encoding="utf-8")
    heads, *rows = tables_in(text.split(f"`research/data/paper_small/{folder.name}`", 1)[1])[0]
    compared = Compared()
    for alpha, *cells in rows:
        row = []
        for eta in heads[1:]:
            place = float(alpha), float(eta)
            row.append((scores.pop(place),) if place in scores else ())  # a cell that did not run
        compared.add(f"alpha {alpha}", cells, row)
    assert not compared and not scores


def test_figures_1_to_3_of_the_tiny_model():
    folder = DATA / "paper_diagnosis"
    tokens = pd.read_csv(folder / "tokens.csv.gz")
    bands = pd.read_csv(folder / "bands.csv").set_index(["update", "band"]).loc["all tokens"]
    updates = pd.read_csv(folder / "updates.csv").set_index("update")
    heads, *rows = tables_in(
        (RESULTS / "paper.md").read_text(encoding="utf-8").split("## Figures 1-3", 1)[1]
    )[0]
    assert f"{len(tokens):,} tokens" in heads[1]
    measured = {label.split(":")[0]: cell for label, cell in rows}

    distance = 1 - tokens.probability
    over_all = tokens.parameter_gradient_norm
    lowest, highest = bands.iloc[0], bands.iloc[-1]
    numbers = [
        tokens.gradient_norm.corr(distance),
        over_all.corr(distance),
        over_all.corr(distance, method="spearman"),
        over_all.notna().sum(),
        *(100 * lowest.tokens / len(tokens), 0.25, 100 * lowest.gradient_fraction),
        *(100 * highest.tokens / len(tokens), 0.75, 100 * highest.gradient_fraction),
    ]
    cell = measured["1 (d)"].replace("1 - π ", "").replace("%", "")
    assert agrees(cell, *numbers)

    assert agrees(measured["1 (b)"], *bands.advantage_abs)
    change = updates.change_abs
    assert agrees(measured["1 (e)"], change["only pi < 0.25"], change["all tokens"])
    assert agrees(measured["1 (f)"], change["only pi > 0.75"])
    rose = 100 * updates.positive_rose
    names = ["all tokens", "AR 0.3", "Lopti 0.5, then high", "Lopti 0.5, low pass"]
    cell = measured["3"].replace("%", "")
    assert agrees(cell, *100 * bands.positive_rose, *rose[names])
