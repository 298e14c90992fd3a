#!/usr/bin/env bash
# Runs on every TPU VM of a slice; tpu_vm.sh calls it over ssh.
#
#   tpu_worker.sh install               install bert_jax and its Python in ~/bert_jax/env
#   tpu_worker.sh start WORKDIR FLAGS   start the training, detached from the ssh session
#   tpu_worker.sh status                print absent, running, finished, stopped or failed STATUS
#   tpu_worker.sh stop                  send SIGTERM, and wait until the training has saved and ended
set -euo pipefail
home=$HOME/bert_jax
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

install() {
  # The VM images have Python 3.10, which is too old for jax; uv installs a newer one.
  python3 -m pip install --quiet --user uv
  python3 -m uv venv --quiet --clear --python=3.12 "$home/env"
  python3 -m uv pip install --quiet --python="$home/env/bin/python" --editable "${root}[tpu,gcs]"
  touch "$home/installed"
}

running() {
  # A process that has ended keeps its ID until its parent reads its status.
  [[ -f $home/pid && ! -f $home/exit_status ]] && kill -0 -- "-$(<"$home/pid")" 2>/dev/null
}

start() {
  stop
  rm -f "$home/pid" "$home/exit_status"
  cd "$root"
  # setsid starts a new session: it outlives the ssh connection, and its process ID is also its
  # group ID. The inner shell survives a SIGTERM to the group and records the exit status.
  # shellcheck disable=SC2016
  PATH="$home/env/bin:$PATH" setsid nohup bash -c \
    'trap : TERM; python launch/train.py "$@"; echo $? >"$HOME/bert_jax/exit_status"' bash "$@" \
    >>"$home/log" 2>&1 </dev/null &
  echo $! >"$home/pid"
}

stop() {
  running || return 0
  kill -TERM -- "-$(<"$home/pid")"
  while running; do sleep 1; done
}

status() {
  local exit_status
  if [[ ! -f $home/installed ]]; then
    echo absent
  elif running; then
    echo running
  else
    # Without an exit status, the training never started or the machine rebooted.
    exit_status=$(cat "$home/exit_status" 2>/dev/null || echo 75)
    case $exit_status in
      0) echo finished ;;
      75) echo stopped ;;
      *) echo "failed $exit_status" ;;
    esac
  fi
}

"$@"
