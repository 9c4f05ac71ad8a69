r"""How reliable is the math reward? Measures correct answers that are rejected, wrong answers that
are accepted, and hostile answers.

    python -m research.math_reward FOLDER    # parquet files with a ground truth
    python -m research.math_reward FOLDER --limit 500 --workers 4

For every ground truth, four completions are scored. Three contain the ground truth itself: boxed,
boxed in another notation, and in a closing sentence without a box. The fourth contains the ground
truth of another problem of the same file; pairs of problems with the same answer, spaces aside, are
left out. Then 448 pairs that were judged by hand are scored, and texts that were made to hang or
kill a scorer, with the time that each takes.

Of 300 problems per file (1,585 in all) with four answers each, math-verify with our bounds
misjudges 3. So did a parser of our own of 6,700 tokens (commit b8ef481). Of the 448 pairs, which
were written to cover unusual notations, it rejects 5 correct ones and accepts 6 wrong ones. Before
`rewards.math_notation` converted unusual notations to a form that math-verify reads, these numbers
were 42 and 23; our own parser misjudged 2 pairs.
"""

import argparse
import json
import random
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from rewards.sandbox import RewardPool, ScoredText
from trainer.problems.tasks.math import read_answer

PAIRS = Path(__file__).parents[1] / "tests" / "data" / "math_pairs.tsv"
SHOWN = 8  # number of failures listed per kind


def boxed(answer: str) -> str:
    return rf"So the answer is $\boxed{{{answer}}}$."


def restyled(answer: str) -> str:
    """Return the same answer in other LaTeX: display fractions, sized brackets, spaces."""
    answer = re.sub(r"\\[dt]?frac(?![A-Za-z])", r"\\dfrac", answer)
    answer = re.sub(r"(?<!\\left)(?<![A-Za-z\\])\(([^()]*)\)", r"\\left(\1\\right)", answer)
    spaced = answer.replace(", ", r",\ ")
    return rf"\[\boxed{{ {spaced} }}\]"


def in_a_sentence(answer: str) -> str:
    return f"Therefore, the final answer is ${answer.strip('$')}$."


SPELLINGS: dict[str, Callable[[str], str]] = {
    "boxed": boxed,
    "restyled": restyled,
    "sentence": in_a_sentence,
}

HOSTILE = {
    "binomial": r"\boxed{\binom{100000}{50000}}",
    "sum to the power 300": r"\boxed{(a+b+c+d)^{300}}",
    "gamma of 10^10": r"\boxed{\Gamma(10^{10})}",
    "9^{9^{9}}": r"\boxed{9^{9^{9}}}",
    "10!!!!": r"\boxed{10!!!!}",
    "sum to 10^9": r"\boxed{\sum_{n=1}^{1000000000} \frac{1}{n^2+n+1}}",
    "1e1000000": r"\boxed{1e1000000}",
    "100k digits": rf"\boxed{{{'7' * 100_000}}}",
    "100k characters, no answer": "and so on " * 10_000,
    "100k opening braces": r"\boxed" + "{" * 100_000,
    "unbalanced braces": r"\boxed{\frac{1}{2}" * 1000,
    "60 nested brackets": rf"\boxed{{{'(' * 60}1{')' * 60}}}",
    "40 nested fractions": r"\boxed{" + r"\frac{1}{1+" * 40 + "1" + "}" * 41,
    "set of 10^6 elements": rf"\boxed{{\{{{','.join(map(str, range(1_000_000)))}\}}}}",
    "set of 150 elements": rf"\boxed{{\{{{','.join(map(str, range(150)))}\}}}}",
    "300 terms": rf"\boxed{{{'+'.join(f'x_{{{i}}}' for i in range(150))}}}",
    "20,000 boxes": r"\boxed{1}" * 20_000,
    "nul and lone surrogate": "\\boxed{\x00\ud800}",
    "division by zero": r"\boxed{\frac{1}{0}}",
}


