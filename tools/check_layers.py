#!/usr/bin/env python3
"""Checks who includes whom, and what no layer may contain. HACKING.md says what each layer is.

    tools/check_layers.py [ROOT]        prints one line a violation; exit status 1 if there is one

The tables below are the rule. A folder of src/ or include/ that is not listed is a violation itself, so that a new
layer gets its line here.
"""

import re
import subprocess
import sys
from pathlib import Path

# folder: (what it may include of the project besides its own, what of other libraries): headers, or folders with "/".
LAYERS = {
    "include/flashkda": (["flashkda/"], []),
    "src/core": (["flashkda/"], []),
    "src/reference": (["flashkda/", "core/"], []),
    "src/cpu": (["flashkda/", "core/"], ["hwy/", "immintrin.h"]),
    "src/cuda": (["flashkda/", "core/", "cuda/"], ["cuda_runtime_api.h", "cub/"]),  # host side and planning
    "src/cuda/ptx": ([], ["cuda.h", "cuda/atomic", "cuda/ptx", "cuda_bf16.h", "cuda_fp16.h"]),
    "src/cuda/tile": (["cuda/ptx/"], ["cuda_bf16.h", "cuda_fp16.h", "cuda_runtime_api.h"]),
    "src/cuda/block": (["flashkda/", "cuda/tile/", "cuda/ptx/"], ["cuda_bf16.h", "cuda_fp16.h"]),
    "src/cuda/sm80": (
        [
            "flashkda/",
            "cuda/params.cuh",
            "cuda/error.hpp",
            "cuda/launch.hpp",
            "cuda/shared_memory.hpp",
            "cuda/block/",
            "cuda/tile/",
            "cuda/ptx/",
        ],
        ["cuda_bf16.h", "cuda_fp16.h", "cuda_runtime_api.h"],
    ),
    "src/cuda/sm90": (
        [
            "flashkda/",
            "core/dtype.hpp",
            "cuda/params.cuh",
            "cuda/error.hpp",
            "cuda/launch.hpp",
            "cuda/shared_memory.hpp",
            "cuda/sm80/",  # the Hopper kernels are built of the portable ones' parts
            "cuda/block/",
            "cuda/tile/",
            "cuda/ptx/",
        ],
        ["cuda.h", "cuda_bf16.h", "cuda_fp16.h", "cuda_runtime_api.h"],
    ),
    "src/api": (["flashkda/", "core/", "reference/", "cpu/"], []),
    "src/io": ([], ["nlohmann/"]),
    "src/check": (["flashkda/", "io/", "core/dtype.hpp"], []),  # dtype.hpp: scalar conversions, header-only
    "src/cli": (["flashkda/", "io/", "check/"], ["CLI/", "nlohmann/"]),
    "python/csrc": (["flashkda/flashkda.h"], ["torch/csrc/stable/", "torch/headeronly/"]),
}
# Files that may include more than their folder.
FILES = {
    # The table that names every backend.
    "src/core/registry.cpp": ["cpu/backend.hpp", "cuda/backend.hpp", "reference/oracle.hpp"],
    # Host code: which problems fit.
    "src/cuda/sm90/bounds.hpp": ["core/problem.hpp"],
}
# The library proper: it reports through status codes and never prints, exits or aborts.
SILENT = ("include/", "src/core/", "src/reference/", "src/cpu/", "src/api/", "src/cuda/")
FORBIDDEN_IN_SILENT = {
    r"#\s*include\s*<(iostream|cassert|assert\.h)>": "includes <{}>",
    r"(?<![\w.>])(?:std::)?(printf|fprintf|puts|putchar|fputs|perror|abort|exit|_exit|quick_exit|terminate|assert)\s*\(":
        "calls {}()",
    r"std::(cout|cerr|clog)\b": "uses std::{}",
    r"\b(HWY_ABORT|HWY_ASSERT)\b": "uses {}",
}  # fmt: skip
ASM = re.compile(r"\b(?:asm|__asm|__asm__)\b")
ASM_ROOM = "src/cuda/ptx/"

