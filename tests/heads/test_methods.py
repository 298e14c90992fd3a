"""Predictions of fine-tuned models, against the bare model's logits."""

import functools
import pickle
import warnings

import jax
import numpy as np
import pytest

import bert_jax
from bert_jax.base.errors import UserError
from bert_jax.heads import builtin_heads, load_head
from bert_jax.heads.token_classification import TaggedWord, entities_of, word_spans
from bert_jax.inference.finetuned import FineTuned
from bert_jax.interop import formats
from bert_jax.interop.weights import unflatten
from bert_jax.tokenizers import CONVENTIONS
from bert_jax.tokenizers.protein import ESM_TOKENS, ProteinTokenizer
from tests.interop import small_bert
from tests.interop.small_bert import LABELS, TOKENS

make_finetuned = functools.partial(small_bert.make_finetuned, num_hidden_layers=1)


@functools.partial(jax.jit, static_argnums=0)
def run(model, params, inputs):
    return model.apply({"params": params}, inputs, deterministic=True)


def logits(pretrained, words, num_first=None):
    """Computes the bare model's outputs for tokens."""
    ids = [TOKENS.index(word) for word in words.split()]
    at = np.arange(len(ids))
    inputs = {
        "input_ids": np.array([ids], np.int32),
        "token_type_ids": (at >= (num_first or len(ids))).astype(np.int32)[None],
        "attention_mask": np.ones((1, len(ids)), np.int32),
    }
    config = pretrained.model_config
    model = load_head(pretrained.head).make_model(config, len(pretrained.labels))
    params = unflatten(pretrained.weights, config)
    return jax.tree.map(lambda x: np.asarray(x[0, ...]), run(model, params, inputs))


def same(found, expected):
    """Whether predictions have the same names, and nearly the same probabilities."""
    return [x[:1] for x in found] == [x[:1] for x in expected] and np.allclose(
        [x.probability for x in found], [x.probability for x in expected], atol=1e-4
    )


def test_classes_of_a_sentence_and_of_a_pair():
    make = lambda: make_finetuned("sequence_classification", LABELS)  # noqa: E731
    bert = FineTuned(make())
    for texts, words, first in (
        (["a b."], "[CLS] a b . [SEP]", None),
        (["a b", "the c"], "[CLS] a b [SEP] the c [SEP]", 4),
    ):
        expected = np.asarray(jax.nn.softmax(logits(make(), words, first)["logits"]))
        found = bert.classify(*texts)
        assert [label for label, _ in found] == [LABELS[i] for i in np.argsort(-expected)]
        for label, probability in found:
            assert probability == pytest.approx(expected[LABELS.index(label)], abs=1e-4)
    several = bert.classify([("a b", "the c"), ("c", "d")])
    assert same(several[0], bert.classify("a b", "the c"))
    assert several == bert.classify(["a b", "c"], ["the c", "d"])


def test_regression_returns_a_number():
    bert = FineTuned(make_finetuned("sequence_classification"))
    pretrained = make_finetuned("sequence_classification")
    expected = logits(pretrained, "[CLS] a [SEP]")["logits"]
    assert bert.classify("a") == pytest.approx(float(expected[0]), abs=1e-3)


def test_each_residue_of_a_protein_has_a_tag():
    pretrained = make_finetuned("token_classification", LABELS, family="esm", vocab_size=33)
    pretrained.tokenizer = ProteinTokenizer(ESM_TOKENS, special_tokens=CONVENTIONS["esm"])
    bert = FineTuned(pretrained)
    found = bert.tag("MK TA")
    assert [(x.word, x.start) for x in found] == [("M", 0), ("K", 1), ("T", 3), ("A", 4)]
    assert same(found, bert.tag(list("MKTA")))


def test_multi_label_probabilities_are_independent():
    pretrained = make_finetuned("sequence_classification", LABELS)
    pretrained.multi_label = True
    expected = logits(pretrained, "[CLS] a [SEP]")["logits"].astype(np.float64)
    found = FineTuned(pretrained).classify("a")
    assert [label for label, _ in found] == [LABELS[i] for i in np.argsort(-expected)]
    for label, probability in found:
        logit = expected[LABELS.index(label)]
        assert probability == pytest.approx(1 / (1 + np.exp(-logit)), rel=1e-4)


