"""MLflow tags, written by trainer and sweep and read by the dashboards."""

# Of every run.
# stable id used to find a run after a restart: SWEEP/TRIAL or sweep/SWEEP
RUN_TAG = "loptune.run"
SWEEP_TAG = "loptune.sweep"  # name of the sweep
PARENT_TAG = "mlflow.parentRunId"  # trial -> its sweep's MLflow run
NOTE_TAG = "mlflow.note.content"  # description in Markdown: a sweep's verdict, why a trial failed
COLOUR_TAG = "mlflow.runColor"

CHANGES_TAG = "loptune.accepted_changes"  # changes of data and reward files accepted on resume

# Of a trial's run.
TRIAL_TAG = "loptune.trial"  # c003-s0
# 3; for a finalist, its number in the original sweep
CONFIGURATION_TAG = "loptune.configuration"
SEED_TAG = "loptune.seed"
ARM_TAG = "loptune.arm"  # value of the tune_within parameter
VARIANT_TAG = "loptune.variant"  # display name of the update rule: grpo + AR
STATE_TAG = "loptune.state"  # RUNNING, COMPLETE, PRUNED or FAIL
REASON_TAG = "loptune.reason"  # failure reason

# Of a sweep's run.
CONFIRMS_TAG = "loptune.confirms"  # confirmation sweep -> the sweep it confirms
