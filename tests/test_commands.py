"""The commands of the documentation run as they are written, on small text with a small model."""

import bz2
import csv
import gzip
import json
import re
import shlex
import shutil

import pyarrow as pa
import pytest
from pyarrow import ipc, parquet

from bert_jax.interop import formats
from bert_jax.text.sources import built_in_files
from tests import forked, runs
from tests.inference.kinds import make_multi_vector, make_sparse
from tests.interop.small_bert import make_finetuned
from tests.studies.test_sweep import write_glue
from tests.tasks.test_beir import write_nano_beir
from tests.test_documentation import PAGES, ROOT
from tests.text.test_wikipedia import END, HEAD, page

# What is added to a command that has a flag which begins in this way.
ADDED = {
    "--vocab_size=30522": "--vocab_size=4000",
    "--config=configs/finetune/": "--config.train.num_epochs=1 --config.train.batch_size=16",
    # The small text has few words that its model splits.
    "--config.data.add_tokens=2000": "--config.data.add_tokens=20 --config.train.num_steps=4 "
    "--config.train.batch_size=8 --config.eval.max_sequences=8",
    "--config=": "--config.train.num_steps=4 --config.train.batch_size=8 "
    "--config.eval.every_steps=2 --config.eval.batch_size=8 --config.eval.max_sequences=8",
}
SIZES = runs.TINY_RUN | {"model.vocab_size": 4000}
SMALL_MODEL = [f"--config.{k}={v}" for k, v in SIZES.items() if k.startswith("model.")]
# The names of trained models, unless a command of the page trains them.
MODELS = ("PATH", "all-MiniLM-L6-v2", "bert-base-uncased", "runs/mine")


