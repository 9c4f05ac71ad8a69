"""The MLflow tags of runs and sweeps: written by trainer and sweep, read by the dashboards."""

# Of every run.
# finds it again after a restart: SWEEP/TRIAL of a trial, sweep/SWEEP of a sweep
RUN_TAG = "loptune.run"
SWEEP_TAG = "loptune.sweep"  # name of the sweep
PARENT_TAG = "mlflow.parentRunId"  # of a trial: the run of its sweep
NOTE_TAG = "mlflow.note.content"  # description in Markdown: a sweep's verdict, why a trial failed
COLOUR_TAG = "mlflow.runColor"

CHANGES_TAG = "loptune.accepted_changes"  # of data and reward files, while it ran

# Of a trial's run.
TRIAL_TAG = "loptune.trial"  # c003-s0
# 3; of a finalist its number in the sweep that chose it
CONFIGURATION_TAG = "loptune.configuration"
SEED_TAG = "loptune.seed"
ARM_TAG = "loptune.arm"  # of a search that tunes within: the value it belongs to
VARIANT_TAG = "loptune.variant"  # update rule in words: grpo + AR
STATE_TAG = "loptune.state"  # RUNNING, COMPLETE, PRUNED or FAIL
REASON_TAG = "loptune.reason"  # why it failed

# Of a sweep's run.
CONFIRMS_TAG = "loptune.confirms"  # of a sweep of finalists: the sweep that chose them