# The C and C++ standard libraries and POSIX; what looks like them but ties a layer to a machine or a language is not.
STANDARD = re.compile(r"(?!cuda|nv|\w*intrin\.h|Python)(\w+(\.h)?|sys/\w+\.h)")

SOURCES = (".c", ".cpp", ".h", ".hpp", ".cu", ".cuh")
ASCII_ONLY = (*SOURCES, ".py", ".pyi", ".md", ".txt", ".cmake", ".sh", ".json", ".yaml", ".toml")


# An include (kept), a comment, a raw string, a string or a character.
TOKEN = re.compile(
    r"""(?P<include>^\s*\#\s*include[^\n]*) | //[^\n]* | /\*.*?\*/
      | R"(?P<mark>\w*)\(.*?\)(?P=mark)" | "(?:\\.|[^"\\\n])*" | '(?:\\[^\n]+?|[^'\\\n])' """,
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)


def without_comments_and_strings(text):
    """The code, with blanks in their place: line numbers stay right."""
    return TOKEN.sub(lambda m: m.group() if m.group("include") else re.sub(r"[^\n]", " ", m.group()), text)


def include_violations(path, code):
    layer = path.rpartition("/")[0]
    if layer not in LAYERS:
        yield 1, "belongs to no layer that tools/check_layers.py knows"
        return
    project, libraries = LAYERS[layer]
    own = layer.removeprefix("src/").removeprefix("include/") + "/"
    roots = {folder.split("/", 1)[1] + "/" for folder in LAYERS if folder.startswith(("src/", "include/"))}
    allowed = [own, *project, *libraries, *FILES.get(path, [])]
    for number, line in enumerate(code.split("\n"), 1):
        match = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
        if not match:
            continue
        quote, header = match.groups()
        standard = quote == "<" and STANDARD.fullmatch(header)
        if not (standard or any(header == a or (a.endswith("/") and header.startswith(a)) for a in allowed)):
            kind = "layer" if header.startswith(tuple(roots)) else "library"
            yield number, f"includes {header}: {layer} may not see that {kind}"


def silence_violations(code):
    for pattern, what in FORBIDDEN_IN_SILENT.items():
        for match in re.finditer(pattern, code):
            yield code.count("\n", 0, match.start()) + 1, what.format(match.group(1)) + ": the library is silent"


def asm_violations(code):
    for match in ASM.finditer(code):
        yield code.count("\n", 0, match.start()) + 1, f"has inline assembly, which belongs in {ASM_ROOM}"


def ascii_violations(text):
    for number, line in enumerate(text.split("\n"), 1):
        wrong = next((c for c in line if ord(c) > 126 or (ord(c) < 32 and c != "\t")), None)
        if wrong:
            yield number, f"has the character U+{ord(wrong):04X}: sources are ASCII"


def violations(path, text):
    """Yields (line, message) for one file. path: relative to the root, with slashes."""
    if path.endswith(ASCII_ONLY):
        yield from ascii_violations(text)
    if not path.endswith(SOURCES):
        return
    code = without_comments_and_strings(text)
    if path.startswith(("src/", "include/", "python/csrc/")):
        yield from include_violations(path, code)
    if path.startswith(SILENT):
        yield from silence_violations(code)
    if not path.startswith(ASM_ROOM):
        yield from asm_violations(code)


def files(root):
    """The files of the repository: tracked, or new and not ignored. Without git (an sdist): every file."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=root,
        capture_output=True,
        text=True,
    )
    if listed.returncode == 0:
        return sorted(name for name in listed.stdout.split("\0") if name and (root / name).is_file())
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def main():
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent)
    found = 0
    for name in files(root):
        if not name.endswith(ASCII_ONLY):
            continue
        for line, message in violations(name, (root / name).read_text(encoding="utf-8", errors="replace")):
            print(f"{name}:{line}: {message}")
            found += 1
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
