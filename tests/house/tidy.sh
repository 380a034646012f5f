#!/bin/bash
# clang-tidy with the rules of .clang-tidy; any finding fails.
#   tidy.sh [-p BUILD] FILE...       the given sources
#   tidy.sh [-p BUILD] --base REF    the sources that differ from git's REF, committed or not
#   tidy.sh [-p BUILD] --core        engine, model and backend sources that need no gRPC: cheap enough for every run
#   tidy.sh [-p BUILD] --self-test   shows that a planted mistake is found
# BUILD (default build/release) holds compile_commands.json. Core files are looked at in batches (tidy_batches.py); one that
# passed is not looked at again until it, a header of ours or a rule changes: stamps are kept in BUILD/tidy.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
build=build/release
if [ "${1:-}" = -p ]; then
  build=$2
  shift 2
fi
[ $# -gt 0 ] || { sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2; }
[ -f "$build/compile_commands.json" ] || { echo "tidy.sh: no $build/compile_commands.json; configure first" >&2; exit 2; }

# Of a batch, what it includes is looked at, too.
batched='--header-filter=/(common|worker)/[a-z0-9_/]*\.(h|cc)$'

self_test() {
  dir=$(mktemp -d)
  trap 'rm -rf "$dir"' EXIT
  cp .clang-tidy "$dir"
  printf '#include <string>\nint f(const std::string s) { return s.empty() ? 1 : 0; }\n' >"$dir/bad.cc"
  printf 'int f(int a) { return a + 1; }\n' >"$dir/good.cc"
  clang-tidy --quiet "$dir/good.cc" -- -std=c++20 2>/dev/null
  if clang-tidy --quiet "$dir/bad.cc" -- -std=c++20 >"$dir/out" 2>/dev/null; then
    echo "tidy.sh: a planted mistake passed" >&2
    exit 1
  fi
  grep -q performance-unnecessary-value-param "$dir/out"
  mkdir "$dir/worker"
  mv "$dir/bad.cc" "$dir/worker"
  printf '#include "%s/worker/bad.cc"  // NOLINT(bugprone-suspicious-include)\n' "$dir" >"$dir/batch.cc"
  if clang-tidy --quiet "$dir/batch.cc" "$batched" -- -std=c++20 >"$dir/out" 2>/dev/null; then
    echo "tidy.sh: a mistake planted in a batch passed" >&2
    exit 1
  fi
}

# Only files that the build compiles have a command to be parsed with.
compiled() { grep -F -x -f <(sed -n 's/^ *"file": "\(.*\)",\{0,1\}$/\1/p' "$build/compile_commands.json" | sed "s|^$root/||"); }

core() {
  find worker/engine worker/parallel worker/model worker/optim worker/backend -name '*.cc' -not -path '*/cuda/*' |
    LC_ALL=C sort | { xargs grep -L -E 'grpc|\.pb\.h' || true; } | { compiled || true; }
}

batches=
case $1 in
  --self-test) self_test; exit 0 ;;
  --base) mapfile -t files < <(git diff --name-only --diff-filter=d "${2:?--base needs a ref}" -- '*.cc' | { compiled || true; }) ;;
  --core) mapfile -t files < <(core); batches=1 ;;
  *) files=("$@") ;;
esac
[ ${#files[@]} -gt 0 ] || { echo "tidy.sh: nothing to check"; exit 0; }

# tidy DATABASE FILE [OPTIONS]. What is written for GCC alone: its warning and tuning options, and a built-in that keeps
# the order of a sum.
tidy() {
  clang-tidy --quiet -p "$1" --extra-arg=-Wno-unknown-warning-option --extra-arg=-Wno-unused-command-line-argument \
    "--extra-arg=-D__builtin_assoc_barrier(x)=(x)" "${@:3}" "$2" \
    2> >(grep -v -E '^[0-9]+ warnings? (generated|treated)|^Suppressed|^Use -' >&2)
}
# A batch passed if nothing that it consists of is newer than its stamp. What it includes counts as headers.
tidy_batch() {
  local batch=$1 file
  for file in .clang-tidy $(find common worker -name '*.h') "${@:2}"; do
    [ "$batch.passed" -nt "$file" ] && continue
    tidy "$build/tidy" "$batch" "$batched" || return 1
    touch "$batch.passed"
    return 0
  done
}
export -f tidy tidy_batch
export build batched
# shellcheck disable=SC2016  # The inner shell expands them.
if [ -n "$batches" ]; then
  tests/house/tidy_batches.py "$build" "$build/tidy" "${files[@]}" | xargs -d '\n' -n 1 -P "$(nproc)" bash -c 'tidy_batch $1' _
else
  printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(nproc)" bash -c 'tidy "$build" "$1"' _
fi
echo "tidy.sh: ${#files[@]} files clean"
