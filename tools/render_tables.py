#!/usr/bin/env python3
"""Renders the tables of the README from docs/cpu/verified.json and docs/gpu/verified.json.

The records are written by tools/record_cpu.py and tools/gpu_record.py.

    tools/render_tables.py [--check]

Replaces what stands between `<!-- table NAME -->` and `<!-- end -->` for each NAME below. --check changes nothing and
fails if a table is not the record's.
"""

import argparse
import json
import re
import sys
from pathlib import Path

from gpu_record import kernels_digest as gpu_digest
from record_cpu import kernel_digest as cpu_digest

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
RECORDS = {"cpu": ROOT / "docs/cpu/verified.json", "gpu": ROOT / "docs/gpu/verified.json"}
BLOCK = re.compile(r"(<!-- table (?P<name>\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def table(header, rows):
    """A Markdown table. Columns whose title ends in `:` are numbers and stand to the right."""
    lines = [
        "| " + " | ".join(title.rstrip(":") for title in header) + " |",
        "|" + "|".join("---:" if title.endswith(":") else "---" for title in header) + "|",
    ]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def size(count):
    """Bytes as a person reads them."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} GiB"


def scientific(value, digits=1):
    return f"{value:.{digits}e}".replace("e-0", "e-")


class Measurements:
    """Look-ups in the record of bench_cpu. All of them are on every core."""

    def __init__(self, record):
        threads = record["machine"]["cores"]
        suffix = f"/threads:{threads}/real_time"
        self.rows = {row["run_name"].removesuffix(suffix): row for row in record["bench_cpu"]}

    def ms(self, name):
        row = self.rows[name]
        return row["real_time"] * {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3}[row["time_unit"]]

    def rate(self, name, counter):
        return self.rows[name][counter]


def machine(record):
    m = record["machine"]
    return (
        f"Version {record['version']}, {record['date'][:10]}, on {m['cores']} cores of {m['device']} "
        f"({m['instruction_set']}). `make bench` measures yours.\n"
    )


def accuracy(record):
    o_bar, state_bar = (scientific(record["bars"][name], 0) for name in ("o", "state"))
    rows = [
        [row["family"], row["gate"], scientific(row["o"]["rms"]), scientific(row["state"]["rms"])]
        for row in record["accuracy"]
    ]
    return table(["inputs", "gate", f"o (bar {o_bar}):", f"final state (bar {state_bar}):"], rows)


def speed(record):
    """One line a case, one column a kind of gates."""
    cases, kinds = {}, {}
    for row in record["bench"]:
        kind = row["gates"] + (f" {row['gate']}" if row["gates"] == "real" else "")
        kinds[kind] = None
        cases.setdefault((row["op"], row["case"]), {})[kind] = row
    rows = []
    for (op, case), timed in cases.items():
        times = [f"{timed[kind]['ms_median']:.1f}" if kind in timed else "" for kind in kinds]
        rows.append([op, case, *times, f"{next(iter(timed.values()))['tokens_per_s']:,.0f}"])
    first = next(iter(kinds))
    return table(["operation", "case", *(f"{kind}, ms:" for kind in kinds), f"tokens/s ({first}):"], rows)


def compared(record):
    m = Measurements(record)
    ours, gates = m.ms("prefill/H8 T8192/random"), m.rate("prefill/H8 T8192/random", "FMA")
    eager = record["eager"]
    forms = {row["form"]: row for row in eager["eager"]}
    copy = m.rate("copy", "bytes")
    decode = "decode/B64 H32/v-first in place"
    large = record["large"]
    return table(
        ["what", "measured:"],
        [
            [
                "prefill H 8, T 8192: share of the machine's fp32 FMA peak (57,344 FMA per token and head)",
                f"{gates / m.rate('peak', 'FMA'):.0%}",
            ],
            [
                "... against the plain row-by-row recurrence (fp32, `-O3 -march=native`, same threads)",
                f"{m.ms('plain/H8 T8192') / ours:.1f}x",
            ],
            ["... against eager PyTorch, token by token (fp32)", f"{forms['recurrence']['ratio']:.0f}x"],
            ["... against eager PyTorch, chunk by chunk (fp32)", f"{forms['chunked']['ratio']:.1f}x"],
            [
                "decode B 64, H 32, fp32 state: share of the machine's copy bandwidth",
                f"{m.rate(decode, 'bytes') / copy:.0%}",
            ],
            [
                "prefill H 32, T 65536: workspace; peak memory of the process, tensors included",
                f"{size(large['workspace_bytes'])}; {size(large['process_peak_bytes'])}",
            ],
        ],
    )


def gpu_machine(record):
    return (
        f"{record['date'][:10]}, {record['gpu']}, driver {record['driver']}, CUDA {record['cuda']}; a copy moves "
        f"{record['copy_gb_per_s']:,.0f} GB/s (read and written). `make gpu-bench` measures yours.\n"
    )


def gpu_accuracy(record):
    """One line a family, two columns a path."""
    paths = list(dict.fromkeys(row["path"] for row in record["accuracy"]))
    columns = [(path, key) for path in paths for key in ("o", "state")]
    families = {}
    for row in record["accuracy"]:
        families.setdefault(row["family"], {})[row["path"]] = row
    rows = [
        [name, *(scientific(by[path][key]) if path in by else "" for path, key in columns)]
        for name, by in families.items()
    ]
    header = [title for path in paths for title in (f"o, {path}:", "final state:")]
    return table(["inputs", *header], rows)


def gpu_speed(record):
    """One line a case, one column a kind of gates and dtype of the states that was measured."""
    columns = [("random", "fp32"), ("long", "fp32"), ("real", "fp32"), ("softplus", "fp32"), ("random", "bf16")]
    columns = [c for c in columns if any((row["gates"], row["state"]) == c for row in record["bench"])]
    cases = {}
    for row in record["bench"]:
        cases.setdefault((row["op"], row["case"]), {})[row["gates"], row["state"]] = row
    rows = []
    for (op, case), timed in cases.items():
        times = [f"{timed[column]['ms_median']:.3f}" if column in timed else "" for column in columns]
        first = next(iter(timed.values()))
        rows.append([op, case, *times, f"{first['gb_per_s']:,.0f}", f"{first['floor_fraction']:.0%}"])
    header = [kind + (", bf16 state:" if state == "bf16" else ":") for kind, state in columns]
    return table(["operation", "case", *header, "GB/s:", "floor / time:"], rows)


# What each table is made of: the record and the function.
TABLES = {
    "machine": ("cpu", machine),
    "accuracy": ("cpu", accuracy),
    "speed": ("cpu", speed),
    "compared": ("cpu", compared),
    "gpu-machine": ("gpu", gpu_machine),
    "gpu-accuracy": ("gpu", gpu_accuracy),
    "gpu-speed": ("gpu", gpu_speed),
}


def rendered(text, records):
    """The document with every table as the records have it. records: by the names in TABLES."""

    def replaced(match):
        source, function = TABLES[match.group("name")]
        return match.group(1) + function(records[source]) + match.group(3)

    return BLOCK.sub(replaced, text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing, fail if something would change")
    arguments = parser.parse_args()
    records = {name: json.loads(path.read_text()) for name, path in RECORDS.items()}
    for name, current, remedy in (
        ("cpu", records["cpu"]["kernel_digest"] == cpu_digest(), "make bench"),
        ("gpu", records["gpu"]["kernels_digest"] == gpu_digest(), "make gpu-bench"),
    ):
        if not current:
            print(
                f"{RECORDS[name].relative_to(ROOT)} was measured on other sources than these: `{remedy}`",
                file=sys.stderr,
            )
    text = README.read_text()
    new = rendered(text, records)
    if new == text:
        return 0
    if arguments.check:
        print("README.md: its tables are not those of the records. Run tools/render_tables.py", file=sys.stderr)
        return 1
    README.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
