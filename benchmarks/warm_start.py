"""What a search gains from an earlier sweep: regret with `search.warm_start`, by how alike the two are.

    python -m benchmarks.warm_start --repeats 40

Regret and surface are those of `benchmarks.search_regret` (peaks: alpha, eta and a rule), the sampler is TPE. The
earlier sweep had 24 random configurations on another scale of scores. Its best place is the same, near by (alpha and
eta lower by 0.15), or the opposite one (its scores upside down: knowledge that misleads).
"""

import argparse
from collections.abc import Callable

import numpy as np

from benchmarks.search_regret import ALPHA, ETA, SURFACES, best_mean, extent, peaks, search, space_of
from benchmarks.tables import mean, print_rows
from sweep.space.points import Parameters
from sweep.space.spec import PriorSpec

TRIALS = (4, 8, 16)
EARLIER: dict[str, Callable[[Parameters], float] | None] = {
    "none": None,
    "the same best": lambda point: 100 * peaks(point),
    "near by": lambda point: 100 * peaks({**point, ALPHA: point[ALPHA] + 0.15, ETA: point[ETA] + 0.15}),
    "misleading": lambda point: -100 * peaks(point),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=40, help="searches a cell (default: 40)")
    repeats, surface, rows = parser.parse_args().repeats, SURFACES["peaks"], []
    top, middle = extent(surface)
    for name, truth in EARLIER.items():
        regrets = []
        for repeat in range(repeats):
            spec = space_of(surface.parameters, {"sampler": "tpe"}, repeat)
            if truth is not None:
                before = space_of(surface.parameters, {"sampler": "random"}, 1000 + repeat)
                points = [one.parameters for one in search(before, surface, 24)]
                noise = 10 * np.random.default_rng(repeat).standard_normal(len(points))
                scores = [truth(point) + float(more) for point, more in zip(points, noise, strict=True)]
                prior = [PriorSpec(sweep="earlier", seeds=[0], points=points, scores=scores)]
                spec = spec.model_copy(update={"search": spec.search.model_copy(update={"prior": prior})})
            found = search(spec, surface, TRIALS[-1])
            chosen = [surface.truth(best_mean(found[:trials]).parameters) for trials in TRIALS]
            regrets.append([100 * (top - score) / (top - middle) for score in chosen])
        rows.append([name, *(mean(column, 1) for column in np.array(regrets).T)])
    headings = ["the earlier sweep", *(f"{trials} trials" for trials in TRIALS)]
    print_rows("Regret, % of that of a random point", headings, rows)


if __name__ == "__main__":
    main()
