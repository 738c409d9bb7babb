"""Prints the directory of an installed PyTorch >= 2.10, whose headers the operators are compiled against.

Run by CMake with the interpreter that builds the package. PyTorch is found but not imported: importing is slow and
needs libraries that building does not. Looked at, in this order: FLASHKDA_TORCH_DIR, what `import torch` would find,
and the interpreter's own site-packages (which pip's isolated builds hide from import).
"""

import importlib.util
import os
import re
import site
import sys
import sysconfig
from pathlib import Path

OLDEST = (2, 10)
# Indented lines are what CMake prints as they are.
ADVICE = """
  flash_kda is compiled against the headers of an installed PyTorch >= 2.10; any build of it will do, and the result
  works with every later release. Either install it where you build,
    pip install 'torch>=2.10' scikit-build-core && pip install --no-build-isolation .
  or name the directory that holds torch/__init__.py in the environment variable FLASHKDA_TORCH_DIR.
"""


def candidates():
    if named := os.environ.get("FLASHKDA_TORCH_DIR"):
        yield Path(named, "torch")
        yield Path(named)
        return
    spec = importlib.util.find_spec("torch")
    if spec and spec.origin:
        yield Path(spec.origin).parent
    for directory in [*sysconfig.get_paths().values(), *site.getsitepackages(), site.getusersitepackages()]:
        yield Path(directory, "torch")


def version_of(torch: Path) -> tuple[int, ...] | None:
    """(major, minor), or None if this is no PyTorch with headers."""
    if not (torch / "include/torch/csrc/stable/library.h").is_file():
        return None
    match = re.search(r"__version__ = '(\d+)\.(\d+)", (torch / "version.py").read_text())
    return tuple(int(part) for part in match.groups()) if match else None


def main() -> int:
    rejected = []
    for torch in candidates():
        version = version_of(torch) if torch.is_dir() else None
        if version and version >= OLDEST:
            print(torch)
            return 0
        if torch.is_dir():
            rejected.append(f"{torch} ({'.'.join(map(str, version)) if version else 'no stable ABI headers'})")
    found = f"found only {', '.join(dict.fromkeys(rejected))}" if rejected else "found none"
    print(f"flashkda: no PyTorch >= 2.10 ({found}).{ADVICE}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
