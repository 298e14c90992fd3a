"""Writes an HTML page about one or several runs, in one file that needs no network.

    python -m bert_jax.report --workdir=DIR[,DIR2,...] --output=page.html

The page begins with the main result beside its baseline, or with the best of several runs, and has
scores, cost, curves, filled masks of held-out text, the corpus report and the config of each run.
For a sweep, the page shows all its runs. Every run and sweep writes such a page at its end.
"""

from absl import flags

from bert_jax.base import files
from bert_jax.config import cli


def define_flags() -> None:
    flags.DEFINE_list(
        "workdir", None, "Work directories of runs or sweeps, separated by commas.", required=True
    )
    flags.DEFINE_string("output", None, "The HTML file to write.", required=True)


def main(_) -> None:
    args = flags.FLAGS
    from bert_jax.reports.page import page
    from bert_jax.reports.record import read_runs

    path = files.checked_path(args.output, "--output")
    runs = [run for directory in dict.fromkeys(args.workdir) for run in read_runs(directory)]
    files.write_whole(path, page(runs).encode())
    print(f"written to {path}")


if __name__ == "__main__":
    define_flags()
    cli.run(main)
