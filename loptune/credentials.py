"""Keep credentials out of recorded configurations, MLflow and error messages."""

from typing import Annotated
from urllib.parse import unquote, urlsplit, urlunsplit

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

CREDENTIALS_IN_URL = "credentials_in_url"  # type of the error; its input must not be shown


def split_credentials(url: str) -> tuple[str, str, str]:
    """Return the URL without credentials, the user name and the password (empty strings if
    absent).
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


def _refuse_credentials(url: str) -> str:
    clean, name, password = split_credentials(url)
    # a database user name is not secret; an HTTP user name is often a token
    if password or (name and clean.startswith("http")):
        raise PydanticCustomError(
            CREDENTIALS_IN_URL,
            "must not contain a user name or password, because configurations are recorded",
        )
    return url


UrlWithoutCredentials = Annotated[str, AfterValidator(_refuse_credentials)]
