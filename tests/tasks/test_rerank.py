"""Rows of rerankers: candidates and padding, drawn negatives, scores, and what is refused."""

import json

import numpy as np
import pytest

from bert_jax.base.errors import UserError
from bert_jax.config import finetune_config
from bert_jax.tasks import make_task
from tests.interop.small_bert import make_tokenizer
from tests.tasks.test_beir import write as write_retrieval

LISTS = [
    {"query": "a b", "positive": "c d", "negative": ["e", "f g h"]},
    {"query": "b", "documents": ["e", "c", "d e", "a"], "labels": [0, 0.5, 1, 0]},
    {"query": "h", "positive": ["i", "j"], "negative": []},
]


def task(folder, train=LISTS, validation=LISTS, bad_rows="refuse", **options):
    paths = {"train": train} | ({"validation": validation} if validation else {})
    for split, rows in paths.items():
        lines = "".join(f"{json.dumps(row)}\n" for row in rows)
        (folder / f"{split}.jsonl").write_text(lines)
    config = finetune_config("rerank")
    config.data.max_seq_length, config.data.bad_rows = 10, bad_rows
    config.rerank.update(options)
    sources = ",".join(f"{split}={folder / split}.jsonl" for split in paths)
    return make_task(config, sources, make_tokenizer())


def ids(*texts):
    tokenizer = make_tokenizer()
    return tokenizer.join(*tokenizer.encode_batch(texts)).input_ids_L.tolist()


def test_candidates_are_pairs_with_labels_and_the_rest_is_padding(tmp_path):
    rows = task(tmp_path, query_prompt="the ").rows("train")
    batch = rows.draw(np.array([1, 0]), seed=0, step=0)
    assert batch["input_ids"].shape == (2, 4, 10)
    assert batch["labels"][0].tolist() == [1, 0.5, 0, 0]
    assert batch["labels"][1, :3].tolist() == [1, 0, 0]
    assert batch["mask"].tolist() == [[True] * 4, [True] * 3 + [False]]
    # The documents with the highest labels are the first.
    documents = [["d e", "c", "e", "a"], ["c d", "e", "f g h", "c d"]]
    for row, query in enumerate(("the b", "the a b")):
        for place, document in enumerate(documents[row]):
            mask_L = batch["attention_mask"][row, place] > 0
            assert batch["input_ids"][row, place][mask_L].tolist() == ids(query, document)
    assert (len(rows), rows.described()) == (3, "a query has up to 4 candidates, 3.00 on average")


def test_negatives_are_drawn_by_seed_step_and_row(tmp_path):
    words = [f"{a} {b}" for a in "abcde" for b in "fghi"]
    many = [{"query": "a", "positive": ["b", "c"], "negative": words}] * 3
    rows = task(tmp_path, [*many, LISTS[0]], num_negatives=4).rows("train")
    steps = [rows.draw(np.array([1, 3, 0]), seed=5, step=step) for step in range(40)]
    again = rows.draw(np.array([0]), seed=5, step=7)
    for name, x in again.items():
        np.testing.assert_array_equal(x[0], steps[7][name][2])
    assert steps[0]["input_ids"].shape[1] == 6
    assert steps[0]["mask"].sum(axis=1).tolist() == [6, 3, 6]
    seen = {tuple(x) for step in steps for x in step["input_ids"][0].tolist()}
    # Both positives are in each, and each of the twenty others in some.
    assert len(seen) == 22
    for step in steps:
        assert step["labels"][0].tolist() == [1, 1, 0, 0, 0, 0]
        assert len({tuple(x) for x in step["input_ids"][0].tolist()}) == 6
    own, other = (step["input_ids"][[0, 2]] for step in (steps[0], steps[1]))
    assert (own != other).any() and (own[0] != own[1]).any()
    assert (rows.draw(np.array([1]), 6, 0)["input_ids"] != own[:1]).any()
    assert task(tmp_path, many, num_negatives=4).class_counts() == {"positive": 6, "negative": 12}


def test_scored_pairs_of_one_query_are_joined_in_the_order_of_the_file(tmp_path):
    pairs = [("b", "e", 0), ("h", "a", 0), ("b", "c", 0.4), ("b", "d e", 1), ("h", "a", 1)]
    rows = [{"query": q, "document": d, "label": label} for q, d, label in pairs]
    ours = task(tmp_path, validation=rows)
    found = ours.rows("validation")
    assert (len(found), found.num_examples) == (4, 2)
    batch = found.take(np.arange(4))
    texts = [("b", "e"), ("b", "c"), ("b", "d e"), ("h", "a")]
    for x_L, mask_L, text in zip(
        batch["input_ids"][:, 0], batch["attention_mask"][:, 0], texts, strict=True
    ):
        assert x_L[mask_L > 0].tolist() == ids(*text)
    # The relevant document is the second of three, and the only one.
    logits = np.array([[3.0], [1.0], [2.0], [-1.0]], np.float32)
    expected = {"ndcg@10": (1 + 1 / np.log2(3)) / 2, "mrr@10": 0.75, "map": 0.75}
    assert ours.score(found, {"logits": logits}) == pytest.approx(expected)
    ours.write_predictions(found, {"logits": logits}, tmp_path / "out.jsonl")
    written = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert written == [[3, 1, 2], [-1]]


