#!/usr/bin/env bash
# Trains on Cloud TPU VMs, from any machine with gcloud, until the run is finished.
#
#   launch/tpu_vm.sh COMMAND --name=NAME --project=PROJECT --zone=ZONE [flags] [-- main's flags]
#
#   train    request the TPU, install, train, restart after every preemption, and delete
#            the TPU at the end. Can be interrupted and started again at any time.
#   status   print the state of the TPU and of the training
#   logs     follow the output of the training, until Ctrl-C
#   delete   save and stop the training, and delete the TPU
#
# See launch/README.md.

# shellcheck source-path=SCRIPTDIR
launch=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$launch/common.sh"

commands=(train status logs delete)
flag+=(
  [name]="" [project]="" [zone]="" [accelerator]="" [workdir]=""
  [slices]=1 [spot]=false [keep]=false [poll_seconds]=60 [max_failures]=10
)
meaning+=(
  [name]="a name for the TPU"
  [accelerator]="the TPU, such as v5litepod-256"
)

# The VM software for each generation, from https://cloud.google.com/tpu/docs/runtimes.
runtime_version() {
  [[ $1 =~ ^(v2|v3|v4|v5litepod|v5p|v6e)-[1-9][0-9]*$ ]] ||
    usage_error "--accelerator is '$1'; it must be v2, v3, v4, v5litepod, v5p or v6e and a size, such as v5litepod-256"
  case ${BASH_REMATCH[1]} in
    v2 | v3 | v4) echo tpu-ubuntu2204-base ;;
    v5litepod) echo v2-alpha-tpuv5-lite ;;
    v5p) echo v2-alpha-tpuv5 ;;
    v6e) echo v2-alpha-tpuv6e ;;
  esac
}

# The states that a dry run assumes. A dry run goes through each phase of a run once.
assumed_state="" assumed_status=absent

# Prints the state of the queued resource, or nothing if it does not exist.
resource_state() {
  ask "$assumed_state" gcloud compute tpus queued-resources list "${where[@]}" \
    --filter="name~(^|/)${flag[name]}\$" --format="value(state.state)"
}

create() {
  local nodes=(--node-id="${flag[name]}") spot=()
  ((flag[slices] == 1)) || nodes=(--node-count="${flag[slices]}" --node-prefix="${flag[name]}")
  [[ ${flag[spot]} == false ]] || spot=(--spot)
  run gcloud compute tpus queued-resources create "${flag[name]}" "${where[@]}" \
    --accelerator-type="${flag[accelerator]}" --runtime-version="$runtime" \
    "${nodes[@]}" "${spot[@]}" || return
  assumed_state=ACTIVE
}

delete() {
  # --force deletes the TPU VMs too, even if some are gone already.
  run gcloud compute tpus queued-resources delete "${flag[name]}" "${where[@]}" --force --quiet ||
    return
  installed=false seen=false assumed_state="" assumed_status=absent
}

# Prints the names of the TPU VMs, one for each slice. Each may have many workers.
node_names() {
  local i
  if ((flag[slices] == 1)); then
    echo "${flag[name]}"
  else
    for ((i = 0; i < flag[slices]; i++)); do echo "${flag[name]}-$i"; done
  fi
}

first_node() {
  local names
  names=$(node_names)
  echo "${names%%$'\n'*}"
}

on_all_workers() {
  local node
  for node in $(node_names); do
    run gcloud compute tpus tpu-vm ssh "$node" "${where[@]}" --quiet --worker=all --command="$1" || return
  done
}

worker_status() {
  local script=bert_jax/source/launch/tpu_worker.sh
  ask "$assumed_status" gcloud compute tpus tpu-vm ssh "$(first_node)" "${where[@]}" --quiet --worker=0 \
    --command="if test -f $script; then bash $script status; else echo absent; fi"
}

# Copies this checkout into the work directory, and from there to every worker.
install() {
  [[ $installed == false ]] || return 0
  local archive=${flag[workdir]%/}/source.tar.gz
  local pack=(
    tar --create --gzip --exclude=__pycache__ --directory="$(dirname "$launch")"
    bert_jax configs launch setup.py pyproject.toml README.md
  )
  local upload=(gcloud storage cp - "$archive")
  echo "$(quoted "${pack[@]}") | $(quoted "${upload[@]}")" >&3
  [[ ${flag[dry_run]} == true ]] || "${pack[@]}" | "${upload[@]}" || return
  on_all_workers "rm -rf bert_jax/source && mkdir -p bert_jax/source && gcloud storage cat $(quoted "$archive") | tar --extract --gzip --directory=bert_jax/source && bash bert_jax/source/launch/tpu_worker.sh install" || return
  installed=true
}

