#!/usr/bin/env bash
# Makes a virtual environment with PyTorch (>= 2.10) and the test tools, and builds and installs flash_kda into it.
# Safe to run again: only what is missing is installed, the package is rebuilt incrementally.
#
# usage: tools/setup_python.sh [--no-package] [DIR]        DIR: the environment, default .venv
#   --no-package      PyTorch and the tools only
#   PYTHON            the interpreter, default python3 (3.10 or newer)
#   TORCH_CPU_INDEX   URL of a package index with CPU builds of PyTorch (about 200 MB): used first if set
#
# Where PyTorch comes from, first that works:
#   1. the interpreter's own, if it has one (the environment then sees the system's packages);
#   2. TORCH_CPU_INDEX;
#   3. Linux x86_64: PyPI's CUDA build (540 MB) without the 2 GB of CUDA libraries that only a GPU needs: stubs take
#      their place (tools/cuda_stubs.py);
#   4. PyPI's torch with everything it names.
set -euo pipefail
cd "$(dirname "$0")/.."

# The pair for way 3: a torch release and the CUDA runtime it names.
TORCH=torch==2.15.0
CUDA_RUNTIME=nvidia-cuda-runtime==13.2.86
TORCH_PURE_DEPENDENCIES="filelock typing-extensions setuptools sympy networkx jinja2 fsspec"
TOOLS="numpy pytest safetensors matplotlib scikit-build-core"

say() { printf '%s\n' "setup_python: $*" >&2; }
fail() { say "$*"; exit 1; }

package=yes
if [ "${1:-}" = --no-package ]; then
  package=no
  shift
fi
venv=${1:-.venv}
python=${PYTHON:-python3}

command -v "$python" >/dev/null || fail "no $python. Debian and Ubuntu: apt install python3 python3-venv"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
  fail "$("$python" --version) is too old, needs 3.10 or newer. Name another one with PYTHON=..."
"$python" -c 'import venv, ensurepip' 2>/dev/null ||
  fail "$python cannot make virtual environments. Debian and Ubuntu: apt install python3-venv"

has_torch() {
  "$1" - 2>/dev/null <<'PY'
import sys, torch
sys.exit(tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 10))
PY
}

if [ ! -x "$venv/bin/python" ]; then
  options=()
  if has_torch "$python"; then
    say "using the PyTorch of $python"
    options+=(--system-site-packages)
  fi
  "$python" -m venv "${options[@]}" "$venv"
fi
bin=$venv/bin
pip() { "$bin/python" -m pip --disable-pip-version-check "$@"; }

# Before torch, so that pip has no unmet dependency to complain about.
if ! "$bin/python" -c 'import numpy, pytest, safetensors, matplotlib, scikit_build_core' 2>/dev/null; then
  say "installing the test tools"
  # shellcheck disable=SC2086
  pip install --quiet $TOOLS $TORCH_PURE_DEPENDENCIES
fi

torch_from_cpu_index() {
  [ -n "${TORCH_CPU_INDEX:-}" ] || return 1
  say "installing PyTorch from TORCH_CPU_INDEX"
  pip install --quiet --retries 0 --timeout 15 --index-url "$TORCH_CPU_INDEX" torch
}
torch_with_stubs() {
  [ "$(uname -sm)" = "Linux x86_64" ] || return 1
  say "installing PyTorch without the CUDA libraries (540 MB)"
  # shellcheck disable=SC2086
  pip install --quiet --no-deps $TORCH $CUDA_RUNTIME &&
    "$bin/python" tools/cuda_stubs.py "$("$bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch/lib" &&
    has_torch "$bin/python"
}
torch_with_everything() {
  say "installing PyTorch with everything it names (may be several GB)"
  pip install --quiet --upgrade 'torch>=2.10'
}
if ! has_torch "$bin/python"; then
  torch_from_cpu_index || torch_with_stubs || torch_with_everything
  has_torch "$bin/python" || { "$bin/python" -c 'import torch' || true; fail "PyTorch does not import in $venv"; }
fi

if [ "$package" = yes ]; then
  missing=()
  for tool in cmake:cmake ninja:ninja-build c++:g++; do
    command -v "${tool%%:*}" >/dev/null || missing+=("${tool#*:}")
  done
  [ "${#missing[@]}" -eq 0 ] || fail "missing build tools. Debian and Ubuntu: apt install ${missing[*]} libhwy-dev"
  say "building flash_kda"
  pip install --quiet --no-deps --no-build-isolation --config-settings=build-dir=build/python .
fi
say "ready: $("$bin/python" -c 'import sys, torch; print(f"{sys.prefix}, Python {sys.version.split()[0]}, torch {torch.__version__}")')"