def test_a_choice_is_the_softmax_over_the_choices():
    bert = FineTuned(make_finetuned("multiple_choice"))
    # Choices of several lengths are computed in several batches.
    choices = ["c", "the d e f g h i j a b", "b .", "c"]
    rows = [f"[CLS] a b [SEP] {choice} [SEP]" for choice in choices]
    scores = [logits(make_finetuned("multiple_choice"), row, 4)["logits"] for row in rows]
    expected = np.asarray(jax.nn.softmax(np.array(scores)))
    found = bert.choose("a b", choices)
    assert [x.index for x in found] == np.argsort(-expected, kind="stable").tolist()
    assert [x.text for x in found] == [choices[x.index] for x in found]
    np.testing.assert_allclose(
        [x.probability for x in found], [expected[x.index] for x in found], atol=1e-4
    )
    with pytest.raises(UserError, match="there are 2 texts, but 1 lists of choices"):
        bert.choose(["the", "a b"], [choices])
    with pytest.raises(UserError, match="text 1 is None; it must be a string"):
        bert.choose("the", ["c", None])
    with pytest.raises(UserError, match="is a pair; texts and choices must be single strings"):
        bert.choose("the", ["c", ("d", "e")])
    with pytest.raises(UserError, match="there is no choice to rank"):
        bert.choose(["the", "a b"], [choices, []])
    several = bert.choose(["the", "a b"], [["c", "d"], choices])
    assert len(several[0]) == 2 and same(several[1], found)


@pytest.mark.parametrize("activation", ["", "sigmoid", "identity"])
def test_documents_are_ranked_by_their_scores(activation):
    pretrained = make_finetuned("sequence_classification")
    pretrained.activation = activation
    bert = FineTuned(pretrained)
    # Equal documents stay in the order given.
    documents = ["c", "the d e f g h i j a b", "b .", "c", ""]
    rows = [f"[CLS] a b [SEP] {document} [SEP]" for document in documents]
    expected = np.concatenate(
        [logits(make_finetuned("sequence_classification"), row, 4)["logits"] for row in rows]
    )
    if activation != "identity":
        expected = 1 / (1 + np.exp(-expected))
    found = bert.rerank("a b", documents)
    order = np.argsort(-expected, kind="stable").tolist()
    assert [(x.index, x.text) for x in found] == [(i, documents[i]) for i in order]
    np.testing.assert_allclose([x.score for x in found], expected[order], rtol=1e-4)
    several = bert.rerank(["the", "a b", "c"], [["c", "d"], documents, []], top_k=3)
    assert [len(ranked) for ranked in several] == [2, 3, 0]
    assert [x.index for x in several[1]] == order[:3]
    with pytest.raises(UserError, match="there are 2 texts, but 1 lists of documents"):
        bert.rerank(["the", "a b"], [documents])
    with pytest.raises(UserError, match="top_k is -1; it must be at least 1"):
        bert.rerank("a b", documents, top_k=-1)


METHODS = {name: tuple(head.methods) for name, head in builtin_heads().items() if head.methods}


@pytest.mark.parametrize("head", METHODS)
def test_a_model_has_the_methods_of_its_head(head):
    bert = FineTuned(make_finetuned(head, LABELS if head.endswith("classification") else ()))
    able = {name for names in METHODS.values() for name in names if hasattr(bert, name)}
    own = METHODS[head][0]
    assert able == {*METHODS[head]} <= {*dir(bert)}
    assert not hasattr(bert, "fill_mask")
    asked = (
        ("a", ["b", "c"])
        if own in ("choose", "rerank")
        else ("a", "b c d")[: 1 + (own == "answer")]
    )
    again = pickle.loads(pickle.dumps(bert))
    assert getattr(again, own)(*asked) == getattr(bert, own)(*asked)


@pytest.mark.parametrize(
    ("head", "labels", "ask"),
    [
        ("sequence_classification", LABELS, lambda b: b.classify("a b", "c")),
        ("sequence_classification", (), lambda b: b.classify("a b")),
        ("token_classification", LABELS, lambda b: b.tag("a bc.")),
        ("question_answering", (), lambda b: b.answer("the a", "a b c d e f")),
        ("multiple_choice", (), lambda b: b.choose("a", ["b", "c d", "e"])),
    ],
)
def test_export_and_import_keep_the_predictions(tmp_path, head, labels, ask):
    expected = ask(FineTuned(make_finetuned(head, labels)))
    formats.write(make_finetuned(head, labels), tmp_path / "hf", "huggingface")
    with warnings.catch_warnings(action="error"):
        bert = bert_jax.load(tmp_path / "hf")
    assert isinstance(bert, FineTuned) and ask(bert) == expected


