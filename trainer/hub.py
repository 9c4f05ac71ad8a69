"""Reachability check for the Hugging Face Hub, whose library would otherwise retry for minutes."""

import functools
import logging
import threading

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
