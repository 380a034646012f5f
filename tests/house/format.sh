#!/bin/bash
# Fails and names the place if a C++, CUDA or JavaScript file is not as .clang-format would have it.
#   format.sh [FILE...]    the given files, or every source that git tracks
#   format.sh --fix        formats them instead
#   format.sh --self-test  shows that a badly formatted file is found
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"

if [ "${1:-}" = --self-test ]; then
  bad=$(mktemp -d)
  trap 'rm -rf "$bad"' EXIT
  cp .clang-format "$bad"
  printf 'int  main( ){return 0;}\n' >"$bad/bad.cc"
  printf 'int main() { return 0; }\n' >"$bad/good.cc"
  "$0" "$bad/good.cc"
  if "$0" "$bad/bad.cc" 2>/dev/null; then
    echo "format.sh: a badly formatted file passed" >&2
    exit 1
  fi
  exit 0
fi

mode=(--dry-run -Werror)
if [ "${1:-}" = --fix ]; then
  mode=(-i)
  shift
fi
files=("$@")
if [ ${#files[@]} -eq 0 ]; then
  if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    mapfile -t files < <(git ls-files '*.h' '*.cc' '*.cu' '*.cuh' '*.js')
  else  # Unpacked from an archive.
    mapfile -t files < <(find common client server worker tests bench deploy -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' \
      -o -name '*.js')
  fi
fi
[ ${#files[@]} -gt 0 ] || { echo "format.sh: no sources below $root" >&2; exit 1; }
exec clang-format "${mode[@]}" --style=file "${files[@]}"