def test_answers_are_slices_of_the_text():
    bert = FineTuned(make_finetuned("question_answering"))
    context = "A  b, c?  The d"
    found = bert.answer("the a", context, n_best=3)
    assert 1 <= len(found) <= 3
    outputs = logits(
        make_finetuned("question_answering"),
        "[CLS] the a [SEP] a b [UNK] c [UNK] the d [SEP]",
        4,
    )
    # The best of all pairs of tokens, computed by hand.
    start_T, end_T = (outputs[f"{side}_logits"][4:-1] for side in ("start", "end"))
    pairs = [(start_T[i] + end_T[j], i, j) for i in range(7) for j in range(i, 7)]
    score, i, j = max(pairs)
    spans = [(0, 1), (3, 4), (4, 5), (6, 7), (7, 8), (10, 13), (14, 15)]
    best = found[0]
    assert (best.start, best.end) == (spans[i][0], spans[j][1])
    assert best.text == context[best.start : best.end]
    assert best.score == pytest.approx(score, abs=1e-3)
    probabilities = [x.probability for x in found]
    assert probabilities == sorted(probabilities, reverse=True)
    several = bert.answer(["b", "the a", "the a"], ["a b", context, "c"], n_best=3)
    assert len(several) == 3 and same(several[1], found)
    assert bert.answer([], []) == []


def test_answers_in_a_long_text_and_no_answer():
    bert = FineTuned(make_finetuned("question_answering"))
    # The text is longer than the model's 40 positions.
    bert.trained["squad"] = {"max_answer_length": 2}
    context = " ".join("abcdefghij"[i % 10] for i in range(90))
    found = bert.answer("a", context)
    assert all(context[x.start : x.end] == x.text and len(x.text) <= 3 for x in found)
    assert any(not x.text for x in bert.answer("a", context, n_best=50, with_no_answer=True))
    assert all(x.text for x in bert.answer("a", context, n_best=50))
    with pytest.warns(UserWarning, match="the question is truncated to 20 tokens"):
        bert.answer("a " * 30, context)


def test_the_threshold_of_no_answer():
    context = "a b c d e f g h i j"
    found = FineTuned(make_finetuned("question_answering")).answer(
        "a", context, n_best=50, with_no_answer=True
    )
    (null,), spans = ([x for x in found if bool(x.text) == is_span] for is_span in (False, True))
    odds = null.score - spans[0].score
    for threshold, first in ((odds + 1e-3, spans[0].text), (odds - 1e-3, "")):
        pretrained = make_finetuned("question_answering")
        squad = {"null_threshold": threshold}
        pretrained.training["config"] = {"init_from": "somewhere", "squad": squad}
        bert = FineTuned(pretrained)
        found = bert.answer("a", context, n_best=50, with_no_answer=True)
        assert found[0].text == first
        assert [x.text for x in found if x.text] == [x.text for x in spans]
        (only,) = bert.answer("a", context, n_best=1, with_no_answer=True)
        assert only.text == first
    # A threshold of the call replaces that of the training.
    (only,) = bert.answer("a", context, n_best=1, with_no_answer=True, null_threshold=odds + 1)
    assert only.text == spans[0].text
    with pytest.raises(UserError, match="null_threshold has no effect without"):
        bert.answer("a", context, null_threshold=1.0)


def test_no_answer_competes_by_default_after_squad_2_0():
    context = "a b c d e f g h i j"
    empty = {}
    for version in ("", "1.1", "2.0"):
        pretrained = make_finetuned("question_answering")
        squad = {"version": version} if version else {}
        pretrained.training["config"] = {"init_from": "somewhere", "squad": squad}
        bert = FineTuned(pretrained)
        empty[version] = any(not x.text for x in bert.answer("a", context, n_best=60))
        found = bert.answer("a", context, n_best=60, with_no_answer=True)
        assert any(not x.text for x in found)
        assert all(x.text for x in bert.answer("a", context, n_best=60, with_no_answer=False))
    assert empty == {"": False, "1.1": False, "2.0": True}


