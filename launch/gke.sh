#!/usr/bin/env bash
# Trains on TPU slices of a Google Kubernetes Engine cluster.
#
#   launch/gke.sh COMMAND --name=NAME --project=PROJECT --zone=ZONE [flags] [-- main's flags]
#
#   cluster  create the cluster NAME with JobSet and a node pool for each TPU slice
#   image    build the container image and push it
#   train    submit the run to the cluster, which restarts it after every preemption
#   status   print the state of the run
#   logs     follow the output of its first host, until Ctrl-C
#   delete   save and stop the run, and remove it from the cluster
#   delete_cluster
#            delete the cluster and its node pools
#
# See launch/README.md.

# shellcheck source-path=SCRIPTDIR
launch=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$launch/common.sh"

# tests/launch checks jobset.yaml against the schema of this release.
JOBSET=https://github.com/kubernetes-sigs/jobset/releases/download/v0.12.0/manifests.yaml

commands=(cluster image train status logs delete delete_cluster)
flag+=(
  [name]="" [project]="" [zone]="" [tpu]="" [topology]="" [image]="" [workdir]=""
  [slices]=1 [spot]=false
)
meaning+=(
  [name]="the name of the cluster and of the run in it"
  [tpu]="the TPU's generation: v4, v5e, v5p or v6e"
  [topology]="the chips of a slice, such as 4x8"
  [image]="the container image, such as us-east5-docker.pkg.dev/PROJECT/bert/bert_jax:1"
)

# Sets accelerator (the label of the nodes), machine (their type, always with 4 chips) and nodes (their
# number in a slice), following https://cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus.
resolve_tpu() {
  local side='[1-9][0-9]*' shape example=4x8 chips=0
  case ${flag[tpu]} in
    v4) accelerator=tpu-v4-podslice machine=ct4p-hightpu-4t ;;
    v5e) accelerator=tpu-v5-lite-podslice machine=ct5lp-hightpu-4t ;;
    v5p) accelerator=tpu-v5p-slice machine=ct5p-hightpu-4t ;;
    v6e) accelerator=tpu-v6e-slice machine=ct6e-standard-4t ;;
    *) usage_error "--tpu is '${flag[tpu]}'; it must be v4, v5e, v5p or v6e" ;;
  esac
  shape="${side}x$side"
  # Topologies of v4 and v5p have three dimensions, the others have two.
  [[ ${flag[tpu]} != v4 && ${flag[tpu]} != v5p ]] || shape+="x$side" example=4x4x8
  [[ ! ${flag[topology]} =~ ^$shape$ ]] || chips=$((${flag[topology]//x/ * }))
  ((chips > 0 && chips % 4 == 0)) ||
    usage_error "--topology is '${flag[topology]}'; for ${flag[tpu]} it must be a topology such as $example, with a multiple of 4 chips"
  nodes=$((chips / 4))
}

manifest() {
  local text
  text=$(<"$launch/gke/jobset.yaml")
  text=${text//__NAME__/"${flag[name]}"}
  text=${text//__SLICES__/"${flag[slices]}"}
  text=${text//__NODES__/"$nodes"}
  text=${text//__ACCELERATOR__/"$accelerator"}
  text=${text//__TOPOLOGY__/"${flag[topology]}"}
  text=${text//__IMAGE__/"$(yaml_string "${flag[image]}")"}
  text=${text//__ARGS__/"$(yaml_list "${flag[workdir]}" "${main_flags[@]}")"}
  echo "$text"
}

create_cluster() {
  local i spot=()
  [[ ${flag[spot]} == false ]] || spot=(--spot)
  # The default nodes run the system's pods. The workload pool gives pods access to the bucket.
  run gcloud container clusters create "${flag[name]}" "${where[@]}" --num-nodes=1 \
    --machine-type=e2-standard-4 --workload-pool="${flag[project]}.svc.id.goog"
  for ((i = 0; i < flag[slices]; i++)); do
    run gcloud container node-pools create "slice-$i" --cluster="${flag[name]}" "${where[@]}" \
      --node-locations="${flag[zone]}" --machine-type="$machine" \
      --tpu-topology="${flag[topology]}" --num-nodes="$nodes" "${spot[@]}"
  done
  run gcloud container clusters get-credentials "${flag[name]}" "${where[@]}"
  run kubectl "${context[@]}" apply --server-side --filename="$JOBSET"
}

parse_arguments "$@"

if [[ $command == image ]]; then
  require_flags image
  run docker build --tag="${flag[image]}" --file="$launch/gke/Dockerfile" "$(dirname "$launch")"
  run docker push "${flag[image]}"
  exit
fi

require_name_and_location
region=${flag[zone]%-*}
where=(--project="${flag[project]}" --location="$region")
context=(--context="gke_${flag[project]}_${region}_${flag[name]}")

case $command in
  cluster)
    require_flags tpu topology
    resolve_tpu
    create_cluster
    ;;
  train)
    require_flags tpu topology image
    resolve_tpu
    require_bucket
    require_main_flags
    apply_manifest kubectl "${context[@]}"
    ;;
  status)
    run kubectl "${context[@]}" get jobset "${flag[name]}"
    run kubectl "${context[@]}" get pods --selector="jobset.sigs.k8s.io/jobset-name=${flag[name]}"
    ;;
  logs)
    run kubectl "${context[@]}" logs --follow --tail=200 \
      --selector="jobset.sigs.k8s.io/jobset-name=${flag[name]},jobset.sigs.k8s.io/job-index=0,batch.kubernetes.io/job-completion-index=0"
    ;;
  delete) run kubectl "${context[@]}" delete jobset "${flag[name]}" ;;
  delete_cluster) run gcloud container clusters delete "${flag[name]}" "${where[@]}" --quiet ;;
esac
