#!/usr/bin/env python3
"""Holds docs/cases.md against the tests that exist.

    tools/check_cases.py BUILD      BUILD: a build directory with the C++ tests; one line a fault, status 1 if any

Every pattern of the table must match a test of ctest, every tests/python/FILE::NAME must be defined there, every test
that carries a row's number must be matched by that row, and every row must have a test or say where else it is held.
Patterns of suites named Cuda... are held only against a build with CUDA, the others lack these tests. What is run once
more on another path counts under its plain name.
"""

import re
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OF_CUDA = re.compile(r"^(?:[\w*]+/)?Cuda")
TABLE_ROW = re.compile(r"^\| (\d+) \| (.+?) \| (.*?) ?\| (.*?) ?\|$")


def read_table(text):
    """{row number: (patterns, what holds it elsewhere)}"""
    rows = {}
    for line in text.splitlines():
        if match := TABLE_ROW.match(line):
            rows[int(match[1])] = (re.findall(r"`([^`]+)`", match[3]), match[4])
    return rows


def ctest_names(build):
    listing = subprocess.run(["ctest", "-N", "--test-dir", build], capture_output=True, text=True, check=True).stdout
    return re.findall(r"^ *Test +#\d+: (?:[a-z_]+\.)?(.+?)(?: \(Disabled\))?$", listing, re.MULTILINE)


def is_defined(pytest_name, root):
    file, function = pytest_name.split("::")
    path = root / file
    return path.is_file() and re.search(rf"^def {re.escape(function)}\(", path.read_text(), re.MULTILINE) is not None


def faults(rows, names, root):
    with_cuda = any(map(OF_CUDA.match, names))
    for number, (patterns, elsewhere) in rows.items():
        if not patterns and not elsewhere:
            yield f"row {number}: has no test and does not say why"
        for pattern in patterns:
            if "::" in pattern:
                if not is_defined(pattern, root):
                    yield f"row {number}: {pattern} does not exist"
            elif OF_CUDA.match(pattern) and not with_cuda:
                continue
            elif not any(fnmatchcase(name, pattern) for name in names):
                yield f"row {number}: no test matches {pattern}"
    for name in names:
        for number in map(int, re.findall(r"Row(\d+)_", name)):
            if not any(fnmatchcase(name, pattern) for pattern in rows.get(number, ([], ""))[0]):
                yield f"{name}: is not in row {number}"


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    rows = read_table((ROOT / "docs" / "cases.md").read_text())
    found = list(faults(rows, ctest_names(sys.argv[1]), ROOT))
    print("\n".join(found) if found else f"docs/cases.md: {len(rows)} rows hold")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
