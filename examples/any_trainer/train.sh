#!/bin/sh
# A training in ten lines of shell: $1 is the learning rate; lines with [loptune] are evaluations.
step=0
while [ $step -lt 3 ]; do
  step=$((step + 1))
  score=$(awk "BEGIN { srand($LOPTUNE_SEED * 100 + $step + 10000 * $1); print 0.6 - ($1 - 0.3) ^ 2 + 0.02 * rand() + 0.01 * $step }")
  echo "[loptune] {\"step\": $step, \"eval/accuracy\": $score}"
done
