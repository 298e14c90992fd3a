"""Rows of sentence embeddings: tuples, duplicates, scores by hand, and rows that are refused."""

import csv
import itertools
import json

import numpy as np
import pyarrow as pa
import pytest
import scipy.stats
from pyarrow import parquet

from bert_jax.base.errors import UserError
from bert_jax.config import finetune_config
from bert_jax.tasks import make_task
from tests.interop.small_bert import make_tokenizer
from tests.tasks.test_beir import write as write_retrieval

PAIRS = [
    {"anchor": "a b", "positive": "a b c d", "negative_2": "e f", "negative_1": "g"},
    {"anchor": "h", "positive": "h i j", "negative_1": "a b", "negative_2": "c"},
    {"anchor": "b a", "positive": "a b c d", "negative_1": "i", "negative_2": "e f"},
]


def write(path, rows):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def task(folder, train=PAIRS, validation=PAIRS, bad_rows="refuse", length=8, **options):
    sources = f"train={write(folder / 'train.jsonl', train)}"
    if validation:
        sources += f",validation={write(folder / 'validation.jsonl', validation)}"
    config = finetune_config("embedding")
    config.data.max_seq_length, config.data.bad_rows = length, bad_rows
    config.embedding.update(options)
    return make_task(config, sources, make_tokenizer())


def test_tuples_have_each_text_once_and_equal_texts_have_one_number(tmp_path):
    tokenizer = make_tokenizer()
    rows = task(tmp_path, query_prompt="the ").rows("train")
    batch = rows.take(np.array([2, 0]))
    assert (len(rows), rows.num_positives, len(rows.documents)) == (3, 2, 7)
    assert batch["input_ids"].shape == (2, 8) and batch["document_ids"].shape == (2, 3, 8)
    for row, pair in zip((0, 1), (PAIRS[2], PAIRS[0]), strict=True):
        names = ("anchor", "positive", "negative_1", "negative_2")
        texts = [pair[name] for name in names]
        texts[0] = "the " + texts[0]
        found = [(batch["input_ids"][row], batch["attention_mask"][row])]
        found += zip(batch["document_ids"][row], batch["document_mask"][row], strict=True)
        for (ids, mask), text in zip(found, texts, strict=True):
            (expected,) = tokenizer.encode_batch([text])
            assert ids[mask > 0].tolist() == tokenizer.join(expected).input_ids_L.tolist()
    # "a b" is an anchor and a negative.
    every = rows.take(np.arange(3))
    assert every["query_numbers"][0] == every["document_numbers"][1, 1]
    numbers = np.concatenate([every["query_numbers"], every["document_numbers"].ravel()])
    assert len(set(numbers)) == len({text for pair in PAIRS for text in pair.values()})
    assert "labels" not in batch


