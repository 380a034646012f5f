#!/bin/bash
# deploy/slurm/telar.sbatch under a real Slurm of two nodes: slurm_test.sh DIR, where the programs are. Slurm, munge and all
# that they start live in namespaces and a temporary folder of their own. Exit 77: that cannot be done here, and why.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
bin=$(cd "${1:?the folder of the programs}" && pwd)
bash -n "$root/deploy/slurm/telar.sbatch"
if command -v shellcheck >/dev/null; then shellcheck "$root/deploy/slurm/telar.sbatch"; fi
[ "$(id -u)" = 0 ] || { echo "skipped: not root"; exit 77; }
for program in slurmctld slurmd munged sbatch nsenter; do
  command -v "$program" >/dev/null || { echo "skipped: no $program; tests/packages.txt says what brings it"; exit 77; }
done
unshare --mount --net --uts --ipc --pid --fork true 2>/dev/null || { echo "skipped: no namespaces for us here"; exit 77; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
status=0
timeout --signal=KILL 240 unshare --mount --net --uts --ipc --pid --fork --kill-child --mount-proc "$here/slurm_inside.sh" "$work" "$root" "$bin" || status=$?
exit "$status"
