"""Numbers of fresh seeds: how many a claim needs, and how many commands and reports propose."""

# With fewer seeds, no result is called evidence: on public runs, two seeds cause too many false
# positives.
MIN_SEEDS = 3
# Number of finalists, and of fresh seeds per finalist; the baseline is extra. On seven public
# studies, these defaults have 5.4% false positives at equal means, and detect a single better
# finalist in 79% of cases. With 2 finalists on 3 seeds, these rates are 5.4% and 61%
# (docs/development/validation_tables.md).
FINALISTS = 3
FRESH_SEEDS = 5
# fresh seeds of each arm's best configuration; with fewer, many arms cannot be compared
ARM_SEEDS = 8
MAX_SEEDS_IN_ROUNDS = 30  # default limit of `sweep confirm --rounds`
MOST_SEEDS = 100  # larger numbers of seeds per configuration are not proposed
