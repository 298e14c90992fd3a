"""Converts our tokenizers to the `tokenizers` library and its file format tokenizer.json.

In the library, "[MASK]" and the other special tokens in a text become special tokens, as
`transformers` requires for filling masks. In bert_jax the five special tokens are plain text. All
other ids are the same, with these exceptions:

* WordPiece and bert_bpe: the differences that `bert_jax.tokenizers.wordpiece` lists for the
  library.
* ALBERT's rules: the library never chooses a piece of digits and a comma, as in `transformers`'
  AlbertTokenizerFast; bert_jax splits such pieces afterwards.
* SentencePiece: the library loses a combining mark after a character that the model's own
  normalization replaces ("Ａ" with an accent), and composes Hangul and half-width kana only in
  part. It may break ties between scores differently ("aaaa..."). With lower-casing, a capital sigma
  at the end of a word differs, unless the model folds case itself, as our models do. U+1171E and
  U+11938 differ too, because the library's tables are older. "▁" directly after a mask is doubled.
"""

import re
import sys
import unicodedata

from sentencepiece import sentencepiece_model_pb2
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from bert_jax.base.errors import UserError
from bert_jax.tokenizers import Tokenizer as OurTokenizer
from bert_jax.tokenizers.bpe import JsonTokenizer
from bert_jax.tokenizers.sentencepiece import WORD_START, SentencePieceTokenizer
from bert_jax.tokenizers.wordpiece import WordPieceTokenizer

_Piece = sentencepiece_model_pb2.ModelProto.SentencePiece
_Trainer = sentencepiece_model_pb2.TrainerSpec
_NUMBER_COMMA = re.compile(r".*\d,").fullmatch


def to_library(tokenizer: OurTokenizer) -> Tokenizer:
    """Converts a tokenizer to one of the library that gives the same ids.

    It adds special tokens and token types as the template of our tokenizer does.
    """
    if isinstance(tokenizer, SentencePieceTokenizer):
        library = _sentencepiece(tokenizer)
    elif isinstance(tokenizer, JsonTokenizer):
        library = tokenizer.library()
    else:
        library = _wordpiece(tokenizer)
    # The library gives the tokens that its model lacks the next ids, in this order.
    library.add_tokens(list(added_tokens(tokenizer).values()))
    library.post_processor = _post_processor(tokenizer)
    return library


def added_tokens(tokenizer: OurTokenizer) -> dict[int, AddedToken]:
    """Returns the tokens that the library finds in a text before it tokenizes, by their ids."""
    special = tokenizer.special_tokens
    names = special.names if special.last else special.spellings
    own = {
        i: AddedToken(
            token,
            lstrip=tokenizer.mask_takes_space and token == special.mask,
            normalized=False,
            special=True,
        )
        for i, token in enumerate(tokenizer.tokens)
        if token in names
    }
    return dict(sorted((own | tokenizer.added).items()))


def _post_processor(tokenizer: OurTokenizer) -> processors.PostProcessor:
    template = tokenizer.template
    before, between, after = (
        [tokenizer.id_to_token(i) for i in ids]
        for ids in (template.before, template.between, template.after)
    )
    second_type = template.num_segments - 1
    first = [f"{token}:0" for token in (*before, "$A", *between)]
    second = [f"{token}:{second_type}" for token in ("$B", *after)]
    ids = {*template.before, *template.between, *template.after}
    around = processors.TemplateProcessing(
        single=" ".join(f"{token}:0" for token in (*before, "$A", *after)),
        pair=" ".join(first + second),
        special_tokens=[(tokenizer.id_to_token(i), i) for i in sorted(ids)],
    )
    if tokenizer.kind == "byte_bpe":
        # The offsets of a piece do not include the space before it.
        return processors.Sequence([processors.ByteLevel(trim_offsets=True), around])
    return around


def _wordpiece(tokenizer: WordPieceTokenizer) -> Tokenizer:
    library = Tokenizer(tokenizer.library_model)
    library.normalizer = tokenizer.normalizer
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    return library


