# shellcheck shell=bash
# Flags, messages and dry runs of the launchers.
# Sourced by tpu_vm.sh, gke.sh, slurm.sh and prepare.sh, which set `commands` and extend `flag` and
# `meaning`.
set -euo pipefail

if ((BASH_VERSINFO[0] < 5)); then
  echo "error: this needs bash 5; you have $BASH_VERSION (Cloud Shell has it)" >&2
  exit 2
fi

# The commands of the launcher.
declare -a commands=()
# Known flags and their values, initially the defaults; "false" marks a switch.
declare -A flag=([dry_run]=false)
# The meaning of each required flag, for the message if it is missing.
declare -A meaning=(
  [project]="the ID of the Google Cloud project"
  [zone]="where the TPUs are, such as us-east5-a"
  [workdir]="the work directory of the run, gs://BUCKET/DIRECTORY"
)
# The flags of bert_jax.main, which follow the `--`.
declare -a main_flags=()

usage_error() {
  echo "error: $1" >&2
  exit 2
}

fail() {
  echo "error: $1" >&2
  exit 1
}

# Prints words as they would be typed in a shell.
quoted() {
  local word words=()
  for word in "$@"; do
    if [[ ! $word =~ ^[A-Za-z0-9_./:=@%+,~-]+$ ]]; then
      word="'${word//\'/\'\\\'\'}'"
    fi
    words+=("$word")
  done
  echo "${words[*]}"
}

# Sets `command`, `flag` and `main_flags` from the command line.
parse_arguments() {
  local name value
  command=${1:-}
  if [[ $command == --help ]]; then
    # The comment at the top of the script.
    sed -n '2,/^$/s/^# \{0,1\}//p' "$0"
    exit
  fi
  [[ " ${commands[*]} " == *" $command "* ]] ||
    usage_error "the first argument is '$command'; it must be one of: ${commands[*]}"
  shift
  while (($#)); do
    case $1 in
      --)
        shift
        main_flags=("$@")
        break
        ;;
      --*) ;;
      *) usage_error "unexpected argument '$1': flags are written --name=value" ;;
    esac
    name=${1%%=*}
    name=${name#--}
    [[ -n $name && -v flag[$name] ]] || usage_error "unknown flag --$name"
    if [[ $1 == *=* ]]; then
      value=${1#*=}
    elif [[ ${flag[$name]} == false || ${flag[$name]} == true ]]; then
      value=true
    else
      usage_error "--$name needs a value: --$name=VALUE"
    fi
    if [[ ${flag[$name]} == false && $value != true && $value != false ]]; then
      usage_error "--$name is a switch: it takes no value"
    fi
    flag[$name]=$value
    shift
  done
  # File descriptor 3 gets the commands: stdout in a dry run, otherwise stderr.
  if [[ ${flag[dry_run]} == true ]]; then exec 3>&1; else exec 3>&2; fi
}

require_flags() {
  local name
  for name in "$@"; do
    [[ -n ${flag[$name]} ]] || usage_error "--$name is missing: ${meaning[$name]}"
  done
}

require_number() {
  [[ ${flag[$1]} =~ ^[1-9][0-9]*$ ]] || usage_error "--$1 is '${flag[$1]}'; it must be a number above 0"
}

# Google Cloud and Kubernetes append to the name, so it must be short.
require_name() {
  require_flags name
  [[ ${flag[name]} =~ ^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$ ]] ||
    usage_error "--name is '${flag[name]}'; it must be at most 40 lower-case letters, digits and hyphens, and begin with a letter"
}

require_name_and_location() {
  require_name
  require_flags project zone
  [[ ${flag[zone]} =~ ^[a-z]+-[a-z]+[0-9]+-[a-z]$ ]] ||
    usage_error "--zone is '${flag[zone]}'; it must be a zone, such as us-central1-a"
  require_number slices
}

require_time() {
  [[ ${flag[time]} =~ ^([0-9]+-)?[0-9]+(:[0-9]+){0,2}$ ]] ||
    usage_error "--time is '${flag[time]}'; it must be a Slurm time, such as 24:00:00 or 2-12:00:00"
}

require_bucket() {
  require_flags workdir
  [[ ${flag[workdir]} =~ ^gs://[a-z0-9][-_.a-z0-9]+/.+ ]] ||
    usage_error "--workdir is '${flag[workdir]}'; it must be a directory in a bucket, gs://BUCKET/DIRECTORY, which outlives the machines"
}

# Checks that the flags of bert_jax.main name a config and no work directory.
require_main_flags() {
  local word config=""
  for word in "${main_flags[@]}"; do
    [[ $word != *$'\n'* ]] || usage_error "a flag after the -- has more than one line"
    case $word in
      --config=*) config=$word ;;
      --workdir | --workdir=*) usage_error "--workdir belongs before the --" ;;
    esac
  done
  [[ -n $config ]] ||
    usage_error "the flags of bert_jax.main are missing: end with -- --config=configs/large.py"
}

say() {
  echo "# $1" >&3
}

# Prints a command and runs it; a dry run only prints it.
run() {
  quoted "$@" >&3
  [[ ${flag[dry_run]} == true ]] || "$@"
}

# Like run, for a command whose output is used. A dry run prints the first argument as its output.
ask() {
  local assumed=$1
  shift
  quoted "$@" >&3
  if [[ ${flag[dry_run]} == true ]]; then echo "$assumed"; else "$@"; fi
}

# Quotes one line of text for YAML.
yaml_string() {
  local word=${1//\\/\\\\}
  echo "\"${word//\"/\\\"}\""
}

yaml_list() {
  local word list=""
  for word in "$@"; do list+="${list:+, }$(yaml_string "$word")"; done
  echo "[$list]"
}

# Passes the output of `manifest` to kubectl, which the arguments name, with its flags.
apply_manifest() {
  local apply=("$@" apply --filename=-)
  printf '%s <<'"'EOF'"'\n%s\nEOF\n' "$(quoted "${apply[@]}")" "$(manifest)" >&3
  [[ ${flag[dry_run]} == true ]] || manifest | "${apply[@]}"
}
