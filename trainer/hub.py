"""Whether the Hugging Face hub can be reached: where it cannot, its library tries again for
minutes.
"""

import functools
import sys
import threading

LIMIT_S = 4.0


@functools.cache
def hub_answers() -> bool:
    """Look once whether the hub answers; where it does not, only its cache on this machine is read
    from then on.

    Ask before the hub's library or one that uses it is asked for a model or a dataset.
    """
    from huggingface_hub import constants

    if constants.is_offline_mode():
        return False
    answers: list[bool] = []
    # A thread, because looking up a name knows no time limit.
    look = threading.Thread(
        target=lambda: answers.append(_answers(constants.ENDPOINT)), daemon=True
    )
    look.start()
    look.join(LIMIT_S + 1)
    if answers == [True]:
        return True
    constants.HF_HUB_OFFLINE = True
    print(f"{constants.ENDPOINT} does not answer: looking in this machine's cache", file=sys.stderr)
    return False


def _answers(url: str) -> bool:
    import requests

    try:
        requests.head(url, timeout=LIMIT_S)
    except requests.exceptions.SSLError:  # the library may know certificates that Python does not
        return True
    except requests.RequestException:
        return False
    return True
