#!/usr/bin/env bash
# What `make demo` shows. usage: tools/demo.sh PATH-TO-flashkda
set -euo pipefail
flashkda=$(realpath "$1")
cd "$(dirname "$0")/.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

bold='' plain=''
if [ -t 1 ]; then bold=$'\033[1m' plain=$'\033[0m'; fi
title() { printf '\n%s== %s%s\n\n' "$bold" "$*" "$plain"; }
# Shows a flashkda command as one would type it, and runs it.
show() {
  printf '%s$ flashkda %s%s\n' "$bold" "${*/#$scratch\//}" "$plain"
  "$flashkda" "$@"
  echo
}

title "Kimi Delta Attention on what a trained layer saw, against the result in fp64"
layer=(data/kda_bounded_slice.safetensors --expected data/kda_bounded_slice_expected.safetensors)
show run "${layer[@]}" -o "$scratch/o.safetensors"
show run "${layer[@]}" -o "$scratch/o.safetensors" --out-dtype fp32
echo "Of the first error of o nearly all is the rounding of o to bf16."

title "One chunk of 16 tokens: L, how the tokens disturb each other, and Mqk, their decayed attention"
show inspect data/kda_bounded_slice.safetensors --head 2 --chunk 4

title "The error on inputs that are made to be hard, in sequences of uneven length"
show check --tokens 400 --heads 2
