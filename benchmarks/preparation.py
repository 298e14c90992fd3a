"""Compares the speed of `bert_jax.prepare` with google-research/bert, on one core.

    python benchmarks/preparation.py TEXT --vocab=vocab.txt [--original=CHECKOUT]

TEXT is a file in BERT's format: one sentence per line, with blank lines between documents. CHECKOUT
is a clone of github.com/google-research/bert. Its create_pretraining_data.py runs unchanged, with
`tensorflow.compat.v1` as its `tensorflow`; it also needs `six`. It runs with its defaults, except
that it makes one copy of the data (dupe_factor=1). Its time does not include the imports.

bert_jax is measured twice: on the lines as they are, and on the same sentences joined into
paragraphs, which it has to split. All runs are single processes bound to one core.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

# Both programs start with this. Each runs in its own process and prints the time and the peak
# memory of the measured part.
_TIMED = """
import json, resource, time
def report(started, cpu):
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps([time.perf_counter() - started, time.process_time() - cpu, peak]))
"""
_OURS = (
    _TIMED
    + """
import sys
from bert_jax.config import default_config
from bert_jax.store.preparation import prepare
text, vocab, output, format = sys.argv[1:]
data = default_config().data
data.update(input=(text,), format=format, vocab=vocab, num_processes=1)
size = len(open(vocab, encoding="utf-8").read().rstrip("\\n").split("\\n"))
times = time.perf_counter(), time.process_time()
prepare(data, size, output)
report(*times)
"""
)
_ORIGINAL = (
    _TIMED
    + """
import runpy, sys
import tensorflow.compat.v1 as tf
checkout, text, vocab, output = sys.argv[1:]
sys.modules["tensorflow"] = tf
sys.path.insert(0, checkout)
sys.argv = ["create_pretraining_data.py", f"--input_file={text}", f"--vocab_file={vocab}",
            f"--output_file={output}", "--dupe_factor=1", "--max_predictions_per_seq=20"]
run = tf.app.run
def timed(main=None, argv=None):
    import __main__
    inner = sys._getframe(1).f_globals["main"]
    def outer(arguments):
        times = time.perf_counter(), time.process_time()
        inner(arguments)
        report(*times)
    run(outer)
tf.app.run = timed
runpy.run_path(f"{checkout}/create_pretraining_data.py", run_name="__main__")
"""
)


def measure(program: str, *arguments: str) -> tuple[float, float, float]:
    """Runs a program on one core; returns wall seconds, CPU seconds and peak megabytes."""
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "TOKENIZERS_PARALLELISM": "false"}
    environment["PYTHONPATH"] = str(Path(__file__).resolve().parent.parent)
    result = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        preexec_fn=_one_core,
    )
    if result.returncode:
        sys.exit(result.stderr)
    return tuple(json.loads(result.stdout.splitlines()[-1]))


def _one_core() -> None:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def as_documents(text: str, folder: Path) -> str:
    """Writes each document as a JSON line of paragraphs of five sentences."""
    path = folder / "documents.jsonl"
    with open(path, "w", encoding="utf-8") as f:
        for document in text.strip().split("\n\n"):
            lines = document.split("\n")
            paragraphs = (" ".join(lines[i : i + 5]) for i in range(0, len(lines), 5))
            f.write(json.dumps({"text": "\n\n".join(paragraphs)}) + "\n")
    return str(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", help="one sentence per line, blank lines between documents")
    parser.add_argument("--vocab", required=True, help="a vocab.txt, uncased")
    parser.add_argument("--original", help="a clone of google-research/bert")
    args = parser.parse_args()
    text = Path(args.text).read_text(encoding="utf-8")
    megabytes = len(text.encode()) / 1e6
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        runs = [
            ("ours, sentences given", _OURS, args.text, args.vocab, f"{name}/a", "sentences"),
            ("ours, splitting them", _OURS, as_documents(text, folder), args.vocab, f"{name}/b")
            + ("jsonl",),
        ]
        if args.original:
            runs.append(
                ("original", _ORIGINAL, args.original, args.text, args.vocab, f"{name}/tfrecord")
            )
        speeds = {}
        for title, *run in runs:
            wall, processor, peak = measure(*run)
            speeds[title] = megabytes / processor
            print(
                f"{title}: {megabytes:.1f} MB in {wall:.2f} s, {processor:.2f} s of one core: "
                f"{speeds[title]:.2f} MB/s, peak {peak:.0f} MB",
                flush=True,
            )
    if args.original:
        for title in list(speeds)[:-1]:
            print(f"{title}: {speeds[title] / speeds['original']:.1f} times the original")


if __name__ == "__main__":
    main()
