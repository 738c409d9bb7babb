#!/usr/bin/env python3
"""Measures accuracy and speed on this machine and writes docs/cpu/verified.json, from which the README's tables come.

    .venv/bin/python tools/record_cpu.py --build build/dev [--output docs/cpu/verified.json]

Takes a few minutes and all cores; run it on an otherwise idle machine. The record holds, unprocessed, what these said:
  flashkda check                      accuracy against fp64, input family by input family
  flashkda bench                      prefill and decode, by case and gates, and one problem of T 65536, H 32
  bench_cpu                           the backend beside its yardsticks: FMA peak, copy, plain recurrence
  bench/python/bench_eager.py         flash_kda beside eager PyTorch
and of which version and sources they were.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from code_digest import code_digest

ROOT = Path(__file__).resolve().parent.parent
KERNEL_SOURCES = ("include/flashkda", "src/core", "src/cpu")
LARGE_CASE = "H32 T65536"


def kernel_digest(root=ROOT):
    """Of the sources that decide results and speed."""
    return code_digest(root, *KERNEL_SOURCES)


def run(*command):
    """Standard output of a command, which must succeed; its progress stays on the terminal."""
    print("+", *command, file=sys.stderr)
    return subprocess.run([str(part) for part in command], check=True, stdout=subprocess.PIPE, text=True).stdout


def run_json(*command):
    return json.loads(run(*command))


def large_case(cli):
    """The bench row of LARGE_CASE with the peak resident memory of the process that ran it, tensors included."""
    row = run_json(cli, "bench", "--case", LARGE_CASE, "--repeat", 1, "--json", "-")["bench"][0]
    # Of all children so far: the largest, which this one is by far.
    return {**row, "process_peak_bytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024}


def record(build):
    cli, cores = build / "src/cli/flashkda", len(os.sched_getaffinity(0))
    large = large_case(cli)
    check = run_json(cli, "check", "--json", "-")
    bench = run_json(cli, "bench", *("--gates", "random"), *("--gates", "long"), *("--gates", "real"), "--json", "-")
    with tempfile.NamedTemporaryFile("w+") as out:
        # To a file: the program prints notes about the machine on both streams.
        run(
            build / "bench/bench_cpu",
            f"--benchmark_filter=threads:{cores}/",
            "--benchmark_min_time=1",
            "--benchmark_repetitions=3",
            "--benchmark_report_aggregates_only=true",
            f"--benchmark_out={out.name}",
            "--benchmark_out_format=json",
        )
        yardsticks = json.load(out)["benchmarks"]
    return {
        "version": check["version"],
        "kernel_digest": kernel_digest(),
        "date": check["date"],
        "machine": {
            "device": check["device"],
            "cores": cores,
            "instruction_set": check["detail"],
            "system": platform.platform(terse=True),
        },
        "bars": check["bars"],
        "accuracy": check["accuracy"],
        "bench": bench["bench"],
        "large": large,
        "bench_cpu": [
            {key: row[key] for key in ("run_name", "real_time", "time_unit", "FMA", "bytes", "tokens") if key in row}
            for row in yardsticks
            if row.get("aggregate_name") == "median"
        ],
        "eager": run_json(sys.executable, ROOT / "bench/python/bench_eager.py"),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, required=True, help="build folder with flashkda and bench_cpu")
    parser.add_argument("--output", type=Path, default=ROOT / "docs/cpu/verified.json")
    arguments = parser.parse_args()
    result = record(arguments.build.resolve())
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
