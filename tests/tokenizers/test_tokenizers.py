"""Tokenizers: training, files, ids and decoding."""

import numpy as np
import pytest
import sentencepiece

from bert_jax import tokenizers
from bert_jax.base.errors import UserError
from bert_jax.text.sources import built_in_files
from bert_jax.tokenizers import training

BERT = tokenizers.SPECIAL_TOKENS
SPECIALS = list(BERT.spellings)
PIECES = (
    "the he h e un ##a ##aff ##able able café caf ##é 中 ( ) [ ] mask ! – “ ” ' s ##s I i".split()
)


def sample_texts(number=8):
    return [line for f in built_in_files()[:number] for line in f.read_text("utf-8").split("\n")]


def train(kind, texts, vocab_size=700, lowercase=True, max_chars=200, special_tokens=BERT):
    """Trains a tokenizer of a kind, or a SentencePiece model of the type "unigram" or "bpe"."""
    is_type = kind in ("unigram", "bpe")
    return training.train(
        "sentencepiece" if is_type else kind,
        texts,
        vocab_size=vocab_size,
        lowercase=lowercase,
        max_input_chars_per_word=max_chars,
        sentencepiece_type=kind if is_type else "unigram",
        special_tokens=special_tokens,
    )


def from_file(kind, path, lowercase=True, max_chars=200):
    return tokenizers.from_file(kind, path, lowercase=lowercase, max_input_chars_per_word=max_chars)


def write_vocabulary(tmp_path, tokens):
    path = tmp_path / "vocab.txt"
    path.write_bytes("".join(f"{t}\n" for t in tokens).encode())
    return path


@pytest.fixture(scope="module", params=["wordpiece", "unigram", "bpe"])
def trained(request):
    return train(request.param, sample_texts())


def test_text_cannot_spell_special_tokens(trained):
    text = "[MASK] [CLS] [mask][SEP] [PAD] [UNK] ▁[MASK] [unused0]"
    ids, empty = trained.encode_batch([text, ""])
    assert len(ids) > 8 and ids.dtype == empty.dtype == np.int32 and empty.size == 0
    assert not set(ids.tolist()) & (set(trained.special_ids) - {trained.unk_id})


def test_a_batch_gives_the_ids_of_each_text(trained):
    texts = [
        "",
        "The \u2028U.S.A.!",
        "tab\tand\nline\0\x0b",
        "“Naïve”, 中 é\u0301",
        "",
        *sample_texts(1),
    ]
    assert trained.encode_batch([]) == []
    for text, ids in zip(texts, trained.encode_batch(texts), strict=True):
        assert ids.tolist() == trained.encode_batch([text])[0].tolist()
        assert ids.tolist() == trained.encode_aligned(text)[0].tolist()


def test_number_of_word_starts_is_the_number_of_words(trained):
    (ids,) = trained.encode_batch(["the unquestionable representatives agreed"])
    assert trained.is_word_start_V.dtype == bool
    assert len(ids) > 4
    assert trained.is_word_start_V[ids].sum() == 4
    assert trained.is_word_start_V[list(trained.special_ids)].all()


@pytest.mark.parametrize(
    "kind, lowercase, distinct",
    [("wordpiece", False, 3), ("wordpiece", True, 1), ("sentencepiece", True, 1)],
)
def test_lower_casing_strips_accents(kind, lowercase, distinct):
    texts = sample_texts(2) + ["Café café cafe"] * 3
    tokenizer = train(kind, texts, 400, lowercase=lowercase)
    assert len({tuple(ids) for ids in tokenizer.encode_batch(["Café", "café", "cafe"])}) == distinct


def test_fingerprint_depends_on_options_and_vocabulary(tmp_path):
    path = write_vocabulary(tmp_path, SPECIALS + PIECES)
    prints = [
        from_file("wordpiece", path).fingerprint,
        from_file("wordpiece", path, lowercase=False).fingerprint,
        from_file("wordpiece", path, max_chars=100).fingerprint,
        from_file("wordpiece", write_vocabulary(tmp_path, SPECIALS + PIECES[::-1])).fingerprint,
    ]
    assert len(set(prints)) == 4


@pytest.mark.parametrize("convention", ["bert", "herbert"])
def test_words_of_running_text(convention):
    kind = {"bert": "wordpiece", "herbert": "bert_bpe"}[convention]
    special = tokenizers.CONVENTIONS[convention]
    tokenizer = train(kind, sample_texts(), lowercase=False, special_tokens=special)
    words = "The unquestionable representatives , agreed ( 中 )".split()
    ids = [tokenizer.encode_batch([word])[0] for word in words]
    row = tokenizer.join(np.concatenate(ids), ids[1]).input_ids_L
    assert (
        row.tolist()
        == tokenizer.join(
            *tokenizer.encode_batch(
                ["The unquestionable representatives, agreed (中)", "unquestionable"]
            )
        ).input_ids_L.tolist()
    )
    begins = [[True, *[False] * (len(word) - 1)] for word in ids]
    expected = [True, *sum(begins, []), True, *begins[1], True]
    assert max(map(len, ids)) > 3
    assert tokenizer.begins_word(np.stack([row, row])).tolist() == [expected, expected]


