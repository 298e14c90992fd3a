"""Sparse and multi-vector embeddings from their training to their use."""

import gc
import json
import random
import shutil
import signal
import sys
import weakref

import jax
import numpy as np
import pytest
from scipy import sparse

import bert_jax
from bert_jax.base.errors import UserError
from bert_jax.commands.finetune import finetune, open_task_setup
from bert_jax.commands.score_file import score_file
from bert_jax.config.finetuning import filled_in, validate
from bert_jax.finetuning.run import make_run
from bert_jax.heads import load_head
from bert_jax.inference.embeddings import score_retrieval
from bert_jax.interop import formats
from bert_jax.interop.weights import flatten
from bert_jax.tasks.embedding_rows import ScoredRows
from bert_jax.tasks.retrieval import make_retrieval
from bert_jax.training.metrics import read_metrics
from tests import runs
from tests.finetuning.test_embedding import DIES, FINETUNE, same_end, take_its_steps
from tests.interop.small_bert import TOKENS, edit_tensors

KINDS = ("sparse", "multi_vector")
OVERRIDES = {
    "dtype": "float32",
    # Chunks of a batch have the loss of the batch.
    "model.hidden_dropout_prob": 0.0,
    "model.attention_probs_dropout_prob": 0.0,
    "data.max_seq_length": 16,
    "train.batch_size": 16,
    "train.num_epochs": 3.0,
    "train.gradient_accumulation_steps": 2,
    "schedule.peak_learning_rate": 1e-2,
    "checkpoint.every_steps": 8,
    "eval.every_steps": 8,
    "eval.batch_size": 7,
    "eval.predict": "all",
}
OWN = {
    "sparse": {"embedding.query_flops": 1e-3, "embedding.document_flops": 1e-3},
    "multi_vector": {
        "embedding.width": 8,
        "embedding.query_length": 8,
        "schedule.peak_learning_rate": 3e-3,
    },
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Writes rows whose positive has two of the anchor's letters, with a teacher's scores."""
    folder, letters = tmp_path_factory.mktemp("data"), random.Random(0)
    for split, count in (("train", 128), ("validation", 24)):
        lines = []
        for _ in range(count):
            kept, other = letters.choices("abcde", k=2), letters.choices("fghij", k=2)
            row = {
                "query": " ".join(kept + other[:1]),
                "positive": " ".join([*other[1:], *kept, "."]),
                "negative": [" ".join(letters.choices("abcdefghij", k=4)) for _ in range(2)],
                "scores": [letters.uniform(2, 4), *(letters.uniform(-2, 2) for _ in range(2))],
            }
            lines.append(json.dumps(row))
        (folder / f"{split}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder


def num_queries(data):
    """Returns the number of different queries of the validation set."""
    return len({json.loads(line)["query"] for line in (data / "validation.jsonl").open()})


def config(kind, bert, data, recipe="", **overrides):
    found = bert_jax.load_config(f"finetune/{kind}" + f":{recipe}" * bool(recipe))
    values = OVERRIDES | OWN[kind]
    values |= {key.replace("__", "."): value for key, value in overrides.items()}
    found.update_from_flattened_dict({"init_from": str(bert), "data.input": str(data)} | values)
    return found


@pytest.fixture(scope="module", params=KINDS)
def trained(request, bert, data, tmp_path_factory):
    """Returns the kind and the work directory of a finished run."""
    directory = tmp_path_factory.mktemp(request.param) / "run"
    finetune(config(request.param, bert, data), directory)
    return request.param, directory


def test_a_run_learns_and_its_vectors_are_scored_and_written(trained, data):
    kind, directory = trained
    results = json.loads((directory / "results.json").read_text())
    lines = read_metrics(directory)
    scores = [line["eval_ndcg@10"] for line in lines if "eval_ndcg@10" in line]
    assert len(scores) == 4 and max(scores[1:]) == results["score"] > scores[0]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses[-1] < losses[0]
    found = score_file(directory, data / "validation.jsonl")
    assert found["ndcg@10"] == pytest.approx(results["score"], abs=1e-6)
    predictions = directory / "predictions" / "validation.npz"
    if kind == "sparse":
        number = results["validation"]["query_active_dims"]
        assert {"query_flops", "document_active_dims"} <= lines[1].keys() and 0 < number < 28
        vectors, count = sparse.load_npz(predictions), num_queries(data)
        assert vectors.shape[1] == len(TOKENS)
        assert vectors[:count].nnz == pytest.approx(count * number)
        return
    arrays = np.load(predictions)
    lengths = np.diff(arrays["starts"])
    # Queries are filled with [MASK]s; a document has [CLS], [D], letters and [SEP].
    assert set(lengths[:20]) == {8} and set(lengths[-5:]) <= {7, 6}
    np.testing.assert_allclose(np.linalg.norm(arrays["vectors"], axis=1), 1, atol=1e-5)


def test_the_loaded_run_has_the_scores_of_its_training(trained, data):
    """Queries and documents have the prompts, lengths and [MASK]s of the run."""
    _, directory = trained
    rows = [json.loads(line) for line in (data / "validation.jsonl").open()]
    documents = {text: text for row in rows for text in (row["positive"], *row["negative"])}
    judged = {}
    for row in rows:
        judged.setdefault(row["query"], {})[row["positive"]] = 1
    bert = bert_jax.load(directory)
    found = score_retrieval(
        bert, make_retrieval(documents, {q: q for q in judged}, judged), bert.embedding_with()
    )
    expected = json.loads((directory / "results.json").read_text())["validation"]
    # Equal scores of BM25 are in the order of the ids, which are others here.
    names = [name for name in expected if not name.startswith("bm25")]
    assert {name: found[name] for name in names} == pytest.approx(
        {name: expected[name] for name in names}, abs=1e-5
    )


def test_its_weights_are_kept_and_another_run_begins_with_them(trained, data, tmp_path, capsys):
    kind, directory = trained
    first = formats.read(directory)
    weights = first.weights
    own = {"sparse": "mlm/output_bias", "multi_vector": "projection/kernel"}[kind]
    assert own in weights and not first.head
    given = config(kind, directory, data)
    run = make_run(given, tmp_path / "run", open_task_setup(given))
    state, _ = run.first_state()
    again = flatten(jax.device_get(state.params), run.trainer.model_config)
    assert again.keys() == weights.keys()
    assert all(np.array_equal(again[name], weights[name]) for name in weights)
    assert "warning: config.embedding" not in capsys.readouterr().out
    other = {"sparse": {"double_log": True}, "multi_vector": {"mean_maxsim": True}}[kind]
    given.embedding.update(other)
    make_run(given, tmp_path / "run", open_task_setup(given)).first_state()
    ((key, value),) = other.items()
    assert f"warning: config.embedding.{key} is {value!r}, but " in capsys.readouterr().out
    if kind == "multi_vector":
        given.embedding.width = 9
        run = make_run(given, tmp_path / "other", open_task_setup(given))
        with pytest.raises(UserError, match="config.embedding.width is 9, but 8 in .*/run, whose"):
            run.first_state()


def test_markers_are_tokens_whose_rows_are_the_mean(bert, data, tmp_path, capsys):
    """A run that goes on reads the same ones."""
    given = config("multi_vector", bert, data)
    setup = open_task_setup(given)
    assert "added to the vocabulary: '[Q] ', '[D] '" in capsys.readouterr().out
    assert setup.tokenizer.tokens[-2:] == ["[Q] ", "[D] "]
    assert setup.tokenizer.vocab_size == setup.model["vocab_size"] == len(TOKENS) + 2
    weights, before = setup.read_weights().weights, formats.read(bert).weights
    name = "bert/embeddings/word_embeddings"
    np.testing.assert_allclose(weights[name][-2:], [before[name].mean(0)] * 2, atol=1e-7)
    batch = setup.task.rows("train").take(np.arange(4))
    assert batch["input_ids"].shape == (4, 8) and batch["document_ids"].shape == (4, 3, 16)
    cls, query, document = setup.tokenizer.cls_id, len(TOKENS), len(TOKENS) + 1
    assert np.all(batch["input_ids"][:, :2] == [cls, query])
    assert np.all(batch["document_ids"][..., :2] == [cls, document])
    # A marker that the vocabulary has is not added.
    given = config("multi_vector", bert, data, embedding__query_prompt="the ")
    assert open_task_setup(given).tokenizer.tokens[-2:] == [TOKENS[-1], "[D] "]


def test_a_batch_is_of_one_side_and_no_padded_array_is_kept(trained, data, monkeypatch):
    kept, seen = [], []
    compact, take = ScoredRows.compact, ScoredRows.take

    def recorded(rows, outputs, vocab_size):
        gc.collect()
        # The one before may still wait for its end.
        assert sum(reference() is not None for reference in kept) <= 1
        kept.append(weakref.ref(outputs["embeddings"]))
        return compact(rows, outputs, vocab_size)

    def taken(rows, indices):
        batch = take(rows, indices)
        seen.append((indices.tolist(), "is_query" in batch))
        return batch

    monkeypatch.setattr(ScoredRows, "compact", recorded)
    monkeypatch.setattr(ScoredRows, "take", taken)
    # The many objects of the test run would make each collection slow.
    gc.freeze()
    score_file(trained[1], data / "validation.jsonl")
    gc.collect()
    gc.unfreeze()
    assert len(kept) > 4 and not any(reference() is not None for reference in kept)
    number = num_queries(data)
    batches = [x for x in seen if len(x[0]) == 7]
    assert all((indices[0] < number) == is_query for indices, is_query in batches)
    assert all((min(x) < number) == (max(x) < number) for x, _ in batches)


def test_chunks_have_the_loss_of_the_batch(trained, bert, data, tmp_path):
    kind, losses = trained[0], []
    for chunks in (1, 2):
        given = config(kind, bert, data, train__gradient_accumulation_steps=chunks)
        run = make_run(given, tmp_path / str(chunks), open_task_setup(given))
        _, metrics = run.trainer.train_step(run.first_state()[0], next(run.batches(0))[1])
        losses.append([float(metrics[name]) for name in ("loss", "grad_norm")])
    np.testing.assert_allclose(*losses, rtol=1e-5)


def test_a_run_goes_on_to_the_same_end(trained, tmp_path, bert, data):
    kind, directory = trained
    copy = tmp_path / "run"
    shutil.copytree(directory, copy)
    shutil.rmtree(copy / "checkpoints" / "24")
    (copy / "results.json").unlink()
    finetune(config(kind, bert, data), copy)
    same_end(directory, copy)


def flags(kind, directory, bert, data):
    values = OVERRIDES | OWN[kind] | {"init_from": bert, "data.input": data}
    first = [f"--config=configs/finetune/{kind}.py", f"--workdir={directory}"]
    return first + [f"--config.{key}={value}" for key, value in values.items()]


@pytest.mark.slow
def test_killed_it_ends_with_the_same_bits(trained, tmp_path, bert, data):
    kind, directory = trained
    given = flags(kind, tmp_path, bert, data)
    ended = runs.run([sys.executable, "-c", DIES, "dispatched", "12", *given])
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    runs.succeed([*FINETUNE, *given])
    same_end(directory, tmp_path)


@pytest.mark.slow
def test_two_processes_take_the_steps_of_one(trained, tmp_path, bert, data):
    kind, directory = trained
    take_its_steps(directory, tmp_path, flags(kind, tmp_path, bert, data))


def test_static_queries_have_weights_with_a_rate_of_their_own(bert, data, tmp_path):
    given = config("sparse", bert, data, "inference_free", train__num_epochs=1.0)
    given.embedding.query_flops = 0.0
    run = make_run(given, tmp_path / "run", open_task_setup(given))
    state, _ = run.first_state()
    before = np.array(state.params["query_weights"])
    assert np.all(before[: len(TOKENS)] == 1)
    bias = np.array(state.params["mlm"]["transform"]["bias"])
    state, _ = run.trainer.train_step(state, next(run.batches(0))[1])
    moved = np.abs(np.array(state.params["query_weights"]) - before)
    # Adam's first step is the rate, here 1e-3 and 1e-2, times the fraction of the warm-up.
    others = np.abs(np.array(state.params["mlm"]["transform"]["bias"]) - bias)
    assert moved.max() == pytest.approx(others.max() / 10, rel=1e-2)
    special = [run.setup.tokenizer.cls_id, run.setup.tokenizer.sep_id]
    assert not moved[special].any()
    results = finetune(given, tmp_path / "run")
    # The three letters of a query, of which some are equal.
    assert 2 < results["validation"]["query_active_dims"] <= 3
    bert = bert_jax.load(tmp_path / "run")
    weights = bert.encode_query(["a b b"]).toarray()[0]
    letters = [bert.tokenizer.ids[letter] for letter in "ab"]
    assert np.flatnonzero(weights).tolist() == letters
    np.testing.assert_allclose(weights[letters], 1, atol=0.1)


def test_a_sparse_model_needs_a_trained_head(bert, data, tmp_path):
    tensors = tmp_path / "hf"
    shutil.copytree(bert, tensors)
    edit_tensors(tensors, lambda found: [found.pop(x) for x in [*found] if x.startswith("cls.")])
    given = config("sparse", tensors, data)
    with pytest.raises(UserError, match="kind is sparse, but .* has no masked-LM head: pre-tr"):
        make_run(given, tmp_path / "run", open_task_setup(given)).first_state()


@pytest.mark.parametrize(
    ("kind", "values", "words"),
    [
        ("sparse", {"embedding.loss": "cosent"}, "this kind is trained with mnr, margin_mse, kl"),
        ("sparse", {"embedding.dims": (0, 8)}, "former has no effect unless the latter is dense"),
        ("sparse", {"embedding.pooling": "cls"}, "former has no effect unless the latter is dense"),
        ("sparse", {"embedding.expansion": "none"}, "no effect unless the latter is multi_vector"),
        ("sparse", {"embedding.static_queries": True}, "only its own tokens; set query_flops to 0"),
        ("sparse", {"embedding.query_learning_rate": 0.1}, "unless the latter is True"),
        ("multi_vector", {"embedding.query_flops": 1.0}, "effect unless the latter is sparse"),
        ("multi_vector", {"embedding.normalize": False}, "effect unless the latter is dense"),
        ("multi_vector", {"embedding.symmetric": True}, "documents are not compared with one anot"),
        ("multi_vector", {"embedding.query_length": 4}, "query_length is 4; it must be at least 5"),
        ("multi_vector", {"embedding.query_length": 513}, "at least 5 and at most 512"),
    ],
)
def test_configs_that_are_refused(kind, values, words):
    with pytest.raises(UserError, match=words):
        validate(config(kind, "x", "y", **values))


def test_models_that_do_not_fit(bert, data):
    given = config("multi_vector", bert, data, embedding__query_length=41)
    setup = open_task_setup(given)

    def check(**model):
        return setup.task.check(filled_in(given, setup.model | model, setup.task.head, ()))

    with pytest.raises(UserError, match="query_length is 41, longer than the 40 positions"):
        check()
    with pytest.raises(UserError, match="expansion is masked, but .* has no mask; set it to none"):
        check(max_position_embeddings=50, vocab_size=4)


def test_rows_and_scores_of_a_teacher_that_are_described(bert, data):
    given = config("multi_vector", bert, data, embedding__loss="kl", embedding__query_length=5)
    setup = open_task_setup(given)
    rows, filled = setup.task.rows("train"), filled_in(given, setup.model, "multi_vector", ())
    # Three letters, [CLS], [Q] and [SEP] are six tokens.
    assert "are truncated to 5 tokens (config.embedding.query_length)" in rows.truncated()
    cut = setup.task.rows("validation").truncated()
    assert cut.endswith(" sequences are truncated to 5 tokens (config.embedding.query_length)")
    assert setup.task.check(filled) == []
    # Queries may be longer than documents.
    longer = config("multi_vector", bert, data, data__max_seq_length=5)
    scored = open_task_setup(longer).task.rows("validation")
    assert set(scored.take(np.arange(30))["attention_mask"].sum(1).tolist()) == {6, 5}
    assert scored.truncated().endswith(" truncated to 5 tokens (config.data.max_seq_length)")
    rows.scores_M[3:6] = 60, -30, 0
    (warning,) = setup.task.check(filled)
    assert "differ by up to 90 in a row, and the lowest probabilities are 0" in warning


def test_what_the_weights_of_flops_make_of_the_vectors_is_said(bert, data, capsys):
    setup = open_task_setup(config("sparse", bert, data))
    rows = setup.task.rows("validation")
    dense = sparse.csr_array(np.ones((len(rows), 28), np.float32))
    scores = rows.score(dense)
    assert scores["corpus_active_dims"] == 28
    (warning,) = setup.task.warnings_of(scores)
    assert "have 28 active dimensions, more than a tenth" in warning
    assert "warning" not in capsys.readouterr().out
    scores = rows.score(sparse.csr_array(dense.shape, dtype=np.float32))
    assert "all vectors of documents are zero" in capsys.readouterr().out
    assert not setup.task.warnings_of(scores)


@pytest.mark.parametrize("kind", KINDS)
def test_the_batch_that_is_compiled_is_that_of_the_rows(kind, bert, data):
    given = config(kind, bert, data, embedding__loss="kl")
    setup = open_task_setup(given)
    filled = filled_in(given, setup.model, setup.task.head, ())
    batch = setup.task.rows("train").take(np.arange(given.train.batch_size))
    fields = load_head(setup.task.head).batch_fields(filled, 4)
    assert fields == {name: (x.shape, x.dtype) for name, x in batch.items()}
