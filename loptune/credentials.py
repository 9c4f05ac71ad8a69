"""Keep credentials out of recorded configurations, MLflow and error messages."""

from typing import Annotated
from urllib.parse import unquote, urlsplit, urlunsplit

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from loptune.errors import ConfigError

CREDENTIALS_IN_URL = "credentials_in_url"  # error type; its input must not be printed


def split_credentials(url: str) -> tuple[str, str, str]:
    """Return the URL without credentials, the user name and the password (empty strings if
    absent). A malformed URL is returned unchanged.
    """
    try:
        parts = urlsplit(url)
    except ValueError:  # malformed URL such as http://[::1; connecting to it will fail
        return url, "", ""
    user, separator, host = parts.netloc.rpartition("@")
    if not separator:
        return url, "", ""
    name, _, password = user.partition(":")
    return urlunsplit(parts._replace(netloc=host)), unquote(name), unquote(password)


def has_credentials(url: str) -> bool:
    """Return whether a URL contains a secret: a password, or the user name of an HTTP URL, which is
    often a token. The user name of a database is not a secret.
    """
    clean, name, password = split_credentials(url)
    return bool(password or (name and clean.startswith("http")))


def check_address(url: str | None, where: str) -> None:
    """Reject an address with credentials, without printing it. ``where`` names the option. None is
    accepted.

    Raises:
        ConfigError: the address has credentials.
    """
    if url is not None and has_credentials(url):
        raise ConfigError(
            "the address must not contain a user name or password, because addresses are printed",
            where,
            "remove them; for MLflow set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD",
            code="credentials-in-url",
        )


def _refuse_credentials(url: str) -> str:
    if has_credentials(url):
        raise PydanticCustomError(
            CREDENTIALS_IN_URL,
            "must not contain a user name or password, because configurations are recorded",
        )
    return url


UrlWithoutCredentials = Annotated[str, AfterValidator(_refuse_credentials)]
