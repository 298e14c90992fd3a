"""Rows whose attention is computed in slices, against attention with all scores in memory."""

from unittest import mock

import numpy as np
import pytest

from bert_jax.base.errors import UserError
from bert_jax.inference import attending
from bert_jax.inference.bert import Bert
from bert_jax.inference.embeddings import score_retrieval
from bert_jax.inference.finetuned import FineTuned
from bert_jax.models import attention
from bert_jax.tasks.retrieval import make_retrieval
from tests.interop.small_bert import LABELS, make_finetuned, make_pretrained

# Around the longest row that has all its scores in memory, and far above it; with [CLS] and [SEP].
LENGTHS = (3, 512, 513, 1200)
SIZES = {"max_position_embeddings": 1300, "num_hidden_layers": 2}
# Programs are compiled anew for another rate of dropout, which has no effect here.
WHOLE = SIZES | {"hidden_dropout_prob": 0.2}


def text_of(length):
    return " ".join([*("abcdefghij"[i * i % 10] for i in range(length - 3)), "the"])


TEXTS = [text_of(length) for length in LENGTHS]


def predictions(found):
    return [x.probability for x in found]


def of_all_methods(family, sizes):
    bert = Bert(make_pretrained(family=family, **sizes))
    data = make_retrieval(
        {str(i): text for i, text in enumerate(TEXTS)}, {"q": TEXTS[2]}, {"q": {"1": 1.0}}
    )
    masked = [text[:-3] + "[MASK]" for text in TEXTS[::2]]
    return {
        "encode": bert.encode(TEXTS, layers=[1, -1]),
        "tokens": np.concatenate(bert.encode(TEXTS, pooling="tokens")),
        "fill_mask": [predictions(mask[0]) for mask in bert.fill_mask(masked, top_k=3)],
        "retrieval": score_retrieval(bert, data, bert.embedding)["mrr@10"],
        "attention": bert.attention(TEXTS[2]).probabilities_NxAxLxL,
    }


def of_two_lengths(family, sizes):
    bert = Bert(make_pretrained(family=family, **sizes))
    texts = [text_of(9), text_of(513)]
    attention = bert.attention(texts[1], max_length=513).probabilities_NxAxLxL
    assert attention.shape[-2:] == (513, 513)
    np.testing.assert_allclose(attention.sum(-1), 1, atol=1e-5)
    return {"tokens": np.concatenate(bert.encode(texts, pooling="tokens")), "attention": attention}


def of_heads(family, sizes):
    classifier, tagger, reader = (
        FineTuned(make_finetuned(head, labels, family=family, **sizes))
        for head, labels in (
            ("sequence_classification", LABELS),
            ("token_classification", LABELS),
            ("question_answering", ()),
        )
    )
    return {
        "classify": [predictions(x) for x in classifier.classify([text_of(9), text_of(513)])],
        "tag": predictions(tagger.tag(text_of(1200))),
        "answer": predictions(reader.answer("a the", text_of(600))),
    }


@pytest.mark.parametrize(
    ("values_of", "family"),
    [
        (of_all_methods, "modernbert"),
        (of_heads, "modernbert"),
        # Fewer heads for keys than for queries; normalized queries and keys; scaled positions.
        *((of_two_lengths, family) for family in ("eurobert", "esmc", "gte")),
    ],
)
def test_slices_give_the_values_of_whole_attention(values_of, family, monkeypatch):
    sliced = mock.Mock(side_effect=attention.sliced_attention)
    monkeypatch.setattr(attention, "sliced_attention", sliced)
    found = values_of(family, SIZES)
    assert sliced.called
    # All scores of a row are computed at once.
    monkeypatch.setattr(attention, "_MAX_WHOLE_LENGTH", 10**6)
    sliced.reset_mock()
    for name, expected in values_of(family, WHOLE).items():
        np.testing.assert_allclose(found[name], expected, atol=2e-4, err_msg=name)
    assert not sliced.called


def test_attention_that_would_not_fit_is_refused(monkeypatch):
    bert = Bert(make_pretrained(family="modernbert", **SIZES))
    monkeypatch.setattr(attending, "_MAX_PROBABILITIES", 6 * 20**2)
    assert bert.attention(text_of(20)).probabilities_NxAxLxL.shape == (2, 3, 20, 20)
    with pytest.raises(UserError, match="has 21 tokens, .*; give max_length=20 or less"):
        bert.attention(text_of(21))