def commands(path):
    """Returns the arguments of each `python -m bert_jax...` that no mark excludes."""
    page = path.read_text()
    if "No test runs the commands of this page" in " ".join(page.split()):
        return []
    blocks = re.findall(r"^```bash\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    text = "".join(block for block in blocks if "# No test runs this" not in block)
    lines = re.findall(r"python -m bert_jax\.(.*)", text.replace("\\\n", " ").replace("/tmp/", ""))
    return [shlex.split(line) for line in lines]


def smaller(arguments):
    """Adds flags that make a command small."""
    for start, added in ADDED.items():
        if any(argument.startswith(start) for argument in arguments):
            arguments = [*arguments, *added.split()]
            # Weights decide the sizes of their model, a task has none.
            weights = ("init_from", "continue:")
            is_new = start == "--config=" and not any(w in a for a in arguments for w in weights)
            arguments += SMALL_MODEL * is_new
            # A key that is given twice would be refused.
            return [*{x.partition("=")[0] if x[:2] == "--" else x: x for x in arguments}.values()]
    return arguments


def run(folder, name, *arguments):
    environment = runs.environment()
    process = forked.Program(f"bert_jax.{name}", arguments, cwd=folder, env=environment)
    stdout, stderr = process.communicate(timeout=600)
    assert process.returncode == 0, f"{name} {shlex.join(arguments)}\n{stdout}\n{stderr}"


def write_files(folder):
    """Writes what the commands read."""
    for name in ("texts/en", "other", "segmented", "more", "wiki", "wikimedia", "bookcorpus"):
        (folder / name).mkdir(parents=True)
    (folder / "saved_dataset" / "train").mkdir(parents=True)
    # Short sentences, of which rows of 32 tokens lose few.
    speeches = [path.read_text()[:20_000] for path in built_in_files()[:30]]
    texts = [re.sub(r"[,;:] (\w)", lambda m: f". {m[1].upper()}", text) for text in speeches]
    for name in ("texts", "other", "segmented"):
        for i, text in enumerate(texts):
            (folder / name / f"{i}.txt").write_text(text)
    rows = [{"id": str(i), "text": text, "body": text} for i, text in enumerate(texts)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    for name in ("more/a", "wiki/a", "texts/en/a", "a"):
        (folder / f"{name}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (folder / "texts.jsonl").write_text(lines)
    with (folder / "b.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    table = pa.Table.from_pylist(rows)
    parquet.write_table(table, folder / "wikimedia" / "a.parquet")
    sentences = [{"text": sentence} for text in texts for sentence in text.split(". ")]
    parquet.write_table(pa.Table.from_pylist(sentences), folder / "bookcorpus" / "a.parquet")
    with ipc.new_stream(folder / "saved_dataset" / "train" / "a.arrow", table.schema) as file:
        file.write_table(table)
    articles = [text[i : i + 2000] for text in texts for i in range(0, len(text), 2000)]
    dump = HEAD + "".join(page(f"A{i}", text, number=i) for i, text in enumerate(articles)) + END
    for name in re.findall(r"[\w-]+\.xml\.bz2", (ROOT / "docs" / "data.md").read_text()):
        (folder / name).write_bytes(bz2.compress(dump.encode()))
    proteins = [f">{i}\n{'ACDEFGHIKLMNPQRSTVWY' * 10}\n" for i in range(40)]
    (folder / "proteins.fasta.gz").write_bytes(gzip.compress("".join(proteins).encode()))
    (folder / "sequences.txt").write_text("".join(p.split("\n")[1] + "\n" for p in proteins))
    for name in ("TRAIN", "DEV"):
        labeled = "".join(f"He is {'not ' * (i % 2)}here.\t{i % 2}\n" for i in range(80))
        (folder / f"{name}.tsv").write_text("text\tlabel\n" + labeled)
    write_glue(folder / "glue_data")
    shutil.copy(folder / "glue_data" / "MRPC" / "dev.tsv", folder / "new.tsv")
    write_retrieval(folder)
    (folder / "configs").symlink_to(ROOT / "configs")


def write_retrieval(folder):
    """Writes pairs of a question and a text, the questions alone, and a folder of BEIR."""
    texts = [f"The word number {i} is {'very ' * (i % 5)}long." for i in range(40)]
    questions = [f"What is word {i}?" for i in range(40)]
    pairs = [{"anchor": q, "positive": t} for q, t in zip(questions, texts, strict=True)]
    of_teacher = {"negative": texts[:2], "positive_scores": [8.1], "negative_scores": [-4.9, 0.2]}
    beir = folder / "beir" / "scifact"
    (beir / "qrels").mkdir(parents=True)
    for path, rows in (
        (folder / "pairs.jsonl", pairs),
        (folder / "dev.jsonl", pairs[:10]),
        (folder / "qa.jsonl", pairs),
        (folder / "scored.jsonl", [pair | of_teacher for pair in pairs[2:]]),
        (beir / "corpus.jsonl", [{"_id": f"d{i}", "text": t} for i, t in enumerate(texts)]),
        (beir / "queries.jsonl", [{"_id": f"q{i}", "text": q} for i, q in enumerate(questions)]),
    ):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = "".join(f"q{i}\td{i}\t1\n" for i in range(40))
    (beir / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + lines)
    lines = "".join(
        f"{q}\t{t}\t{texts[0]}\n" for q, t in zip(questions[1:], texts[1:], strict=True)
    )
    (folder / "nli.tsv").write_text("anchor\tpositive\tnegative\n" + lines)
    candidates = [{"query": q, "documents": texts[:3]} for q in questions]
    lines = "".join(json.dumps(row) + "\n" for row in candidates)
    (folder / "candidates.jsonl").write_text(lines)
    (folder / "questions.txt").write_text("".join(f"{q}\n" for q in questions))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The files, a model, a reranker, and models with vectors of other kinds."""
    folder = tmp_path_factory.mktemp("commands")
    write_files(folder)
    run(folder, *smaller(["main", "--config=mini_laptop", "--workdir=model"]))
    reranker = make_finetuned("sequence_classification", ())
    formats.write(reranker, folder / "ms-marco-MiniLM-L6-v2", "huggingface")
    prompts = {"query": "a ", "document": "b "}
    formats.write(make_sparse(prompts), folder / "splade-v3", "sentence_transformers")
    formats.write(make_multi_vector(prompts), folder / "colbertv2.0", "sentence_transformers")
    write_nano_beir(folder / "NanoBEIR-en")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("path", [p for p in PAGES if commands(p)], ids=lambda path: path.name)
def test_the_commands_of_a_page(path, folder, tmp_path):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True, symlinks=True)
    (tmp_path / "runs").mkdir()
    (tmp_path / "vocab.txt").symlink_to(tmp_path / "model" / "tokenizer" / "vocab.txt")
    trainings = [c for c in commands(path) if c[0] in ("main", "finetune")]
    for name in MODELS:
        if not any(f"--workdir={name}" in arguments for arguments in trainings):
            (tmp_path / name).symlink_to(tmp_path / "model")
    for arguments in commands(path):
        if "--output=STORE" in arguments:
            shutil.rmtree(tmp_path / "STORE", ignore_errors=True)
        run(tmp_path, *smaller(arguments))
