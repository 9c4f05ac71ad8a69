"""Refusing search spaces that could not run."""

import pytest
import yaml

from sweep.space.file import load_space
from tests.sweep.spaces import kk_space, make_spec, parameters
from trainer.errors import ConfigError

ALPHA = "algorithm.ar_alpha"


# Case -> what is written, with `fixed` overrides and `searched` parameters beside the usual ones;
# what the message says; what the hint says; the key that is named.
REFUSED = yaml.safe_load("""
bad name: [{name: ../x}, a name has 1 to 64, '']
unknown top key: [{serch: {}}, unknown key serch, 'did you mean search?']
unknown sampler: [{search: {sampler: tpee, configurations: 1}}, search.sampler, 'did you mean tpe?']
no count: [{search: {sampler: tpe}}, search.configurations is missing, '']
bad metric: [{objective: {metric: eval/acuracy}}, measures eval/acuracy,
  'did you mean eval/accuracy?']
training metric: [{objective: {metric: rollout/reward}}, no evaluation measures rollout/reward,
  eval/]
mode: [{objective: {mode: maximum}}, objective.mode, 'did you mean max?']
no seeds: [{seeds: []}, seeds, '']
same seeds: [{seeds: [0, 1, 0]}, 'seeds: these must differ', '']
warm start from one sweep twice: [{search: {warm_start: [a, a]}},
  'search.warm_start: these must differ', '']
objective on the held-out set: [{objective: {metric: eval/accuracy/test}},
  'belongs to the held-out set',
  or eval/accuracy, objective.metric]
held-out set as the first: [{fixed: {evaluation.sets: {test: {split: test}, dev: {split: dev}}}},
  test is held out in a sweep, put another set before it, key trainer]
published gain of 500 percent: [{objective: {published: 5}}, cannot improve by 1,
  such as 0.05, objective.published]
true as a seed: [{seeds: [false, true]}, not a boolean, search_space.md, seeds]
seed of 33 bits: [{seeds: [4294967296]}, seeds.0, search_space.md, seeds.0]
searched task: [{searched: {data.task: {choice: [knights_knaves, addition]}}},
  data.task changes what, 'fix it: trainer.data.task=VALUE']
searched problems: [{searched: {data.max_prompt_tokens: {int: [64, 512]}}},
  data.max_prompt_tokens changes what eval/accuracy measures, fix it]
searched judge: [{searched: {reward.functions: {choice: [{knights_knaves: 1.0}, {format: 1.0}]}}},
  reward.functions changes what eval/accuracy measures, fix it]
endless integers: [{searched: {optim.tokens_per_microbatch: {int: [1, 10000000000]}}},
  'more than 100,000 values: write a larger step', search_space.md]
gain of 500 percent: [{objective: {worthwhile: 5}}, cannot improve by 1, such as 0.05,
  objective.worthwhile]
section as override: [{fixed: {optim: {lr: 0.1}}}, 'optim is a section, not a value', optim.,
  trainer.overrides.optim]
missing preset: [{trainer: {preset: tiny_kkk}}, no preset or file, 'did you mean tiny_kk?']
override of nothing: [{fixed: {optim.learning: 1}}, unknown key optim.learning,
  'did you mean optim.lr?']
override of wrong type: [{fixed: {optim.lr: fast}},
  "optim.lr: Input should be a valid number", trainer options optim.lr]
override of the seed: [{fixed: {seed: 3}}, comes from `seeds`, '']
searched and fixed: [{fixed: {algorithm.ar_alpha: 0.1}},
  algorithm.ar_alpha is both searched and fixed, remove one]
unknown parameter: [{searched: {algorithm.ar_alfa: {uniform: [0, 1]}}},
  unknown key algorithm.ar_alfa, 'did you mean algorithm.ar_alpha?']
parameter without its section: [{searched: {ar_alpha: {uniform: [0, 1]}}},
  ar_alpha is neither a key of the program nor a switch, 'did you mean algorithm.ar_alpha?']
section as parameter: [{searched: {rollout: {choice: [1]}}}, rollout is a section, rollout.]
searched ruler: [{searched: {evaluation.temperature: {uniform: [0.5, 1]}}},
  evaluation.temperature changes what eval/accuracy measures,
  'fix it: trainer.evaluation.temperature=VALUE']
limit that ends nothing: [{limits: {gpu_hours: 2}}, trials have no GPU, remove it]
searched seed: [{searched: {seed: {int: [0, 3]}}}, seeds are not searched, 'seeds:']
continuous switch: [{searched: {lopti: {uniform: [0, 1]}}}, which has no list of values,
  give lopti a choice]
misspelt kind: [{searched: {algorithm.ar_alpha: {unifrom: [0, 1]}}},
  unknown key parameters.algorithm.ar_alpha.unifrom, 'did you mean uniform?']
misspelt else: [{searched: {algorithm.lopti_eta: {uniform: [0, 1], els: 0}}}, unknown key,
  'did you mean else?']
no bound: [{searched: {algorithm.ar_alpha: {uniform: [0.5]}}}, uniform, '']
infinite bound: [{searched: {algorithm.ar_alpha: {uniform: [0, .inf]}}}, finite, '']
empty choice: [{searched: {lopti: {choice: []}}}, choice, '']
bound the field refuses: [{searched: {algorithm.ar_alpha: {uniform: [0.0, 1.5]}}},
  "algorithm.ar_alpha: Input should be less than or equal to 1", trainer options algorithm.ar_alpha]
choice the field refuses: [{searched: {algorithm.advantage: {choice: [grpo, ppo]}}},
  algorithm.advantage,
  'valid: dr_grpo, grpo, reinforce_plus_plus, rloo']
else the field refuses: [{searched: {algorithm.lopti_eta: {value: 0.5, when: {lopti: true},
  else: -1}}},
  "algorithm.lopti_eta: Input should be greater than or equal to 0",
  trainer options algorithm.lopti_eta]
values that refuse each other: [{searched: {algorithm.token_filter: {choice: [none, drop_high]}}},
  token_filter=drop_high is invalid, '']
unknown parent: [{searched: {algorithm.lopti_eta: {uniform: [0.2, 0.9], when: {lopty: true}}}},
  'names lopty, which is not a parameter', 'did you mean lopti?']
impossible value: [{searched: {algorithm.lopti_eta: {uniform: [0.2, 0.9], when: {lopti: 'on'}}}},
  'impossible condition of algorithm.lopti_eta: lopti is never ''on''', 'valid: False, True']
conditions that exclude each other: [{searched: {s: {choice: [1, 2], when: {lopti: false}},
  algorithm.lopti_eta: {uniform: [0.2, 0.9], when: {lopti: true, s: 1}}}},
  algorithm.lopti_eta is never active, on lopti, algorithm.lopti_eta.when]
condition without values: [{searched: {algorithm.lopti_eta: {uniform: [0, 1], when: {lopti: []}}}},
  algorithm.lopti_eta is never active, on lopti]
1 is not true: [{searched: {algorithm.lopti_eta: {uniform: [0.2, 0.9], when: {lopti: 1}}}},
  lopti is never 1, 'valid: False, True']
circle: [{searched: {lopti: {choice: [false, true], when: {other: 1}},
  other: {choice: [1, 2], when: {lopti: true}}}}, lopti -> other -> lopti, remove one]
baseline of something else: [{baselines: [{lopti: false, algorithm.ar_alfa: 0.1}]},
  'baseline 0 sets algorithm.ar_alfa, which is not searched', 'did you mean algorithm.ar_alpha?']
baseline the field refuses: [{baselines: [{lopti: false, algorithm.ar_alpha: 2.0}]},
  "algorithm.ar_alpha: Input should be less than or equal to 1", '']
baseline without its switch: [{baselines: [{algorithm.ar_alpha: 0.1}]}, is missing lopti,
  add lopti]
baseline with an impossible switch: [{baselines: [{lopti: 'off'}]}, cannot be 'off', 'False, True']
baseline with an inactive parameter: [{baselines: [{lopti: false, algorithm.lopti_eta: 0.5}]},
  only used when lopti=True, remove algorithm.lopti_eta]
the same baseline twice: [{baselines: [{lopti: false, algorithm.ar_alpha: 0.0}, {lopti: false}]},
  baselines 0 and 1 are the same, remove one]
long grace period: [{scheduler: {asha: {grace_period: 7}}},
  'grace_period is 7', at most 6]
unknown scheduler: [{scheduler: ahsa}, unknown key scheduler.ahsa, 'did you mean asha?']
grid over a range: [{search: {sampler: grid}},
  'algorithm.ar_alpha is uniform', choice]
huge grid: [{search: {sampler: grid}, baselines: [],
  parameters: {optim.tokens_per_microbatch: {int: [1, 10001]}}},
  more than 10000 points, random]
nothing to search: [{parameters: {}, baselines: []}, nothing to search, add a parameter]
nothing to run: [{baselines: [], search: {configurations: 0}}, nothing to run,
  raise search.configurations]
one worker on four GPUs: [{resources: {gpus_per_trial: 4}}, one worker drives one GPU, '']
workers of one process: [{resources: {workers_per_trial: 4}},
  'parallel.strategy is none', strategy=ddp,
  resources.workers_per_trial]
workers of one process in some trials: [{resources: {workers_per_trial: 4},
  searched: {parallel.strategy: {choice: [ddp, none]}}}, 4 workers per trial, ddp,
  resources.workers_per_trial]
prompts for workers: [{resources: {workers_per_trial: 4},
  fixed: {parallel.strategy: ddp, rollout.prompts_per_step: 6}},
  rollout.prompts_per_step 6 cannot be split over 4 workers, multiple of 4,
  resources.workers_per_trial]
searched batches for workers: [{resources: {workers_per_trial: 4}, fixed: {parallel.strategy: ddp},
  searched: {optim.update_batch_size: {choice: [8, 10]}}},
  optim.update_batch_size 10 cannot be split over 4 workers, multiple of 4,
  resources.workers_per_trial]
shared servers: [{fixed: {rollout.vllm.mode: server}, limits: {max_concurrent: 2}},
  'overwrite each other''s weights', limits.max_concurrent=1, limits.max_concurrent]
GPUs: [{fixed: {parallel.device: cuda}}, 'needs GPUs',
  resources.gpus_per_trial=N]
unknown arm: [{search: {configurations: 2, tune_within: rules},
  parameters: &rules {rule: {choice: [GRPO, AR]},
  algorithm.ar_alpha: {by: {rule: {AR: 0.3}}, else: 0.0}, optim.lr: {uniform: [1.0e-05, 0.001]}},
  baselines: []},
  'tune_within names rules', 'did you mean rule?']
continuous arm: [{search: {configurations: 2, tune_within: algorithm.ar_alpha}, parameters: *rules,
  baselines: []},
  tune_within names algorithm.ar_alpha, 'valid: rule']
a name of finalists: [{name: demo-confirm}, -confirm are reserved, not end in, name]
one arm: [{search: {configurations: 2, tune_within: rule}, parameters: {rule: {choice: [GRPO]},
  algorithm.ar_alpha: {by: {rule: {GRPO: 0.3}}}}, baselines: []},
  tune_within names rule, a parameter that has choices]
unequal arms: [{search: {configurations: 2, tune_within: rule}, parameters: *rules,
  baselines: [{rule: AR}]},
  '(GRPO 0, AR 1)', as many baselines]
arms that are stopped early: [{search: {configurations: 2, tune_within: rule}, parameters: *rules,
  baselines: [],
  scheduler: asha}, early stopping leaves tune_within too few, 'scheduler: none']
arms that are not tuned: [{search: {configurations: 0, tune_within: rule}, parameters: *rules,
  baselines: [{rule: GRPO}, {rule: AR}]}, tune_within tunes nothing, raise them,
  search.configurations]
value of no arm: [{parameters: {rule: {choice: [GRPO, AR]},
  algorithm.ar_alpha: {by: {rule: {ARR: 0.3}}}},
  baselines: []}, 'impossible condition of algorithm.ar_alpha: rule is never ''ARR''', '']
""")


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_file_what_and_hint(case, tmp_path):
    written, what, hint, *where = REFUSED[case]
    changes = {key: value for key, value in written.items() if key not in ("fixed", "searched")}
    if "fixed" in written:
        changes["trainer"] = {"preset": "base.yaml", "overrides": written["fixed"]}
    if "searched" in written:
        changes["parameters"] = parameters(**written["searched"])
    path = kk_space(tmp_path, **changes)
    with pytest.raises(ConfigError) as caught:
        load_space(path)
    assert what in caught.value.what
    assert hint in caught.value.hint
    assert caught.value.hint
    if case != "missing preset":
        assert str(path) in caught.value.where
    assert all(key in caught.value.where for key in where)


