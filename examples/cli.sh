#!/usr/bin/env bash
# The command line tool, which must be on the PATH. Runs in a folder of its own with the repository's data/ in it.
set -euo pipefail
data=$(realpath "$(dirname "$0")/../data")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
ln -s "$data" data

# README: begin
flashkda info                                                                # implementations and what they support
flashkda run data/kda_bounded_slice.safetensors -o result.safetensors        # o and final_state of a layer's inputs
flashkda inspect data/kda_bounded_slice.safetensors --head 2 --chunk 4       # L and Mqk of a chunk as heat maps
flashkda check --tokens 300 --heads 2                                        # accuracy against fp64
flashkda bench --case "H8 1x1000" --gates real --json bench.json             # speed, as a table and as JSON
# README: end

test -s result.safetensors
test -s bench.json
