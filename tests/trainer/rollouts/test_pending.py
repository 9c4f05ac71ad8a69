import threading
import time

import pytest

from trainer.parallel.ranks import Parallel
from trainer.rollouts.engine import Sample, SamplingParams
from trainer.rollouts.pending import PENDING_FILE, PendingSamples

PROMPTS, SEEDS = [(1, 2), (3,)], [[10, 11], [12, 13]]
PARAMS = SamplingParams(0.7, max_new_tokens=4)


class Engine:
    """Answers every seed with the number of its weights, and a log-probability that float32 does not hold."""

    def __init__(self) -> None:
        self.weights = 0

    def generate(self, prompts, seeds, params):
        return [
            [Sample((self.weights, seed), (-0.1, -seed / 3), "length" if seed % 2 else "stop") for seed in row]
            for row in seeds
        ]


def pending_of(engine: Engine, overlaps: bool = False) -> PendingSamples:
    return PendingSamples(engine, Parallel(), overlaps)


@pytest.mark.parametrize(
    "asked",
    [
        ([(1, 2), (4,)], SEEDS, PARAMS),
        (PROMPTS, [[10, 11], [12, 14]], PARAMS),
        (PROMPTS, SEEDS, SamplingParams(0.8, max_new_tokens=4)),
    ],
    ids=["another prompt", "another seed", "another temperature"],
)
def test_what_differs_from_what_was_begun_is_sampled_by_the_weights_of_now(asked):
    engine = Engine()
    pending = pending_of(engine)
    pending.begin(PROMPTS, SEEDS, PARAMS)
    engine.weights = 1
    assert {sample.token_ids[0] for row in pending.generate(*asked) for sample in row} == {1}


def test_they_come_back_from_a_checkpoint_bit_for_bit_on_any_rank(tmp_path):
    engine = Engine()
    pending = pending_of(engine)
    expected = engine.generate(PROMPTS, SEEDS, PARAMS)
    pending.begin(PROMPTS, SEEDS, PARAMS)
    pending.stage()(tmp_path)
    engine.weights = 1
    resumed = pending_of(engine)
    resumed.load(tmp_path)
    assert resumed.generate(PROMPTS[1:], SEEDS[1:], PARAMS) == expected[1:]  # the share of one of two ranks

    (tmp_path / "none").mkdir()
    resumed.stage()(tmp_path / "none")
    assert not (tmp_path / "none" / PENDING_FILE).exists()
    resumed.load(tmp_path / "none")
    assert resumed.generate(PROMPTS, SEEDS, PARAMS) != expected


def test_completions_of_all_ranks_are_saved_and_a_share_that_lacks_one_is_sampled_by_all_ranks(tmp_path):
    class First(Parallel):
        world_size = 2
        other = ()
        lacks_some = False

        def gather(self, items, after_files=False):
            return [*items, *self.other] if items else items

        def any(self, flag):
            return flag or self.lacks_some

    engine, second, first = Engine(), pending_of(Engine()), First()
    second.begin(PROMPTS[1:], SEEDS[1:], PARAMS)
    first.other = tuple(second._samples.items())
    pending = PendingSamples(engine, first, overlaps=False)
    pending.begin(PROMPTS[:1], SEEDS[:1], PARAMS)
    pending.stage()(tmp_path)
    engine.weights = 1
    pending.load(tmp_path)
    assert pending.generate(PROMPTS, SEEDS, PARAMS) == Engine().generate(PROMPTS, SEEDS, PARAMS)
    pending.load(tmp_path)
    first.lacks_some = True
    assert pending.generate(PROMPTS, SEEDS, PARAMS) == engine.generate(PROMPTS, SEEDS, PARAMS)


def test_an_engine_that_does_not_end_is_not_waited_for(monkeypatch):
    monkeypatch.setattr("trainer.rollouts.pending.CLOSING_S", 0.05)
    deaf, may_end = Engine(), threading.Event()
    monkeypatch.setattr(deaf, "generate", lambda *asked: may_end.wait(60) and Engine().generate(*asked))
    pending = pending_of(deaf, overlaps=True)
    pending.begin(PROMPTS, SEEDS, PARAMS)
    started = time.monotonic()
    pending.close()
    assert time.monotonic() - started < 30  # far below the minute that this engine would sample
    assert not may_end.is_set()
    may_end.set()
