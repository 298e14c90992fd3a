"""Sentence embeddings from their training to their use, beside sentence-transformers."""

import json
import random
import shutil
import signal
import sys

import jax
import numpy as np
import pytest

import bert_jax
from bert_jax import convert
from bert_jax.base.errors import UserError
from bert_jax.commands.finetune import finetune, open_task_setup
from bert_jax.commands.score_file import score_file
from bert_jax.config.finetuning import filled_in, validate
from bert_jax.finetuning import build
from bert_jax.finetuning.first_state import other_settings
from bert_jax.heads import load_head
from bert_jax.inference.embeddings import score_pairs
from bert_jax.interop import formats
from bert_jax.interop.embedding import Embedding
from bert_jax.interop.families.bert import BERT
from bert_jax.interop.names import export_weights, foreign_names
from bert_jax.interop.weights import flatten, model_shapes, unflatten
from bert_jax.tasks.retrieval import read_pairs
from bert_jax.training.metrics import read_metrics
from bert_jax.training.stages import Stage, curve_of_run
from tests import runs
from tests.golden.inputs import embedding_batch, read_golden, section
from tests.interop.small_bert import make_pretrained, same_weights
from tests.interop.test_sentence_transformers import write as write_modules
from tests.parallel.processes import finish, free_address

FINETUNE = [sys.executable, "-m", "bert_jax.finetune"]

