"""Keeping user names and passwords out of what is recorded: configurations, MLflow, error texts."""

from typing import Annotated
from urllib.parse import unquote, urlsplit, urlunsplit

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

CREDENTIALS_IN_URL = "credentials_in_url"  # type of the error; its input must not be shown


def split_credentials(url: str) -> tuple[str, str, str]:
    """Return a URL without its user part, the user name and the password (both empty where it has
    none).
    """
    try:
        parts = urlsplit(url)
    except ValueError:  # no address, as http://[::1: who connects refuses it
        return url, "", ""
    user, separator, host = parts.netloc.rpartition("@")
    if not separator:
        return url, "", ""
    name, _, password = user.partition(":")
    return urlunsplit(parts._replace(netloc=host)), unquote(name), unquote(password)


def _refuse_credentials(url: str) -> str:
    clean, name, password = split_credentials(url)
    # The user name of a database is no secret; that of a server is often a token.
    if password or (name and clean.startswith("http")):
        raise PydanticCustomError(
            CREDENTIALS_IN_URL,
            "a URL in a configuration, which is recorded, must not hold a user or password",
        )
    return url


UrlWithoutCredentials = Annotated[str, AfterValidator(_refuse_credentials)]