def test_error_names_the_line(tmp_path):
    path = kk_space(tmp_path, parameters=parameters(algorithm__ar_alpha={"uniform": [0.0, 1.5]}))
    line = next(i for i, text in enumerate(path.read_text().splitlines(), 1) if ALPHA in text)
    with pytest.raises(ConfigError) as caught:
        load_space(path)
    assert caught.value.where == f"{path}:{line}, key parameters.{ALPHA}"


def test_strategies_may_be_searched(tmp_path):
    strategies = {"parallel.strategy": {"choice": ["ddp", "deepspeed"]}}
    spec = make_spec(
        tmp_path, parameters=strategies, baselines=[], resources={"workers_per_trial": 2}
    )
    assert spec.trainer.base.parallel.strategy == "none"


def test_one_trial_at_a_time_may_use_servers_and_one_with_gpus_what_is_for_them(tmp_path):
    def written(**overrides):
        return {"preset": "base.yaml", "overrides": overrides}

    server = {"rollout.vllm.mode": "server"}
    assert (
        make_spec(
            tmp_path, trainer=written(**server), limits={"max_concurrent": 1}
        ).limits.max_concurrent
        == 1
    )
    unused = written(**server, **{"rollout.engine": "transformers"})
    assert (
        make_spec(tmp_path, trainer=unused, limits={"max_concurrent": 2}).limits.max_concurrent == 2
    )
    on_gpu = make_spec(
        tmp_path, trainer=written(**{"parallel.device": "cuda"}), resources={"gpus_per_trial": 1}
    )
    assert on_gpu.resources.gpus_per_trial == 1


def test_baseline_outside_of_the_range_is_allowed(tmp_path):
    spec = make_spec(
        tmp_path,
        parameters=parameters(algorithm__ar_alpha={"uniform": [0.1, 0.5]}),
        baselines=[{"lopti": False, ALPHA: 0.0}],
    )
    assert spec.baselines[0][ALPHA] == 0.0


def test_values_that_refuse_each_other_are_found_in_a_large_space(tmp_path):
    # 2^11 corners: too many to try each, and the first of them are all fine.
    numbers = [
        "optim.lr",
        "optim.weight_decay",
        "optim.eps",
        "algorithm.kl_coef",
        "rollout.temperature",
    ]
    numbers += [
        "algorithm.loss.clip_ratio_low",
        "algorithm.loss.clip_ratio_high",
        "rollout.top_p",
        "rollout.min_p",
    ]
    spec = {
        "algorithm.token_filter": {"choice": ["none", "drop_low"]},
        "algorithm.lopti_order": {"choice": ["low_first", "high_first"]},
        **{key: {"uniform": [0.1, 0.2]} for key in numbers},
    }
    with pytest.raises(ConfigError, match=r"token_filter=drop_low.* is invalid"):
        make_spec(tmp_path, parameters=spec, baselines=[])
