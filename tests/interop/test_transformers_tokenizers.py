"""Exported tokenizers in several versions of `transformers`, which needs no torch for this.

BERT_JAX_TRANSFORMERS lists directories that `pip install --target=DIR transformers==VERSION` made,
separated as in PATH. `.ci/run` makes one of the last version 4 and one of a version 5.
"""

import json
import os
import subprocess
import sys
from collections import Counter

import pytest
from tokenizers import AddedToken
from tokenizers import Tokenizer as LibraryTokenizer

from benchmarks.golden.family_tokenization import CLASSES, FRENCH, PAIR, POLISH
from benchmarks.golden.tokenization import VOCABULARY
from bert_jax.interop import tokenizer_files as files
from bert_jax.interop.families import load_family
from bert_jax.tokenizers import CONVENTIONS, from_file
from bert_jax.tokenizers.training import extend
from bert_jax.tokenizers.wordpiece import WordPieceTokenizer, read_vocabulary
from tests.golden.inputs import read_json
from tests.interop.small_tokenizers import gemma_like, llama_like, modernbert_like, train
from tests.runs import ROOT
from tests.tokenizers.test_family_parity import BREAKS, UNASSIGNED, read, unpack

pytest.importorskip("sacremoses")

VERSIONS = [path for path in os.environ.get("BERT_JAX_TRANSFORMERS", "").split(os.pathsep) if path]
# In transformers 5, the named classes of the others would give other ids.
NAMED = {
    "bert_uncased": "BertTokenizer",
    "bert_cased": "BertTokenizer",
    "distilbert": "DistilBertTokenizer",
    "electra": "ElectraTokenizer",
    "roberta": "RobertaTokenizer",
    "roberta_prefix": "RobertaTokenizer",
    "phobert": "PhobertTokenizer",
    "flaubert": "FlaubertTokenizer",
    "flaubert_uncased": "FlaubertTokenizer",
    "bart": "BartTokenizer",
    "herbert": "HerbertTokenizer",
    "bert_uncased_added": "BertTokenizer",
    "roberta_added": "RobertaTokenizer",
}
# The tokenizers that are also exported with added tokens.
ADDED = ("bert_uncased", "roberta", "albert")
WITH_FOUND = (
    "bert_uncased",
    "bert_cased",
    "roberta",
    "roberta_prefix",
    "xlm_roberta",
    "albert",
    "phobert",
    "flaubert",
    "herbert",
    "mmbert",
    "modernbert",
)
# Their classes have no tokenizer.json. The first turns line breaks into <unk>, the other removes
# white space that is a control character and characters that Python lacks, and all of them find
# special tokens in the text.
SLOW = {
    "phobert": "\n<",
    "flaubert": f"{BREAKS}{UNASSIGNED}<",
    "flaubert_uncased": f"{BREAKS}{UNASSIGNED}<",
}
FAMILY_OF = {
    "albert_cased": "albert",
    "roberta_prefix": "roberta",
    "phobert": "roberta",
    "flaubert_uncased": "flaubert",
    "bert_uncased": "bert",
    "bert_cased": "bert",
    "bert_200": "bert",
    "bert_unigram": "bert",
    "distilbert_bpe": "distilbert",
    "mmbert": "modernbert",
    "bert_uncased_added": "bert",
    "roberta_added": "roberta",
    "albert_added": "albert",
}
# Tokens that are added as users of transformers add them, and texts that have them.
FOUND = {"covid": {}, "[E1]": {"special": True}, "zq": {"single_word": True, "lstrip": True}}
FOUND_TEXTS = [
    "a covid, Covids [E1] [e1]",
    "[E1]covid[E1] x",
    "  covid ",
    "x zq  zq y, zqzq zq",
]
SPACED = "the people , are free ."
SHARED = read_json("family_tokenization.json.gz")["texts"]
TEXTS = [*FOUND_TEXTS, *SHARED, *FRENCH, *POLISH, *("a" * n for n in (100, 101, 150, 200, 201))]


def family_of(name):
    name = name.removesuffix("_found")
    return FAMILY_OF.get(name, name)


def wordpiece(lowercase, max_chars=100):
    return WordPieceTokenizer(
        read_vocabulary(VOCABULARY),
        lowercase=lowercase,
        max_input_chars_per_word=max_chars,
    )


def with_words(tokenizer):
    """Adds tokens for words of the texts."""
    counts = Counter(word for text in TEXTS for word in tokenizer.words(text))
    return extend(tokenizer, "40", list(counts.items()))


