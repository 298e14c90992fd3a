"""Measures reading a dump of Wikipedia: MB of XML that one core reads in a second, stage by stage.

pip install mwparserfromhell
python benchmarks/wikipedia.py DUMP.xml.bz2 VOCAB.txt
"""

import bz2
import sys
import tempfile
import time
from pathlib import Path
from xml.etree import ElementTree

import mwparserfromhell

from bert_jax import tokenizers
from bert_jax.store.tokenization import document_to_tokens
from bert_jax.text.corpus import Corpus
from bert_jax.text.wikitext import passages


def measure(what, function, megabytes):
    """Prints the speed of a function, the best of three calls, and returns its result."""
    seconds = []
    for _ in range(3):
        started = time.process_time()
        result = function()
        seconds.append(time.process_time() - started)
    print(f"{what:48} {megabytes / min(seconds):6.1f} MB/s")
    return result


def main(path, vocab):
    xml = bz2.decompress(Path(path).read_bytes())
    megabytes = len(xml) / 1e6
    tokenizer = tokenizers.from_file("wordpiece", vocab)
    pages = [page for page in ElementTree.fromstring(xml).iter() if page.tag.endswith("}page")]
    sources = [p.findtext("{*}revision/{*}text") for p in pages if p.find("{*}redirect") is None]

    def tokenize(documents):
        for document in documents:
            document_to_tokens(document.text, tokenizer)

    measure("bz2", lambda: bz2.decompress(Path(path).read_bytes()), megabytes)
    measure("wikitext to passages", lambda: [passages(text) for text in sources], megabytes)
    measure(
        "wikitext to passages, mwparserfromhell",
        lambda: [mwparserfromhell.parse(text).strip_code() for text in sources],
        megabytes,
    )
    with tempfile.NamedTemporaryFile(suffix=".xml") as plain:
        Path(plain.name).write_bytes(xml)
        corpus = Corpus(plain.name)
        measure(".xml to passages", lambda: list(corpus.documents()), megabytes)
    corpus = Corpus(path)
    documents = measure(".xml.bz2 to passages", lambda: list(corpus.documents()), megabytes)
    measure("passages to tokens", lambda: tokenize(documents), megabytes)
    measure(".xml.bz2 to tokens", lambda: tokenize(corpus.documents()), megabytes)


if __name__ == "__main__":
    main(*sys.argv[1:])
