#!/usr/bin/env python3
"""Lets a CUDA build of PyTorch be imported on a machine that has no CUDA libraries.

PyPI's torch for Linux x86_64 is a CUDA build. Its shared objects name cuBLAS, cuDNN, NCCL and others as dependencies,
about 2 GB that tests on the CPU never call. For each such library that is not installed this script compiles a stub
with the same soname: every function that torch's objects import from it, each returning 100 (cudaErrorNoDevice; not
the success code of any of these libraries). The CUDA runtime itself (libcudart, 2 MB) must be the real one: torch
asks it for the number of devices, and its answer without a driver is "none".

usage: cuda_stubs.py TORCH_LIB_DIR      e.g. .venv/lib/python3.11/site-packages/torch/lib

Needs a C compiler (CC, default cc) and binutils. For test environments only: nothing that runs on a GPU may use them.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

CUDA_LIBRARY = re.compile(r"lib(cu[A-Za-z]+|nccl|nv[A-Za-z_]+)\.so")
# cuFile, NCCL and cuSPARSELt have no symbol versions.
UNVERSIONED_CUDA_SYMBOL = re.compile(r"(cu|nccl|nvshmem)[A-Za-z]*[A-Z]\w*")
NOT_STUBBED = re.compile(r"libcudart\.so|libcuda\.so")  # the runtime is real; the driver is only ever dlopen()ed


def output_of(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def needed_libraries(library: Path) -> list[str]:
    return re.findall(r"\(NEEDED\).*\[(.*)\]", output_of("readelf", "-dW", str(library)))


def version_owners(library: Path) -> dict[str, str]:
    """Symbol version name -> soname of the library that must define it."""
    owners = {}
    soname = ""
    for line in output_of("readelf", "-VW", str(library)).splitlines():
        if match := re.search(r"File: (\S+)", line):
            soname = match[1]
        elif match := re.search(r"Name: (\S+)\s+Flags: .*Version: \d+", line):
            owners[match[1]] = soname
    return owners


def undefined_symbols(library: Path) -> list[tuple[str, str]]:
    """(name, version or "") of every symbol the library imports."""
    lines = output_of("nm", "-D", "--undefined-only", "--with-symbol-versions", str(library)).splitlines()
    names = (line.split()[-1] for line in lines)
    return [(name, version.lstrip("@")) for name, _, version in (n.partition("@") for n in names)]


def compile_stub(soname: str, symbols: dict[str, set[str]], directory: Path) -> None:
    """symbols: version ("" for none) -> names."""
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch, "stub.c")
        names = sorted(set().union(*symbols.values())) if symbols else []
        source.write_text("".join(f"int {name}(void) {{ return 100; }}\n" for name in names))
        command = [
            os.environ.get("CC", "cc"),
            "-w",
            "-fno-builtin",
            "-shared",
            "-fPIC",
            "-nostdlib",
            f"-Wl,-soname,{soname}",
            "-o",
            str(directory / soname),
            str(source),
        ]
        versions = {version: members for version, members in symbols.items() if version}
        if versions:
            script = Path(scratch, "versions.map")
            script.write_text(
                "".join(
                    f"{version} {{ global: {'; '.join(sorted(members))}; }};\n" for version, members in versions.items()
                )
            )
            command.append(f"-Wl,--version-script={script}")
        subprocess.run(command, check=True)


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    directory = Path(sys.argv[1])
    libraries = sorted(directory.glob("*.so*"))
    site_packages = directory.parent.parent
    present = {path.name for path in site_packages.glob("nvidia/**/lib*.so*")} | {path.name for path in libraries}

    missing = {
        soname
        for library in libraries
        for soname in needed_libraries(library)
        if CUDA_LIBRARY.match(soname) and not NOT_STUBBED.match(soname)
    } - present
    stubs: dict[str, dict[str, set[str]]] = {soname: defaultdict(set) for soname in missing}
    for library in libraries:
        owners = version_owners(library)
        needed = [soname for soname in needed_libraries(library) if soname in missing]
        for name, version in undefined_symbols(library):
            if version and owners.get(version) in missing:
                stubs[owners[version]][version].add(name)
            elif not version and UNVERSIONED_CUDA_SYMBOL.fullmatch(name):
                # Which library defines it is not recorded, and the loader does not care.
                for soname in needed:
                    stubs[soname][""].add(name)
    for soname, symbols in sorted(stubs.items()):
        compile_stub(soname, symbols, directory)
    print(f"{len(stubs)} CUDA libraries stubbed in {directory}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