@pytest.mark.parametrize(
    "kind, content, words",
    [
        ("wordpiece", b"[PAD]\n[UNK]\n[CLS]\na\n", r"has no \[SEP\] \[MASK\], which BERT needs"),
        ("wordpiece", b"", r"has no \[PAD\]"),
        ("wordpiece", b"[PAD]\n[UNK]\n\xff\xfe\n", "vocabulary is damaged or another program's"),
        ("sentencepiece", b"[PAD]\n[UNK]\n\xff\xfe\n", "vocabulary is damaged or another"),
    ],
)
def test_unusable_vocabularies_are_refused(kind, content, words, tmp_path):
    path = tmp_path / "vocabulary"
    path.write_bytes(content)
    with pytest.raises(UserError, match=words):
        from_file(kind, path)


def test_text_cannot_spell_user_defined_specials(tmp_path):
    options = {"pad_id": 0, "pad_piece": "[PAD]", "unk_id": 1, "unk_piece": "[UNK]"}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sample_texts(2)),
        model_prefix=str(tmp_path / "model"),
        vocab_size=300,
        minloglevel=2,
        bos_id=-1,
        eos_id=-1,
        user_defined_symbols=["[CLS]", "[SEP]", "[MASK]"],
        **options,
    )
    tokenizer = from_file("sentencepiece", tmp_path / "model.model")
    (ids,) = tokenizer.encode_batch(["the [MASK] of the [CLS]"])
    assert not {tokenizer.mask_id, tokenizer.cls_id} & set(ids.tolist())


def test_damaged_options_are_refused(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(SPECIALS))
    whole = b'{"kind": "wordpiece", "lowercase": true, "max_input_chars_per_word": 9}'
    (tmp_path / "bert_jax_tokenizer.json").write_bytes(whole)
    assert tokenizers.load(tmp_path).options["max_input_chars_per_word"] == 9
    for content in (b"[1]", b"{", b'{"kind": "x"}', whole.replace(b"9", b'"9"')):
        (tmp_path / "bert_jax_tokenizer.json").write_bytes(content)
        with pytest.raises(UserError, match="bert_jax_tokenizer.json is (damaged|not valid JSON)"):
            tokenizers.load(tmp_path)


@pytest.mark.parametrize(
    "kind, convention",
    [
        ("wordpiece", "bert"),
        ("unigram", "bert"),
        ("wordpiece", "roberta"),
        ("unigram", "roberta"),
        ("bpe", "camembert"),
        ("wordpiece", "albert"),
        ("unigram", "albert"),
        ("byte_bpe", "roberta"),
        ("moses_bpe", "xlm"),
        ("bert_bpe", "herbert"),
    ],
)
def test_conventions_of_special_tokens(kind, convention, tmp_path):
    special = tokenizers.CONVENTIONS[convention]
    tokenizer = train(kind, sample_texts(), special_tokens=special)
    assert tokenizer.options.get("special_tokens", "bert") == convention
    assert len(set(tokenizer.tokens)) == tokenizer.vocab_size == 700
    num_last = len(special.last)
    assert tuple(tokenizer.tokens[: len(special.first)]) == special.first
    assert tuple(tokenizer.tokens[700 - num_last :]) == special.last
    text = "the senate and the house"
    (ids,) = tokenizer.encode_batch([text])
    assert tokenizer.decode(ids) == text and tokenizer.decode([699 - num_last, *ids]).endswith(text)
    np.testing.assert_array_equal(tokenizer.encode_aligned(text)[0], ids)
    cls, sep, mask = tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id
    row = tokenizer.join(ids, ids)
    if convention in ("albert", "bert", "xlm", "herbert"):
        assert row.input_ids_L.tolist() == [cls, *ids, sep, *ids, sep]
        is_split = special.num_segments == 2
        assert row.num_first == (len(ids) + 2 if is_split else len(row.input_ids_L))
    else:
        assert row.input_ids_L.tolist() == [cls, *ids, sep, sep, *ids, sep]
        assert row.num_first == len(row.input_ids_L)
    masked = tokenizer.encode_masked(f"the {special.mask} and [MASK] house").tolist()
    assert masked.count(mask) == 2
    assert not {cls, sep, mask} & set(tokenizer.encode_batch(["<s> </s> <mask> [CLS]"])[0].tolist())
    tokenizer.save(tmp_path)
    again = tokenizers.load(tmp_path)
    assert again.fingerprint == tokenizer.fingerprint and again.special_tokens == special


def test_a_byte_order_mark_is_no_part_of_a_vocabulary(tmp_path):
    text = "\n".join([*SPECIALS, "a", "##b"])
    (tmp_path / "vocab.txt").write_text(text)
    (tmp_path / "marked.txt").write_text(text, encoding="utf-8-sig")
    plain, marked = (from_file("wordpiece", tmp_path / f"{n}.txt") for n in ("vocab", "marked"))
    assert marked.fingerprint == plain.fingerprint


def test_a_tokenizer_json_is_no_vocabulary_of_wordpiece(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match=r"tokenizer\.json is no vocab\.txt; give a file with a"):
        from_file("wordpiece", tmp_path / "tokenizer.json")