OVERRIDES = {
    "dtype": "float32",
    "data.max_seq_length": 16,
    "embedding.query_prompt": "the ",
    "embedding.dims": (0, 12),
    "train.batch_size": 16,
    "train.num_epochs": 3.0,
    "train.gradient_accumulation_steps": 2,
    "schedule.peak_learning_rate": 1e-2,
    "optimizer.bias_correction": True,
    "checkpoint.every_steps": 8,
    "eval.every_steps": 8,
}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Writes rows whose positive has two of the anchor's letters; returns the folder."""
    folder, letters = tmp_path_factory.mktemp("pairs"), random.Random(0)
    for split, count in (("train", 128), ("validation", 24)):
        lines = []
        for _ in range(count):
            kept, other = letters.choices("abcde", k=2), letters.choices("fghij", k=2)
            texts = kept + other[:1], other[1:] + kept, letters.choices("abcdefghij", k=4)
            names = ("anchor", "positive", "negative")
            lines.append(json.dumps({n: " ".join(t) for n, t in zip(names, texts, strict=True)}))
        (folder / f"{split}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder


def config(bert, data, **overrides):
    found = bert_jax.load_config("finetune/embedding")
    values = OVERRIDES | {key.replace("__", "."): value for key, value in overrides.items()}
    found.update_from_flattened_dict({"init_from": str(bert), "data.input": str(data)} | values)
    return found


@pytest.fixture(scope="module")
def trained(bert, pairs, tmp_path_factory):
    directory = tmp_path_factory.mktemp("trained") / "run"
    finetune(config(bert, pairs), directory)
    return directory


def test_a_run_scores_before_and_after(trained):
    results = json.loads((trained / "results.json").read_text())
    lines = [line for line in read_metrics(trained) if "eval_ndcg@10" in line]
    assert [line["step"] for line in lines] == [0, 8, 16, 24]
    scores = [line["eval_ndcg@10"] for line in lines]
    assert results["before_validation"]["ndcg@10"] == scores[0]
    assert results["score"] == results["validation"]["ndcg@10"] == max(scores[1:]) > scores[0]
    assert 0.3 < results["validation"]["bm25_ndcg@10"] < 1
    losses = [line["loss"] for line in read_metrics(trained) if "loss" in line]
    assert losses[-1] < losses[0] and "ndcg@10_12" in results["validation"]
    assert "before training: " in (trained / "report.html").read_text()


@pytest.mark.parametrize(("document", "prompt"), [("", ""), ("the ", "the ")])
def test_a_run_and_evaluate_give_one_similarity(bert, pairs, tmp_path, document, prompt):
    """Both sides have the prompt of queries if documents have it too. Some texts occur twice."""
    texts = [("a b", "a"), ("a b", "b a c"), ("c d e", "a b"), ("f", "f g"), ("a", "j")]
    names, scores = ("sentence1", "sentence2", "score"), (3, 5, 1, 4, 0)
    rows = [
        dict(zip(names, (*pair, x), strict=True)) for pair, x in zip(texts, scores, strict=True)
    ]
    sts = tmp_path / "sts.jsonl"
    sts.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    run = tmp_path / "run"
    own = {"embedding__sts": str(sts), "embedding__document_prompt": document}
    results = finetune(config(bert, pairs, train__num_epochs=1.0, **own), run)
    loaded = bert_jax.load(run)
    assert loaded.embedding.prompt == prompt
    found = score_pairs(loaded, read_pairs(sts, "--sts"), loaded.embedding)
    for name in ("spearman", "pearson"):
        assert found[name] == pytest.approx(results["validation_sts"][name], abs=1e-5)
    convert.convert(str(run), str(tmp_path / "st"), "sentence_transformers")
    assert bert_jax.load(tmp_path / "st").embedding.prompt == prompt


def test_undefined_scores_are_printed_as_such_and_stored_as_null(bert, pairs, tmp_path, capsys):
    """All pairs have the same score, so that no step is better than another."""
    rows = [{"sentence1": "a b", "sentence2": text, "score": 3} for text in ("a", "c d", "e")]
    sts = tmp_path / "sts.jsonl"
    sts.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    own = {"embedding.positive_column": "", "embedding.sts": str(sts), "train.num_epochs": 2.0}
    own["train.gradient_accumulation_steps"] = 1
    found = config(bert, pairs, **own)
    results = finetune(found, tmp_path / "run")
    assert results["validation_sts"]["spearman"] is None and results["score"] is None
    assert json.loads((tmp_path / "run" / "results.json").read_text())["score"] is None
    assert results["best_step"] == results["step"] == 16
    printed = capsys.readouterr().out
    assert "warning: correlations are those of texts without the prompts, as in eval" in printed
    assert "validation spearman undefined (best: step 8)" in printed
    assert "All scores are undefined." in (tmp_path / "run" / "report.html").read_text()


def same_end(one, other):
    """Compares the results but for timings, and the best weights bit for bit."""
    results = [json.loads((path / "results.json").read_text()) for path in (one, other)]
    for values in results:
        del values["train_sequences_per_second"], values["compile_seconds"]
    assert results[0] == results[1]
    assert same_weights(formats.read(one).weights, formats.read(other).weights)


def take_its_steps(trained, directory, flags):
    """Trains in two processes, and compares the first steps with those of a finished run."""
    shared = [f"--coordinator={free_address()}", "--num_processes=2", *flags]
    commands = ([*FINETUNE, *shared, f"--process_id={number}"] for number in range(2))
    for status, _, err in finish([runs.start(command) for command in commands]):
        assert status == 0, err
    # Sums are computed in another order, and Adam amplifies the differences of rounding.
    for name in ("loss", "grad_norm"):
        ours, theirs = (
            [line[name] for line in read_metrics(path) if name in line][:2]
            for path in (directory, trained)
        )
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_a_run_goes_on_to_the_same_end(trained, tmp_path, bert, pairs):
    """As one that was stopped after its step 16."""
    copy = tmp_path / "run"
    shutil.copytree(trained, copy)
    shutil.rmtree(copy / "checkpoints" / "24")
    (copy / "results.json").unlink()
    finetune(config(bert, pairs), copy)
    same_end(trained, copy)


def arguments(directory, bert, data, **own):
    """Returns the flags of `python -m bert_jax.finetune` for such a run."""
    values = OVERRIDES | {"embedding.dims": "0,12", "init_from": bert, "data.input": data} | own
    flags = ["--config=configs/finetune/embedding.py", f"--workdir={directory}"]
    return flags + [f"--config.{key}={value}" for key, value in values.items()]


DIES = """
import os, signal, sys
import bert_jax.finetune as command
from bert_jax.config import cli
from bert_jax.finetuning import run
from bert_jax.training.recorder import Recorder

name, last = sys.argv.pop(1), int(sys.argv.pop(1))
owner, calls = Recorder if name == "dispatched" else run, []
real = getattr(owner, name)

def dies(*args, **kwargs):
    calls.append(name)
    if len(calls) == last:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*args, **kwargs)

setattr(owner, name, dies)
command.define_flags()
cli.run(command.main)
"""


# A step of each data set is compiled.
MIXED = {"train.gradient_accumulation_steps": 1}


@pytest.fixture(scope="module")
def mixed(bert, pairs, tmp_path_factory):
    """Trains on two data sets, one without negatives; returns the directory and the input."""
    folder = tmp_path_factory.mktemp("mixed")
    rows = [json.loads(line) for line in (pairs / "train.jsonl").read_text().splitlines()]
    for row in rows:
        del row["negative"]
    (folder / "bare.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows[:64]))
    data = f"train_whole={pairs}/train.jsonl,train_bare={folder}/bare.jsonl"
    data += f",validation_whole={pairs}/validation.jsonl"
    finetune(config(bert, data, **MIXED), folder / "run")
    return folder / "run", data


def test_a_run_on_several_data_sets(mixed, bert):
    """It goes on as one that was stopped after its step 32; scores have the name of their set."""
    directory, data = mixed
    results = json.loads((directory / "results.json").read_text())
    assert results["step"] == 36 and 0 < results["validation_whole"]["ndcg@10"] <= 1
    copy = directory.parent / "copy"
    shutil.copytree(directory, copy)
    shutil.rmtree(copy / "checkpoints" / "36")
    (copy / "results.json").unlink()
    finetune(config(bert, data, **MIXED), copy)
    same_end(directory, copy)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "call", "is_mixed"),
    [("dispatched", 12, False), ("predict", 3, False), ("dispatched", 12, True)],
)
def test_killed_it_ends_with_the_same_bits(
    name, call, is_mixed, trained, mixed, tmp_path, bert, pairs
):
    """The process dies in its step 12, or while it evaluates the weights of step 16."""
    trained, data = mixed if is_mixed else (trained, pairs)
    flags = arguments(tmp_path, bert, data, **MIXED if is_mixed else {})
    ended = runs.run([sys.executable, "-c", DIES, name, str(call), *flags])
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    # The checkpoint of step 8 is written in the background.
    assert runs.newest_checkpoint(tmp_path) in (0, 8)
    runs.succeed([*FINETUNE, *flags])
    same_end(trained, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("is_mixed", [False, True])
def test_two_processes_have_the_negatives_of_both(is_mixed, trained, mixed, tmp_path, bert, pairs):
    trained, data = mixed if is_mixed else (trained, pairs)
    own = MIXED if is_mixed else {}
    take_its_steps(trained, tmp_path, arguments(tmp_path, bert, data, **own))


def test_its_vectors_are_those_of_its_export(trained, tmp_path, pairs):
    ours = bert_jax.load(trained)
    assert ours.embedding._replace(library={}) == Embedding("mean", True, 16, library={})
    assert (ours.embedding.for_queries().prompt, ours.embedding.prompt) == ("the ", "")
    out = tmp_path / "st"
    assert convert.convert(str(trained), str(out), "sentence_transformers", dimension=12) == []
    theirs = bert_jax.load(out)
    assert theirs.embedding.prompts == {"query": "the ", "document": ""}
    texts = ["a b c", "d e f g"]
    vectors = ours.encode(texts, prompt_name="query")
    np.testing.assert_allclose(
        theirs.encode(texts, prompt_name="query"), vectors[:, :12], atol=3e-7
    )
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    # The scores of the run are those of these vectors.
    results = json.loads((trained / "results.json").read_text())
    found = score_file(trained, pairs / "validation.jsonl")
    assert found["ndcg@10"] == pytest.approx(results["score"], abs=1e-6)
    # Another run begins with its encoder.
    again = formats.read(trained)
    given = config(trained, "", embedding__query_prompt="a")
    (warning,) = other_settings(filled_in(given, again.model, "embedding", ()), again)
    assert warning.startswith("config.embedding.query_prompt is 'a', but 'the ' in ")
    assert not again.head and all(name.startswith("bert/") for name in again.weights)


def test_a_run_whose_pooling_leaves_out_the_prompts(bert, pairs, tmp_path):
    """Vectors of training, which the run writes for its validation rows, are those of encode."""
    options = {"embedding__include_prompt": False, "embedding__pooling": "cls"}
    options |= {"eval__predict": "all", "train__num_epochs": 1.0}
    options["train__gradient_accumulation_steps"] = 1
    finetune(config(bert, pairs, **options), tmp_path)
    ours = bert_jax.load(tmp_path)
    assert (ours.embedding.include_prompt, ours.embedding.pooling) == (False, "cls")
    lines = (pairs / "validation.jsonl").read_text().splitlines()
    anchors = list(dict.fromkeys(json.loads(line)["anchor"] for line in lines))
    written_MxD = np.load(tmp_path / "predictions" / "validation.npy")
    found = ours.encode(anchors, prompt_name="query", normalize=False)
    np.testing.assert_allclose(found, written_MxD[: len(anchors)], atol=1e-5)
    states = ours.encode([f"the {anchor}" for anchor in anchors], pooling="tokens")
    # [CLS] and "the" come before the first token of an anchor.
    np.testing.assert_allclose(found, [x[2] for x in states], atol=1e-5)


@pytest.fixture(scope="module")
def sentences(tmp_path_factory):
    """Writes pairs with a score and a class; returns the file, and its columns as keys."""
    letters, rows = random.Random(1), []
    for _ in range(64):
        first, second = (letters.choices("abcdef", k=3) for _ in range(2))
        score = len({*first} & {*second})
        rows.append((" ".join(first), " ".join(second), score, "yes" if score else "no"))
    lines = ["sentence1\tsentence2\tscore\tlabel", *("\t".join(map(str, row)) for row in rows)]
    path = tmp_path_factory.mktemp("sentences") / "sts.tsv"
    path.write_text("".join(f"{line}\n" for line in lines))
    columns = {"embedding.anchor_column": "sentence1", "embedding.positive_column": "sentence2"}
    return path, columns | {"train.num_epochs": 1.0, "embedding.dims": (0,)}


def test_a_guide_leaves_out_what_it_ranks_above_the_positive(bert, pairs, tmp_path):
    """The batches have the vectors that `encode` gives, with the prompts of the guide."""
    guide = tmp_path / "guide"
    formats.write(make_pretrained(hidden_size=24, num_hidden_layers=1), guide, "huggingface")
    write_modules(guide)
    prompts = {"prompts": {"query": "a ", "document": ""}}
    (guide / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    given = config(bert, pairs, embedding__guide=str(guide), train__num_epochs=1.0)
    setup = open_task_setup(given)
    batch = setup.training_rows.draw(np.array([5, 0]), 0, 0)
    lines = (pairs / "train.jsonl").read_text().splitlines()
    rows = [json.loads(lines[number]) for number in (5, 0)]
    loaded = bert_jax.load(guide)
    queries = loaded.encode_query([row["anchor"] for row in rows], normalize=True)
    np.testing.assert_allclose(batch["guide_queries"], queries, atol=1e-6)
    for column, name in enumerate(("positive", "negative")):
        texts = [row[name] for row in rows]
        vectors = loaded.encode_document(texts, normalize=True)
        np.testing.assert_allclose(batch["guide_documents"][:, column], vectors, atol=1e-6)
    # They are no part of the identity of the data, which does not depend on hardware.
    assert "guide_queries" not in setup.task.rows("train").take(np.array([0]))
    plain = config(bert, pairs, train__num_epochs=1.0)
    for name, values in (("guided", given), ("plain", plain)):
        finetune(values, tmp_path / name)
    guided, plain = (
        [line["loss"] for line in read_metrics(tmp_path / name) if "loss" in line][0]
        for name in ("guided", "plain")
    )
    assert guided < plain
    shutil.rmtree(guide / "1_Pooling")
    with pytest.raises(UserError, match="guide is .*guide, which does not say how it pools"):
        finetune(given, tmp_path / "run")


@pytest.mark.slow
def test_pairs_with_numbers_decide_by_spearman(sentences, tmp_path, bert):
    path, values = sentences
    values = {**values, "embedding.loss": "cosent", "embedding.label_column": "score"}
    results = finetune(config(bert, f"train={path}", **values), tmp_path / "run")
    assert results["metric"] == "spearman" and -1 <= results["score"] <= 1


@pytest.mark.slow
def test_classes_need_another_file_and_leave_no_layer(sentences, tmp_path, bert):
    path, values = sentences
    values = {**values, "embedding.loss": "softmax", "embedding.sts": str(path)}
    results = finetune(config(bert, f"train={path}", **values), tmp_path / "run")
    assert results["validation_sts"].keys() == {"spearman", "pearson"}
    assert all(name.startswith("bert/") for name in formats.read(tmp_path / "run").weights)


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["mnr", "margin_mse"])
def test_twenty_steps_are_those_of_sentence_transformers(loss):
    golden, model_golden = read_golden("embeddings"), read_golden("model_gelu")
    expected, weights = section(golden, f"training_{loss}"), section(model_golden, "weights")
    shape = json.loads(str(model_golden["config"]))
    pretrained = make_pretrained(**{key: shape[key] for key in shape if key != "hidden_act"})
    given = config("", "", schedule__shape="linear_after_warmup", schedule__warmup_steps=2.0)
    given.update_from_flattened_dict(
        {
            "train.batch_size": 8,
            "embedding.loss": loss,
            "embedding.normalize": False,
            "embedding.dims": (0,),
            "embedding.mask_duplicates": False,
            "optimizer.eps": 1e-8,
            "schedule.peak_learning_rate": 1e-3,
            "model.hidden_dropout_prob": 0.0,
            "model.attention_probs_dropout_prob": 0.0,
            "data.max_seq_length": 9,
        }
    )
    given = filled_in(given, pretrained.model, "embedding", (), dtype="float32")
    stage = Stage(0, 0, 20, 9, 0, 4 * 8, 0.0, 0.01, curve_of_run(given.schedule, 20))
    trainer = build.make_trainer(given, stage)
    names = foreign_names(BERT.names, "huggingface", 3)
    shapes = model_shapes(trainer.model)
    initial = {key: names[key].restore(weights[names[key].name], shapes[key]) for key in shapes}
    state, losses = trainer.state_of(unflatten(initial, trainer.model_config)), []
    numbers = {
        "query_numbers": np.zeros(8, np.int32),
        "document_numbers": np.zeros((8, 3), np.int32),
    }

    def batches():
        for step in range(20):
            batch = embedding_batch(step) | numbers
            yield batch | {"labels": batch.pop("scores")}

    for batch in trainer.put(batches()):
        state, metrics = trainer.train_step(state, batch)
        losses.append(float(metrics["loss"]))
    np.testing.assert_allclose(losses, expected["losses"], rtol=2e-6, atol=1e-5)
    assert losses[-1] < losses[0] - 0.5
    final = dict(export_weights(flatten(jax.device_get(state.params), trainer.model_config), names))
    for name in expected.keys() - {"losses"}:
        np.testing.assert_allclose(final[name], expected[name], atol=1e-4, err_msg=name)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"train.batch_size": 1}, "this loss compares the rows of a batch"),
        ({"embedding.dims": (0, 4, 4)}, "dims is .*: each width must be there once"),
        ({"embedding.dim_weights": (1.0, 2.0, 3.0)}, "dim_weights is .* one weight for each of"),
        (
            {"embedding.loss": "cosent", "embedding.symmetric": True},
            "symmetric is True .* the former has no",
        ),
        (
            {"embedding.symmetric": True, "embedding.same_side": True},
            "same_side is True: same_side incl",
        ),
        (
            {
                "embedding.positive_column": "",
                "model.hidden_dropout_prob": 0.0,
                "model.attention_probs_dropout_prob": 0.0,
            },
            "without dropout both vectors",
        ),
        (
            {"embedding.set_weights": "a=1", "data.input": "train=data/train_a.jsonl"},
            "set_weights is 'a=1'.*these are for several data sets",
        ),
        (
            {"embedding.positive_column": "", "embedding.loss": "cosent"},
            "'cosent': this loss needs two texts",
        ),
        (
            {"embedding.negative_columns": ("n",), "embedding.loss": "cosent"},
            "'cosent': the former has no effect unless the latter is mnr or triplet",
        ),
    ],
)
def test_configs_that_are_refused(values, words):
    with pytest.raises(UserError, match=words):
        validate(config("x", "y", **values))