def main() -> None:
    """Measure, and print the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--limit", type=int, help="use only the first N problems of each file")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=5.0, help="time limit per completion [s]")
    parser.add_argument("--failures", type=Path, help="JSON file for all failures")
    arguments = parser.parse_args()
    files = sorted(arguments.folder.glob("*.parquet"))
    if not files:
        parser.error(f"no parquet files in {arguments.folder}")
    failures: list[dict[str, str]] = []
    with RewardPool(
        {"math": 1.0}, timeout_s=arguments.timeout, memory_mb=1024, workers=arguments.workers
    ) as pool:
        print(
            f"{'file':<28} {'answers':>7}  {'   '.join(SPELLINGS):>26}  {'wrong taken':>13}  "
            "ms/answer"
        )
        for path in files:
            failures += measure_file(path, read_truths(path, arguments.limit), pool)
        measure_pairs(pool)
        print(f"\n{'hostile answer':<28} {'status':<8} {'reward':>6} {'seconds':>8}")
        for name, text in HOSTILE.items():
            begin = time.perf_counter()
            (scored,) = pool.score([text], ["1"])
            seconds = time.perf_counter() - begin
            print(f"{name:<28} {scored.status:<8} {scored.score.reward:>6g} {seconds:>8.3f}")
    for kind in [*SPELLINGS, "wrong"]:
        of_kind = [failure for failure in failures if failure["kind"] == kind]
        print(f"\n{kind}: {len(of_kind)} {'accepted' if kind == 'wrong' else 'refused'}")
        for failure in of_kind[:SHOWN]:
            answer = failure["answer"][:70]
            truth = failure["truth"][:70]
            print(f"  {failure['file']}: {answer!r} for {truth!r} {failure['status']}")
    if arguments.failures is not None:
        arguments.failures.write_text(
            json.dumps(failures, indent=1, ensure_ascii=False), encoding="utf-8"
        )


def measure_pairs(pool: RewardPool) -> None:
    """Score the pairs that were judged by hand, and print how many are misjudged."""
    lines = PAIRS.read_text(encoding="utf-8").splitlines()
    verdicts, golds, given = zip(*(line.split("\t") for line in lines if line), strict=True)
    scored = pool.score([boxed(answer) for answer in given], golds)
    judged = [
        (verdict == "same", result.score.correct)
        for verdict, result in zip(verdicts, scored, strict=True)
    ]
    refused = judged.count((True, False))
    taken = judged.count((False, True))
    print(
        f"\n{len(judged)} pairs judged by hand: {refused} right ones refused, {taken} wrong ones "
        "taken"
    )


def read_truths(path: Path, limit: int | None) -> list[Any]:
    """Return the ground truths of a file, read as the trainer reads them."""
    rows = pq.read_table(path, columns=["reward_model"]).to_pylist()[:limit]
    return [read_answer(row["reward_model"]["ground_truth"]) for row in rows]


def measure_file(path: Path, truths: Sequence[Any], pool: RewardPool) -> list[dict[str, str]]:
    """Print the error rates of one file, and return the failures."""
    first = [str(truth[0] if isinstance(truth, list) else truth) for truth in truths]
    failures: list[dict[str, str]] = []

    def note(kind: str, index: int, answer: str, scored: ScoredText) -> None:
        failures.append(
            {
                "file": path.stem,
                "kind": kind,
                "answer": answer,
                "truth": str(truths[index]),
                "status": scored.status,
            }
        )

    begin = time.perf_counter()
    counted = 0
    fractions = []
    for kind, spell in SPELLINGS.items():
        scored = pool.score([spell(answer) for answer in first], truths)
        counted += len(scored)
        fractions.append(sum(scored_text.score.correct for scored_text in scored) / len(scored))
        for index, scored_text in enumerate(scored):
            if not scored_text.score.correct:
                note(kind, index, first[index], scored_text)
    pairs = shuffled(first)
    scored = pool.score(
        [boxed(first[other]) for _, other in pairs], [truths[index] for index, _ in pairs]
    )
    taken = 0
    for (index, other), scored_text in zip(pairs, scored, strict=True):
        if scored_text.score.correct:
            taken += 1
            note("wrong", index, first[other], scored_text)
    counted += len(pairs)
    milliseconds = 1000 * (time.perf_counter() - begin) / counted
    percentages = "  ".join(f"{fraction:7.2%}" for fraction in fractions)
    print(
        f"{path.stem:<28} {len(truths):>7}  {percentages}  "
        f"{taken:>4} of {len(pairs):>5}  {milliseconds:>8.1f}",
        flush=True,
    )
    return failures


def shuffled(answers: Sequence[str]) -> list[tuple[int, int]]:
    """Return for each problem another problem with a different answer; spaces and the size of
    fractions do not count as a difference.
    """
    texts = [re.sub(r"\\[dt]frac", r"\\frac", re.sub(r"[\s{}$]", "", answer)) for answer in answers]
    order = list(range(len(answers)))
    random.Random(0).shuffle(order)
    return [(index, other) for index, other in enumerate(order) if texts[index] != texts[other]]


if __name__ == "__main__":
    main()
