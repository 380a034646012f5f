#!/bin/bash
# Installs what is needed, builds, runs every test; then some again with sanitizers (tests/sanitize.txt).
#   tests/run.sh [--fast]    --fast leaves the sanitizers out
# Exit 0: everything passed. The last line is ctest's verdict on the whole suite, whatever came after it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
jobs=$(nproc)
fast=
case ${1:-} in
  '') ;;
  --fast) fast=1 ;;
  *) sed -n '2,4s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac

step() { echo; echo "== $* (after $((SECONDS / 60)) min $((SECONDS % 60)) s)"; }

step Packages
# Debian starts a service that it installs; the tests start etcds of their own, on ports of their own.
if [ -d /run/systemd/system ] && ! command -v etcd >/dev/null; then
  $([ "$(id -u)" = 0 ] || echo sudo) systemctl mask --quiet etcd.service
fi
deploy/install-packages.sh deploy/packages.txt tests/packages.txt

step Build
cmake --preset release -DUNITY=ON -Wno-dev
cmake --build --preset release -j "$jobs"

step Tests
log=build/release/ctest.log
status=0
ctest --preset release 2>&1 | tee "$log" || status=$?
verdict=$(grep -E '^[0-9]+% tests passed, [0-9]+ tests? failed out of [0-9]+' "$log" || echo "ctest gave no verdict")

# One preset: its programs built apart from the rest, and only their tests run.
sanitize() {
  local preset=$1
  shift
  step "Sanitizers: $preset: $*"
  cmake --preset "$preset" -Wno-dev >"build/$preset.configure.log" 2>&1 || { cat "build/$preset.configure.log"; return 1; }
  cmake --build "build/$preset" -j "$jobs" --target "$@"
  ctest --test-dir "build/$preset" -R "^($(IFS='|'; echo "$*"))\\." --no-tests=error --output-on-failure -j "$jobs"
}

if [ -z "$fast" ]; then
  mapfile -t presets < <(sed 's/#.*//' tests/sanitize.txt | awk 'NF { print $1 }' | sort -u)
  for preset in "${presets[@]}"; do
    mapfile -t programs < <(awk -v preset="$preset" '$1 == preset { print $2 }' tests/sanitize.txt)
    sanitize "$preset" "${programs[@]}" || { echo "run.sh: $preset failed" >&2; status=1; }
  done
fi

step Done
[ "$status" = 0 ] || echo "run.sh: something failed; see above" >&2
echo "$verdict"
exit "$status"
