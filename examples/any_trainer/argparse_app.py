"""A program with argparse as the trainer of a sweep, with numbers, a flag, and an argument that may
be left out.
"""

import argparse
import random

import loptune as lt

parser = argparse.ArgumentParser()
parser.add_argument("--rate", type=float, required=True)
parser.add_argument("--packing", action="store_true")
parser.add_argument("--warmup", type=int)
parser.add_argument("--seed", type=int, required=True)
arguments = parser.parse_args()

noise = random.Random(arguments.seed)
bonus = 0.05 * arguments.packing + (0.01 if arguments.warmup else 0.0)
for step in (10, 20, 30):
    accuracy = (0.5 + arguments.rate / 4 + bonus) * step / 30 + 0.01 * noise.random()
    lt.report({"eval/accuracy": accuracy}, step=step)
