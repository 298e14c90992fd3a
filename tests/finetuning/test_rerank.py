"""Rerankers from their training to their use, beside sentence-transformers."""

import json
import random
import signal
import sys

import numpy as np
import pytest
from scipy.special import expit

import bert_jax
from bert_jax.base.errors import UserError
from bert_jax.commands.finetune import finetune, open_task_setup
from bert_jax.commands.score_file import score_file
from bert_jax.config.finetuning import filled_in, validate
from bert_jax.convert import convert
from bert_jax.finetuning.batches import rows_of_step
from bert_jax.finetuning.run import make_run
from bert_jax.heads import load_head
from bert_jax.interop import formats
from bert_jax.interop.weights import flatten
from bert_jax.models.task_models import BertForMultipleChoice
from bert_jax.training.metrics import read_metrics
from tests import runs
from tests.finetuning.test_embedding import DIES, FINETUNE, same_end, take_its_steps
from tests.interop.small_bert import copies, make_finetuned, same_weights
from tests.tasks.test_beir import write as write_retrieval

OVERRIDES = {
    "dtype": "float32",
    "data.max_seq_length": 16,
    "rerank.num_negatives": 3,
    "rerank.query_prompt": "the ",
    "train.batch_size": 16,
    "train.num_epochs": 3.0,
    "train.gradient_accumulation_steps": 2,
    "schedule.peak_learning_rate": 1e-2,
    "checkpoint.every_steps": 8,
    "eval.every_steps": 8,
    "eval.predict": "all",
}


