"""examples/python/real_layer.py runs and prints errors within the bars."""

import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/python/real_layer.py"


def test_errors_are_within_the_bars():
    output = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, check=True).stdout
    errors = {name: float(error) for name, error in re.findall(r"^(\w+) .*: (\S+) of its rms", output, re.MULTILINE)}
    assert errors["o"] <= 2e-3
    assert errors["final_state"] <= 2e-5
