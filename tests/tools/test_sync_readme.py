"""tools/sync_readme.py: snippets come from the marked regions, and --check notices when they do not."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from sync_readme import snippet, synced  # noqa: E402

SOURCE = """#include <a.h>
// README: begin
void f() {
  g();
}
// README: end
int main() {
    /* README: begin */
    f();
      f();
    /* README: end */
}
"""
DOCUMENT = "# Title\n\n<!-- from a.c -->\n```c\nold\n```\n<!-- end -->\n\nText\n"


def test_regions_are_dedented_and_joined(tmp_path):
    (tmp_path / "a.c").write_text(SOURCE)
    assert snippet(tmp_path / "a.c") == "void f() {\n  g();\n}\n\nf();\n  f();\n"


def test_document_is_replaced_between_its_marks(tmp_path):
    (tmp_path / "a.c").write_text(SOURCE)
    new = synced(DOCUMENT, tmp_path)
    assert new == DOCUMENT.replace("old\n", snippet(tmp_path / "a.c"))
    assert synced(new, tmp_path) == new


def test_source_without_regions_is_refused(tmp_path):
    (tmp_path / "a.c").write_text("int main() {}\n")
    with pytest.raises(ValueError, match="no region"):
        synced(DOCUMENT, tmp_path)


def test_check_fails_on_a_stale_document_and_leaves_it(tmp_path):
    document = tmp_path / "stale.md"
    text = "<!-- from examples/c/forward.c -->\n```c\nold\n```\n<!-- end -->\n"
    document.write_text(text)
    command = [sys.executable, ROOT / "tools/sync_readme.py", document]
    result = subprocess.run([*command, "--check"], capture_output=True, text=True)
    assert result.returncode == 1
    assert "stale.md" in result.stderr
    assert document.read_text() == text
    assert subprocess.run(command).returncode == 0
    assert "fkda_problem_init" in document.read_text()
    assert subprocess.run([*command, "--check"]).returncode == 0


def test_readme_is_in_sync_and_shows_every_language():
    result = subprocess.run([sys.executable, ROOT / "tools/sync_readme.py", "--check"], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    text = (ROOT / "README.md").read_text()
    for path in ("examples/python/real_layer.py", "examples/cpp/generate.cpp", "examples/c/forward.c"):
        assert f"<!-- from {path} -->" in text
