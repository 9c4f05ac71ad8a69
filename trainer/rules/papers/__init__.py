"""Rules of single papers, by name. The registries `LOSSES` and `ADVANTAGES` have the rules that
several trainers offer.
"""

from trainer.rules.interface import Advantage, PolicyLoss
from trainer.rules.papers.batch_std import BatchStd
from trainer.rules.papers.covariance import ClipCov, KlCov
from trainer.rules.papers.dppo_kl import DppoKl
from trainer.rules.papers.gdpo import Gdpo
from trainer.rules.papers.gmpo import Gmpo
from trainer.rules.papers.lp_reg import LpReg
from trainer.rules.papers.maxrl import MaxRL
from trainer.rules.papers.reinforce_baseline import ReinforceBaseline
from trainer.rules.papers.rgra import Rgra
from trainer.rules.papers.stapo import Stapo
from trainer.rules.papers.stare import Stare
from trainer.rules.papers.w_reinforce import WReinforce

PAPER_LOSSES: dict[str, type[PolicyLoss]] = {
    "clip_cov": ClipCov,
    "kl_cov": KlCov,
    "dppo_kl": DppoKl,
    "gmpo": Gmpo,
    "lp_reg": LpReg,
    "rgra": Rgra,
    "stapo": Stapo,
    "stare": Stare,
}
PAPER_ADVANTAGES: dict[str, type[Advantage]] = {
    "batch_std": BatchStd,
    "gdpo": Gdpo,
    "maxrl": MaxRL,
    "reinforce_baseline": ReinforceBaseline,
    "w_reinforce": WReinforce,
}
