"""Build the URLs by which Optuna and MLflow open SQLite files."""

from pathlib import Path

from loptune.errors import ConfigError


def sqlite_url(path: Path) -> str:
    """Return the URL by which SQLAlchemy opens an SQLite file.

    Raises:
        ConfigError: no URL stands for this path.
    """
    from sqlalchemy import URL, make_url  # not installed with every extra

    url = URL.create("sqlite", database=str(path)).render_as_string()
    # SQLAlchemy before 2.1 does not quote a ?, and Optuna uses the URL as a format string
    is_same = make_url(url).database == str(path) and not set("{}") & set(url)
    if not is_same or str(path) == ":memory:":
        raise ConfigError(
            f"no database URL stands for the path {path}",
            str(path),
            "choose a path of letters, digits, hyphens, underscores and slashes",
            code="path-without-url",
        )
    return url
