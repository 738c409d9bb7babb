#!/usr/bin/env bash
# Runs every fuzzer for a while from its corpus. usage: tools/fuzz.sh BUILD-FOLDER [SECONDS]
# Stops at the first finding; the input that shows it is left in BUILD-FOLDER/findings.
set -euo pipefail
build=$(realpath "$1")
seconds=${2:-60}
cd "$(dirname "$0")/../tests/fuzz"
findings=$build/findings
mkdir -p "$findings"

# What a run finds worth keeping lives in the build folder and is where the next one starts.
fuzz() {
  local name=$1
  shift
  mkdir -p "$build/corpus/$name"
  local log=$build/$name.log
  if ! "$build/tests/fuzz/$name" -max_total_time="$seconds" -len_control=0 -print_final_stats=1 \
    -artifact_prefix="$findings/$name-" "$@" >"$log" 2>&1; then
    tail -n 60 "$log"
    echo "$name: found something; the input is in $findings" >&2
    exit 1
  fi
  echo "$name: $(sed -n 's/stat::number_of_executed_units: *//p' "$log") inputs in $seconds s, nothing found"
}

fuzz fuzz_safetensors -max_len=2048 -dict=safetensors.dict "$build/corpus/fuzz_safetensors" corpus/safetensors
fuzz fuzz_validate -max_len=256 "$build/corpus/fuzz_validate"
