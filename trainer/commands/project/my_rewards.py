"""What a completion is worth. Called in processes of their own, with a limit on time and memory."""

import re

_ANSWER = re.compile(r"<answer>\s*(.*?)\s*</answer>", re.DOTALL)


def exact(text: str, answer: str) -> float:
    """1 where the last <answer> of the completion is the right one, else 0.

    A number is enough: above 0 counts as correct. Return rewards.Score(reward, correct) for partial
    credit. To score all completions of a step in one call, write ``def exact(texts, answers)``,
    plain or async.
    """
    answers = _ANSWER.findall(text)
    return float(bool(answers) and answers[-1] == answer)
