"""data.heldout_by=id: the same documents are held out when others are added."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from bert_jax import tokenizers
from bert_jax.base.errors import UserError
from bert_jax.store.heldout import is_held_out_by_id
from bert_jax.store.token_store import TokenStore
from tests.stores import make, options, parts_of


def write(path, numbers):
    """Writes documents of one sentence, `document` and a number."""
    rows = [{"name": f"n{number}", "text": f"document {number}"} for number in numbers]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def split_of(output, name):
    """Returns the numbers of the documents of a split."""
    tokenizer = tokenizers.load(output / "tokenizer")
    texts = []
    for folder in sorted({path.parent for path in (output / name).rglob("document_starts.npy")}):
        store = TokenStore(folder)
        starts = store.part(0).sentence_starts
        for first, stop in zip(starts[:-1], starts[1:], strict=True):
            texts.append(tokenizer.decode(store.tokens_at(np.arange(first, stop))))
    return {int("".join(text.split()).removeprefix("document")) for text in texts}


def test_added_documents_do_not_move_the_held_out_ones(tmp_path):
    values = {"document_field": "name", "heldout_by": "id", "heldout_fraction": 0.1}
    before, after = [*range(100, 200)], [*range(50, 150), *range(170, 300)]
    held_out = []
    for name, numbers, part_bytes in (("a", before, 2**27), ("b", after, 500)):
        with parts_of(part_bytes):
            data = options(write(tmp_path / f"{name}.jsonl", numbers), **values)
            make(data, tmp_path / name, 200)
        held_out.append(split_of(tmp_path / name, "heldout"))
        assert split_of(tmp_path / name, "train") == set(numbers) - held_out[-1]
    common = set(before) & set(after)
    assert held_out[0] & common == held_out[1] & common
    assert 3 <= len(held_out[0]) <= 20


def test_the_share_is_the_fraction():
    held_out = [is_held_out_by_id(SimpleNamespace(id=str(n)), 0.2) for n in range(2000)]
    # Four standard errors.
    assert abs(sum(held_out) - 400) < 72


def test_what_has_no_id_is_refused(tmp_path):
    path = write(tmp_path / "a.jsonl", range(30))
    with pytest.raises(UserError, match="a.jsonl:1: with data.heldout_by=id, a document needs an"):
        make(options(path, heldout_by="id"), tmp_path / "store")
