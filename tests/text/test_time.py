"""Reading takes time in proportion to the size of a text, whatever is in it."""

import time

import pytest

from bert_jax.text.sentences import split_sentences
from bert_jax.text.wikitext import passages


@pytest.mark.parametrize(
    "read, part, end",
    [
        (split_sentences, "?)", ""),
        (passages, " ", ""),
        (passages, "a |}", ""),
        (passages, "<table></ul>", ""),
        (passages, "[[a|b ", "]]"),
    ],
)
def test_time_does_not_grow_with_the_square_of_the_size(read, part, end):
    def seconds(size):
        number = size // len(part + end)
        text = "a" + part * number + end * number + "b"
        start = time.process_time()
        read(text)
        return time.process_time() - start

    # This is about 4, and would be 16 with the square.
    assert seconds(400_000) < 8 * seconds(100_000)