@pytest.fixture(scope="module")
def lists(tmp_path_factory):
    """Writes queries whose positives have an "a"; returns the folder."""
    folder, letters = tmp_path_factory.mktemp("lists"), random.Random(0)

    def document(first):
        words = [first, *letters.choices("cdefghij", k=letters.randint(2, 4))]
        return " ".join(letters.sample(words, len(words)))

    for split, count in (("train", 128), ("validation", 24)):
        lines = []
        for number in range(count):
            query = " ".join("cdefghij"[int(digit)] for digit in f"{number:03o}")
            others = [document("b") for _ in range(letters.randint(2, 5))]
            row = {"query": query, "positive": document("a"), "negative": others}
            if split == "validation":
                documents = [*others, document("a")]
                labels = [0] * len(others) + [1]
                row = {"query": query, "documents": documents, "labels": labels}
            lines.append(json.dumps(row))
        (folder / f"{split}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    corpus = {str(i): document("ab"[i % 2]) for i in range(10)}
    qrels = [f"{i} {i} 1" for i in range(0, 10, 2)]
    write_retrieval(folder / "beir", corpus, {i: corpus[i][:3] for i in corpus}, qrels)
    return folder


def config(bert, data, **overrides):
    found = bert_jax.load_config("finetune/rerank")
    values = OVERRIDES | {key.replace("__", "."): value for key, value in overrides.items()}
    found.update_from_flattened_dict({"init_from": str(bert), "data.input": str(data)} | values)
    return found


@pytest.fixture(scope="module")
def trained(bert, lists, tmp_path_factory):
    directory = tmp_path_factory.mktemp("trained") / "run"
    finetune(config(bert, lists, rerank__retrieval=str(lists / "beir")), directory)
    return directory


def test_a_run_learns_and_is_scored_beside_the_first_stage(trained):
    results = json.loads((trained / "results.json").read_text())
    lines = [line for line in read_metrics(trained) if "eval_ndcg@10" in line]
    assert [line["step"] for line in lines] == [0, 8, 16, 24]
    scores = [line["eval_ndcg@10"] for line in lines]
    assert results["score"] == results["validation"]["ndcg@10"] == max(scores[1:]) > scores[0]
    # The positive is the last of three to six documents.
    first = results["validation"]["first_ndcg@10"]
    assert 1 / np.log2(7) < first < 1 / np.log2(4) < results["score"]
    assert {line["eval_first_ndcg@10"] for line in lines} == {first}
    assert {"ndcg@10", "first_ndcg@10"} <= results["validation_retrieval"].keys()
    losses = [line["loss"] for line in read_metrics(trained) if "loss" in line]
    assert losses[-1] < losses[0]


def flags(directory, bert, data):
    values = OVERRIDES | {"init_from": bert, "data.input": data}
    values["rerank.retrieval"] = data / "beir"
    first = ["--config=configs/finetune/rerank.py", f"--workdir={directory}"]
    return first + [f"--config.{key}={value}" for key, value in values.items()]


@pytest.mark.slow
def test_killed_it_ends_with_the_same_bits(trained, tmp_path, bert, lists):
    """The process dies in its step 12; the draws of later steps are the same."""
    given = flags(tmp_path, bert, lists)
    ended = runs.run([sys.executable, "-c", DIES, "dispatched", "12", *given])
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    runs.succeed([*FINETUNE, *given])
    same_end(trained, tmp_path)


@pytest.mark.slow
def test_two_processes_take_the_steps_of_one(trained, tmp_path, bert, lists):
    take_its_steps(trained, tmp_path, flags(tmp_path, bert, lists))


def test_its_head_is_kept_and_another_run_goes_on_from_it(trained, bert, lists, tmp_path, capsys):
    first, again = formats.read(trained), tmp_path / "run"
    assert (first.head, first.labels) == ("sequence_classification", ())
    results = finetune(config(trained, lists, train__num_epochs=0.2), again)
    assert f"the head of {trained} is kept" in capsys.readouterr().out
    ours, before = json.loads((trained / "results.json").read_text()), results["before_validation"]
    assert before["ndcg@10"] == pytest.approx(ours["score"])


@pytest.mark.parametrize("family", ["bert", "xlm_roberta"])
def test_the_head_of_a_released_reranker_is_kept(family, lists, tmp_path):
    """Its directory has no modules.json; that of XLM-R says nothing of an activation either."""
    pretrained = make_finetuned("sequence_classification", family=family)
    pretrained.activation = "identity" if family == "bert" else ""
    weights = copies(pretrained.weights)
    formats.write(pretrained, tmp_path / "released", "huggingface")
    given = config(tmp_path / "released", lists)
    state, _ = make_run(given, tmp_path / "run", open_task_setup(given)).first_state()
    assert same_weights(flatten(state.params, pretrained.model_config), weights)


def test_another_prompt_than_that_of_a_reranker_is_said(trained, lists, tmp_path, capsys):
    given = config(trained, lists, rerank__query_prompt="a ")
    make_run(given, tmp_path / "run", open_task_setup(given)).first_state()
    said = f"warning: config.rerank.query_prompt is 'a ', but 'the ' in {trained}"
    assert said in " ".join(capsys.readouterr().out.split())


def test_in_sentence_transformers_it_has_its_prompt(trained, tmp_path):
    assert convert(str(trained), str(tmp_path / "st"), "sentence_transformers") == []
    bert, again = map(bert_jax.load, (trained, tmp_path / "st"))
    assert (again.embedding.prompt, again.activation, again.max_length) == ("the ", "sigmoid", 16)
    assert again.rerank("c d", ["e a", "f b"]) == bert.rerank("c d", ["e a", "f b"])
    # `transformers` has no place for the prompt.
    (warning,) = convert(str(trained), str(tmp_path / "hf"), "huggingface")
    assert "its prompt, 'the ', is left out" in warning


def test_it_ranks_as_it_was_scored(trained, lists):
    """The prompt and the activation are those of training."""
    results = json.loads((trained / "results.json").read_text())
    found = score_file(trained, lists / "validation.jsonl")
    assert found["ndcg@10"] == pytest.approx(results["score"], abs=1e-6)
    rows = [json.loads(line) for line in (lists / "validation.jsonl").read_text().splitlines()]
    written = (trained / "predictions" / "validation_predictions.jsonl").read_text().splitlines()
    bert = bert_jax.load(trained)
    assert bert.activation == "sigmoid"
    queries, documents = ([row[name] for row in rows] for name in ("query", "documents"))
    for ranked, line in zip(bert.rerank(queries, documents), written, strict=True):
        scores = expit(json.loads(line))
        np.testing.assert_allclose([x.score for x in ranked], np.sort(scores)[::-1], atol=1e-6)


def test_the_batch_that_is_compiled_is_that_of_the_rows(bert, lists):
    given = config(bert, lists)
    setup = open_task_setup(given)
    head, filled = load_head("reranker"), filled_in(given, setup.model, "reranker", ())
    fields = head.batch_fields(filled, head.num_texts(filled))
    batch = setup.task.rows("train").draw(np.arange(given.train.batch_size), 0, 0)
    assert fields == {name: (x.shape, x.dtype) for name, x in batch.items()}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"rerank.depth": 10}, "depth is 10 .* that of a retrieval set"),
        ({"rerank.loss": "mse", "rerank.pos_weight": 2.0}, "former has no effect unless .* is bce"),
        ({"rerank.temperature": 2.0}, "the former has no effect unless the latter is kl"),
    ],
)
def test_configs_that_are_refused(values, words):
    with pytest.raises(UserError, match=words):
        validate(config("x", "y", **values))


