"""tools/code_digest.py: what makes a record one of other sources."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from code_digest import code_digest, code_of  # noqa: E402


def test_digest_follows_names_and_code(tmp_path):
    (tmp_path / "src/cpu/sse").mkdir(parents=True)
    source = tmp_path / "src/cpu/sse/a.hpp"

    def digest():
        return code_digest(tmp_path, "include", "src/cpu")

    source.write_text("int a;")
    first = digest()
    source.write_text("// a\nint /* of\ntwo lines */   a;  // more\n")
    assert digest() == first
    (tmp_path / "src/cpu/notes.txt").write_text("no code")
    assert digest() == first
    source.write_text("int b;")
    second = digest()
    source.write_text("int a;")
    source.rename(tmp_path / "src/cpu/sse/b.hpp")
    assert len({first, second, digest()}) == 3


def test_literals_are_code():
    assert code_of("f(\"a  // b\", '\"', 1'000);") == "f(\"a  // b\", '\"', 1'000);"
    assert code_of("a  b") == code_of("a /* x */ b") != code_of('"a  b"')
