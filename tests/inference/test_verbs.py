"""The results of the verbs for the examples of a file."""

import dataclasses
import json
import warnings

import pyarrow as pa
import pytest
from pyarrow import parquet

from bert_jax.base.errors import UserError
from bert_jax.heads.verb import texts_of
from bert_jax.inference.bert import Bert
from bert_jax.inference.finetuned import FineTuned
from bert_jax.inference.verbs import VERBS, predict_file, read_examples
from tests.interop.small_bert import make_finetuned, make_pretrained

NAN = float("nan")


def finetuned(head, labels=(), **config):
    pretrained = make_finetuned(head, labels, num_hidden_layers=1)
    pretrained.training["config"] = {"init_from": "somewhere", **config} if config else {}
    return FineTuned(pretrained)


@pytest.fixture
def predict(tmp_path):
    """A function that writes a file and reads the lines of its predictions."""

    def predict(command, bert, name, content, **options):
        (tmp_path / name).write_text(content)
        output = tmp_path / "out.jsonl"
        count = predict_file(VERBS[command], bert, tmp_path / name, output, **options)
        lines = [json.loads(line) for line in output.read_text().splitlines()]
        assert len(lines) == count
        return lines

    return predict


def jsonl(*items):
    return "".join(json.dumps(item) + "\n" for item in items)


def test_classes_of_a_table(predict, tmp_path):
    table = {"text_column": "review", "text_b_column": "reply"}
    bert = finetuned("sequence_classification", ("no", "yes"), task="table", table=table)
    content = 'review,reply,label\na b,c,no\n"the, a",d,\n'
    first, second = predict("classify", bert, "x.csv", content)
    assert (first["review"], first["label"], second["review"]) == ("a b", "no", "the, a")
    expected = dict(bert.classify("a b", "c"))
    assert first["probabilities"] == pytest.approx(expected, abs=1e-4)
    assert first["prediction"] == max(expected, key=expected.get)
    # Every file may have the names `text` and `text_b`.
    (line,) = predict("classify", bert, "x.jsonl", jsonl({"text": "a b", "text_b": "c"}))
    assert line["prediction"] == first["prediction"]
    # Columns that are given take precedence.
    content, columns = jsonl({"text": "d", "q": "a b", "p": "c"}), ("q", "p")
    (line,) = predict("classify", bert, "x.jsonl", content, text_columns=columns)
    assert line["probabilities"] == pytest.approx(expected, abs=1e-4)
    with pytest.warns(UserWarning, match="fine-tuned on pairs of sentences"):
        assert len(predict("classify", bert, "x.txt", "a b\nc\n")) == 2
    with pytest.raises(UserError, match="x.jsonl:2: it has no field `review`; its fields: line"):
        predict("classify", bert, "x.jsonl", jsonl({"text": "a", "text_b": "b"}, {"line": "b"}))
    with pytest.raises(UserError, match="x:1: not a JSON object.*what is not JSON lines must be"):
        predict("classify", bert, "x", "a b\n")
    before = (tmp_path / "out.jsonl").read_text()
    with pytest.raises(UserError, match="has no example .the first line of a table names its"):
        predict("classify", bert, "x.csv", "review,reply\n")
    assert (tmp_path / "out.jsonl").read_text() == before


@pytest.mark.parametrize("columns", [("text",), ("text", "reply"), ("text", "text_b")])
def test_text_and_text_b_are_a_pair_whatever_the_columns_in_training(predict, columns):
    table = dict(zip(("text_column", "text_b_column"), (*columns, ""), strict=False))
    bert = finetuned("sequence_classification", ("no", "yes"), task="table", table=table)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (line,) = predict("classify", bert, "x.jsonl", jsonl({"text": "a b", "text_b": "c"}))
        assert line["probabilities"] == pytest.approx(dict(bert.classify("a b", "c")), abs=1e-4)


def test_a_second_text_that_is_missing_is_none_in_all_formats(tmp_path):
    rows = [{"text": "a b", "text_b": second} for second in (None, "", "c")]
    (tmp_path / "x.jsonl").write_text(jsonl(*rows, {"text": "a b"}, {"text": "a b", "text_b": NAN}))
    (tmp_path / "x.csv").write_text("text,text_b\na b,\na b,\na b,c\n")
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    bert = finetuned("sequence_classification", ("no", "yes"))
    for name in ("x.jsonl", "x.csv", "x.parquet"):
        items = [item for _, item in read_examples(tmp_path / name)]
        found = texts_of(bert, items) + texts_of(bert, items[:3], ("text", "text_b"))
        assert [text for text in found if text != "a b"] == [("a b", "c")] * 2


