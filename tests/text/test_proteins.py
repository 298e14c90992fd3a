"""The synthetic proteins."""

import hashlib

from bert_jax.text.corpus import Corpus


def test_the_proteins_are_always_the_same():
    corpus = Corpus(["synthetic_proteins"])
    documents = list(corpus.documents())
    text = "\n".join(document.text for document in documents)
    assert len(documents) == 6000 and set(text) == {*"ACDEFGHIKLMNPQRSTVWY \n"}
    assert hashlib.sha256(text.encode()).hexdigest()[:12] == "c18767ebc3cb"
    assert [document.place.line for document in documents[:2]] == [1, 2]
