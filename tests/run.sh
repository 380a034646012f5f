#!/bin/bash
# Installs what is needed, builds, runs every test; then some again with sanitizers (tests/sanitize.txt).
#   tests/run.sh [--fast]    --fast leaves the sanitizers out
# Exit 0: everything passed. At the end stand ctest's verdicts on the whole suite and on each preset; if something
# failed, the last line says so.
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

# The programs of tests/sanitize.txt, each preset in a tree of its own, are built while the tests wait for daemons and
# leases: about half of that time. The idle class of the scheduler takes nothing from a test that wants to run.
mapfile -t presets < <([ -n "$fast" ] || sed 's/#.*//' tests/sanitize.txt | awk 'NF { print $1 }' | sort -u)
left_out() { awk -v preset="$1" '$1 == preset && $3 { print "^" $2 "[.]" $3 }' tests/sanitize.txt | paste -sd'|'; }
programs_of() { awk -v preset="$1" '$1 == preset { print $2 }' tests/sanitize.txt; }
build_sanitized() {
  local preset
  chrt --idle --pid 0 "$BASHPID" || true
  for preset in "${presets[@]}"; do
    { cmake --preset "$preset" -Wno-dev && cmake --build "build/$preset" -j "$jobs" --target $(programs_of "$preset")
    } >"build/$preset.log" 2>&1 || return 1
  done
}
build_sanitized &
builder=$!

step Tests
log=build/release/ctest.log
status=0
ctest --preset release 2>&1 | tee "$log" || status=$?
verdict_of() { grep -E '^[0-9]+% tests passed, [0-9]+ tests? failed out of [0-9]+' "$1" || echo "ctest gave no verdict"; }
verdicts=$(verdict_of "$log")

step "Sanitizers: the rest of their builds"
if wait "$builder"; then
  for preset in "${presets[@]}"; do
    step "Sanitizers: $preset: $(programs_of "$preset" | paste -sd' ')"
    log=build/$preset/ctest.log out=$(left_out "$preset")
    ctest --test-dir "build/$preset" -R "^($(programs_of "$preset" | paste -sd'|'))\\." --no-tests=error --output-on-failure \
      ${out:+-E "$out"} -j "$jobs" 2>&1 | tee "$log" || status=1
    verdicts=$preset:\ $(verdict_of "$log")$'\n'$verdicts
  done
else
  tail -n 60 $(ls -t build/*san*.log | head -1)
  echo "run.sh: a program with sanitizers does not build" >&2
  status=1
fi

step Done
echo "$verdicts"
[ "$status" = 0 ] || echo "run.sh: FAILED; see above"
exit "$status"
