"""A user's folder with files that have the names of our packages."""

from pathlib import Path


def hide_our_packages(folder: Path) -> None:
    """Write files that fail if they are imported in place of our packages."""
    for name in ("trainer", "sweep", "rewards", "dashboards"):
        (folder / f"{name}.py").write_text("raise RuntimeError('a file of the user')\n")
