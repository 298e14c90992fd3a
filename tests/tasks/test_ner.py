"""CoNLL files, windows of long sentences, scores and predictions."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_jax import tokenizers
from bert_jax.base.errors import UserError
from bert_jax.config import finetune_config
from bert_jax.config.finetuning import filled_in
from bert_jax.finetuning.predictions import score_test
from bert_jax.tasks.ner import TaggedRows, read_file
from bert_jax.text.bad_records import BadRecords
from bert_jax.tokenizers import training
from tests.tasks.conftest import open_task

TRAIN = """-DOCSTART- -X- O O

The DT O
Senate NN B-ORG
of IN I-ORG
Zanzibar NNP B-LOC

Ann NNP B-PER
"""


def make(folder, tokenizer, *, bad_rows="refuse", **files):
    keys = ("types", "plain_tags", "document_context")
    options = {key: files.pop(key) for key in keys if key in files}
    for split, text in ({"dev": files["train"]} | files).items():
        (folder / f"{split}.conll").write_bytes(text.encode())
    return open_task("ner", folder, tokenizer, bad_rows=bad_rows, **options)


def tags_of(task, split):
    return [" ".join(tags) for tags in task.rows(split).tags]


def outputs_of(rows, labels, wanted):
    """Returns logits that predict these tags, one for each word."""
    logits = np.zeros((len(rows), 16, len(labels)), np.float32)
    for row, position, tag in zip(rows.word_row_W, rows.word_position_W, wanted, strict=True):
        logits[row, position, labels.index(tag)] = 1
    return {"logits": logits}


def test_byte_level_rows_match_the_text():
    tokenizer = training.train(
        "byte_bpe",
        ["The Senate of Zanzibar sat."] * 9,
        vocab_size=280,
        lowercase=False,
        max_input_chars_per_word=200,
        sentencepiece_type="bpe",
        special_tokens=tokenizers.CONVENTIONS["roberta"],
    )
    (row,) = TaggedRows([["The", "Senate", "sat"]], None, tokenizer, 32)
    (ids,) = tokenizer.encode_batch(["The Senate sat"])
    assert row.input_ids_L.tolist() == [tokenizer.cls_id, *ids, tokenizer.sep_id]


@given(
    st.lists(
        st.lists(st.sampled_from(["a", "Zanzibar", "Ann"]), min_size=1, max_size=9), min_size=1
    ),
    st.integers(8, 24),
    st.data(),
)
def test_other_sentences_of_the_document_fill_a_row(tokenizer, sentences, length, data):
    number, room = len(sentences), length - 2
    documents = sorted(data.draw(st.lists(st.integers(0, 2), min_size=number, max_size=number)))
    labels = [i % 3 for i in range(sum(map(len, sentences)))]
    rows = TaggedRows(sentences, labels, tokenizer, length, documents=documents)
    pieces = [np.concatenate(tokenizer.encode_batch(words)) for words in sentences]
    taken = rows.take(np.arange(len(rows)))
    # Each word has its label once, in the same order.
    assert taken["labels"][taken["labels"] >= 0].tolist() == labels
    row = 0
    for index, own in enumerate(pieces):
        if len(own) > room:
            last = TaggedRows([sentences[index]], None, tokenizer, length)
            found = taken["input_ids"][row : row + len(last)]
            assert np.array_equal(found, last.take(np.arange(len(last)))["input_ids"])
            row += len(last)
            continue
        before, after = (
            [i for j in part if documents[j] == documents[index] for i in pieces[j]]
            for part in (range(index), range(index + 1, number))
        )
        ids = taken["input_ids"][row, 1 : taken["attention_mask"][row].sum() - 1].tolist()
        (places,) = np.nonzero(taken["labels"][row, 1:] >= 0)
        # The labels are those of the sentence's own words, wherever they are.
        left = places[0]
        assert ids[left : left + len(own)] == own.tolist()
        right = len(ids) - left - len(own)
        assert (
            ids[:left] == before[len(before) - left :] and ids[left + len(own) :] == after[:right]
        )
        free = room - len(own)
        assert left + right == min(free, len(before) + len(after))
        assert left == min(len(before), max(free // 2, free - len(after)))
        row += 1
    assert row == len(rows)


def test_rows(tmp_path, tokenizer):
    task = make(tmp_path, tokenizer, train=TRAIN)
    assert task.labels == ("O", "B-LOC", "I-LOC", "B-ORG", "I-ORG", "B-PER", "I-PER")
    rows = task.rows("train")
    batch = rows.take(np.array([1, 0]))
    assert all(array.shape == (2, 16) and array.dtype == np.int32 for array in batch.values())
    assert batch["attention_mask"].sum(axis=1)[0] == 2 + len(tokenizer.encode_batch(["Ann"])[0])
    (ids,) = tokenizer.encode_batch(["The Senate of Zanzibar"])
    assert len(ids) > 4
    row = [tokenizer.cls_id, *ids, tokenizer.sep_id]
    assert batch["input_ids"][1, : len(row)].tolist() == row
    assert not batch["input_ids"][1, len(row) :].any() and not batch["token_type_ids"].any()
    # Only the first piece of each word has a label.
    labels = [-1, 0, 3, -1, -1, 4, 1]
    assert batch["labels"][1].tolist() == labels + 9 * [-1]


def test_a_document_ends_at_its_mark_or_at_a_row_without_words(tmp_path, tokenizer):
    text = "a O\n\nAnn B-PER\n-DOCSTART- O\n\nb O\n\nc O\n"
    rows = [["a"], ["Ann"], [], ["b"], ["c"]]
    objects = [{"tokens": words, "ner_tags": [
        "B-PER" if word == "Ann" else "O" for word in words
    ]} for words in rows]  # fmt: skip
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, objects)))
    (tmp_path / "x.conll").write_text(text)
    for name in ("x.jsonl", "x.conll"):
        found = [(s.words, s.document) for s in read_file(tmp_path / name, BadRecords())]
        first = found[0][1]
        assert [(words, document - first) for words, document in found] == [
            (["a"], 0), (["Ann"], 0), (["b"], 1), (["c"], 1)
        ]  # fmt: skip
    task = make(tmp_path, tokenizer, train=text, document_context=True)
    (ids,) = tokenizer.encode_batch(["a Ann"])
    batch = task.rows("train").take(np.arange(4))
    assert batch["input_ids"][1, 1 : 1 + len(ids)].tolist() == ids.tolist()
    assert np.array_equal(batch["input_ids"][0], batch["input_ids"][1])
    assert batch["labels"][:2, 1:3].tolist() == [[0, -1], [-1, 1]]
    assert make(tmp_path, tokenizer, train=text).rows("train").take(np.arange(1))[
        "attention_mask"
    ].sum() == 3  # fmt: skip

    # The sentences of a document stay in one split where a part of the file is held out.
    (tmp_path / "train.conll").write_text("-DOCSTART-\n\nAnn B-PER\n\na O\n\n" * 30)
    task = open_task("ner", tmp_path / "train.conll", tokenizer, document_context=True)
    sizes = [len(task.rows(split)) for split in ("train", "validation")]
    assert sizes == [54, 6]
    assert task.rows("validation").words == [["Ann"], ["a"]] * 3


def test_json_lines_have_the_rows_of_conll(tmp_path, tokenizer):
    columns = [[line.split() for line in part.split("\n") if line] for part in TRAIN.split("\n\n")]
    sentences = [
        {"id": "0", "tokens": [row[0] for row in rows], "ner_tags": [row[-1] for row in rows]}
        for rows in columns[1:]
    ]
    for name in ("train.jsonl", "validation.json"):
        (tmp_path / name).write_text("\n".join(map(json.dumps, sentences)))
    task = open_task("ner", tmp_path, tokenizer)
    (tmp_path / "conll").mkdir()
    expected = make(tmp_path / "conll", tokenizer, train=TRAIN)
    assert task.labels == expected.labels
    for split in ("train", "validation"):
        batch, same = (x.rows(split).take(np.array([0, 1])) for x in (task, expected))
        assert all(np.array_equal(batch[name], same[name]) for name in same)


@pytest.mark.parametrize(
    "sentence, words",
    [
        ({"tokens": ["a"], "ner_tags": [3]}, "its tags are numbers, whose names are not in"),
        ({"tokens": ["a", "b"], "ner_tags": ["O"]}, "must have a list `tokens` .* as many tags"),
    ],
)
def test_json_lines_without_a_tag_for_each_word(tmp_path, sentence, words):
    path = tmp_path / "x.jsonl"
    path.write_text("\n" + json.dumps(sentence))
    with pytest.raises(UserError, match=f"x.jsonl:2: it.*{words}|x.jsonl:2: {words}"):
        list(read_file(path, BadRecords()))


def test_from_files_to_scores_and_predictions(tmp_path, tokenizer):
    dev = "Ann\tB-PER\nmet\tO\n\n\nSenate\tB-ORG\nof\tI-ORG\nRome\tI-ORG"
    task = make(tmp_path, tokenizer, train=TRAIN, dev=dev)
    wanted = "B-PER O B-ORG I-ORG O".split()
    outputs = outputs_of(task.rows("validation"), task.labels, wanted)
    scores = task.score(task.rows("validation"), outputs)
    assert (scores["precision"], scores["recall"], scores["f1"]) == (0.5, 0.5, 0.5)
    assert scores["accuracy"] == pytest.approx(4 / 5)
    assert (scores["PER_f1"], scores["ORG_f1"]) == (1, 0)
    path = tmp_path / task.predictions_name("validation")
    task.write_predictions(task.rows("validation"), outputs, path)
    assert path.read_text() == (
        "Ann\tB-PER\tB-PER\nmet\tO\tO\n\nSenate\tB-ORG\tB-ORG\nof\tI-ORG\tI-ORG\nRome\tI-ORG\tO\n\n"
    )
    again = open_task("ner", f"train={tmp_path}/train.conll,validation={path}", tokenizer)
    assert tags_of(again, "validation") == ["B-PER O", "B-ORG I-ORG O"]


@pytest.mark.parametrize("tags, right", [("", False), (" I-PER", True)])
def test_a_test_set_may_have_tags(tmp_path, tokenizer, tags, right):
    task = make(tmp_path, tokenizer, train=TRAIN, test=f"Ann{tags}\nmet{tags and ' B-MISC'}\n")
    rows = task.rows("test")
    assert ("labels" in rows.take(np.arange(1))) == right
    if right:
        assert rows.take(np.arange(1))["labels"][0, 1:3].tolist() == [5, -1]
    task.write_predictions(rows, outputs_of(rows, task.labels, ["B-PER", "O"]), tmp_path / "x")
    expected = "Ann\tB-PER\tB-PER\nmet\tB-MISC\tO\n\n" if right else "Ann\tB-PER\nmet\tO\n\n"
    assert (tmp_path / "x").read_text() == expected


def test_white_space_and_line_ends(tmp_path, tokenizer):
    text = (
        "\ufeffAnn  NNP   B-PER \r\nde la\tB-ORG\r\n \t \r\n\r\nO'Neil B-PER\r\n-DOCSTART-\r\nx O"
    )
    task = make(tmp_path, tokenizer, train=text)
    assert task.rows("train").words == [
        ["Ann", "de la"],
        ["O'Neil"],
        ["x"],
    ]
    sentences = read_file(tmp_path / "train.conll", BadRecords())
    assert [sentence.where for sentence in sentences][1] == [f"{tmp_path}/train.conll:5"]
    old = make(tmp_path, tokenizer, train="Ann B-PER\rsaw O\r\rx O\r")
    assert old.rows("train").words == [["Ann", "saw"], ["x"]]


@pytest.mark.parametrize(
    "line, words, reason",
    [
        (
            "Rome",
            r"train.conll:7: the word has no tag \(a column after it, or `ner_tags`\)",
            "missing column",
        ),
        ("\tO", r"train.conll:7: the first column, the word, is empty", "missing column"),
        ("Rome LOC", "train.conll:7: the tag is 'LOC'; it must be O, or B, I", "unknown tag"),
    ],
)
def test_bad_lines(tmp_path, tokenizer, line, words, reason):
    text = TRAIN.replace("\n\nAnn", f"\n{line}\n\nAnn")
    with pytest.raises(UserError, match=words) as error:
        make(tmp_path, tokenizer, train=text)
    assert "data.bad_rows=skip" in str(error.value)
    task = make(tmp_path, tokenizer, train=text, bad_rows="skip")
    assert tags_of(task, "train") == ["B-PER"]
    assert task.dropped == {"train": {reason: 1}}


def test_types_missing_in_training(tmp_path, tokenizer):
    dev = "Ann B-PER\n\nRome B-CITY\n"
    with pytest.raises(UserError, match="dev.conll:3: the tag 'B-CITY' is not one of"):
        make(tmp_path, tokenizer, train=TRAIN, dev=dev).rows("validation")
    task = make(tmp_path, tokenizer, train=TRAIN, dev=dev, bad_rows="skip")
    assert len(task.rows("validation")) == 1
    assert task.dropped == {"validation": {"unknown tag": 1}}
    with pytest.raises(UserError, match="has no tags except O"):
        make(tmp_path, tokenizer, train="Ann O\n")
    task = make(tmp_path, tokenizer, train=TRAIN, dev=dev, types=("PER, CITY,LOC", "ORG"))
    assert task.labels[:5] == ("O", "B-PER", "I-PER", "B-CITY", "I-CITY")
    assert task.class_counts() == {"PER": 1, "CITY": 0, "LOC": 1, "ORG": 1}
    assert len(task.rows("validation")) == 2


def test_a_word_without_pieces_is_unknown(tmp_path, tokenizer):
    task = make(tmp_path, tokenizer, train="\u200b\tO\nAnn\tB-PER\n")
    batch = task.rows("train").take(np.array([0]))
    assert batch["input_ids"][0, 1] == tokenizer.unk_id
    assert batch["labels"][0, 1:3].tolist() == [0, 1]


@given(
    st.lists(
        st.sampled_from(["the", "Zanzibar", "unaccountable" * 3, "a"]), min_size=1, max_size=60
    ),
    st.integers(3, 24),
)
def test_every_word_of_a_long_sentence_has_one_label(tokenizer, words, length):
    labels = np.arange(2 * len(words))
    rows = TaggedRows([words, words], labels, tokenizer, length)
    batch = rows.take(np.arange(len(rows)))
    scored = batch["labels"] >= 0
    assert sorted(batch["labels"][scored]) == list(range(2 * len(words)))
    first_pieces = [tokenizer.encode_batch([word])[0][0] for word in words * 2]
    for row, position in zip(*np.nonzero(scored), strict=True):
        label = batch["labels"][row, position]
        assert batch["input_ids"][row, position] == first_pieces[label]
        assert (rows.word_row_W[label], rows.word_position_W[label]) == (row, position)
    used = batch["attention_mask"].sum(axis=1)
    ends = batch["input_ids"][np.arange(len(rows)), used - 1]
    assert (batch["input_ids"][:, 0] == tokenizer.cls_id).all() and (ends == tokenizer.sep_id).all()


def test_a_labeled_test_split_is_scored(tokenizer, tmp_path, capsys):
    text = "Ann B-PER\nmet O\n"
    task = make(tmp_path, tokenizer, train=text, test=text)
    labels_NxL = task.rows("test").take(np.arange(1))["labels"]
    outputs = {"logits": np.eye(3)[np.maximum(labels_NxL, 0)]}
    config = finetune_config("ner")
    config.data.update({"input": str(tmp_path), "max_seq_length": 16})
    config = filled_in(config, {}, task.head, task.labels)
    tokenizer.save(tmp_path / "tokenizer")
    assert score_test(config, tmp_path, task, "test", outputs, {})["f1"] == 1
    # The advice to skip rows would not apply.
    (tmp_path / "test.conll").write_text("\tB-PER\nmet\tO\n")
    assert score_test(config, tmp_path, task, "test", outputs, {}) == {}
    output = capsys.readouterr().out
    assert "the test split is not scored: " in output and "test.conll:1: the first col" in output
    assert "bad_rows" not in output


def test_plain_tags(tmp_path, tokenizer):
    """Each tag is a label; the words of a test set may have others, which are never right."""
    train = "The DET\nold ADJ\nman NOUN\n\nThe DET\n"
    with pytest.raises(UserError, match="the tag is 'DET'.*--config.ner.plain_tags=True"):
        make(tmp_path, tokenizer, train=train)
    task = make(tmp_path, tokenizer, train=train, plain_tags=True, dev="The DET\nman X\n")
    assert task.labels == ("ADJ", "DET", "NOUN") and task.metric == "accuracy"
    assert task.class_counts() == {"ADJ": 1, "DET": 2, "NOUN": 1}
    with pytest.raises(UserError, match="dev.conll:2: the tag 'X' is not one of the labels"):
        task.rows("validation")
    task = make(tmp_path, tokenizer, train=train, plain_tags=True, test="The DET\nman X\n")
    rows = task.rows("train")
    outputs = outputs_of(rows, task.labels, ["DET", "DET", "NOUN", "DET"])
    assert task.score(rows, outputs) == pytest.approx(
        {"accuracy": 3 / 4, "macro_f1": (0 + 4 / 5 + 1) / 3, "weighted_f1": (2 * 4 / 5 + 1) / 4}
    )
    assert [row["recall"] for row in task.class_table(rows, outputs)] == [0, 1, 1]
    rows = task.rows("test")
    scores = task.score(rows, outputs_of(rows, task.labels, ["DET", "NOUN"]))
    assert scores["accuracy"] == 1 / 2


def test_the_real_wnut_17(shared_data, real_tokenizer):
    source = str(shared_data / "ner" / "wnut17")
    task = open_task("ner", source, real_tokenizer("bert-base-cased"), max_seq_length=64)
    assert task.splits == ("train", "validation", "test")
    assert len(task.labels) == 13
    assert [len(task.rows(split).words) for split in task.splits] == [3394, 1009, 1287]
    for split in task.splits:
        rows = task.rows(split)
        index = [task.labels.index(tag) for tags in rows.tags for tag in tags]
        logits = np.zeros((len(rows), 64, 13), np.float32)
        logits[rows.word_row_W, rows.word_position_W, index] = 1
        assert task.score(task.rows(split), {"logits": logits})["f1"] == 1
