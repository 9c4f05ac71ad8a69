"""Which tokens does each update rule move in the direction of their advantage? Plots one panel per
rule, from `examples.paper.diagnose`.

``python -m examples.paper.diagnose_rules FILE.png`` trains the tiny model for five steps with each
rule, and updates copies of it on one more batch with the run's AdamW. It plots the fraction of
tokens that moved in the direction of their advantage, by probability at sampling: with the rule
alone, with AR and with Lopti. A batch has eight optimizer steps, because before the first step all
losses weight all tokens equally.
"""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from dashboards.labels import PALETTE
from examples.paper.diagnose import PUBLISHED_BANDS, RESOLUTION, Diagnosis, diagnose
from research.png import write_png
from trainer.config.schema import load_config

sys.path.append(str(Path(__file__).parents[1] / "rules"))
RULES = {
    "grpo": {},
    "dr_grpo": {"algorithm.advantage": "dr_grpo", "algorithm.loss_aggregation": "constant"},
    "rloo": {"algorithm.advantage": "rloo"},
    "reinforce_plus_plus": {"algorithm.advantage": "reinforce_plus_plus"},
    "gspo": {"algorithm.loss": "gspo"},
    "cispo": {"algorithm.loss": "cispo"},
    "dppo_tv": {"algorithm.loss": "dppo_tv"},
    "sapo": {"algorithm.loss": "sapo"},
    "kl_cov": {"algorithm.loss": "kl_cov"},
    "lp_reg": {"algorithm.loss": "lp_reg"},
    "rgra": {"algorithm.loss": "rgra"},
    "entropy bonus": {"algorithm.entropy_coef": 0.001},
}
COLUMNS = 4  # number of panels per row
STEPS_PER_BATCH = 8
AFTER_STEPS = 5


def right_way(found: Diagnosis) -> dict[str, list[float]]:
    """Return update -> for each band, the fraction of its moved tokens that moved in the direction
    of their advantage.
    """
    fractions = {}
    for update in (found.updates[0], found.updates[3], found.updates[-1]):
        change = update.logprobs - found.logprobs
        counted = (change.abs() > RESOLUTION) & (found.advantages != 0)
        right = change.sign() == found.advantages.sign()
        bands = [counted & (found.bands == index) for index in range(len(PUBLISHED_BANDS))]
        fractions[update.name] = [float(right[band].float().mean()) for band in bands]
    return fractions


def draw(measured: dict[str, dict[str, list[float]]]) -> go.Figure:
    """Return a figure with a panel of bars per rule."""
    drawing = make_subplots(
        rows=len(RULES) // COLUMNS,
        cols=COLUMNS,
        subplot_titles=list(measured),
        shared_yaxes=True,
        vertical_spacing=0.1,
    )
    for panel, fractions in enumerate(measured.values()):
        for color, (name, values) in zip(PALETTE, fractions.items(), strict=False):
            label = {"all tokens": "the rule alone"}.get(name, name.split(",")[0])
            drawing.add_bar(
                x=["< .25", "< .5", "< .75", "≤ 1"],
                y=values,
                name=label,
                legendgroup=label,
                showlegend=panel == 0,
                marker_color=color,
                row=panel // COLUMNS + 1,
                col=panel % COLUMNS + 1,
            )
    drawing.add_hline(y=0.5, line={"color": "#888", "dash": "dot", "width": 1})
    drawing.update_yaxes(range=[0, 1], tickformat=".0%")
    drawing.update_yaxes(title_text="moved as the advantage wants", col=1)
    drawing.update_xaxes(title_text="probability when sampled", row=len(RULES) // COLUMNS)
    drawing.update_xaxes(tickangle=0)
    drawing.update_layout(
        template="none",
        height=300 * len(RULES) // COLUMNS,
        margin={"l": 62, "r": 14, "t": 70, "b": 46},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.07, "xanchor": "left", "x": 0},
    )
    return drawing


def main(arguments: Sequence[str]) -> int:
    (path,) = arguments
    rollout = load_config("tiny_kk").rollout
    update_batch_size = rollout.prompts_per_step * rollout.group_size // STEPS_PER_BATCH
    measured = {}
    for rule, settings in RULES.items():
        config = load_config("tiny_kk", {"optim.update_batch_size": update_batch_size, **settings})
        with tempfile.TemporaryDirectory() as folder:
            measured[rule] = right_way(diagnose(config, Path(folder), AFTER_STEPS, 4, "adamw"))
        for name, values in measured[rule].items():
            print(f"{rule:<20} {name:<22}", *(f"{value:6.1%}" for value in values), flush=True)
    write_png(draw(measured), Path(path))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
