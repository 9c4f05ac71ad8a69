"""Keys of run and sweep files that had another name before; errors name today's. Old names are not
read.
"""

RENAMED = {  # last part of the key -> today's
    "engine_correction": "rollout_correction",
    "entropy_share": "entropy_fraction",
    "share": "fraction",
}


def renamed(key: str) -> str | None:
    """Return today's name of a dotted key that was renamed; None if it was not."""
    above, _, last = key.rpartition(".")
    if last not in RENAMED:
        return None
    return f"{above}.{RENAMED[last]}" if above else RENAMED[last]