def with_found(tokenizer):
    """Adds tokens that are found in the text first."""
    always = {"normalized": False} if tokenizer.kind == "sentencepiece" else {}
    tokens = [AddedToken(content, **flags, **always) for content, flags in FOUND.items()]
    return tokenizer.with_added(dict(enumerate(tokens, tokenizer.vocab_size)), "a test")


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The tokenizers by name, and the directory of their exports."""
    models = unpack(tmp_path_factory.mktemp("models"))
    gemma_like().save(str(models / "tokenizer.json"))
    llama_like().save(str(models / "llama.json"))
    tokenizers = {name: read(name, models) for name in CLASSES} | {
        "bert_uncased": wordpiece(True),
        "bert_cased": wordpiece(False),
        "bert_200": wordpiece(True, 200),
        "spanbert": wordpiece(False, 200),
        "distilbert": wordpiece(True),
        "electra": wordpiece(True),
        "bert_unigram": train("unigram", True),
        "distilbert_bpe": train("bpe", False),
        "bart": read("roberta", models),
        "mmbert": from_file("tokenizer_json", models, special_tokens=CONVENTIONS["gemma"]),
        "eurobert": from_file(
            "tokenizer_json", models / "llama.json", special_tokens=CONVENTIONS["eurobert"]
        ),
    }
    tokenizers["modernbert"] = modernbert_like(tokenizers["roberta"])
    tokenizers |= {f"{name}_found": with_found(tokenizers[name]) for name in WITH_FOUND}
    tokenizers |= {f"{name}_added": with_words(tokenizers[name]) for name in ADDED}
    directory = tmp_path_factory.mktemp("exported")
    for name, tokenizer in tokenizers.items():
        family = load_family(family_of(name))
        files.write_huggingface_tokenizer(tokenizer, directory / name, family, 77)
    return tokenizers, directory


@pytest.fixture(
    scope="module",
    # The newest is the last.
    params=[*(pytest.param(x, marks=pytest.mark.slow) for x in VERSIONS[:-1]), *VERSIONS[-1:]],
    ids=os.path.basename,
)
def loaded(request, exported, tmp_path_factory):
    """What a version of `transformers` gives, and the directory of what it saves."""
    saved = tmp_path_factory.mktemp("saved")
    ended = subprocess.run(
        [sys.executable, "tests/interop/load_tokenizers.py", exported[1], saved],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": request.param},
        input=json.dumps({"texts": TEXTS, "pair": PAIR, "decoded": SPACED}),
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout), saved


def test_only_classes_that_keep_the_ids_are_named(exported):
    tokenizers, directory = exported
    for name in tokenizers:
        config = json.loads((directory / name / "tokenizer_config.json").read_text())
        expected = NAMED.get(name.removesuffix("_found"), "PreTrainedTokenizerFast")
        assert config["tokenizer_class"] == expected, name


needs_transformers = pytest.mark.skipif(
    not VERSIONS, reason="BERT_JAX_TRANSFORMERS lists no directory with transformers"
)


@needs_transformers
def test_every_export_has_the_ids_of_its_tokenizer_json(exported, loaded):
    tokenizers, directory = exported
    wrong = {}
    for name, tokenizer in tokenizers.items():
        found, given = loaded[0][name], TEXTS
        if (slow := name.removesuffix("_found")) in SLOW:
            given = [text for text in TEXTS if not {*SLOW[slow]} & {*text}]
            ids = [tokenizer.join(i).input_ids_L.tolist() for i in tokenizer.encode_batch(given)]
        else:
            library = LibraryTokenizer.from_file(str(directory / name / "tokenizer.json"))
            ids = [library.encode(text).ids for text in given]
            pair = library.encode(*PAIR)
            assert found["pair"]["input_ids"] == pair.ids, name
            assert found["pair"].get("token_type_ids", pair.type_ids) == pair.type_ids, name
        theirs = dict(zip(TEXTS, found["ids"], strict=True))
        wrong[name] = sum(theirs[text] != ours for text, ours in zip(given, ids, strict=True))
        if name.endswith("_found"):
            for text, ours in zip(FOUND_TEXTS, tokenizer.encode_batch(FOUND_TEXTS), strict=True):
                assert theirs[text] == tokenizer.join(ours).input_ids_L.tolist(), (name, text)
        if tokenizer.kind in ("byte_bpe", "tokenizer_json"):
            assert found["decoded"].strip() == SPACED, name
        has_types = tokenizer.template.num_segments == 2 and not name.startswith("distilbert")
        assert ("token_type_ids" in found["pair"]) == has_types, name
        assert found["max_length"] == 77
    assert not any(wrong.values()), wrong


@needs_transformers
def test_what_transformers_saved_is_read_again(exported, loaded):
    for name, tokenizer in exported[0].items():
        family = load_family(family_of(name))
        if name in ("bert_unigram", "distilbert_bpe"):
            continue  # Only BERT's own WordPiece can be read for these families.
        again = files.read_huggingface_tokenizer(loaded[1] / name, family)[0]
        for text, ours, theirs in zip(
            TEXTS, tokenizer.encode_batch(TEXTS), again.encode_batch(TEXTS), strict=True
        ):
            assert ours.tolist() == theirs.tolist(), (name, text)
