#!/usr/bin/env bash
# Prepares a large token store on a cluster: a job array of Slurm, an indexed job of Kubernetes, or
# Dataflow.
#
#   launch/prepare.sh COMMAND --name=NAME --output=DIR [flags] [-- prepare's flags]
#
#   slurm       submit a job array of --num_tasks tasks
#   kubernetes  submit an indexed job of --num_tasks pods to the current cluster of kubectl
#   image       build the container image for Dataflow and push it
#   dataflow    run bert_jax.prepare here, with Dataflow's machines for the parts
#
# The tasks meet in DIR, which all of them must see. Run the same command again after a failure: it
# does only what is missing. See launch/README.md.

# shellcheck source-path=SCRIPTDIR
launch=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$launch/common.sh"

commands=(slurm kubernetes image dataflow)
flag+=(
  [name]="" [output]="" [num_tasks]=16 [cpus]=4 [memory]=8G [time]=24:00:00 [image]=""
  [project]="" [region]="" [max_workers]=100 [machine_type]=n2-standard-4
)
meaning+=(
  [name]="the name of the job"
  [output]="the directory of the token store, which all tasks see, or gs://BUCKET/DIRECTORY"
  [image]="the container image, such as us-east5-docker.pkg.dev/PROJECT/bert/bert_jax:1"
  [region]="where the machines are, such as us-east5"
)

# Checks that the flags of bert_jax.prepare name an input, and nothing that this script sets.
require_prepare_flags() {
  local word input=""
  for word in "${main_flags[@]}"; do
    [[ $word != *$'\n'* ]] || usage_error "a flag after the -- has more than one line"
    case $word in
      --input=*) input=$word ;;
      --output=* | --num_tasks=* | --task=* | --runner=*)
        usage_error "${word%%=*} does not belong after the --"
        ;;
    esac
  done
  [[ -n $input ]] ||
    usage_error "the flags of bert_jax.prepare are missing: end with -- --input='texts/*.jsonl'"
}

require_tasks() {
  require_number num_tasks
  require_number cpus
  [[ ${flag[memory]} =~ ^[1-9][0-9]*[MG]$ ]] ||
    usage_error "--memory is '${flag[memory]}'; it must be a size, such as 8G"
}

manifest() {
  local text args=("--output=${flag[output]}" "--num_tasks=${flag[num_tasks]}")
  text=$(<"$launch/gke/prepare.yaml")
  text=${text//__NAME__/"${flag[name]}"}
  text=${text//__TASKS__/"${flag[num_tasks]}"}
  text=${text//__CPUS__/"${flag[cpus]}"}
  text=${text//__MEMORY__/"${flag[memory]}i"}
  text=${text//__IMAGE__/"$(yaml_string "${flag[image]}")"}
  text=${text//__ARGS__/"$(yaml_list "${args[@]}" "${main_flags[@]}" "--task=\$(JOB_COMPLETION_INDEX)")"}
  echo "$text"
}

parse_arguments "$@"

if [[ $command == image ]]; then
  require_flags image
  run docker build --tag="${flag[image]}" --file="$launch/dataflow/Dockerfile" "$(dirname "$launch")"
  run docker push "${flag[image]}"
  exit
fi

require_name
require_flags output
require_prepare_flags
prepare=(python -m bert_jax.prepare "--output=${flag[output]}")

case $command in
  slurm)
    require_tasks
    require_time
    run sbatch --job-name="${flag[name]}" --output="${flag[name]}-%a.log" --time="${flag[time]}" \
      --array="0-$((flag[num_tasks] - 1))" --cpus-per-task="${flag[cpus]}" --mem="${flag[memory]}" \
      "$launch/slurm/prepare.sbatch" "${prepare[@]}" "--num_tasks=${flag[num_tasks]}" \
      "${main_flags[@]}"
    ;;
  kubernetes)
    require_tasks
    require_flags image
    apply_manifest kubectl
    ;;
  dataflow)
    require_flags image project region
    require_number max_workers
    [[ ${flag[output]} == gs://*/* ]] ||
      usage_error "--output is '${flag[output]}'; for Dataflow it must be gs://BUCKET/DIRECTORY"
    # Each core has a process, which does one part at a time.
    run "${prepare[@]}" "${main_flags[@]}" --runner=DataflowRunner -- --job_name="${flag[name]}" \
      --project="${flag[project]}" --region="${flag[region]}" \
      --temp_location="${flag[output]%/}.temp" --machine_type="${flag[machine_type]}" \
      --max_num_workers="${flag[max_workers]}" --number_of_worker_harness_threads=1 \
      --sdk_location=container --sdk_container_image="${flag[image]}"
    ;;
esac
