#!/usr/bin/env bash
# Trains on the GPUs of a Slurm cluster. Run it on the login node, in bert_jax's environment.
#
#   launch/slurm.sh COMMAND --name=NAME [flags] [-- main's flags]
#
#   train    submit the run; it queues itself again until it is finished
#   status   print the state of the job
#   logs     follow the output of the training, until Ctrl-C
#   delete   cancel the job; train continues the run from its last checkpoint
#
# Set the account, the partition and so on with Slurm's SBATCH_ACCOUNT, SBATCH_PARTITION, ...
# See launch/README.md.

# shellcheck source-path=SCRIPTDIR
launch=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$launch/common.sh"

commands=(train status logs delete)
flag+=(
  [name]="" [workdir]="" [nodes]=1 [gpus_per_node]=8 [cpus_per_gpu]=8 [time]=24:00:00
)
meaning+=(
  [name]="the name of the job"
  [workdir]="the work directory of the run, which all nodes see, or gs://BUCKET/DIRECTORY"
)

parse_arguments "$@"
require_name

case $command in
  train)
    require_flags workdir
    require_number nodes
    require_number gpus_per_node
    require_number cpus_per_gpu
    require_time
    require_main_flags
    run sbatch --job-name="${flag[name]}" --output="${flag[name]}.log" --time="${flag[time]}" \
      --nodes="${flag[nodes]}" --ntasks-per-node="${flag[gpus_per_node]}" \
      --gpus-per-node="${flag[gpus_per_node]}" --cpus-per-task="${flag[cpus_per_gpu]}" \
      "$launch/slurm/train.sbatch" python "$launch/train.py" "${flag[workdir]}" "${main_flags[@]}"
    ;;
  status) run squeue --me --name="${flag[name]}" ;;
  logs) run tail --lines=200 --follow=name "${flag[name]}.log" ;;
  delete) run scancel --me --name="${flag[name]}" ;;
esac
