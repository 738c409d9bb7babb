"""tools/check_cases.py notices every kind of fault of docs/cases.md; the real table has none that needs no build."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from check_cases import faults, is_defined, read_table  # noqa: E402

TABLE = """| row | input | tests | elsewhere |
|---|---|---|---|
| 1 | a | `*/Suite.Row01_*` | |
| 2 | b | | a GPU |
| 3 | c | `tests/python/test_x.py::test_c`, `Other.*` | |
"""
NAMES = ["Backend/Suite.Row01_One/cpu", "Other.Thing"]


def test_a_table_that_holds(tmp_path):
    (tmp_path / "tests/python").mkdir(parents=True)
    (tmp_path / "tests/python/test_x.py").write_text("def test_c(device):\n    pass\n")
    assert list(faults(read_table(TABLE), NAMES, tmp_path)) == []


def test_every_fault_is_noticed(tmp_path):
    table = TABLE.replace("a GPU", "")
    names = ["Backend/Suite.Row02_Two/cpu", "Backend/Suite.Row09_Nine/cpu"]
    assert list(faults(read_table(table), names, tmp_path)) == [
        "row 1: no test matches */Suite.Row01_*",
        "row 2: has no test and does not say why",
        "row 3: tests/python/test_x.py::test_c does not exist",
        "row 3: no test matches Other.*",
        "Backend/Suite.Row02_Two/cpu: is not in row 2",
        "Backend/Suite.Row09_Nine/cpu: is not in row 9",
    ]


def test_cuda_suites_count_where_the_build_has_cuda(tmp_path):
    rows = read_table("| 1 | a | `CudaSuite.Row01_*`, `Each/CudaOther.Row01_*` | |\n")
    assert list(faults(rows, ["Other.Thing"], tmp_path)) == []
    assert list(faults(rows, ["CudaSuite.Row01_One"], tmp_path)) == ["row 1: no test matches Each/CudaOther.Row01_*"]


def test_every_python_test_of_the_real_table_exists():
    rows = read_table((ROOT / "docs" / "cases.md").read_text())
    assert len(rows) == 36
    named = [pattern for patterns, _ in rows.values() for pattern in patterns if "::" in pattern]
    assert named
    assert [name for name in named if not is_defined(name, ROOT)] == []
