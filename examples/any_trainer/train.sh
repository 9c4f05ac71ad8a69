#!/bin/sh
# A training in ten lines of shell: $1 is the learning rate; lines with [loptune] are evaluations.
step=0
while [ $step -lt 3 ]; do
  step=$((step + 1))
  seed=$(awk "BEGIN { print $LOPTUNE_SEED * 100 + $step + 10000 * $1 }")
  score=$(awk "BEGIN { srand($seed); print 0.6 - ($1 - 0.3) ^ 2 + 0.02 * rand() + 0.01 * $step }")
  length=$(awk "BEGIN { srand($seed); print 100 + 200 * $1 + 10 * rand() }") # of its answers
  echo "[loptune] {\"step\": $step, \"eval/accuracy\": $score, \"eval/length\": $length}"
done
