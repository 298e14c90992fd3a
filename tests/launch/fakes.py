"""Fake programs of Google Cloud and Slurm, which only record their calls."""

import os
import shlex
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
LAUNCH = ROOT / "launch"

# Records its arguments, one file per call, and answers from files that a test writes. Each line
# is used once; "!" is a failure, and so is every call that contains the text in `failing`.
RECORDER = r"""#!/usr/bin/env bash
number=$(printf '%03d' "$(ls "$FAKES/calls" | wc -l)")
printf '%s\0' "${0##*/}" "$@" >"$FAKES/calls/$number"
answer() {
  local line
  line=$(head --lines=1 "$FAKES/$1")
  sed --in-place 1d "$FAKES/$1"
  [[ $line != '!' ]] || exit 255
  echo "$line"
}
[[ ! -e $FAKES/failing || $* != *"$(<"$FAKES/failing")"* ]] || exit 1
case "${0##*/} $*" in
  "gcloud storage cp -"*) cat >"$FAKES/archive" ;;
  *"queued-resources list"*) answer states ;;
  *--worker=0*status*) answer statuses ;;
  *"tpu-vm describe"*) answer nodes ;;
  "kubectl"*--filename=-) cat >"$FAKES/manifest" ;;
esac
"""


class Fakes:
    """A directory of programs that comes first on PATH."""

    def __init__(self, directory: Path):
        self.directory = directory
        (directory / "bin").mkdir()
        (directory / "calls").mkdir()
        # Tests do not wait.
        self.program("sleep", "#!/bin/sh\n")

    def program(self, name: str, text: str = RECORDER) -> None:
        path = self.directory / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    def answers(self, **lines: list[str]) -> None:
        """Sets the next answers (states, statuses and nodes), or the calls that fail."""
        for name, entries in lines.items():
            (self.directory / name).write_text("".join(f"{line}\n" for line in entries))

    def calls(self) -> list[list[str]]:
        """Returns the calls so far, in order."""
        files = sorted((self.directory / "calls").iterdir())
        return [path.read_text().split("\0")[:-1] for path in files]

    def environment(self, **more: str) -> dict[str, str]:
        path = f"{self.directory / 'bin'}:{os.environ['PATH']}"
        return os.environ | {"PATH": path, "FAKES": str(self.directory)} | more


def launch(script: str, *arguments: str, **options) -> subprocess.CompletedProcess:
    """Runs a script of launch/."""
    options = {"timeout": 60, "stdin": subprocess.DEVNULL} | options
    command = [str(LAUNCH / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, **options)


def dry_run(script: str, *arguments: str) -> list[list[str]]:
    """Returns the commands that a dry run prints if none of the programs is installed."""
    bare = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}
    at = arguments.index("--") if "--" in arguments else len(arguments)
    done = launch(script, *arguments[:at], "--dry_run", *arguments[at:], env=bare)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    lines = [line for line in done.stdout.splitlines() if not line.startswith("#")]
    commands = [shlex.split(line) for line in lines]
    # A fake receives only the second command of `tar ... | gcloud ...`.
    return [words[words.index("|") + 1 :] if "|" in words else words for words in commands]


def mistake(script: str, *arguments: str) -> str:
    """Runs a script that must refuse its arguments; returns its message."""
    done = launch(script, *arguments)
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
    assert not done.stdout
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr
    return done.stderr.removeprefix("error: ").strip()
