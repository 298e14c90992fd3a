"""Folders of BEIR, and of several data sets such as those of NanoBEIR."""

import gzip
import json
import math

import pyarrow as pa
import pytest
from pyarrow import parquet

from bert_jax.base.errors import UserError
from bert_jax.tasks.beir import read_data_sets, read_retrieval
from bert_jax.tasks.retrieval import bm25_similarities, retrieval_scores

DOCUMENTS = {"a": "The cat sat. The cat!", "b": "a dog", "c": "猫 dog DOG 猫", "d": "sun"}
QUERIES = {"1": "cat", "2": "dog 猫", "3": "nothing known", "4": "sun"}


def write(folder, documents=DOCUMENTS, queries=QUERIES, qrels=("1 a 1", "2 c 2", "2 b 1", "4 d 0")):
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    for name, texts in (("corpus", documents), ("queries", queries)):
        items = texts.items() if isinstance(texts, dict) else texts
        lines = [json.dumps({"_id": id, "text": text}) for id, text in items]
        (folder / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    rows = [row.split() for row in ("query-id corpus-id score", *qrels)]
    (folder / "qrels" / "test.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    return folder


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_title_that_is_missing_is_none(tmp_path, suffix):
    write(tmp_path)
    titles = ["Cats", None, "", float("nan")]
    if suffix == "parquet":
        titles[3] = None
    rows = [
        {"_id": id, "title": title, "text": text}
        for title, (id, text) in zip(titles, DOCUMENTS.items(), strict=True)
    ]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if suffix == "parquet":
        (tmp_path / "corpus.jsonl").unlink()
        parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "corpus.parquet")
    first, *others = DOCUMENTS.values()
    assert read_retrieval(tmp_path, "--retrieval").documents == [f"Cats {first}", *others]


def test_titles_and_other_splits(tmp_path):
    folder = write(tmp_path)
    line = json.dumps({"_id": 7, "title": "Cats", "text": "They sit.", "metadata": {}})
    (folder / "corpus.jsonl").write_text(line + "\n")
    (folder / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\n1\t7\t1\n")
    data = read_retrieval(folder / "qrels" / "dev.tsv", "--retrieval")
    assert (data.documents, data.queries) == (["Cats They sit."], ["cat"])


def write_table(path, rows):
    """Writes rows as the suffix of the file says: Parquet, Arrow, or text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".arrow":
        table = pa.Table.from_pylist(rows)
        with pa.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table)
    else:
        separator = {"tsv": "\t", "csv": ","}.get(path.name.split(".")[1])
        lines = [json.dumps(row) for row in rows]
        if separator:
            filled = [rows[0], *(row.values() for row in rows)]
            lines = [separator.join(map(str, row)) for row in filled]
        content = "".join(f"{line}\n" for line in lines).encode()
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def fields(*names):
    """Returns a function that gives other names to the first fields of rows."""
    return lambda rows: [
        dict(zip(names, list(row.values())[: len(names)], strict=True)) for row in rows
    ]


JUDGED = [{"query-id": q, "corpus-id": d, "score": 1} for q, d in (("1", "7"), ("2", "8"))]
TABLES = {
    "corpus": [{"_id": id, "title": "The", "text": f"text {id}"} for id in "789"],
    "queries": [{"_id": id, "text": f"query {id}"} for id in "123"],
}


@pytest.mark.parametrize(
    ("corpus", "queries", "judged", "renamed"),
    [
        ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv", {}),
        # MTEB.
        ("corpus.jsonl", "queries.jsonl", "qrels/test.jsonl", {}),
        (
            "corpus/corpus-00000-of-00002.parquet",
            "queries/queries-00000-of-00001.parquet",
            "data/test-00000-of-00001.parquet",
            {"corpus": fields("id", "title", "text"), "queries": fields("id", "text")},
        ),
        (
            "corpus/test-00000-of-00001.parquet",
            "queries/test-00000-of-00001.parquet",
            "qrels/test-00000-of-00001.parquet",
            # Ids may be numbers.
            {"judged": lambda rows: [{k: int(v) for k, v in row.items()} for row in rows]},
        ),
        # BeIR/scifact and BeIR/scifact-qrels in one folder.
        (
            "corpus/corpus-00000-of-00001.parquet",
            "queries/queries-00000-of-00001.parquet",
            "test.tsv",
            {},
        ),
        # NanoBEIR.
        (
            "corpus/train-00000-of-00001.parquet",
            "queries/train-00000-of-00001.parquet",
            "qrels/train-00000-of-00001.parquet",
            {"judged": fields("query-id", "corpus-id")},
        ),
        ("corpus.csv", "queries.jsonl", "qrels/dev.jsonl", {}),
        ("corpus.jsonl.gz", "queries.jsonl.gz", "qrels/test.tsv.gz", {}),
        # As `datasets` saves them.
        (
            "corpus/data-00000-of-00001.arrow",
            "queries/train/data-00000-of-00001.arrow",
            "qrels/test/data-00000-of-00001.arrow",
            {},
        ),
    ],
)
def test_layouts_of_published_data(tmp_path, corpus, queries, judged, renamed):
    write_tables = {"corpus": corpus, "queries": queries, "judged": judged}
    for name, path in write_tables.items():
        rows = renamed.get(name, list)({**TABLES, "judged": JUDGED}[name])
        if "-of-00002" in path:
            write_table(tmp_path / path, rows[:1])
            write_table(tmp_path / path.replace("00000", "00001", 1), rows[1:])
        else:
            write_table(tmp_path / path, rows)
    if not (tmp_path / "test.tsv").exists():
        # Another file of this name is no file of judgements.
        (tmp_path / "test.tsv").write_text("text\tlabel\nx\ty\n")
    for source in (tmp_path, tmp_path / judged):
        data = read_retrieval(source, "--retrieval")
        assert data.documents == ["The text 7", "The text 8", "The text 9"]
        assert data.queries == ["query 1", "query 2"] and data.num_left_out == 1
        assert data.relevant == [{0: 1}, {1: 1}] and data.own == [-1, -1]


def test_one_of_several_data_sets_in_a_folder(tmp_path):
    """As in NanoBEIR-en: the file of judgements names the data set."""
    for name, ids in (("NanoNQ", "789"), ("test", "12")):
        texts = [{"_id": id, "text": f"{name} {id}"} for id in ids]
        judged = [{"query-id": ids[0], "corpus-id": ids[1]}]
        for folder, rows in (("corpus", texts), ("queries", texts), ("qrels", judged)):
            write_table(tmp_path / folder / f"{name}-00000-of-00001.parquet", rows)
    for source, expected in (
        (tmp_path / "qrels" / "NanoNQ-00000-of-00001.parquet", ["NanoNQ 7"]),
        (tmp_path, ["test 1"]),
    ):
        data = read_retrieval(source, "--retrieval")
        assert data.queries == expected and data.relevant == [{1: 1}]


def write_nano_beir(folder):
    """Writes two data sets as NanoBEIR does; returns the ids of the relevant documents."""
    documents = {f"d{n}": text for n, text in enumerate(("a cab", "head", "", "bad", "the j"))}
    queries = {"q0": "cab", "q1": "bad a", "q2": "no judgement"}
    judged = {
        "NanoFiQA2018": {"q0": ["d0"], "q1": ["d3", "d1"]},
        "NanoNQ": {"q0": ["d2", "d1"], "q1": ["d4"]},
    }
    for name, relevant in judged.items():
        # The ids of the documents are a list or a text.
        is_list = name == "NanoNQ"
        pairs = [(q, ids if is_list else id) for q, ids in relevant.items() for id in ids]
        tables = {
            "corpus": [{"_id": id, "text": text} for id, text in documents.items()],
            "queries": [{"_id": id, "text": text} for id, text in queries.items()],
            "qrels": [{"query-id": q, "corpus-id": ids} for q, ids in pairs],
            "bm25": [
                {"query-id": q, "corpus-ids": [f"d{n}" for n in range(3, -1, -1)]} for q in queries
            ],
        }
        for part, rows in tables.items():
            write_table(folder / part / f"{name}-00000-of-00001.parquet", rows)
    return judged


def test_the_data_sets_of_nano_beir(tmp_path, capsys):
    write_nano_beir(tmp_path)
    found = read_data_sets(tmp_path, "--retrieval")
    assert list(found) == ["NanoFiQA2018", "NanoNQ"]
    for data in found.values():
        # The blank document is left out.
        assert data.documents == ["a cab", "head", "bad", "the j"]
        assert data.queries == ["cab", "bad a"] and data.num_left_out == 1
        assert [ranked.tolist() for ranked in data.ranked] == [[2, 1, 0]] * 2
    assert found["NanoFiQA2018"].relevant == [{0: 1}, {1: 1, 2: 1}]
    # The blank document is relevant, and never found.
    assert found["NanoNQ"].relevant == [{1: 1, 4: 1}, {3: 1}]
    assert capsys.readouterr().out.count("1 blank texts of") == 2
    file = tmp_path / "qrels" / "NanoNQ-00000-of-00001.parquet"
    single = read_data_sets(file, "--retrieval")[""]
    assert single.relevant == found["NanoNQ"].relevant and len(single.ranked) == 2
    for path in (tmp_path / "bm25").iterdir():
        write_table(path, [{"query-id": "q0", "corpus-ids": "d1"}])
    with pytest.raises(UserError, match="NanoNQ.*:1: corpus-ids is 'd1', not a list"):
        read_data_sets(file, "--retrieval")


def test_a_folder_of_folders(tmp_path):
    write(tmp_path / "b", {"a": "", "c": "x"}, {"1": "y"}, ["1 a 1"])
    write_table(tmp_path / "a" / "qrels" / "test.jsonl", JUDGED)
    for name, rows in TABLES.items():
        write_table(tmp_path / "a" / name / "test-00000-of-00001.parquet", rows)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    found = read_data_sets(tmp_path, "--retrieval")
    assert list(found) == ["a", "b"] and not found["a"].ranked
    assert found["a"].queries == ["query 1", "query 2"]
    # A blank document of BEIR stays.
    assert found["b"].documents == ["", "x"]
    assert list(read_data_sets(tmp_path / "b", "--retrieval")) == [""]
    with pytest.raises(FileNotFoundError, match="notes/corpus.jsonl"):
        read_data_sets(tmp_path / "notes", "--retrieval")


@pytest.mark.parametrize("rows", [["1 a 2", "2 c 1"], ["1 0 a 2", "2 0 c 1"]])
def test_judgements_without_a_header(tmp_path, rows):
    """The fields of BEIR, and those of trec_eval."""
    folder = write(tmp_path)
    lines = ["\t".join(row.split()) for row in rows]
    (folder / "qrels" / "test.tsv").write_text("".join(f"{line}\n" for line in lines))
    assert read_retrieval(folder, "--retrieval").relevant == [{0: 2}, {2: 1}]


def test_judgements_of_what_is_missing(tmp_path, capsys):
    """A missing document is relevant and never found; a missing query is left out."""
    folder = write(tmp_path, qrels=("1 a 1", "1 x 1", "9 a 1", "2 y 1", "2 z 0"))
    data = read_retrieval(folder, "--retrieval")
    assert data.queries == ["cat", "dog 猫"] and data.relevant == [{0: 1, 4: 1}, {5: 1}]
    printed = capsys.readouterr().out
    assert "test.tsv has 2 judgements of documents that are missing, such as 'x': they" in printed
    assert "test.tsv has 1 judgements of queries that are missing, such as '9': they" in printed
    found = retrieval_scores(data, bm25_similarities(data))
    assert found["recall@1"] == (1 / 2 + 0) / 2 and found["map@100"] == (1 / 2 + 0) / 2
    assert found["ndcg@10"] == pytest.approx(1 / (1 + 1 / math.log2(3)) / 2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"qrels": ["1 a 1", "2 b yes"]}, r"test.tsv:3: score is 'yes', not a number"),
        ({"qrels": ["1 a nan"]}, r"test.tsv:2: score is 'nan', not a number"),
        ({"qrels": ["1 a 0", "9 a 1"]}, "test.tsv: no query has a document with a score above 0"),
        ({"documents": [*DOCUMENTS.items(), ("a", "x")]}, "corpus.jsonl:5: the id 'a' is that of"),
        ({"queries": [*QUERIES.items(), ("1", "x")]}, "queries.jsonl:5: the id '1' is that of"),
        ({"documents": {"a": "x", "": "y"}}, "corpus.jsonl:2: the id is missing"),
        ({"documents": {}}, "corpus.jsonl has no rows"),
        ({"documents": {"a": ["x"]}}, "corpus.jsonl:1: no text in 'text'; its fields: _id, text"),
        ({"queries": {"a": {"x": "y"}}}, "queries.jsonl:1: no text in 'text'"),
    ],
)
def test_folders_that_are_refused(tmp_path, change, words):
    with pytest.raises(UserError, match=words):
        read_retrieval(write(tmp_path, **change), "--retrieval")


def test_judgements_have_a_score_or_only_ids(tmp_path):
    """A column of another name is no score: its zeros would count as relevant."""
    folder = write(tmp_path)
    path = folder / "qrels" / "test.tsv"
    path.write_text("query-id\tcorpus-id\n1\ta\n")
    assert read_retrieval(folder, "--retrieval").relevant == [{0: 1.0}]
    path.write_text("query-id\tcorpus-id\trelevance\n1\ta\t1\n1\tb\t0\n")
    with pytest.raises(UserError, match="test.tsv:2: no text in 'score'; its fields: query-id, c"):
        read_retrieval(folder, "--retrieval")
