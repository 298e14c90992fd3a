"""Multilingual BERT: `multilingual.py:base` (179 M parameters), or `:tiny`.

Source: google-research/bert, multilingual.md. The model and the recipe are BERT-base's. The text is
that of 104 Wikipedias, cased, with a WordPiece vocabulary of 119,547 pieces. Languages are drawn by
their share of the text to the power of 0.7, and nothing in a row marks its language. For XLM-R, see
configs/roberta.py.

    python -m bert_jax.main --config=configs/multilingual.py:base --workdir=/runs/multilingual \\
        --config.data.sources='en=enwiki.xml.bz2,bg=bgwiki.xml.bz2,el=elwiki.xml.bz2'

The command names the text of each language, because no text of several languages is built in;
docs/data.md describes the formats. With --config.data.sources=FOLDER, each file and folder of
FOLDER is the text of the language that names it (FOLDER/en.xml.bz2, FOLDER/bg/), so that 104
languages are one flag. A source has held-out documents and results of its own. A random second
segment comes from the source of the first one.

Hardware: 16 TPU chips for `base`; two CPU cores and 2 GB of memory for `tiny`, which follows
configs/tiny.py and takes minutes.
Expected: XNLI, trained on English alone: 81.4 English, 63.8 Chinese, for Google's uncased model of
102 languages. Not reproduced with this code.
"""

from bert_jax import load_config
from bert_jax.config import check_argument

SIZES = ("base", "tiny")


def get_config(arg: str = "base"):
    check_argument(arg, SIZES)
    c = load_config("tiny" if arg == "tiny" else "base")
    c.data.lowercase = False
    c.data.sampling_exponent = 0.7
    if arg == "base":
        c.model.vocab_size = 119_547
    return c