# Starts the training on all workers. If one is still running, it is stopped first.
start() {
  install || return
  on_all_workers "bash bert_jax/source/launch/tpu_worker.sh start $(quoted "${flag[workdir]}" "${main_flags[@]}")" || return
  started=true assumed_status=finished
}

# Counts a failure that may be temporary, such as a rebooting worker or a lost connection.
again() {
  failures=$((failures + 1))
  say "$1 (failure $failures)"
  ((failures < flag[max_failures])) ||
    fail "${flag[max_failures]} failures in a row, the last: $1; $cost_warning"
}

train() {
  # These variables hold the progress of this call. The exit status of an earlier training is
  # ignored, because its flags and files may have been different.
  local installed=false started=false seen=false was_active=false failures=0
  local state status node_state
  while true; do
    state=$(resource_state) || state=unknown
    [[ $state =~ ^(|unknown|DELETING)$ ]] || seen=true
    case $state in
      "")
        [[ $seen == false ]] || fail "the TPU was deleted by someone else; run train again to request it again"
        create || again "the TPU could not be requested"
        ;;
      ACTIVE)
        was_active=true
        status=$(worker_status) || status=unreachable
        # Take the last line, because gcloud may print its own lines first.
        status=${status##*$'\n'}
        if [[ $started == false && $status =~ ^(finished|failed) ]]; then status=stopped; fi
        case $status in
          running) started=true failures=0 ;;
          finished)
            say "finished: the results are in ${flag[workdir]}"
            [[ ${flag[keep]} == true ]] || delete || fail "the TPU could not be deleted; $cost_warning"
            return
            ;;
          absent)
            installed=false
            start || again "bert_jax could not be installed and started"
            ;;
          stopped) start || again "the training could not be started" ;;
          "failed 1" | "failed 2")
            fail "the training ended with a mistake; see $0 logs $(quoted "${identity[@]}"); $cost_warning"
            ;;
          failed*)
            again "the training ended with status ${status#failed }"
            start || again "the training could not be started"
            ;;
          *)
            node_state=$(ask READY gcloud compute tpus tpu-vm describe "$(first_node)" "${where[@]}" \
              --format="value(state)") || node_state=unknown
            case $node_state in
              PREEMPTED | TERMINATED | STOPPED) delete || again "the TPU could not be deleted" ;;
              *) again "worker 0 does not answer; the TPU is $node_state" ;;
            esac
            ;;
        esac
        ;;
      FAILED)
        [[ $was_active == true ]] ||
          fail "Google Cloud cannot provide this TPU; gcloud compute tpus queued-resources describe $(quoted "${flag[name]}" "${where[@]}") shows the reason, $0 delete $(quoted "${identity[@]}") removes the request"
        delete || again "the TPU could not be deleted"
        ;;
      SUSPENDED)
        say "the TPU was preempted: requesting it again; the run continues from its last checkpoint"
        delete || again "the TPU could not be deleted"
        ;;
      unknown) again "gcloud does not answer" ;;
      # In progress: CREATING, ACCEPTED, WAITING_FOR_RESOURCES, PROVISIONING, SUSPENDING, DELETING.
      *) say "the TPU is $state" ;;
    esac
    say "checking again in ${flag[poll_seconds]} seconds"
    [[ ${flag[dry_run]} == true ]] || sleep "${flag[poll_seconds]}"
  done
}

parse_arguments "$@"
require_name_and_location
identity=(--name="${flag[name]}" --project="${flag[project]}" --zone="${flag[zone]}")
((flag[slices] == 1)) || identity+=(--slices="${flag[slices]}")
where=(--project="${flag[project]}" --zone="${flag[zone]}")
cost_warning="the TPU is still there and costs money: $0 delete $(quoted "${identity[@]}")"

case $command in
  train)
    require_flags accelerator
    runtime=$(runtime_version "${flag[accelerator]}")
    require_bucket
    require_number poll_seconds
    require_number max_failures
    require_main_flags
    train
    ;;
  status)
    assumed_state=ACTIVE assumed_status=running
    state=$(resource_state)
    status=""
    [[ $state != ACTIVE ]] || status=$(worker_status)
    [[ ${flag[dry_run]} == true ]] || echo "TPU ${state:-absent}${status:+, training ${status##*$'\n'}}"
    ;;
  logs)
    run gcloud compute tpus tpu-vm ssh "$(first_node)" "${where[@]}" --quiet --worker=0 \
      --command="tail --lines=200 --follow=name bert_jax/log"
    ;;
  delete)
    on_all_workers "bash bert_jax/source/launch/tpu_worker.sh stop" ||
      say "nothing could be stopped; the next train continues the run from its last checkpoint"
    delete
    ;;
esac
