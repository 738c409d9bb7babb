"""tools/gpu_test.py: what it counts in the files of ctest and pytest, and what a machine without a GPU gets."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import gpu_test  # noqa: E402
from gpu_test import PATHS, findings, junit_counts, run_direct, total  # noqa: E402

CTEST = """<testsuite name="build" tests="4">
  <testcase name="a" status="run"/>
  <testcase name="b" status="fail"><failure message=""/></testcase>
  <testcase name="c" status="notrun"><skipped message="no CUDA device"/></testcase>
  <testcase name="d" status="run"><system-out>FAILED</system-out></testcase>
</testsuite>"""
PYTEST = """<testsuites><testsuite name="pytest" tests="2">
  <testcase name="a"><error message="at setup"/></testcase>
  <testcase name="b"/>
</testsuite></testsuites>"""


def test_counts_of_both_kinds_of_file(tmp_path):
    for text, expected in (
        (CTEST, {"passed": 2, "failed": 1, "skipped": 1}),
        (PYTEST, {"passed": 1, "failed": 1, "skipped": 0}),
    ):
        file = tmp_path / "results.xml"
        file.write_text(text)
        assert junit_counts(file) == expected


def test_total_adds():
    one = {"passed": 2, "failed": 1, "skipped": 1}
    assert total(one, one) == {"passed": 4, "failed": 2, "skipped": 2}
    assert total() == {"passed": 0, "failed": 0, "skipped": 0}


def test_findings_are_the_first_and_the_last_of_a_log():
    log = "[ RUN ] a\n========= \n========= Invalid read at f+0x10\n=========     Host Frame: g\n[ OK ] a\n"
    assert findings(log) == "========= Invalid read at f+0x10"
    assert findings("all is well") == ""
    many = findings("\n".join(f"========= finding {i}" for i in range(100))).splitlines()
    assert (len(many), many[0], many[-1]) == (24, "========= finding 0", "========= finding 99")


def test_nothing_is_recorded_where_no_test_ran(tmp_path):
    record = tmp_path / "verified.json"
    command = [sys.executable, ROOT / "tools/gpu_test.py", tmp_path, "--record", record]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "no C++ test ran" in done.stderr
    assert done.returncode != 0
    assert not record.exists()


def test_the_program_itself_runs_once_for_each_path(tmp_path):
    program = tmp_path / "test_cuda"
    program.write_text(
        f"#!{sys.executable}\n"
        "import os, sys\n"
        "open(sys.argv[1].removeprefix('--gtest_output=xml:'), 'w').write(\n"
        '    \'<testsuites><testsuite><testcase name="a"/><testcase name="b">%s</testcase></testsuite></testsuites>\'\n'
        "    % ('<failure/>' if os.environ.get('FLASH_KDA_BACKEND') == 'cuda_fused' else ''))\n"
    )
    program.chmod(0o755)
    runs = 2 * len(PATHS)
    assert run_direct(program, tmp_path) == {"passed": 2 * runs - 2, "failed": 2, "skipped": 0}
    program.write_text("#!/bin/sh\nexit 1\n")  # dies before it writes anything
    empty = tmp_path / "logs"
    empty.mkdir()
    assert run_direct(program, empty) == {"passed": 0, "failed": runs, "skipped": 0}


def test_a_program_that_hangs_is_killed_and_counts_as_failed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gpu_test, "PATIENCE", 0.2)
    monkeypatch.setattr(gpu_test, "PATHS", ("", "cuda_fused"))
    program = tmp_path / "test_cuda"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    assert run_direct(program, tmp_path) == {"passed": 0, "failed": 4, "skipped": 0}
    assert capsys.readouterr().out.count("killed after 0.2 s: ") == 4
