"""A small corpus in memory, and the stream of its batches."""

import dataclasses

from bert_jax.batches.stream import Stream
from tests.batches.fakes import FakeStore, make_documents, make_spec, make_tokenizer

DOCUMENTS = make_documents(seed=8, num_documents=30, most_sentences=25)
STORE = FakeStore(DOCUMENTS)
TOKENIZER = make_tokenizer(5 + STORE.num_tokens)
# Windows are about a sixth of an epoch, and batches span windows and epochs.
SPEC = make_spec(32, max_predictions_per_seq=5, batch_size=12, seed=3, shuffle_sentences=64)
# Packed rows. Half of the documents have shorter pairs.
SINGLE = {"max_seq_length": 64, "max_predictions_per_seq": 12, "short_seq_prob": 0.5}
PACKED = SINGLE | {"max_pairs_per_row": 4}


def stream(store=STORE, **changes):
    hosts = {k: changes.pop(k) for k in ("shards", "num_shards") if k in changes}
    return Stream(store, TOKENIZER, dataclasses.replace(SPEC, **changes), **hosts)
