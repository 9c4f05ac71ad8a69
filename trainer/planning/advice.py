"""Warnings before a run starts about settings that are allowed but seldom intended."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from trainer.config.schema import TrainConfig, idle_keys
from trainer.section import Section
from trainer.types import Problem

_LOW_LR = 5e-6  # for an adapter; with whole weights 1e-6 is usual
_PLACEHOLDER = re.compile(r"(?<![\\\w{}])\{([A-Za-z_]\w*)\}(?!\})")  # not LaTeX's \boxed{answer}


@dataclass(frozen=True)
class Advice:
    """A likely mistake, printed as three lines like an error."""

    what: str
    where: str
    hint: str

    def __str__(self) -> str:
        return f"warning: {self.what}\nwhere:   {self.where}\nnext:    {self.hint}"


def advise_idle(section: Section, prefix: str = "") -> Iterator[Advice]:
    """Yield advice on each key that is set and has no effect."""
    for key, needed in idle_keys(section, prefix):
        yield Advice(
            f"{key} has no effect with the rest of the configuration",
            f"{key}, {needed.partition('=')[0]}",
            f"set {needed}, or leave {key} out",
        )


def judge_of(functions: Mapping[str, float]) -> str:
    """Return the reward function that says what is correct."""
    return max(functions, key=lambda name: abs(functions[name]))


def advise(config: TrainConfig) -> Iterator[Advice]:
    """Yield advice from the configuration alone."""
    rollout = config.rollout
    optim = config.optim
    yield from advise_idle(config)
    if rollout.group_size == 1 and config.algorithm.advantage.needs_groups:
        yield Advice(
            f"with one completion per prompt there is nothing {config.algorithm.advantage.name} "
            "could compare it with",
            "rollout.group_size",
            "raise it to 4 or more, or set algorithm.advantage=reinforce_plus_plus",
        )
    completions = rollout.prompts_per_step * rollout.group_size
    if completions > optim.update_batch_size and completions % optim.update_batch_size:
        yield Advice(
            f"{completions} completions of a step are not a multiple of {optim.update_batch_size}: "
            f"the last optimizer step of each has {completions % optim.update_batch_size}",
            "optim.update_batch_size",
            f"make it a divisor of {rollout.prompts_per_step} x {rollout.group_size}",
        )
    if config.model.lora.r > 0 and optim.lr < _LOW_LR:
        yield Advice(
            f"an adapter learns slowly at {optim.lr:g}: it needs about ten times the rate of full "
            "weights",
            "optim.lr",
            "try 1e-5 to 1e-4",
        )
    judge = judge_of(config.reward.functions)
    of_judge = config.reward.functions[judge]
    if of_judge < 0:
        yield Advice(
            f"accuracy counts what {judge} calls correct, and its weight of {of_judge:g} trains "
            "against that",
            "reward.functions",
            "give the largest weight to the function that decides what is correct",
        )
    yield from _template(config)


def advise_data(
    config: TrainConfig,
    train: Sequence[Problem],
    sets: Mapping[str, Sequence[Problem]],
    context: int | None,
) -> Iterator[Advice]:
    """Yield advice once all problems and the model are known.

    ``context`` is the model's longest text [tokens], None where it does not say.
    """
    problems = len(train)
    prompts = config.rollout.prompts_per_step
    if prompts > problems:
        yield Advice(
            f"a step takes {prompts} prompts from {problems} problems: each comes up to "
            f"{-(-prompts // problems)} times in the same step",
            "rollout.prompts_per_step",
            f"lower it to at most {problems}, or add data",
        )
    completion = config.rollout.max_new_tokens
    if context is not None and config.data.max_prompt_tokens + completion > context:
        yield Advice(
            f"a prompt of {config.data.max_prompt_tokens} and a completion of {completion} tokens "
            f"are longer than the model's context of {context}",
            "data.max_prompt_tokens, rollout.max_new_tokens",
            f"lower them to {context} tokens together",
        )
    trained = {problem.problem_id for problem in train}
    for name, of_set in sets.items():
        shared = sum(problem.problem_id in trained for problem in of_set)
        if shared:
            yield Advice(
                f"{shared} of {len(of_set)} problems of the evaluation set {name} are trained on "
                "too: its accuracy is not that of new problems",
                f"evaluation.sets.{name}",
                "take them out of data.train",
            )


def _template(config: TrainConfig) -> Iterator[Advice]:
    for key in ("prompt_template", "system_prompt"):
        text = getattr(config.data, key) or ""
        placeholders = {"question"} if key == "prompt_template" else set()
        for name in sorted(set(_PLACEHOLDER.findall(text)) - placeholders):
            yield Advice(
                f"{{{name}}} stays in the prompt as it is: only {{question}} of prompt_template is "
                "replaced",
                f"data.{key}",
                f"remove {{{name}}}, or put it into the prompts of the data",
            )