@pytest.mark.parametrize("names", ["negative_1 negative_2", "negative", "negatives", "neg"])
def test_negatives_are_texts_or_lists_of_texts_under_their_usual_names(tmp_path, names):
    rows = []
    for pair in PAIRS:
        negatives = [pair["negative_1"], pair["negative_2"]]
        found = dict(zip(names.split(), negatives if " " in names else [negatives], strict=True))
        rows.append({"anchor": pair["anchor"], "positive": pair["positive"], **found})
    expected = task(tmp_path).rows("train").take(np.arange(3))
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "pairs.parquet")
    source = f"train={tmp_path}/pairs.parquet,validation={tmp_path}/pairs.parquet"
    config = finetune_config("embedding")
    config.data.max_seq_length = 8
    of_parquet = make_task(config, source, make_tokenizer())
    # As pandas writes lists.
    with (tmp_path / "pairs.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    of_csv = make_task(config, source.replace("parquet", "csv"), make_tokenizer())
    for found in (task(tmp_path, rows), of_parquet, of_csv):
        assert found.rows("train").num_documents == 3
        batch = found.rows("train").take(np.arange(3))
        for name, array in expected.items():
            np.testing.assert_array_equal(batch[name], array)


@pytest.mark.parametrize(
    "rows",
    [
        [
            {"query": "a", "pos": ["b", "c", "b"], "neg": ["d"]},
            {"query": "e", "pos": ["f"], "neg": ["g"]},
        ],
        [
            {"query": "a", "documents": ["d", "b", "c"], "labels": [0, 1, 1], "scores": [3, 2, 1]},
            {"query": "e", "documents": ["g", "f"], "labels": [0, 1], "scores": [2, 1]},
        ],
    ],
    ids=["as FlagEmbedding has them", "as mine --include_positives writes them"],
)
def test_several_positives_are_a_row_each(rows, tmp_path):
    pairs = [
        {"anchor": a, "positive": b, "negative": c}
        for a, b, c in (("a", "b", "d"), ("a", "c", "d"), ("e", "f", "g"))
    ]
    found = task(tmp_path, rows, rows, anchor_column="query")
    batch = found.rows("train").take(np.arange(3))
    scored = found.rows("validation")
    expected = task(tmp_path, pairs, pairs)
    for name, array in expected.rows("train").take(np.arange(3)).items():
        np.testing.assert_array_equal(batch[name], array)
    assert [*scored.fingerprint_texts()] == [*expected.rows("validation").fingerprint_texts()]


def test_questions_are_not_padded_to_their_paragraphs(tmp_path):
    from bert_jax.finetuning.batches import cut

    rows = task(tmp_path).rows("train")
    short = cut(rows.take(np.array([1])), rows.PER_TOKEN, 2)
    assert short["input_ids"].shape == (1, 4) and short["document_ids"].shape == (1, 3, 8)
    assert short["document_numbers"].shape == (1, 3)


def test_scores_by_hand(tmp_path):
    """The anchors are the queries, and all distinct documents the corpus."""
    found = task(tmp_path, dims=(0, 2))
    rows = found.rows("validation")
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((len(rows), 4)).astype(np.float32)
    assert (len(rows), rows.num_examples, found.metric) == (10, 3, "ndcg@10")
    queries, documents = (
        x / np.linalg.norm(x, axis=1)[:, None] for x in (vectors[:3], vectors[3:])
    )
    # Their order is that of the file: positives and negatives, row by row.
    order = ["a b c d", "g", "e f", "h i j", "a b", "c", "i"]
    ranks = []
    for query, pair in zip(queries, PAIRS, strict=True):
        similarities = documents @ query
        ranks.append(1 + np.sum(similarities > similarities[order.index(pair["positive"])]))
    scores = found.score(rows, {"embeddings": vectors})
    assert scores["mrr@10"] == pytest.approx(np.mean(1 / np.array(ranks)))
    assert scores["ndcg@10"] == pytest.approx(np.mean(1 / np.log2(np.array(ranks) + 1)))
    cut = found.score(rows, {"embeddings": vectors[:, :2]})
    assert scores["ndcg@10_2"] == cut["ndcg@10"] and "bm25_ndcg@10" in scores


SCORED = [
    {"anchor": a, "positive": b, "label": y}
    for a, b, y in [("a b", "a c", 2.5), ("d", "e f", 0), ("g h", "g", 5), ("i", "j", 1)]
]


def test_pairs_with_numbers_and_other_sets(tmp_path):
    sts = [
        {"sentence1": x["anchor"], "sentence2": x["positive"], "score": x["label"]} for x in SCORED
    ]
    more = {"sts": str(write(tmp_path / "sts.jsonl", sts)), "label_divisor": 5.0}
    found = task(tmp_path, SCORED, SCORED, loss="cosine", **more)
    assert found.splits == ("train", "validation", "validation_sts") and found.metric == "spearman"
    np.testing.assert_allclose(found.rows("train").labels_N, [0.5, 0, 1, 0.2])
    rows = found.rows("validation_sts")
    vectors = np.random.default_rng(0).standard_normal((8, 3))
    unit = vectors / np.linalg.norm(vectors, axis=1)[:, None]
    expected = scipy.stats.spearmanr((unit[:4] * unit[4:]).sum(1), [2.5, 0, 5, 1]).statistic
    assert found.score(rows, {"embeddings": vectors})["spearman"] == pytest.approx(expected)
    assert found.rows("validation").score(vectors)["spearman"] == pytest.approx(expected)
    classes = [x | {"label": "high" if x["label"] > 2 else "low"} for x in SCORED]
    of_classes = task(tmp_path, classes, [], loss="softmax", **more)
    assert of_classes.labels == ("high", "low") and of_classes.splits == ("train", "validation_sts")
    assert of_classes.rows("train").labels_N.tolist() == [0, 1, 0, 1]
    alone = [{"anchor": x["anchor"]} for x in SCORED]
    batch = task(tmp_path, alone, [], positive_column="", **more).rows("train").take(np.arange(4))
    np.testing.assert_array_equal(batch["query_numbers"], batch["document_numbers"][:, 0])


@pytest.mark.parametrize(("document", "expected"), [("a ", ""), ("the ", "the ")])
def test_a_symmetric_score_has_one_prompt_or_none(tmp_path, document, expected):
    pairs = [
        {"sentence1": x["anchor"], "sentence2": x["positive"], "score": x["label"]} for x in SCORED
    ]
    sts = str(write(tmp_path / "sts.jsonl", pairs))
    prompts = {"query_prompt": "the ", "document_prompt": document}
    found = task(tmp_path, SCORED, SCORED, loss="cosent", sts=sts, **prompts)
    tokenizer = make_tokenizer()
    texts = [expected + x[side] for side in ("anchor", "positive") for x in SCORED]
    expected = [tokenizer.join(ids).input_ids_L.tolist() for ids in tokenizer.encode_batch(texts)]
    for split in ("validation", "validation_sts"):
        batch = found.rows(split).take(np.arange(8))
        rows = zip(batch["input_ids"], batch["attention_mask"], strict=True)
        assert [ids[mask > 0].tolist() for ids, mask in rows] == expected
    with_prompt = found.rows("train").take(np.arange(1))["input_ids"][0]
    assert with_prompt[1] == tokenizer.encode_batch(["the"])[0][0]


def test_scores_that_are_undefined(tmp_path):
    rows = task(tmp_path, SCORED, [x | {"label": 1} for x in SCORED], loss="cosent")
    vectors = np.random.default_rng(0).standard_normal((8, 3))
    scores = rows.score(rows.rows("validation"), {"embeddings": vectors})
    assert scores == {"spearman": None, "pearson": None}


def test_copies_of_documents_are_encoded_once_and_rank_by_their_ids(tmp_path):
    documents = {f"{n}": ("a b", "c d")[n % 2] for n in range(10)}
    folder = write_retrieval(tmp_path / "data", documents, {"q": "a"}, ["q 3 1", "q 8 2"])
    found = task(tmp_path, retrieval=str(folder))
    rows = found.rows("validation_retrieval")
    assert (len(rows), rows.num_examples) == (3, 1)
    # What the scores depend on is part of the identity of a run's data.
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\t3\t1\nq\t8\t1\n")
    other = task(tmp_path, retrieval=str(folder)).rows("validation_retrieval")
    assert [*other.fingerprint_texts()] != [*rows.fingerprint_texts()]
    # The query is nearer to the odd documents: 1, 3, 5, 7, 9, 0, 2, 4, 6, 8.
    scores = rows.score(np.array([[1.0, 0.1], [0, 1], [1, 0]], np.float32))
    assert scores["mrr@10"] == 1 / 2 and scores["map@100"] == (1 / 2 + 2 / 10) / 2


def test_a_positive_is_never_in_both_parts(tmp_path):
    rows = [
        {"anchor": f"{'a ' * (i + 1)}", "positive": f"{'b ' * (i % 20 + 1)}"} for i in range(60)
    ]
    found = task(tmp_path, rows, [], length=64)
    train, held = found.rows("train"), found.rows("validation")
    assert len(train) + held.num_examples == 60 and 3 <= held.num_examples <= 12
    assert len(train) == 3 * train.num_positives


@pytest.mark.parametrize(
    ("row", "options", "words"),
    [
        ({"anchor": " "}, {}, r"train.jsonl:2: a text is empty"),
        ({"positive": None}, {}, "train.jsonl:2: a text is empty"),
        ({"negative_1": None, "negative_2": []}, {"loss": "triplet"}, "2: the loss triplet needs"),
        ({"negative_2": [None]}, {}, "train.jsonl:2: a text is empty"),
        ({"negative_2": [{"text": "b"}]}, {}, "train.jsonl:2: negative_1 or negative_2 has some"),
        ({"positive": {"text": "b"}}, {}, "train.jsonl:2: positive has something else than texts"),
        ({"positive": []}, {}, "train.jsonl:2: the loss mnr needs a positive"),
        ({"positive": ["a"], "label": 1}, {"loss": "cosent"}, "'positive' is a list or an object"),
        ({"label": "x"}, {"loss": "cosent"}, "label is 'x', not a number"),
        ({"label": "NaN"}, {"loss": "angle"}, "label is 'NaN', not a number"),
        ({"label": 5}, {"loss": "cosine"}, r"not from -1 to 1 \(config.embedding.label_div"),
        ({"label": 0.5}, {"loss": "contrastive"}, "label is '0.5', not 0 or 1"),
    ],
)
def test_rows_that_are_refused(tmp_path, row, options, words):
    good = PAIRS[0] | {"label": 1}
    with pytest.raises(UserError, match=words):
        task(tmp_path, [good, good | row], **options).rows("train")
    rows = task(tmp_path, [good, good | row], bad_rows="skip", **options)
    if options.get("loss") not in ("cosent", "angle"):
        assert len(rows.rows("train")) == 1


def test_data_that_are_refused(tmp_path):
    for loss in ("cosent", "angle", "softmax"):
        equal = [x | {"label": 1} for x in SCORED]
        with pytest.raises(UserError, match=f"all labels are the same, .*loss={loss} learns not"):
            task(tmp_path, equal, equal, loss=loss, sts=str(tmp_path)).rows("train")
    negative = [x | {"label": -x["label"]} for x in SCORED]
    rows = task(tmp_path, negative, loss="cosine", label_divisor=5.0).rows("train")
    np.testing.assert_allclose(rows.labels_N, [-0.5, 0, -1, -0.2])
    with pytest.raises(UserError, match="the loss triplet needs a positive and a negative"):
        task(tmp_path, SCORED, loss="triplet").rows("train")
    for options in ({"loss": "softmax"}, {"positive_column": ""}):
        with pytest.raises(UserError, match="needs another data set for validation: set config.em"):
            task(tmp_path, SCORED, [], **options)


def test_rows_may_have_different_numbers_of_negatives(tmp_path):
    """A null in one of several columns is no text; missing documents are marked by their number."""
    pairs = [
        {"anchor": "a", "positive": "b", "negative_1": "c", "negative_2": None},
        {"anchor": "d", "positive": "e", "negative_1": "f", "negative_2": "g"},
        {"anchor": "h", "positive": "i", "negative_1": None},
    ]
    found = task(tmp_path, pairs, pairs)
    rows, scored = found.rows("train"), found.rows("validation")
    assert rows.num_documents == 3 and len(scored) == 3 + 6
    assert rows.described() == (
        "each anchor has up to 3 documents: its positive and 2 negatives; 2.00 on average"
    )
    batch = rows.take(np.arange(3))
    is_document = np.array([[1, 1, 0], [1, 1, 1], [1, 0, 0]], bool)
    np.testing.assert_array_equal(batch["document_numbers"] >= 0, is_document)
    assert np.all(batch["document_mask"].sum(-1) == 3)


def test_the_scores_of_a_teacher_in_their_usual_forms(tmp_path):
    rows = [
        {"query": "a", "pos": ["b", "c"], "neg": ["d"], "pos_scores": [3, 2], "neg_scores": [1.5]},
        {"query": "e", "docs": ["f", "g", "h"], "scores": [0.5, -1, 2]},
        {"query": "a", "positive": "b", "negative": "d", "score": 4.5},
    ]
    found = task(tmp_path, rows, rows, loss="kl", anchor_column="query")
    batch = found.rows("train").take(np.arange(4))
    expected = [[3, 1.5, 0], [2, 1.5, 0], [2, 0.5, -1], [4.5, 0, 0]]
    np.testing.assert_array_equal(batch["labels"], np.array(expected, np.float32))
    assert found.metric == "ndcg@10" and found.rows("validation").num_examples == 2
    # Rows for validation need none.
    plain = task(tmp_path, rows, PAIRS + [{"anchor": "e", "positive": "f"}], loss="kl")
    assert plain.rows("validation").num_examples == 4
    for row, words in (
        ({"docs": ["f"], "scores": [1]}, "jsonl:1: the loss kl needs a positive and a negative"),
        ({"pos": ["f"], "neg": ["g"]}, "jsonl:1: the loss kl needs the scores of a teacher"),
    ):
        with pytest.raises(UserError, match=words):
            rows = [{"query": "a"} | row]
            task(tmp_path, rows, loss="kl", anchor_column="query").rows("train")


def sets_task(folder, more="", **options):
    """Makes the task of the data sets "one" (pairs) and "two" (as FlagEmbedding has them)."""
    pairs = itertools.product("abcdefghij", "abcdef")
    one = [{"anchor": f"a {x}", "positive": f"b {x} {y}"} for x, y in pairs]
    two = [{"query": x, "pos": [f"c {x}"], "neg": ["d", "e"]} for x in "abcd"]
    source = f"train_one={write(folder / 'one.jsonl', one)}"
    source += f",train_two={write(folder / 'two.jsonl', two)}{more}"
    config = finetune_config("embedding")
    config.data.max_seq_length, config.data.input = 8, source
    config.embedding.update(options)
    return make_task(config, source, make_tokenizer())


def test_several_data_sets_have_columns_prompts_and_scores_of_their_own(tmp_path):
    more = f",validation_two={write(tmp_path / 'dev.jsonl', [{'query': 'a', 'positive': 'b'}])}"
    prompts = {"query_prompt": "the ", "query_prompts": "two=", "document_prompts": "two=f, "}
    found = sets_task(tmp_path, more, **prompts)
    assert found.splits == ("train", "validation_two") and found.metric == "ndcg@10"
    rows, tokenizer = found.rows("train"), make_tokenizer()
    assert len(rows) == 64 and [*rows.sets] == ["one", "two"]

    def texts(*expected):
        return [
            tokenizer.join(ids).input_ids_L.tolist() for ids in tokenizer.encode_batch(expected)
        ]

    def read(batch, ids, mask):
        found = zip(batch[ids], batch[mask], strict=True)
        return [row[is_token > 0].tolist() for row, is_token in found]

    first, second = rows.take(np.array([0])), rows.take(np.array([60]))
    assert read(first, "input_ids", "attention_mask") == texts("the a a")
    assert read(second, "input_ids", "attention_mask") == texts("a")
    own = {name: x[0] for name, x in second.items()}
    assert read(own, "document_ids", "document_mask") == texts("f, c a", "f, d", "f, e")
    assert first["document_ids"].shape == (1, 1, 8)
    (line, other) = rows.described().split("\n")
    assert line.startswith("one: 60 rows, 93.8% of the batches; each anchor has 1 document")
    # Without files for validation, a tenth of the positives of each set is held out.
    held = sets_task(tmp_path, set_weights="two=3,one=1")
    assert held.splits == ("train", "validation_one", "validation_two") and not held.parts
    kept = len(held.rows("train").sets["one"])
    assert 50 <= kept < 60 and len(held.rows("validation_one")) >= 2 * (60 - kept) - 10
    assert f"one: {kept} rows, 25.0% of the batches" in held.rows("train").described()


@pytest.mark.parametrize(
    ("more", "options", "words"),
    [
        ("", {"set_weights": "three=1"}, "set_weights has three='1'; each must be NAME=VALUE"),
        ("", {"set_weights": "one=1"}, "each of the data sets one, two must have a number ab"),
        ("", {"set_weights": "one=1,two=-1"}, "each of the data sets one, two must have a number"),
        ("", {"query_prompts": "one=a,one=b"}, "query_prompts has one='b'; each must be NAME"),
        (",train=FILE", {}, "of several data sets, each must be named as in train_NAME=FILE"),
        (",train_sts=FILE", {}, "train_NAME=FILE, and not retrieval or sts"),
        ("", {"loss": "cosent"}, "one.jsonl:1: no column|field 'label' is missing"),
    ],
)
def test_data_sets_that_are_refused(tmp_path, more, options, words):
    with pytest.raises(UserError, match=words):
        sets_task(tmp_path, more.replace("FILE", str(tmp_path / "one.jsonl")), **options).rows(
            "train"
        )
