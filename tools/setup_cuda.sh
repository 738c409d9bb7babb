#!/usr/bin/env bash
# Sees to it that there is an nvcc for the CUDA backend; neither a GPU nor a driver is needed to compile. One on the
# machine serves if it is new enough (cmake/FlashkdaNvcc.cmake has the rule); else compiler, runtime and headers are
# taken from NVIDIA's wheels on PyPI (100 MB to download, 300 MB on disk) into .cache/cuda, where CMake looks for them.
#
# usage: tools/setup_cuda.sh
#   FLASHKDA_CUDA_WHEELS=1   the wheels, whatever the machine has; set it for CMake, too
#   FLASHKDA_NO_INSTALL=1    only say what is missing, and go on
#   PYTHON                   the interpreter whose pip downloads, default python3
set -euo pipefail
cd "$(dirname "$0")/.."

# nvcc, the headers and tools it calls, its code generator; libcudart and its headers; CUB. One release, 13.0.
WHEELS="nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88
  nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85"
ROOT=.cache/cuda

say() { printf '%s\n' "setup_cuda: $*" >&2; }
fail() { say "$*"; exit 1; }

why=$(cmake -P cmake/FlashkdaNvcc.cmake 2>&1) && exit 0
why=$(grep -m1 'no nvcc' <<<"$why" | sed 's/^ *//') || true
if [ -n "${CUDACXX:-}" ]; then fail "CUDACXX=$CUDACXX: $why"; fi
if [ -n "${FLASHKDA_NO_INSTALL:-}" ]; then
  say "$why, not installed"
  exit 0
fi

mkdir -p .cache
scratch=$(mktemp -d .cache/cuda-XXXXXX)
trap 'rm -rf "$scratch"' EXIT
say "installing nvcc 13.0 from PyPI into $ROOT (100 MB)"
"${PYTHON:-python3}" -m venv "$scratch/venv"
# shellcheck disable=SC2086
"$scratch/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: \
  --target "$scratch/wheels" $WHEELS ||
  fail "pip failed. Install the CUDA toolkit >= 12.4 another way, or do without: FLASHKDA_CUDA=OFF"

# A toolkit as nvcc and CMake expect it: lib64, and the runtime under its plain name.
toolkit=$scratch/wheels/nvidia/cu13
ln -s lib "$toolkit/lib64"
ln -s libcudart.so.13 "$toolkit/lib/libcudart.so"
rm -rf "$ROOT"
mv "$toolkit" "$ROOT"
cmake -P cmake/FlashkdaNvcc.cmake >/dev/null || fail "the nvcc in $ROOT does not run"
