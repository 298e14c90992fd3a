"""A small BERT and a small task, which fine-tune in seconds."""

import random
import sys

from ml_collections import ConfigDict

from bert_jax.config import finetune_config
from bert_jax.interop import formats
from tests.interop.small_bert import make_pretrained

LETTERS = "abcdefghij"
OVERRIDES = {
    "dtype": "float32",
    "data.max_seq_length": 16,
    # Batches of one length.
    "data.length_multiple": 16,
    "train.batch_size": 8,
    "train.num_epochs": 4.0,
    "schedule.peak_learning_rate": 5e-3,
    "optimizer.bias_correction": True,
    "checkpoint.every_steps": 20,
    "log.every_steps": 5,
    "eval.batch_size": 32,
}


def write_bert(directory, **model) -> None:
    """Writes a Hugging Face directory of a random BERT that can learn."""
    sizes = {"hidden_size": 24, "num_hidden_layers": 1, "intermediate_size": 48}
    pretrained = make_pretrained(**sizes | model)
    for name in pretrained.weights:
        pretrained.weights[name] *= 0.2
        if name.endswith("scale"):
            pretrained.weights[name] += 1
    formats.write(pretrained, directory, "huggingface")


def write_rows(directory, seed=0, train=160, validation=48, test=12) -> None:
    """Writes sentences of letters to SPLIT.tsv; the label is "yes" if there is a j."""
    directory.mkdir(parents=True, exist_ok=True)
    letters = random.Random(seed)
    for split, count in (("train", train), ("validation", validation), ("test", test)):
        lines = ["text\tlabel"]
        for _ in range(count):
            words = letters.choices(LETTERS[:-1], k=letters.randint(3, 8))
            label = letters.random() < 0.5
            if label:
                words[letters.randrange(len(words))] = "j"
            lines.append(f"{' '.join(words)}\t{'yes' if label else 'no'}")
        (directory / f"{split}.tsv").write_text("\n".join(lines) + "\n")


def config(bert, data, **overrides) -> ConfigDict:
    """Returns the config of a run on this BERT and task; `__` in a key stands for `.`."""
    values = {key.replace("__", "."): value for key, value in overrides.items()}
    files = {"init_from": str(bert), "data.input": str(data)}
    config = finetune_config("table")
    config.update_from_flattened_dict(OVERRIDES | files | values)
    return config


def command(workdir, bert, data, *more, **overrides) -> list[str]:
    """Returns the command `python -m bert_jax.finetune` for such a run."""
    values = OVERRIDES | {key.replace("__", "."): value for key, value in overrides.items()}
    values |= {"init_from": bert, "data.input": data}
    if "--sweep" in more:
        # A sweep has its own.
        del values["train.batch_size"], values["schedule.peak_learning_rate"]
    return [
        sys.executable,
        "-m",
        "bert_jax.finetune",
        "--config=configs/finetune/table.py",
        f"--workdir={workdir}",
        *more,
        *(f"--config.{key}={value}" for key, value in values.items()),
    ]
