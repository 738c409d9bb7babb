#!/usr/bin/env python3
"""Merges results of runs on a GPU machine into docs/gpu/verified.json, from which the README's GPU tables come.

    tools/gpu_record.py RESULT.json... [--record docs/gpu/verified.json] [--output FILE]

A result file is an object with any of: gpu, driver, cuda, date (strings), tests {passed, failed, skipped}, accuracy
[{family, o, state}], bench [{op, case, gates, state, ms_median, ms_min}], and more. Later files win. What a file does
not bring stays as recorded if it was measured on the same kernels and GPU; otherwise it is dropped, so that a record
never mixes two states of the kernels. The GPU, its driver and the date are filled in by this machine's if no file has
them: run it where the results were made.
"""

import argparse
import datetime
import json
import subprocess
import sys
from pathlib import Path

from code_digest import code_digest

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "docs/gpu/verified.json"


def kernels_digest(root=ROOT):
    return code_digest(root, "src/cuda")


def machine():
    """{gpu, driver} of the first GPU here, or {} where there is none."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader", "--id=0"]
    try:
        line = subprocess.run(query, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return {}
    gpu, driver = line.split(", ")
    return {"gpu": gpu, "driver": driver}


def merge(record, results, digest, defaults):
    """The new record. record: the old one or {}; results: in the order of the command line; defaults: for what neither
    brings. The old record stays only if its kernels and GPU are those of the results."""
    new = {}
    for result in results:
        new |= result
    new = defaults | new
    same = record.get("kernels_digest") == digest and record.get("gpu") == new.get("gpu", record.get("gpu"))
    merged = (record if same else {}) | new | {"kernels_digest": digest}
    order = ("gpu", "driver", "cuda", "date", "kernels_digest", "tests")
    first = {key: merged[key] for key in order if key in merged}
    lists = {key: merged[key] for key in sorted(merged, key=lambda k: isinstance(merged[k], list)) if key not in order}
    return first | lists


def rendered(record):
    """The record as JSON with one line an entry of a list: a diff shows which numbers moved."""
    parts = []
    for key, value in record.items():
        if isinstance(value, list):
            rows = ",\n".join("  " + json.dumps(row) for row in value)
            parts.append(f" {json.dumps(key)}: [\n{rows}\n ]")
        else:
            parts.append(f" {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+", metavar="RESULT.json")
    parser.add_argument("--record", type=Path, default=RECORD, help="the record so far")
    parser.add_argument("--output", type=Path, help="where the new one goes; default: --record")
    arguments = parser.parse_args()
    record = json.loads(arguments.record.read_text()) if arguments.record.exists() else {}
    results = [json.loads(path.read_text()) for path in arguments.results]
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    output = arguments.output or arguments.record
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(rendered(merge(record, results, kernels_digest(), machine() | {"date": now})))
    return 0


if __name__ == "__main__":
    sys.exit(main())
