#!/usr/bin/env bash
# Installs the Debian or Ubuntu packages that a task needs, those that are missing. The one list of them.
#
# usage: tools/setup_system.sh build|test...      build: the library and the command line tool
#                                                 test:  build, and all that `make test` and `make bench` run
# FLASHKDA_NO_INSTALL=1: only say what is missing, and go on.
set -euo pipefail

# package[:command]: a command on the PATH serves in place of its package.
BUILD="g++:c++ cmake:cmake ninja-build:ninja libhwy-dev libcli11-dev nlohmann-json3-dev"
TEST="git:git python3:python3 python3-venv libgtest-dev libbenchmark-dev clang:clang++ clang-tidy:clang-tidy libclang-rt-dev"

say() { printf 'setup_system: %s\n' "$*" >&2; }

case "${1:-}" in
  build) wanted=$BUILD ;;
  test) wanted="$BUILD $TEST" ;;
  *)
    say "usage: tools/setup_system.sh build|test"
    exit 2
    ;;
esac

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  say "not a Debian or Ubuntu system; going on without installing anything. Needed: $(sed -E 's/:[^ ]*//g' <<<"$wanted")"
  exit 0
fi

missing=()
for entry in $wanted; do
  package=${entry%%:*}
  if [ "$package" != "$entry" ] && command -v "${entry#*:}" >/dev/null; then continue; fi
  status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing+=("$package")
done
[ "${#missing[@]}" -gt 0 ] || exit 0

if [ -n "${FLASHKDA_NO_INSTALL:-}" ]; then
  say "missing, not installed: ${missing[*]}"
  exit 0
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  # With a terminal sudo may ask for the password, without one it must not need it.
  if command -v sudo >/dev/null && { [ -t 0 ] || sudo -n true 2>/dev/null; }; then
    as_root=(sudo)
  else
    say "missing packages, and neither root nor sudo to install them. Ask for:"
    say "  apt-get install ${missing[*]}"
    say "or, if you have them by another way, set FLASHKDA_NO_INSTALL=1."
    exit 1
  fi
fi
say "installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { "${as_root[@]}" apt-get update && "${as_root[@]}" apt-get install -y --no-install-recommends "${missing[@]}"; } \
  </dev/null >"$log" 2>&1; then
  tail -n 40 "$log" >&2
  say "apt-get failed"
  exit 1
fi
