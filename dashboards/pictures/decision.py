"""What rounds of fresh seeds decided, in words."""

from dashboards.results import Results
from dashboards.words import device_time, standing


def decided(fresh: Results) -> str:
    """The decision on every finalist and what it took; empty where the finalists do not run in rounds."""
    found = fresh.rounds
    if found is None:
        return ""
    finalists = dict.fromkeys(stands.finalist for stands in found.standings)
    labels = {name: fresh.labels.get(name, f"#{name}") for name in finalists}
    said = [standing(labels[stands.finalist], stands, found.worthwhile) for stands in found.last]
    if not said:
        return f"On fresh seeds nothing is decided yet: the first look is after {found.planned[0]} of each."
    return (
        f"On fresh seeds, of at most {found.planned[-1]} planned: {'; '.join(said)}. That took {fresh.ended} trials "
        f"of at most {(len(labels) + 1) * found.planned[-1]}, {device_time(sum(fresh.cost), fresh.device)}."
    )
