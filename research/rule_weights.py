"""How does each update rule weight a token? Plots the weight of the gradient of a token's
log-probability against the token's probability.

``python -m research.rule_weights FILE.png`` computes the weights with the trainer's own losses, for
tokens whose logit has moved by 1 since the batch was sampled, as it may have in later update
batches and in Lopti's second pass. Before any change, all losses have the weight 1.
"""

import sys
from pathlib import Path

import plotly.graph_objects as go
import torch
from plotly.subplots import make_subplots

from dashboards.labels import PALETTE
from research.png import write_png
from trainer.algorithm.reweighting import reweight
from trainer.config.algorithm import AlgorithmConfig
from trainer.rules.interface import LossInputs, UpdateTotals

SHIFT = 1.0  # change of a token's logit
RULES = {
    "clipped": {},
    "clipped, AR 0.3": {"ar_alpha": 0.3},
    "gspo": {"loss": "gspo"},
    "cispo": {"loss": "cispo"},
    "dppo_tv": {"loss": "dppo_tv"},
    "sapo": {"loss": "sapo"},
}
DASHES = ("solid", "dash", "solid", "dot", "dashdot", "solid", "dot")
PANELS = (
    ("good token (A > 0) that rose", 1.0, True),
    ("good token that fell", 1.0, False),
    ("bad token (A < 0) that fell", -1.0, False),
    ("bad token that rose", -1.0, True),
)


def weights(
    config: AlgorithmConfig, old: torch.Tensor, new: torch.Tensor, advantage: float
) -> torch.Tensor:
    """Return ``-d loss / d logprob / A`` of single-token completions, [N]; the plain policy
    gradient is 1.

    Args:
        config: update rule.
        old: probabilities at sampling, [N].
        new: probabilities now, [N].
        advantage: advantage of every token.
    """
    logprobs = new.log()[:, None].requires_grad_()
    ones = torch.ones_like(logprobs)
    advantages = reweight(advantage * ones, old.log()[:, None], config.ar_alpha)
    old_logprobs = old.log()[:, None]
    inputs = LossInputs(
        logprobs=logprobs,
        old_logprobs=old_logprobs,
        ref_logprobs=None,
        rollout_logprobs=old_logprobs,
        advantages=advantages,
        completion_mask=ones,
        token_mask=ones,
        totals=UpdateTotals(len(old), len(old)),
    )
    config.loss(inputs).losses.sum().backward()
    assert logprobs.grad is not None
    return -logprobs.grad[:, 0] / advantage


def draw() -> go.Figure:
    """Return a figure with four panels: both signs of the advantage, and both directions of the
    token's change.
    """
    drawing = make_subplots(
        rows=2, cols=2, subplot_titles=[name for name, _, _ in PANELS], vertical_spacing=0.12
    )
    old = torch.linspace(0.005, 0.995, 199, dtype=torch.float64)
    for panel, (_, advantage, rose) in enumerate(PANELS):
        new = torch.sigmoid(torch.logit(old) + (SHIFT if rose else -SHIFT))
        for index, (name, settings) in enumerate(RULES.items()):
            weight = weights(AlgorithmConfig(**settings), old, new, advantage)
            drawing.add_scatter(
                x=old.tolist(),
                y=weight.tolist(),
                name=name,
                legendgroup=name,
                showlegend=panel == 0,
                line={"color": PALETTE[index], "width": 2.5, "dash": DASHES[index]},
                row=panel // 2 + 1,
                col=panel % 2 + 1,
            )
    drawing.update_xaxes(title_text="probability when sampled", row=2)
    drawing.update_yaxes(range=[-0.1, 3.1])
    drawing.update_yaxes(title_text="weight of the gradient", col=1)
    drawing.update_layout(
        template="none",
        height=640,
        margin={"l": 54, "r": 14, "t": 70, "b": 46},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.07, "xanchor": "left", "x": 0},
    )
    return drawing


def main() -> int:
    write_png(draw(), Path(sys.argv[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
