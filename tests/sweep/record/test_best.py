from pathlib import Path

from sweep.record.best import choose_best
from sweep.record.sweep_record import open_sweep
from tests.sweep.ended_sweeps import SCORES, write_sweep


def test_a_search_of_its_own_seeds_names_a_candidate(tmp_path: Path) -> None:
    for name, sampler, seeds in [("tpe", "tpe", [0, 1]), ("random", "random", [0, 1]), ("one", "tpe", [0])]:
        write_sweep(tmp_path, name, SCORES, seeds=seeds, search={"sampler": sampler, "configurations": 2})

    def said(name: str) -> list[str]:
        return choose_best(open_sweep(tmp_path, name)).caveats

    assert said("tpe")[0].startswith("a candidate: the search followed these seeds, and only fresh ones give evidence")
    assert f"sweep confirm tpe --rounds --runs-dir {tmp_path}" in said("tpe")[0]
    assert said("random") == [] and said("one")[0].startswith("one seed is not evidence")
