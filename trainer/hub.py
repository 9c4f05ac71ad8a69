"""Reachability check for the Hugging Face Hub, whose library would otherwise retry for minutes."""

import functools
import logging
import threading
from pathlib import Path

from loptune.errors import MissingError

LIMIT_S = 4.0
_logger = logging.getLogger(__name__)


@functools.cache
def hub_is_reachable() -> bool:
    """Check once whether the Hub is reachable. If not, switch to offline mode, which only reads the
    local cache.

    Call before loading a model or dataset through huggingface_hub.
    """
    from huggingface_hub import constants

    if constants.is_offline_mode():
        return False
    answers: list[bool] = []
    # In a thread, because DNS lookups have no timeout.
    look = threading.Thread(
        target=lambda: answers.append(_answers(constants.ENDPOINT)), daemon=True
    )
    look.start()
    look.join(LIMIT_S + 1)
    if answers == [True]:
        return True
    constants.HF_HUB_OFFLINE = True
    _logger.info("%s is not reachable: using the local cache", constants.ENDPOINT)
    return False


def check_available(model: str) -> None:
    """Check early that a model that is not a local folder can be loaded from the cache or the Hub.

    Raises:
        MissingError: the Hub is not reachable, and the cache has no file of the model.
    """
    from huggingface_hub import constants

    cached = Path(constants.HF_HUB_CACHE) / f"models--{model.replace('/', '--')}"
    if not cached.exists() and not hub_is_reachable():
        raise unreachable("model", model)


def unreachable(what: str, model: str) -> MissingError:
    """Return the error for a file of a model (``what``) that is not in the cache, if the Hub is not
    reachable.
    """
    missing = f"the {what} of {model}" if what != "model" else f"the model {model}"
    return MissingError(
        f"cannot load {missing}: the Hub is not reachable and the model is not in the cache",
        "model.name_or_path",
        "check the network, or download the model elsewhere (`hf download NAME --local-dir "
        "FOLDER`) and pass the folder",
        code="hub-unreachable",
    )


def _answers(url: str) -> bool:
    import requests

    try:
        requests.head(url, timeout=LIMIT_S)
    # huggingface_hub may trust certificates that requests does not
    except requests.exceptions.SSLError:
        return True
    except requests.RequestException:
        return False
    return True
