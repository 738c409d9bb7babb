"""bench/python/error_picture.py has the gate families of src/check, by name and in order."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_families_are_those_of_the_library():
    source = (ROOT / "src/check/families.cpp").read_text()
    names = re.findall(r'^    gate_family\("([^"]+)"', source, re.MULTILINE)
    assert len(names) == 16
    tree = ast.parse((ROOT / "bench/python/error_picture.py").read_text())
    families = next(
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "FAMILIES"
    )
    assert [key.value for key in families.keys] == names
