"""Policy losses by name."""

from trainer.rules.interface import PolicyLoss
from trainer.rules.losses.cispo import Cispo
from trainer.rules.losses.clipped import Clipped
from trainer.rules.losses.dppo import DppoTv
from trainer.rules.losses.gspo import Gspo
from trainer.rules.losses.ipo import Ipo
from trainer.rules.losses.sapo import Sapo
from trainer.rules.losses.vespo import Vespo

LOSSES: dict[str, type[PolicyLoss]] = {
    "clipped": Clipped,
    "gspo": Gspo,
    "cispo": Cispo,
    "dppo_tv": DppoTv,
    "ipo": Ipo,
    "sapo": Sapo,
    "vespo": Vespo,
}
