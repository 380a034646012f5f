#!/bin/bash
# deploy/quickstart.sh --bin on a machine that has programs and nothing to build or install with: quickstart_test.sh DIR,
# where the programs are. Writes nothing outside a temporary folder.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
script=$root/deploy/quickstart.sh
programs=${1:?the folder of the programs}
work=$(mktemp -d)
export TELAR_HOME=$work/home
trap '"$script" --stop; rm -rf "$work"' EXIT
fail() { echo "quickstart_test.sh: $*"; [ ! -s "$work/said" ] || cat "$work/said"; exit 1; }

bash -n "$script"
if command -v shellcheck >/dev/null; then shellcheck "$script"; else echo "no shellcheck here"; fi

mkdir "$work/fakes" "$work/some"
for program in apt-get apt-cache dpkg-query sudo cmake ninja bible; do
  # shellcheck disable=SC2016  # The fake expands them.
  printf '#!/bin/bash\necho "called $0 $*" >>%q\nexit 1\n' "$work/called" >"$work/fakes/$program"
  chmod +x "$work/fakes/$program"
done
export PATH=$work/fakes:$PATH

# expect CODE ARGUMENT...: its exit code, and what it says in $work/said.
expect() {
  local wanted=$1 code=0
  shift
  "$script" "$@" >"$work/said" 2>&1 || code=$?
  [ "$code" = "$wanted" ] || fail "quickstart.sh $* exited $code, not $wanted"
}
says() { grep -qE -- "$1" "$work/said" || fail "does not say: $1"; }
install_program() { printf '#!/bin/bash\necho "%s"\nexit %s\n' "$3" "$2" >"$work/some/$1"; chmod +x "$work/some/$1"; }

# --- Programs that are not there, or cannot start -----------------------------------------------------------------------
expect 1 --bin "$work/nowhere" --text "$script"
says "--bin $work/nowhere: no program telar telar-coordinator telar-worker telar-rank there$"
for program in telar telar-coordinator telar-worker; do install_program "$program" 0 usage; done
touch "$work/some/telar-rank"
expect 1 --bin "$work/some" --text "$script"
says "--bin $work/some: no program telar-rank there$"
install_program telar-rank 127 "libgrpc.so: cannot open shared object file"
expect 1 --bin "$work/some" --text "$script"
says "$work/some/telar-rank does not start here: libgrpc\.so: cannot open"
[ ! -e "$work/called" ] || fail "asked for more than programs: $(<"$work/called")"
expect 2 --nonsense
says '--bin DIR +run the programs'

# --- A whole run, from a bundle and from another folder -----------------------------------------------------------------
mkdir -p "$work/bundle"
ln -s "$programs" "$work/bundle/bin"
for i in $(seq 400); do echo "$i bottles of beer on the wall, $i bottles of beer."; done >"$work/text.txt"
cd "$work"
expect 0 --bin bundle --text text.txt --set schedule.steps=2 --set schedule.warmup_steps=0 --set eval.sequences=4 \
  --set sample.tokens=4 --set resources.kind=cpu --set resources.devices=1 --set parallel.data=1 --set precision.compute=fp32
says '^Sample:$'
says '^ *a +READY'
[ -n "$(find "$TELAR_HOME/runs" -name 'step-*')" ] || fail "no checkpoint was written"
[ ! -e "$work/called" ] || fail "asked for more than programs: $(<"$work/called")"
for name in coordinator worker-a worker-b; do
  [ ! -e "$TELAR_HOME/run/$name.pid" ] || fail "$name was not stopped"
done
echo "quickstart.sh --bin is sound"