def test_parquet_of_words_and_of_choices_is_read_as_in_training(predict, tmp_path):
    question = {"label": ["A", "B"], "text": ["c", "d"]}
    asked = {"id": "1", "question": "a b", "choices": question, "answerKey": "A"}
    for head, command, row in (
        (("token_classification", "OXY"), "tag", {"tokens": ["a", "bc"], "ner_tags": [0, 1]}),
        (("multiple_choice",), "choose", asked),
    ):
        bert = finetuned(*head)
        (expected,) = predict(command, bert, "x.jsonl", jsonl(row))
        parquet.write_table(pa.Table.from_pylist([row]), tmp_path / "x.parquet")
        paths = tmp_path / "x.parquet", tmp_path / "out.jsonl"
        assert predict_file(VERBS[command], bert, *paths) == 1
        assert json.loads((tmp_path / "out.jsonl").read_text()) == expected


def test_a_query_without_documents(predict):
    bert = finetuned("sequence_classification", ())
    (line,) = predict("rerank", bert, "x.jsonl", jsonl({"query": "a", "documents": []}))
    assert line["ranking"] == []
    with pytest.raises(UserError, match="x.jsonl:1: it has no field `documents`"):
        predict("rerank", bert, "x.jsonl", jsonl({"query": "a", "text": "b"}))
    with pytest.raises(UserError, match="there is no document to rank"):
        VERBS["rerank"].predict(bert, [{"query": "a", "documents": ()}])


def test_all_labels_above_the_threshold(predict):
    pretrained = make_finetuned("sequence_classification", ("x", "y", "z"), num_hidden_layers=1)
    pretrained = dataclasses.replace(pretrained, multi_label=True)
    bert = FineTuned(pretrained)
    ranked = bert.classify("a b")
    middle = ranked[1].probability
    for threshold, names in ((None, None), (middle - 1e-4, 2), (middle + 1e-4, 1), (1.0, 0)):
        (line,) = predict("classify", bert, "x.txt", "a b\n", threshold=threshold)
        least = 0.5 if threshold is None else threshold
        expected = [label.label for label in ranked if label.probability > least]
        assert line["prediction"] == expected and (names is None or len(expected) == names)
    with pytest.raises(UserError, match="--threshold is for models with several labels a text"):
        one = finetuned("sequence_classification", ("no", "yes"))
        predict("classify", one, "x.txt", "a b\n", threshold=0.3)


def test_answers_to_a_squad_file(predict):
    bert = finetuned("question_answering")
    asked = [{"id": 1, "question": "a"}, {"id": 2, "question": "the b"}]
    content = {"version": "1.1", "data": [{"paragraphs": [{"context": "a b c", "qas": asked}]}]}
    lines = predict("answer", bert, "x.json", json.dumps(content), n_best=2)
    assert [line["id"] for line in lines] == [1, 2]
    assert lines[1]["prediction"] == bert.answer("the b", "a b c")[0].text
    assert len(lines[1]["answers"]) == 2
    (line,) = predict("answer", bert, "x.jsonl", jsonl({"question": "the b", "context": "a b c"}))
    assert line["prediction"] == lines[1]["prediction"]


def test_tags_of_words_and_of_texts(predict):
    bert = finetuned("token_classification", ("O", "B-X", "I-X"))
    lines = predict("tag", bert, "x.conll", "a O\nbc O\n\nthe\n")
    assert [line["words"] for line in lines] == [["a", "bc"], ["the"]]
    assert lines[0]["prediction"] == [word.tag for word in bert.tag(["a", "bc"])]
    (line,) = predict("tag", bert, "x.jsonl", jsonl({"text": "a bc"}))
    assert [word["end"] for word in line["prediction"]] == [1, 4]
    assert [tuple(e.values())[:4] for e in line["entities"]] == [
        tuple(entity)[:4] for entity in bert.entities("a bc")
    ]


def test_tag_takes_a_file_for_conll_only_if_each_line_ends_in_a_tag(predict):
    bert = finetuned("token_classification", ("O", "B-X", "I-X"))
    for name in ("x.txt", "x.tsv"):
        (line,) = predict("tag", bert, name, "a\tO\nbc\tB-X\n\n")
        assert line["words"] == ["a", "bc"]
    first, _ = predict("tag", bert, "x.txt", "a bc\nthe O\n")
    assert [word["word"] for word in first["prediction"]] == ["a", "bc"]
    (line,) = predict("tag", bert, "x.tsv", "id\ttext\n1\ta bc\n")
    assert [word["word"] for word in line["prediction"]] == ["a", "bc"]
    (line,) = predict("tag", bert, "x.jsonl", jsonl({"tokens": ["a", "bc"]}))
    assert len(line["prediction"]) == 2


def test_examples_of_parquet_have_all_columns(tmp_path):
    columns = {"id": [7, 8], "text": ["a", "b"], "tags": [["x"], []]}
    parquet.write_table(pa.table(columns), tmp_path / "x.parquet")
    found = [item for _, item in read_examples(tmp_path / "x.parquet")]
    assert found == [{"id": "7", "text": "a", "tags": ["x"]}, {"id": "8", "text": "b", "tags": []}]


def test_numbers_that_json_lacks_are_null(predict, tmp_path):
    bert = finetuned("sequence_classification", ("no", "yes"))
    items = jsonl({"text": "a NaN", "score": NAN, "more": [1.5, {"least": -float("inf")}]})
    predict("classify", bert, "x.jsonl", items)
    (line,) = (tmp_path / "out.jsonl").read_text().splitlines()
    found = json.loads(line, parse_constant=pytest.fail)
    assert (found["text"], found["score"], found["more"]) == ("a NaN", None, [1.5, {"least": None}])


