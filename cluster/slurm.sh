#!/usr/bin/env bash
# A run over the nodes of a SLURM job. Arguments are those of `raysim run`. From the checkout, with raysim's environment
# active (Ray 2.52 or newer); it, and runs/ in the folder where sbatch is called, are on disks that all nodes share:
#   sbatch --nodes=4 --time=12:00:00 cluster/slurm.sh configs/quickstart.yaml -o rounds=500
# A run that was stopped, by the job's time limit or by `scancel --batch --signal=TERM JOB`, goes on with:
#   sbatch cluster/slurm.sh --resume runs/RUN
#SBATCH --job-name=raysim
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time=04:00:00
#SBATCH --signal=B:TERM@300
#SBATCH --output=raysim-%j.log
# Whole nodes: at its end `ray symmetric-run` calls `ray stop`, which ends every Ray that the user has on the node.
# TERM@300: 300 s must do for a round and a checkpoint; SLURM may be a minute early, so short jobs need a smaller one.
# B: only this script is told, see below. A run that was told ends with status 143, which SLURM calls FAILED.
set -euo pipefail

[ $# -gt 0 ] || { echo "usage: sbatch cluster/slurm.sh CONFIG [-o key.sub=value ...] | --resume RUN" >&2; exit 2; }

# The driver's node is the first of the job, on which this script runs as well. Its name must resolve to an address that
# the others reach.
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
address=${nodes%%$'\n'*}:6379
cpus=${SLURM_CPUS_PER_TASK:-$SLURM_CPUS_ON_NODE}

export RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0
export RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT=300 # its 30 s are short where many nodes read Ray from one disk
(umask 077 && ray get-auth-token --generate > /dev/null) # into ~/.ray, where all nodes find it

# `ray symmetric-run` hands no signal on: SIGTERM would end it alone, and lose the rounds since the last checkpoint. So
# it is not told. The driver leaves its process number here and is told itself; it ends after the round, with a
# checkpoint, and symmetric-run then ends Ray. The other nodes notice within a minute, and print what their raylet said.
pid=$(mktemp)
trap 'rm -f "$pid"' EXIT
tell() {
    if [ -s "$pid" ]; then kill -TERM "$(cat "$pid")"; else kill -TERM "$step"; fi # before it runs nothing is lost
}

# symmetric-run does not tell the driver where the cluster is; RAY_ADDRESS is for the driver only, not for `ray start`.
# srun does not take --cpus-per-task over from the job.
# shellcheck disable=SC2016
srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --cpus-per-task="$cpus" \
    ray symmetric-run --address "$address" --min-nodes "$SLURM_JOB_NUM_NODES" \
    --num-cpus="$cpus" --num-gpus="${SLURM_GPUS_ON_NODE:-0}" -- \
    bash -c 'echo $$ > "$0" && RAY_ADDRESS=$1 exec raysim run "${@:2}"' "$pid" "$address" "$@" &
step=$!
trap tell TERM

status=0
wait "$step" || status=$?
while kill -0 "$step" 2> /dev/null; do # it was a signal that ended the wait
    status=0
    wait "$step" || status=$?
done
exit "$status"
