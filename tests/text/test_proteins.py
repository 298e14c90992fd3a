"""The synthetic proteins."""

import hashlib

from bert_jax.text.corpus import Corpus


def test_the_proteins_are_always_the_same_and_half_of_their_letters_are_motifs():
    corpus = Corpus(["synthetic_proteins"])
    documents = list(corpus.documents())
    text = "\n".join(document.text for document in documents)
    assert len(documents) == 6000 and set(text) == {*"ACDEFGHIKLMNPQRSTVWY \n"}
    assert hashlib.sha256(text.encode()).hexdigest()[:12] == "c18767ebc3cb"
    assert [document.place.line for document in documents[:2]] == [1, 2]
    sequences = ["".join(document.text.split()) for document in documents]
    windows: dict[str, int] = {}
    for sequence in sequences:
        for i in range(len(sequence) - 11):
            windows[sequence[i : i + 12]] = windows.get(sequence[i : i + 12], 0) + 1
    # The 32 motifs occur hundreds of times, and their letters are about half of all.
    motifs = [n for n in windows.values() if n > 500]
    assert len(motifs) == 32
    assert 0.4 < 12 * sum(motifs) / sum(map(len, sequences)) < 0.6