def test_choices(predict):
    bert = finetuned("multiple_choice")
    swag = "sent1,sent2,ending0,ending1,ending2,ending3\na b,the,c,d,e,f\n"
    (line,) = predict("choose", bert, "x.csv", swag)
    endings = ["the c", "the d", "the e", "the f"]
    assert line["prediction"] == str(bert.choose("a b", endings)[0].index)
    item = {"context": "a b", "choices": endings}
    (same,) = predict("choose", bert, "x.jsonl", jsonl(item))
    assert same["probabilities"] == pytest.approx(line["probabilities"], abs=1e-4)
    for item, words in (
        ({"text": "a"}, "it has no field `context`; its fields: text"),
        ({"question": "a"}, "TypeError: 'NoneType'"),
        ({"sent1": "a"}, "KeyError: 'ending0'"),
        ({"context": "a", "choices": "b"}, "`choices` is 'b'; it must be a list"),
    ):
        with pytest.raises(UserError, match=f"x.jsonl:1: {words}"):
            predict("choose", bert, "x.jsonl", jsonl(item))


def test_masks_pairs_and_scores(predict, tmp_path):
    bert = Bert(make_pretrained(num_hidden_layers=1))
    items = jsonl({"text": "a [MASK]"}, {"text": "the", "text_b": "[MASK] [MASK]"})
    lines = predict("fill-mask", bert, "x.jsonl", items, top_k=2)
    assert [len(line["masks"]) for line in lines] == [1, 2]
    assert lines[0]["masks"][0][0]["token"] == bert.fill_mask("a [MASK]")[0][0].token
    (line,) = predict("score", bert, "x.tsv", "text\na b\n")
    expected = bert.score("a b")
    assert line["pseudo_log_likelihood"] == pytest.approx(expected.log_likelihood, abs=1e-3)
    assert line["pseudo_perplexity"] == pytest.approx(expected.perplexity, rel=1e-4)
    assert [token["token"] for token in line["tokens"]] == expected.tokens
    (line,) = predict("next-sentence", bert, "x.csv", "text,text_b\na b,c\n")
    assert line["is_next"] == pytest.approx(bert.next_sentence("a b", "c"), abs=1e-4)
    assert line["random"] == 1 - line["is_next"]
    with pytest.raises(UserError, match="x.jsonl:1: it has no field `text_b`; its fields: text"):
        predict("next-sentence", bert, "x.jsonl", jsonl({"text": "a"}))
    electra = Bert(make_pretrained(family="electra", num_hidden_layers=1))
    (line,) = predict("detect", electra, "x.txt", "a b\n")
    expected = [found._asdict() for found in electra.detect("a b")]
    assert [token.keys() for token in line["tokens"]] == [token.keys() for token in expected]
    assert [token["token"] for token in line["tokens"]] == ["[CLS]", "a", "b", "[SEP]"]
    prompts = [{"text": "a b"}, {"prompt": "a", "answer": "c"}, {"text": "a", "text_b": "b"}]
    texts = ["a b", ("a", ""), ("a", "b")]
    options = {"length": 4, "steps": 2, "seed": 3}
    lines = predict("write", bert, "x.jsonl", jsonl(*prompts), **options)
    written = bert.write(texts, **options)
    assert [line["prediction"] for line in lines] == [x.text for x in written]
    lines = predict("write", bert, "x.jsonl", jsonl(*prompts), **options, show_steps=True)
    for line, expected in zip(lines, written, strict=True):
        assert line["steps"] == [{"step": n, "text": x} for n, x in enumerate(expected.history, 1)]
    (line,) = predict("write", bert, "x.txt", "a b\n", **options, samples=2)
    expected = bert.write("a b", **options, samples=2)
    assert line["samples"] == [{"text": x.text} for x in expected]
    bart = Bert(make_pretrained(family="bart"))
    with pytest.warns(UserWarning, match="does not end and is cut"):
        lines = predict("denoise", bart, "x.txt", "a b\nthe [MASK] c\n")
        assert [line["prediction"] for line in lines] == bart.denoise(["a b", "the [MASK] c"])
    with pytest.raises(
        UserError, match="no masked-LM head, which fill_mask needs; .* denoise writes"
    ):
        bart.fill_mask("a [MASK]")
    with pytest.raises(UserError, match="a test is no pre-trained BART, which denoise needs"):
        bert.denoise("a")
    task = FineTuned(make_finetuned("sequence_classification", ("x", "y"), family="bart"))
    with pytest.raises(UserError, match="a test is no pre-trained BART"):
        task.denoise("a")
    for output, words in (("x.tsv", "must be FILE.jsonl"), ("x.jsonl", "would be overwritten")):
        with pytest.raises(UserError, match=words):
            predict_file(VERBS["score"], bert, tmp_path / "x.jsonl", tmp_path / output)