@pytest.mark.outside
@pytest.mark.slow
@pytest.mark.parametrize("name", ["bce", "lambda"])
def test_twenty_steps_are_those_of_sentence_transformers(name, bert, lists, tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    cross_encoder = pytest.importorskip("sentence_transformers.cross_encoder")
    from transformers import get_linear_schedule_with_warmup

    torch.manual_seed(0)
    dropouts = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    theirs = cross_encoder.CrossEncoder(str(bert), num_labels=1, config_kwargs={**dropouts})
    theirs.save_pretrained(str(tmp_path / "st"))
    # Ours begins with their weights, of the head too.
    monkeypatch.setattr(BertForMultipleChoice, "DROPOUT", 0.0)
    own = {f"model.{key}": value for key, value in dropouts.items()}
    own |= {"rerank.loss": name, "rerank.num_negatives": 0, "rerank.query_prompt": ""}
    own |= {"rerank.pos_weight": 1.0} if name == "bce" else {}
    own |= {"schedule.warmup_steps": 2.0, "schedule.peak_learning_rate": 1e-3}
    given = config(tmp_path / "st", lists, **own, train__num_epochs=20 / 8)
    run = make_run(given, tmp_path / "run", open_task_setup(given))
    state, found = run.first_state()[0], []
    for _, batch in run.batches(0):
        state, metrics = run.trainer.train_step(state, batch)
        found.append(float(metrics["loss"]))

    rows = [json.loads(line) for line in (lists / "train.jsonl").read_text().splitlines()]
    losses, expected = cross_encoder.losses, []
    loss = {"bce": losses.BinaryCrossEntropyLoss, "lambda": losses.LambdaLoss}[name](theirs)
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=1e-3, eps=1e-8, weight_decay=0.0)
    schedule = get_linear_schedule_with_warmup(optimizer, 2, 20)
    for step in range(20):
        of_step = [rows[number] for number in rows_of_step(step, len(rows), 16, given.seed)]
        queries = [row["query"] for row in of_step]
        documents = [[row["positive"], *row["negative"]] for row in of_step]
        labels = [torch.tensor([1.0] + [0.0] * len(row["negative"])) for row in of_step]
        if name == "bce":
            sizes = map(len, documents)
            queries = [q for q, size in zip(queries, sizes, strict=True) for _ in range(size)]
            documents, labels = sum(documents, []), torch.cat(labels)
        value = loss([queries, documents], labels)
        optimizer.zero_grad()
        value.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        expected.append(value.item())
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert expected[-1] < 0.95 * expected[0]
