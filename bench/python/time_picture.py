#!/usr/bin/env python3
"""Time against heads and against tokens, from docs/gpu/verified.json, as a picture.

    python bench/python/time_picture.py [--output docs/figures/time.png]

Needs matplotlib. This library on two kinds of gates, the memory floor of the same record (every tensor once at the
speed of a copy), and MoonshotAI/FlashKDA as measured on the same kind of machine.
"""

import argparse
import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# MoonshotAI/FlashKDA 1ce47ea on an H200, fp32 state in and out, ms; the same on every gate.
FLASHKDA_HEADS = {4: 0.79, 8: 0.82, 12: 0.84, 16: 0.87, 32: 0.98, 64: 1.19, 96: 1.40}  # T 8192
FLASHKDA_TOKENS = {8192: 0.82, 65536: 6.33, 131072: 12.7}  # 8 heads
GATES = {"random": "random gates (forget within a chunk)", "long": "long gates (remember for hundreds of tokens)"}


def points(record, pattern, gates, key="ms_median"):
    """[(x, value)] of the prefill cases that match, x being the group of the pattern, ascending."""
    found = {}
    for row in record["bench"]:
        match = re.fullmatch(pattern, row["case"])
        if match and (row["op"], row["gates"], row["state"]) == ("prefill", gates, "fp32"):
            found[int(match[1])] = row[key]
    return sorted(found.items())


def draw(axes, record, pattern, peer, label):
    for gates, name in GATES.items():
        axes.plot(*zip(*points(record, pattern, gates), strict=True), marker="o", label=name)
    axes.plot(*zip(*sorted(peer.items()), strict=True), marker="s", color="gray", label="MoonshotAI/FlashKDA")
    floor = points(record, pattern, "long", "floor_ms")
    axes.plot(*zip(*floor, strict=True), linestyle="--", color="black", label="memory floor")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel(label)
    axes.set_ylabel("ms")
    axes.grid(True, which="both", alpha=0.3)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "docs/figures/time.png")
    arguments = parser.parse_args()

    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    record = json.loads((ROOT / "docs/gpu/verified.json").read_text())
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    draw(left, record, r"H(\d+) T8192", FLASHKDA_HEADS, "heads, 8192 tokens")
    draw(right, record, r"H8 T(\d+)", FLASHKDA_TOKENS, "tokens, 8 heads")
    left.legend(fontsize=8)
    figure.suptitle(f"{record['gpu']}, {record['date'][:10]}, bf16 tensors, fp32 state in and out", fontsize=10)
    figure.savefig(arguments.output, dpi=110)


if __name__ == "__main__":
    main()
