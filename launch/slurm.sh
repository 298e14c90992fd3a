#!/usr/bin/env bash
# A training run on the GPUs of a Slurm cluster. Submit it from the root of the checkout, in
# bert_jax's environment; the checkout, the environment and WORKDIR must have the same paths on all
# nodes.
#
#   sbatch --job-name=bert-large --nodes=4 launch/slurm.sh WORKDIR --config=configs/large.py
#
# The flags of sbatch replace those below. DRY_RUN=1 launch/slurm.sh ... only prints the command of
# the job.
#SBATCH --output=%x.log
#SBATCH --time=24:00:00
#SBATCH --gpus-per-node=8
# One process for each GPU, as JAX expects under Slurm.
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=8
# After a failed node or a preemption, Slurm itself queues the job again.
#SBATCH --requeue
#SBATCH --open-mode=append
# Two minutes before the time limit, the processes save, and the job queues itself again.
#SBATCH --signal=TERM@120
set -uo pipefail

# Each process sees all GPUs of its node and uses the one with its local number.
train=(python -m bert_jax.main --stopped_status=75 --workdir="$1" "${@:2}")
command=(srun --gpu-bind=none "${train[@]}")
printf '%q ' "${command[@]}"
echo
[[ -z ${DRY_RUN:-} ]] || exit 0

# This shell gets SIGTERM when the job is canceled or preempted. It must not queue the job again
# then: a canceled job must not run again, and Slurm itself queues a preempted one.
canceled=""
trap 'canceled=1' TERM
"${command[@]}"
status=$?
# The training ends with 1 or 2 after a mistake.
if [[ -z $canceled && $status -gt 2 && ${SLURM_RESTART_COUNT:-0} -lt 100 ]]; then
  echo "ended with status $status before the run was finished: queueing job $SLURM_JOB_ID again"
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