def test_a_ranking_in_a_file_is_the_first_stage(tmp_path):
    ours = task(tmp_path, validation=LISTS[1:2])
    logits = np.array([[0.0], [1.0], [2.0], [3.0]], np.float32)
    found = ours.score(ours.rows("validation"), {"logits": logits})
    # Relevant are the second and the third of four, which move to the third and the second.
    both = (1 / np.log2(3) + 1 / np.log2(4)) / (1 + 1 / np.log2(3))
    assert found == pytest.approx(
        {
            **{"ndcg@10": both, "mrr@10": 0.5, "map": 7 / 12},
            **{"first_ndcg@10": both, "first_mrr@10": 0.5, "first_map": 7 / 12},
        }
    )


def test_the_first_documents_of_bm25_are_reranked(tmp_path):
    documents = [("1", "c c c"), ("2", "c d"), ("3", "e f"), ("4", "c e")]
    qrels = ("q 4 1", "q 3 1")
    folder = write_retrieval(tmp_path / "beir", documents, [("q", "c d")], qrels)
    ours = task(tmp_path, retrieval=str(folder), depth=3)
    assert ours.splits == ("train", "validation", "validation_retrieval")
    rows = ours.rows("validation_retrieval")
    assert (len(rows), rows.num_examples) == (3, 1)
    last_first = ours.score(rows, {"logits": np.arange(3.0)[:, None]})
    assert last_first["mrr@10"] > last_first["first_mrr@10"] > 0
    assert last_first["recall@3"] == 0.5


def test_no_query_is_in_both_parts_of_a_file(tmp_path):
    rows = [
        {"query": f"{a} {b}", "document": document, "label": label}
        for label, document in enumerate("cd")
        for a in "abcdefghij"
        for b in "abcdefghij"
    ]
    ours = task(tmp_path, rows, validation=None)
    train, validation = (ours.rows(split) for split in ("train", "validation"))
    assert train.num_examples + len(validation) == 200 and validation.num_examples > 1
    # A query of the validation split has both of its documents.
    assert len(validation) == 2 * validation.num_examples


def test_the_fingerprint_is_that_of_texts_and_labels(tmp_path):
    def fingerprint(**changes):
        return task(tmp_path, [LISTS[0], LISTS[1] | changes]).rows("train").fingerprint()

    assert fingerprint() == fingerprint()
    assert len({fingerprint(), fingerprint(query="c"), fingerprint(labels=[0, 0.5, 0, 1])}) == 3


PAIR = {"query": "a", "document": "b"}
TWO = {"query": "a", "positive": "b", "negative": "c"}
BAD = [
    ("bce", PAIR | {"label": 2}, "bce needs labels from 0 to 1"),
    ("bce", PAIR | {"label": "nan"}, "label has something else than numbers"),
    ("lambda", PAIR | {"label": 1}, "lambda needs documents with different labels"),
    ("softmax", {"query": "a", "positive": ["b", "c"]}, "softmax needs documents with different"),
    ("listnet", {"query": "a", "docs": ["b", "c"], "labels": [1, -1]}, "needs labels of 0 or more"),
    ("kl", TWO, "kl needs a teacher's scores of all documents"),
    ("margin_mse", TWO | {"positive_scores": 1}, "needs a teacher's scores of all documents"),
    ("kl", {"query": "a", "positive": "b", "scores": [1]}, "kl needs two documents or more"),
    ("mse", PAIR | {"label": 1}, "mse needs a teacher's scores"),
    ("mse", TWO | {"score": 1}, "mse needs a score of each document"),
    ("bce", {"query": "a", "positive": [], "negative": []}, "there is no document"),
    ("lambda", {"query": "a", "documents": [], "labels": []}, "there is no document"),
]


@pytest.mark.parametrize(("loss", "row", "problem"), BAD)
def test_rows_from_which_a_loss_cannot_learn(loss, row, problem, tmp_path):
    good = TWO | {"scores": [2, 1]}
    with pytest.raises(UserError, match=f"train.jsonl:2: .*{problem}"):
        task(tmp_path, [good, row], loss=loss).rows("train")
    ours = task(tmp_path, [good, row, good], bad_rows="skip", loss=loss)
    assert len(ours.rows("train")) == 2 and ours.dropped["train"].total() == 1


def test_splits_from_which_nothing_is_learned(tmp_path):
    positives = [{"query": "a", "positive": "b"}, {"query": "c", "positive": "d"}]
    for split in ("train", "validation"):
        with pytest.raises(UserError, match=f"documents of the {split} split have the same label"):
            task(tmp_path, **{split: positives}).rows(split)


def test_warnings_and_models_that_do_not_fit(tmp_path):
    def check(given, **model):
        config = finetune_config("rerank")
        config.rerank.update(given._options)
        with config.unlocked():
            config.model.update({"num_decoder_layers": 0, "causal": False} | model)
        return given.check(config)

    assert check(task(tmp_path, num_negatives=2)) == []
    assert check(task(tmp_path, num_negatives=3)) == [
        "3 of 3 rows have fewer negatives than config.rerank.num_negatives=3: the rest is padding"
    ]
    scored = [TWO | {"scores": [1, -99]}, TWO | {"scores": [1, 2]}]
    (warning,) = check(task(tmp_path, scored, loss="kl"))
    assert "differ by up to 100, and" in warning
    assert check(task(tmp_path, scored, loss="kl", temperature=2.0)) == []
    for model in ({"num_decoder_layers": 1}, {"causal": True}):
        with pytest.raises(UserError, match="take an encoder"):
            check(task(tmp_path), **model)