@pytest.mark.parametrize(
    "config,texts,said",
    [
        ({"task": "mrpc"}, ["a"], "fine-tuned on pairs of sentences"),
        ({"task": "sst2"}, ["a", "b"], "fine-tuned on single sentences"),
        ({"task": "table", "table": {"text_b_column": "b"}}, ["a"], "fine-tuned on pairs"),
        ({"task": "mrpc"}, ["a", "b"], None),
        ({}, ["a"], None),
    ],
)
def test_warning_about_a_pair_or_a_single_sentence(config, texts, said):
    pretrained = make_finetuned("sequence_classification", LABELS)
    pretrained.training["config"] = config and {"init_from": "somewhere", **config}
    bert = FineTuned(pretrained)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert len(bert.classify(*texts)) == 3
    assert [said in str(warning.message) for warning in caught] == [True] * bool(said)


def test_tags():
    labels = ("O", "B-X", "I-X")
    bert = FineTuned(make_finetuned("token_classification", labels))
    found = bert.tag("A bc.")
    assert [x.word for x in found] == ["A", "bc", "."]
    assert [(x.start, x.end) for x in found] == [(0, 1), (2, 4), (4, 5)]
    outputs = logits(make_finetuned("token_classification", labels), "[CLS] a b ##c . [SEP]")[
        "logits"
    ]
    # The tag of "bc" is that of its first piece.
    for (_, tag, probability, *_), position in zip(found, (1, 2, 4), strict=True):
        expected = jax.nn.softmax(outputs[position])
        assert tag == labels[int(np.argmax(expected))]
        assert probability == pytest.approx(float(expected.max()), abs=1e-4)
    assert [word for word, *_ in bert.tag(["bc.", "the"])] == ["bc.", "the"]
    assert [word for word, *_ in bert.tag(word for word in ("a", "b"))] == ["a", "b"]
    words = ["abcdefghij"[i % 10] for i in range(100)]
    assert [word for word, *_ in bert.tag(words)] == words
    several = bert.tag([["the", "d"], ["A", "bc", "."]])
    assert [x.word for x in several[0]] == ["the", "d"] and same(several[1], found)


def test_entities_are_slices_of_the_text():
    text, tags = "Ann  Lee, New York Bo", ["B-X", "I-X", "O", "city", "city", "B-X"]
    words = [
        TaggedWord(text[start:end], tag, 1 - i / 10, start, end)
        for i, ((start, end), tag) in enumerate(zip(word_spans(text), tags, strict=True))
    ]
    assert entities_of(text, words) == [
        ("X", "Ann  Lee", 0, 8, 0.9),
        ("city", "New York", 10, 18, 0.6),
        ("X", "Bo", 19, 21, 0.5),
    ]


@pytest.mark.parametrize(
    "text,words",
    [
        ("नमस्ते दुनिया", ["नमस्ते", "दुनिया"]),
        ("cafe\u0301s in Paris", ["cafe\u0301s", "in", "Paris"]),
        ("שָׁלוֹם!", ["שָׁלוֹם", "!"]),
        ("a\u200bb", ["a\u200bb"]),
        ("I ❤\ufe0f it \u200b \u0301", ["I", "❤\ufe0f", "it"]),
        ("x_1,y--z\x00w", ["x_1", ",", "y", "-", "-", "z", "w"]),
        ("他来了", ["他来了"]),
    ],
)
def test_words_of_a_text(text, words):
    assert [text[start:end] for start, end in word_spans(text)] == words


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda b: b.classify("a"), "token_classification: use tag"),
        (lambda b: b.tag(" "), "there must be a word"),
        (lambda b: b.tag(["a", ""]), "no word may be empty"),
        (lambda b: b.tag(["a", None]), "text 1 is None; it must be a string"),
        (lambda b: b.tag([["a"], None]), "the text is None; it must be a string"),
        (lambda b: b.entities(1), "the text is 1; it must be a string"),
        (lambda b: b.tag({"a": 1}), "the text is {'a': 1}; it must be a string"),
    ],
)
def test_mistakes(ask, message):
    bert = FineTuned(make_finetuned("token_classification", LABELS))
    with pytest.raises(UserError, match=message):
        ask(bert)