def _sentencepiece(tokenizer: SentencePieceTokenizer) -> Tokenizer:
    model = sentencepiece_model_pb2.ModelProto.FromString(tokenizer.model)
    _refuse_what_the_library_lacks(model)
    scores = {piece.piece: piece.score for piece in model.pieces}
    is_albert = "sentencepiece_rules" in tokenizer.options
    if is_albert:
        # With so low a score, the library never chooses the piece.
        scores.update({p: scores[p] - 100 for p in scores if _NUMBER_COMMA(p)})
    tokens = tokenizer.tokens[: tokenizer.num_model_tokens]
    pieces = [(token, scores.get(token, 0.0)) for token in tokens]
    if model.trainer_spec.model_type == _Trainer.UNIGRAM:
        library = Tokenizer(models.Unigram(pieces, unk_id=tokenizer.unk_id, byte_fallback=False))
    else:
        ids, unk = {piece: i for i, (piece, _) in enumerate(pieces)}, tokenizer.special_tokens.unk
        library = Tokenizer(models.BPE(ids, _merges(model), unk_token=unk, fuse_unk=True))
    steps: list[normalizers.Normalizer] = []
    if is_albert:
        steps = _albert_normalizers(tokenizer.options["lowercase"])
    elif tokenizer.options["lowercase"]:
        # The library's own StripAccents would drop vowel signs too.
        strip_accents = normalizers.Replace(Regex(r"\p{Mn}"), "")
        steps = [normalizers.NFD(), strip_accents, normalizers.Lowercase()]
    library.normalizer = normalizers.Sequence(steps + _model_normalizers(model))
    # Splitting at words is faster, but changes the result if a piece spans several words or if
    # unknown characters of several words would become one [UNK].
    split = not any(WORD_START in piece[1:] for piece, _ in pieces)
    split = split and WORD_START in dict(pieces)
    # transformers splits off special tokens first. The text after one begins a word in some
    # conventions.
    after = "always" if tokenizer.special_tokens.mask_takes_space else "first"
    scheme = after if _begins_words(model) else "never"
    library.pre_tokenizer = pre_tokenizers.Metaspace(WORD_START, prepend_scheme=scheme, split=split)
    prefix = "always" if model.normalizer_spec.add_dummy_prefix else "never"
    library.decoder = decoders.Metaspace(WORD_START, prepend_scheme=prefix, split=split)
    return library


def _albert_normalizers(lowercase: bool) -> list[normalizers.Normalizer]:
    spaces = "".join(c for c in map(chr, range(sys.maxunicode + 1)) if c.isspace())
    marks = "".join(c for c in map(chr, range(sys.maxunicode + 1)) if unicodedata.combining(c))
    return [
        normalizers.Replace(Regex(f"[{spaces}]+"), " "),
        normalizers.Replace("``", '"'),
        normalizers.Replace("''", '"'),
        normalizers.NFKD(),
        normalizers.Replace(Regex(f"[{marks}]"), ""),
        *([normalizers.Lowercase()] if lowercase else []),
        # The model's normalization composes Hangul again; the library's does it only in part.
        normalizers.NFC(),
    ]


def _model_normalizers(model: sentencepiece_model_pb2.ModelProto) -> list[normalizers.Normalizer]:
    steps = []
    if model.normalizer_spec.precompiled_charsmap:
        steps.append(normalizers.Precompiled(model.normalizer_spec.precompiled_charsmap))
    if model.normalizer_spec.remove_extra_whitespaces:
        steps.append(normalizers.Replace(Regex(" {2,}"), " "))
        steps.append(normalizers.Replace(Regex(r" \z"), ""))
        if not _begins_words(model):
            steps.append(normalizers.Replace(Regex(r"\A "), ""))
    if _begins_words(model):
        # Metaspace does not change text that already starts with a space or "▁".
        steps.append(normalizers.Replace(Regex(rf"\A{WORD_START}"), 2 * WORD_START))
        steps.append(normalizers.Replace(Regex(r"\A "), WORD_START))
    elif model.normalizer_spec.add_dummy_prefix:
        steps.append(normalizers.Prepend(WORD_START))
    return steps


def _begins_words(model: sentencepiece_model_pb2.ModelProto) -> bool:
    """Returns whether the model gives every text exactly one space before it."""
    spec = model.normalizer_spec
    return spec.add_dummy_prefix and spec.remove_extra_whitespaces


def _merges(model: sentencepiece_model_pb2.ModelProto) -> list[tuple[str, str]]:
    """Lists every way to join two pieces into a third, in order of priority.

    SentencePiece has no merges. It joins the neighbors that form the piece with the highest
    score.
    """
    normal = {piece.piece for piece in model.pieces if piece.type == _Piece.NORMAL}
    merges = []
    for piece in sorted(model.pieces, key=lambda piece: -piece.score):
        if piece.type == _Piece.NORMAL:
            text = piece.piece
            cuts = ((text[:i], text[i:]) for i in range(1, len(text)))
            merges += [(a, b) for a, b in cuts if a in normal and b in normal]
    return merges


def _refuse_what_the_library_lacks(model: sentencepiece_model_pb2.ModelProto) -> None:
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    types = {piece.type for piece in model.pieces}
    reasons = {
        "its type is neither unigram nor bpe": trainer.model_type
        not in (_Trainer.UNIGRAM, _Trainer.BPE),
        "it falls back to bytes": trainer.byte_fallback or _Piece.BYTE in types,
        "it has user-defined pieces": _Piece.USER_DEFINED in types,
        "it has unused pieces": _Piece.UNUSED in types,
        "its pieces end with a space, not start with one": trainer.treat_whitespace_as_suffix,
        "it does not escape spaces": not normalizer.escape_whitespaces,
    }
    for reason, applies in reasons.items():
        if applies:
            raise UserError(
                f"this SentencePiece model cannot be written as a Hugging Face tokenizer: {reason}"
            )