def test_the_batch_that_is_compiled_is_that_of_the_rows(bert, pairs):
    given = config(bert, pairs)
    setup = open_task_setup(given)
    rows, filled = setup.task.rows("train"), filled_in(given, setup.model, "embedding", ())
    fields = dict(load_head("embedding").batch_fields(filled, 1 + rows.num_documents))
    # These rows have no labels, which the compiled step takes all the same.
    assert fields.pop("labels") == ((given.train.batch_size,), np.float32)
    batch = rows.take(np.arange(given.train.batch_size))
    assert fields == {name: (x.shape, x.dtype) for name, x in batch.items()}
    filled.embedding.loss = "kl"
    assert load_head("embedding").batch_fields(filled, 4)["labels"] == ((16, 3), np.float32)


def test_models_and_rows_that_do_not_fit(bert, pairs):
    given = config(bert, pairs, train__batch_size=128)
    setup = open_task_setup(given)
    rows = setup.task.rows("train")

    def check(model=None, **values):
        filled = filled_in(given, setup.model | (model or {}), "embedding", ())
        filled.update_from_flattened_dict(values)
        return setup.task.check(filled)

    assert check() == [
        f"config.train.batch_size is 128, but there are only {rows.num_positives} different "
        "positives: many rows of a batch have equal texts, which are no negatives"
    ]
    found = check(**{"embedding.dims": (12,)})
    assert "without 0 or 24: the loss has no whole vectors" in found[0]
    with pytest.raises(UserError, match="have 24 values"):
        check(**{"embedding.dims": (0, 25)})
    for model, pooling in (({"num_decoder_layers": 1}, "mean"), ({"causal": True}, "cls")):
        with pytest.raises(UserError, match="has a decoder, or whose first token"):
            check(model, **{"embedding.pooling": pooling})
