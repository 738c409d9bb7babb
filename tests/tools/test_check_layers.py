"""tools/check_layers.py finds each kind of violation, and nothing in clean code."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from check_layers import violations  # noqa: E402


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("include/flashkda/flashkda.h", '#include "core/problem.hpp"', "includes core/problem.hpp"),
        ("src/core/a.cpp", '#include "cpu/backend.hpp"', "may not see that layer"),
        ("src/core/a.cpp", "#include <hwy/highway.h>", "may not see that library"),
        ("src/core/a.cpp", "#include <immintrin.h>", "includes immintrin.h"),
        ("src/reference/a.cpp", '#include "cpu/tile-inl.h"', "may not see that layer"),
        ("src/cpu/a.cpp", '#include "reference/oracle.hpp"', "may not see that layer"),
        ("src/cpu/a.cpp", '  #  include "api/a.hpp"', "may not see that layer"),
        ("src/io/a.cpp", '#include "core/dtype.hpp"', "may not see that layer"),
        ("src/io/a.cpp", '#include "flashkda/flashkda.h"', "may not see that layer"),
        ("src/check/a.cpp", '#include "core/validate.hpp"', "may not see that layer"),
        ("src/cli/a.cpp", '#include "core/validate.hpp"', "may not see that layer"),
        ("src/cli/a.cpp", "#include <torch/csrc/stable/tensor.h>", "may not see that library"),
        ("src/api/a.cpp", "#include <Python.h>", "includes Python.h"),
        ("python/csrc/a.cpp", "#include <torch/extension.h>", "includes torch/extension.h"),
        ("python/csrc/a.cpp", '#include "flashkda/flashkda.hpp"', "includes flashkda/flashkda.hpp"),
        ("src/core/a.cpp", "#include <cuda_runtime_api.h>", "may not see that library"),
        ("src/cuda/tile/a.cuh", '#include "cuda/block/gate.cuh"', "may not see that layer"),
        ("src/cuda/ptx/a.cuh", '#include "cuda/tile/image.cuh"', "may not see that layer"),
        ("src/cuda/sm80/a.cu", '#include "core/problem.hpp"', "may not see that layer"),
        ("src/cuda/newcomer/a.cuh", "", "belongs to no layer"),
        ("src/newcomer/a.cpp", "", "belongs to no layer"),
        ("src/cpu/a.cpp", 'asm volatile("nop");', "inline assembly"),
        ("tests/unit/a.cpp", '__asm__("nop");', "inline assembly"),
        ("src/core/a.cpp", "#include <iostream>", "iostream"),
        ("src/cpu/a.cpp", 'std::printf("x");', "calls printf()"),
        ("src/cpu/a.cpp", 'fprintf(stderr, "x");', "calls fprintf()"),
        ("src/core/a.cpp", "std::cerr << 1;", "uses std::cerr"),
        ("src/core/a.cpp", "std::abort();", "calls abort()"),
        ("src/core/a.cpp", "if (x) exit(1);", "calls exit()"),
        ("src/reference/a.cpp", "assert(x);", "calls assert()"),
        ("src/cpu/a.cpp", "HWY_ASSERT(x);", "uses HWY_ASSERT"),
        ("README.md", "caf\u00e9", "U+00E9"),
        ("src/core/a.cpp", "// \u2192", "U+2192"),
        ("src/core/a.cpp", "int a;\r\n", "U+000D"),
    ],
)
def test_finds(path, text, expected):
    found = [message for _, message in violations(path, text)]
    assert len(found) == 1
    assert expected in found[0]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("src/core/registry.cpp", '#include "cpu/backend.hpp"'),
        ("src/cpu/a.cpp", '#include <sched.h>\n#include <sys/mman.h>\n#include <vector>\n#include "hwy/highway.h"'),
        ("src/core/a.cpp", 'std::snprintf(b, n, f); // printf(\n/* abort() */ const char* s = "exit(1) asm";'),
        ("src/core/a.cpp", "__attribute__((format(printf, 2, 3))) void f();"),
        ("src/core/a.cpp", "on_exit(1); x.exit(); my_assert(1); static_assert(true);"),
        ("src/cli/a.cpp", '#include <iostream>\n#include "check/a.hpp"\n#include <CLI/CLI.hpp>\nexit(1);'),
        ("src/cuda/ptx/a.cuh", 'asm volatile("nop;");'),
        ("python/csrc/a.cpp", "#include <torch/csrc/stable/library.h>"),
        ("tests/a.cpp", '#include "core/validate.hpp"'),
        ("data/a.bin", "caf\u00e9"),
    ],
)
def test_accepts(path, text):
    assert list(violations(path, text)) == []


def test_reports_the_line():
    text = '// "\n/* a\nb */ R"(\nabort();\n)"\nabort();\n'
    assert [line for line, _ in violations("src/core/a.cpp", text)] == [6]


def test_repository_is_clean():
    result = subprocess.run([sys.executable, ROOT / "tools/check_layers.py"], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, "")


def test_exit_status(tmp_path):
    (tmp_path / "src/core").mkdir(parents=True)
    (tmp_path / "src/core/a.cpp").write_text("int a;\nvoid f() { abort(); }\n")
    result = subprocess.run([sys.executable, ROOT / "tools/check_layers.py", tmp_path], capture_output=True, text=True)
    assert result.returncode == 1
    assert result.stdout == "src/core/a.cpp:2: calls abort(): the library is silent\n"
