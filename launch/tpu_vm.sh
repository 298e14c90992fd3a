#!/usr/bin/env bash
# Trains on Cloud TPU VMs, from any machine with gcloud, until the run is finished.
#
#   export RUN=bert-large PROJECT=my-project ZONE=us-central1-a
#   export ACCELERATOR=v5litepod-64 WORKDIR=gs://BUCKET/bert-large
#   launch/tpu_vm.sh train --config=configs/large.py [more flags of bert_jax.main]
#   launch/tpu_vm.sh logs      follow the output of worker 0, until Ctrl-C
#   launch/tpu_vm.sh delete    stop the training, which saves, and delete the TPU
#
# `train` requests the TPU, installs this checkout on all workers, starts the training, and checks
# every minute whether it runs. After a preemption it requests the TPU again; at the end it deletes
# it. It keeps no state: it can be stopped and started again at any time.
#
# SPOT=1 requests a spot TPU, SLICES=N several slices, and DRY_RUN=1 only prints the commands.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

: "${RUN:?must be the name of the run and of the TPU}" "${PROJECT:?must be the ID of a project}"
: "${ZONE:?must be the zone of the TPU, such as us-central1-a}"
where=(--project="$PROJECT" --zone="$ZONE")
# The TPU VMs, one for each slice. Each may have many workers.
nodes=("$RUN") named=(--node-id="$RUN")
if ((${SLICES:-1} > 1)); then
  mapfile -t nodes < <(seq --format="$RUN-%g" 0 $((SLICES - 1)))
  named=(--node-count="$SLICES" --node-prefix="$RUN")
fi

say() { echo "# $*" >&2; }

fail() {
  echo "error: $*" >&2
  exit 1
}

# Prints a command as one would type it, and runs it unless this is a dry run.
run() {
  printf '%q ' "$@"
  echo
  [[ -n ${DRY_RUN:-} ]] || "$@"
}

# Runs a command on worker 0, or on all workers of a slice.
on() { # node, worker, command
  run gcloud compute tpus tpu-vm ssh "$1" "${where[@]}" --quiet --worker="$2" --command="$3"
}

on_all_workers() {
  local node
  for node in "${nodes[@]}"; do on "$node" all "$1" || return; done
}

create() {
  local runtime
  # https://cloud.google.com/tpu/docs/runtimes
  case $ACCELERATOR in
    v2-* | v3-* | v4-*) runtime=tpu-ubuntu2204-base ;;
    v5litepod-*) runtime=v2-alpha-tpuv5-lite ;;
    v5p-*) runtime=v2-alpha-tpuv5 ;;
    v6e-*) runtime=v2-alpha-tpuv6e ;;
    *) fail "ACCELERATOR is $ACCELERATOR; it must be v2, v3, v4, v5litepod, v5p or v6e and a size, such as v5litepod-64" ;;
  esac
  run gcloud compute tpus queued-resources create "$RUN" "${where[@]}" "${named[@]}" \
    --accelerator-type="$ACCELERATOR" --runtime-version="$runtime" ${SPOT:+--spot}
}

delete() {
  # --force deletes the TPU VMs too, even if some are gone already.
  run gcloud compute tpus queued-resources delete "$RUN" "${where[@]}" --force --quiet
}

# What the workers run. /tmp/bert_jax has the training's process group, output and exit status; a
# reboot empties it.
stop_script=$(
  cat <<'END'
mkdir -p /tmp/bert_jax && cd /tmp/bert_jax
running() { [[ ! -f status ]] && kill -0 -- "-$(cat pid)"; } 2>/dev/null
if running; then
  kill -TERM -- "-$(cat pid)"
  while running; do sleep 1; done
fi
END
)
# Prints the exit status of the training, or whether it is running or stopped.
status_script=$(
  cat <<'END'
{
  cd /tmp/bert_jax
  if [[ -f status ]]; then cat status; else kill -0 -- "-$(cat pid)" && echo running; fi
} 2>/dev/null || echo stopped
END
)
# The VM images have Python 3.10, which is too old for jax; uv installs a newer one. setsid starts a
# process group, which outlives the ssh connection. The inner shell survives a SIGTERM to the group.
start_script=$(
  cat <<'END'
rm -rf source status pid && mkdir source
gcloud storage cat "$archive" | tar --extract --gzip --directory=source
python3 -m pip install --quiet --user uv
python3 -m uv venv --quiet --clear --python=3.12 env
python3 -m uv pip install --quiet --python=env/bin/python --editable "source[tpu,gcs]"
cd source
export PATH=/tmp/bert_jax/env/bin:$PATH
setsid nohup bash -c 'trap : TERM; python -m bert_jax.main --stopped_status=75 "$@"; echo $? >../status' \
  bash "${arguments[@]}" >>../log 2>&1 </dev/null &
echo $! >../pid
END
)

