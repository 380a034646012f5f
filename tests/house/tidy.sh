#!/bin/bash
# clang-tidy with the rules of .clang-tidy; any finding fails.
#   tidy.sh [-p BUILD] FILE...       the given sources
#   tidy.sh [-p BUILD] --base REF    the sources that differ from git's REF, committed or not
#   tidy.sh [-p BUILD] --core        engine, model and backend sources that need no gRPC: cheap enough for every run
#   tidy.sh [-p BUILD] --self-test   shows that a planted mistake is found
# BUILD (default build/release) holds compile_commands.json. A core file that passed is not looked at again until it, a
# header of ours or a rule changes: stamps are kept in BUILD/tidy.
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
}

# Only files that the build compiles have a command to be parsed with.
compiled() { grep -F -x -f <(sed -n 's/^ *"file": "\(.*\)",\{0,1\}$/\1/p' "$build/compile_commands.json" | sed "s|^$root/||"); }

core() {
  find worker/engine worker/parallel worker/model worker/optim worker/backend -name '*.cc' -not -path '*/cuda/*' |
    LC_ALL=C sort | { xargs grep -L -E 'grpc|\.pb\.h' || true; } | { compiled || true; }
}

stamps=
case $1 in
  --self-test) self_test; exit 0 ;;
  --base) mapfile -t files < <(git diff --name-only --diff-filter=d "${2:?--base needs a ref}" -- '*.cc' | { compiled || true; }) ;;
  --core) mapfile -t files < <(core); stamps=$build/tidy ;;
  *) files=("$@") ;;
esac
[ ${#files[@]} -gt 0 ] || { echo "tidy.sh: nothing to check"; exit 0; }

if [ -n "$stamps" ]; then
  mkdir -p "$stamps"
  newest=$(find .clang-tidy common worker -name '*.h' -printf '%T@ %p\n' -o -name .clang-tidy -printf '%T@ %p\n' | sort -n | tail -1 | cut -d' ' -f2-)
fi

# What is written for GCC alone: its warning and tuning options, and a built-in that keeps the order of a sum.
check_one() {
  local file=$1 stamp=
  local gcc_only=(-Wno-unknown-warning-option -Wno-unused-command-line-argument "-D__builtin_assoc_barrier(x)=(x)")
  if [ -n "$stamps" ]; then
    stamp=$stamps/${file//\//.}
    [ "$stamp" -nt "$file" ] && [ "$stamp" -nt "$newest" ] && return 0
  fi
  clang-tidy --quiet -p "$build" "${gcc_only[@]/#/--extra-arg=}" "$file" 2> >(grep -v -E '^[0-9]+ warnings? (generated|treated)|^Suppressed|^Use -' >&2) || return 1
  [ -z "$stamp" ] || touch "$stamp"
}
export -f check_one
export build stamps newest=${newest:-}
# shellcheck disable=SC2016  # The inner shell expands it.
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(nproc)" bash -c 'check_one "$1"' _
echo "tidy.sh: ${#files[@]} files clean"
