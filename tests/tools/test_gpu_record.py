"""tools/gpu_record.py: what a new run brings, and what stays of the old record."""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from gpu_record import merge, rendered  # noqa: E402

OLD = {
    "gpu": "A",
    "date": "old",
    "kernels_digest": "x",
    "tests": {"passed": 3},
    "bench": [{"case": "H8", "ms_median": 1.0}],
}


def test_sections_of_the_same_kernels_stay():
    new = merge(OLD, [{"gpu": "A", "accuracy": [{"family": "mild"}]}], "x", {"date": "new"})
    assert new["tests"] == {"passed": 3}
    assert new["bench"] == OLD["bench"]
    assert new["accuracy"] == [{"family": "mild"}]
    assert new["date"] == "new"


def test_sections_of_other_kernels_or_another_gpu_go():
    for gpu, digest in (("A", "y"), ("B", "x")):
        new = merge(OLD, [{"gpu": gpu, "bench": []}], digest, {"date": "new"})
        assert "tests" not in new
        assert new["bench"] == []
        assert new["kernels_digest"] == digest


def test_later_files_win_over_earlier_ones_and_defaults():
    new = merge({}, [{"cuda": "1", "date": "first"}, {"cuda": "2"}], "x", {"date": "now", "gpu": "C"})
    assert (new["cuda"], new["date"], new["gpu"]) == ("2", "first", "C")


def test_rendered_is_the_record_with_a_line_an_entry():
    text = rendered(OLD)
    assert json.loads(text) == OLD
    assert '\n  {"case": "H8", "ms_median": 1.0}\n' in text