# Copies this checkout to the work directory and from there to all workers, and starts the training.
start() { # flags of bert_jax.main
  local archive=${WORKDIR%/}/source.tar.gz arguments=("--workdir=$WORKDIR" "$@")
  local pack="tar --create --gzip --exclude=__pycache__ bert_jax configs setup.py pyproject.toml README.md"
  run bash -o pipefail -c "$pack | gcloud storage cp - ${archive@Q}" &&
    on_all_workers "set -eo pipefail; archive=${archive@Q} arguments=(${arguments[*]@Q})
$stop_script
$start_script"
}

train() { # flags of bert_jax.main
  local state status seen="" started="" failures=0
  : "${ACCELERATOR:?must be the TPU, such as v5litepod-64}" "${WORKDIR:?must be gs://BUCKET/DIRECTORY}"
  [[ $WORKDIR == gs://*/* ]] || fail "WORKDIR is $WORKDIR; it must be gs://BUCKET/DIRECTORY"
  if [[ -n ${DRY_RUN:-} ]]; then
    create && start "$@" && delete
    return
  fi
  while ((failures < 10)); do
    state=$(gcloud compute tpus queued-resources list "${where[@]}" \
      --filter="name~(^|/)$RUN\$" --format="value(state.state)") || state=unknown
    status=""
    if [[ $state == ACTIVE ]]; then
      # The last line, because gcloud may print lines of its own.
      status=$(gcloud compute tpus tpu-vm ssh "${nodes[0]}" "${where[@]}" --quiet --worker=0 \
        --command="$status_script" | tail --lines=1) || status=unreachable
      # A status from before this call may be that of other flags.
      [[ -n $started || $status =~ ^(running|unreachable)$ ]] || status=stopped
    fi
    say "the TPU is ${state:-absent}${status:+, the training is $status}"
    case $state,$status in
      ,)
        # Otherwise `delete` in another terminal would request a new TPU.
        [[ -z $seen ]] || fail "the TPU was deleted by another command"
        create || failures=$((failures + 1))
        ;;
      ACTIVE,running) started=1 failures=0 ;;
      ACTIVE,0)
        say "finished: the results are in $WORKDIR"
        delete
        return
        ;;
      # See launch/README.md.
      ACTIVE,1 | ACTIVE,2)
        fail "the training ended with a mistake: see $0 logs; the TPU costs money until $0 delete"
        ;;
      ACTIVE,unreachable)
        failures=$((failures + 1))
        state=$(gcloud compute tpus tpu-vm describe "${nodes[0]}" "${where[@]}" \
          --format="value(state)") || state=unknown
        if [[ $state == PREEMPTED ]]; then delete && seen="" && continue; fi
        ;;
      ACTIVE,*)
        failures=$((failures + 1))
        if start "$@"; then started=1; fi
        ;;
      SUSPENDED, | FAILED,)
        failures=$((failures + 1))
        if delete; then seen="" && continue; fi
        ;;
      unknown,) failures=$((failures + 1)) ;;
      # In progress: WAITING_FOR_RESOURCES, PROVISIONING, SUSPENDING, ...
      *) ;;
    esac
    [[ $state =~ ^(|unknown|DELETING)$ ]] || seen=1
    sleep 60
  done
  fail "10 failures in a row, the last with the TPU ${state:-absent}${status:+ and the training $status}; the TPU costs money until $0 delete"
}

case ${1:-} in
  train) train "${@:2}" ;;
  logs) on "${nodes[0]}" 0 "tail --lines=200 --follow=name /tmp/bert_jax/log" ;;
  delete)
    on_all_workers "$stop_script" || say "nothing could be stopped; train continues from the last checkpoint"
    delete
    ;;
  *) fail "the first argument is '${1:-}'; it must be train, logs or delete" ;;
esac
