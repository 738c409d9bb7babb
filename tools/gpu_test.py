#!/usr/bin/env python3
"""Runs every GPU test on this machine and records the counts in docs/gpu/verified.json.

    tools/gpu_test.py BUILD [--direct] [--jobs N] [--record docs/gpu/verified.json] [--logs DIR]

  ctest -L gpu                C++ tests of BUILD, a build folder with FLASHKDA_CUDA=ON. --direct: the test program
                              itself instead, for each backend name, side by side (no ctest needed, a minute)
  pytest -m gpu               Python tests, where torch and the package flash_kda can be imported
  compute-sanitizer           memcheck, racecheck, synccheck and initcheck over the tests CudaSanitizer.*

Status 1 if a test failed, a sanitizer found something, or no C++ test ran. Each sanitizer counts as one test.
"""

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SANITIZERS = ("memcheck", "racecheck", "synccheck", "initcheck")
COUNTS = ("passed", "failed", "skipped")


def junit_counts(path):
    """{passed, failed, skipped} of a JUnit file, ctest's or pytest's."""
    counts = dict.fromkeys(COUNTS, 0)
    for case in ET.parse(path).getroot().iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            counts["failed"] += 1
        elif case.find("skipped") is not None:
            counts["skipped"] += 1
        else:
            counts["passed"] += 1
    return counts


def total(*several):
    return {key: sum(counts[key] for counts in several) for key in COUNTS}


def run_ctest(build, jobs, logs):
    results = logs / "ctest.xml"
    command = ["ctest", "--test-dir", build, "-L", "gpu", "-j", str(jobs), "--output-on-failure", "--no-tests=error"]
    subprocess.run([*map(str, command), "--output-junit", str(results)])
    return junit_counts(results) if results.exists() else total() | {"failed": 1}


# As a caller gets it, and each path alone: of the library's one list.
PATHS = (
    "",
    *(
        f"cuda_{path}"
        for line in (ROOT / "src/cuda/backend.hpp").read_text().splitlines()
        if line.startswith("#define FLASHKDA_CUDA_PATHS")
        for path in re.findall(r" X\((\w+)\)", line)
    ),
)


LARGE = "CudaLarge.*"  # needs most of a GPU's memory
PATIENCE = 900  # seconds, after which a run counts as hung


def run_direct(program, logs, shards=1):
    """The test program as it comes and on each path alone, each in that many processes, side by side; then the tests
    that need most of the memory, one process after the other."""

    def start(path, name, tests, shard=0, shards=1):
        results = logs / f"{path or 'default'}_{name}_{shard}.xml"
        environment = os.environ | {"GTEST_TOTAL_SHARDS": str(shards), "GTEST_SHARD_INDEX": str(shard)}
        if path:
            environment["FLASH_KDA_BACKEND"] = path
        command = [program, f"--gtest_output=xml:{results}", f"--gtest_filter={tests}"]
        return results, subprocess.Popen(command, env=environment)

    def wait(process):  # without its results file, a run counts as failed
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            print(f"killed after {PATIENCE} s: {' '.join(map(str, process.args))}")
            process.kill()
            process.wait()

    runs = [start(path, "most", f"-{LARGE}", shard, shards) for path in PATHS for shard in range(shards)]
    for _, process in runs:
        wait(process)
    for path in PATHS:
        runs.append(start(path, "large", LARGE))
        wait(runs[-1][1])
    return total(*(junit_counts(results) if results.exists() else total() | {"failed": 1} for results, _ in runs))


def run_pytest(logs):
    missing = [name for name in ("torch", "pytest", "flash_kda") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"Python tests left out: no module {', '.join(missing)}")
        return total()
    results = logs / "pytest.xml"
    subprocess.run([sys.executable, "-m", "pytest", "-q", "-m", "gpu", f"--junitxml={results}"], cwd=ROOT)
    return junit_counts(results) if results.exists() else total() | {"failed": 1}


def findings(log):
    """What a sanitizer's log says first, without the host's stack, and its last words."""
    lines = [line for line in log.splitlines() if line.startswith("=========") and "Host Frame" not in line]
    said = [line for line in lines if line.strip("= ")]
    return "\n".join(said if len(said) <= 24 else [*said[:20], "...", *said[-3:]])


def run_sanitizer(tool, program, logs):
    """True if the tool finds nothing and the tests pass under it."""
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", program, "--gtest_filter=CudaSanitizer.*"]
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    (logs / f"{tool}.log").write_text(done.stdout)
    clean = done.returncode == 0 and re.search(r"\[  PASSED  \] [1-9]", done.stdout) is not None
    print(f"compute-sanitizer {tool}: {'clean' if clean else findings(done.stdout) or done.stdout[-2000:]}")
    return clean


def run_sanitizers(build, logs):
    with ThreadPoolExecutor() as pool:
        clean = list(pool.map(lambda tool: run_sanitizer(tool, build / "tests/cuda/test_cuda", logs), SANITIZERS))
    return {"passed": clean.count(True), "failed": clean.count(False), "skipped": 0}


def cuda_version():
    """Of the driver, the one that runs the tests: "13.0"."""
    text = subprocess.run(["nvidia-smi"], stdout=subprocess.PIPE, text=True).stdout
    match = re.search(r"CUDA Version: *([\d.]+)", text)
    return {"cuda": match[1]} if match else {}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path, metavar="BUILD")
    parser.add_argument("--direct", action="store_true", help="without ctest")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--record", type=Path, default=ROOT / "docs/gpu/verified.json")
    parser.add_argument("--logs", type=Path, help="keep the logs there")
    arguments = parser.parse_args()
    build = arguments.build.resolve()
    with tempfile.TemporaryDirectory() as scratch:
        logs = (arguments.logs or Path(scratch)).resolve()
        logs.mkdir(parents=True, exist_ok=True)
        if arguments.direct:
            cpp = run_direct(build / "tests/cuda/test_cuda", logs, max(1, arguments.jobs // len(PATHS)))
        else:
            cpp = run_ctest(build, arguments.jobs, logs)
        if cpp["passed"] == 0:
            sys.exit("no C++ test ran: nothing is recorded")
        tests = total(cpp, run_pytest(logs), run_sanitizers(build, logs))
        result = logs / "tests.json"
        result.write_text(json.dumps({"tests": tests} | cuda_version()))
        print("GPU tests:", ", ".join(f"{tests[key]} {key}" for key in COUNTS))
        record = [sys.executable, ROOT / "tools/gpu_record.py", result, "--record", arguments.record]
        subprocess.run(list(map(str, record)), check=True)
    sys.exit(1 if tests["failed"] else 0)


if __name__ == "__main__":
    main()
