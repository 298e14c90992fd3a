"""Trains and extends vocabularies with the `tokenizers` and `sentencepiece` libraries.

The same texts give the same bytes in every process, whatever the number of its threads. The
`tokenizers` library breaks ties by ids, and gives pieces such as "##a" and "a</w>" ids in an order
that differs from process to process. So all pieces of single characters are given to it in a fixed
order, as special tokens, and are ordinary pieces in the result.
"""

import io
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain, zip_longest
from typing import Any

import sentencepiece
import tokenizers
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, models, pre_tokenizers, trainers

from bert_jax.base.errors import UserError
from bert_jax.tokenizers.base import Tokenizer
from bert_jax.tokenizers.bpe import JsonTokenizer, content_of
from bert_jax.tokenizers.extension import is_number, placed, words_of_file
from bert_jax.tokenizers.factory import load_kind
from bert_jax.tokenizers.protein import esm_vocabulary
from bert_jax.tokenizers.sentencepiece import SentencePieceTokenizer, normalize
from bert_jax.tokenizers.special_tokens import SPECIAL_TOKENS, SpecialTokens
from bert_jax.tokenizers.vocabularies import is_placeholder
from bert_jax.tokenizers.word_bpe import END, Merges, fastbpe_contents, fastbpe_token, moses_words
from bert_jax.tokenizers.wordpiece import WordSplitter

# Words, and how often each occurs.
WordCounts = Sequence[tuple[str, int]]
Split = Callable[[str], list[str]]
# Pieces that occur once are noise.
MIN_FREQUENCY = 2
# So many different characters of a text always get tokens. Further ones get them in up to half of
# the vocabulary, and in places that are free after the training.
MIN_ALPHABET = 1000
# Longer words are left out or cut, because the time is quadratic in the length of a word.
_LONGEST_WORD = 200
_SHORT = pre_tokenizers.FixedLength(length=_LONGEST_WORD)
_split_cased = WordSplitter(lowercase=False).split
# The number of threads affects rounding, so the number must not depend on the machine.
_SENTENCEPIECE_THREADS = 2
# Longer lines are cut, because the library would drop them.
_SENTENCEPIECE_LINE = 4000
# The first of the characters that stand for tokens; none of them is white space.
_FIRST_CHARACTER = 0x10000


def train(
    kind: str,
    texts: Iterable[str],
    *,
    vocab_size: int,
    sentencepiece_type: str = "unigram",
    special_tokens: SpecialTokens = SPECIAL_TOKENS,
    **options: Any,
) -> Tokenizer:
    """Trains a tokenizer with exactly `vocab_size` tokens.

    If the text is too short for so many, "[unused0]", "[unused1]", ... fill up the vocabulary, as
    in Google's vocabularies; sentencepiece refuses it.

    Args:
      kind: One of `factory.KINDS`, but not "tokenizer_json".
      texts: Sentences or short paragraphs. All together must fit in memory; `bert_jax.prepare`
        draws a sample.
      sentencepiece_type: "unigram" or "bpe".
      special_tokens: Defines the first and the last tokens.
      options: As for `from_file`.
    """
    known = load_kind(kind)
    own = known.own(options)
    more = {"model_type": sentencepiece_type} if kind == "sentencepiece" else {}
    vocabulary = _TRAINERS[kind](texts, vocab_size, special_tokens, **own, **more)
    return known.tokenizer(vocabulary, special_tokens=special_tokens, **own)


def _wordpiece(
    texts: Iterable[str],
    vocab_size: int,
    special_tokens: SpecialTokens,
    *,
    lowercase: bool,
    max_input_chars_per_word: int,
) -> list[str]:
    def inner(character: str) -> list[str]:
        # Punctuation and CJK characters continue no word.
        continues = len(_split_cased(f"a{character}")) == 1
        return [f"##{character}"] if continues else []

    split, affix = WordSplitter(lowercase).split, {"continuing_subword_prefix": "##"}
    # The tokenizer maps longer words to [UNK].
    longest = max_input_chars_per_word
    return _of_words(texts, split, longest, vocab_size, special_tokens, inner, **affix)[0]


def _moses_bpe(
    texts: Iterable[str], vocab_size: int, special_tokens: SpecialTokens, *, lowercase: bool
) -> tuple[list[str], Merges]:
    return _word_bpe(texts, moses_words(lowercase=lowercase), vocab_size, special_tokens)


def _bert_bpe(texts: Iterable[str], vocab_size: int, special_tokens: SpecialTokens) -> str:
    tokens, merges = _word_bpe(texts, _split_cased, vocab_size, special_tokens)
    return content_of("bert_bpe", tokens, merges, special_tokens)


def _fastbpe(
    texts: Iterable[str], vocab_size: int, special_tokens: SpecialTokens
) -> tuple[dict[str, bytes], list[str], Merges]:
    tokens, merges = _word_bpe(texts, str.split, vocab_size, special_tokens)
    own = slice(len(special_tokens.first), vocab_size - len(special_tokens.last))
    learned = [fastbpe_token(token) for token in tokens[own] if not is_placeholder(token)]
    # Words of the text such as "<s>" have no token.
    words = [word for word in learned if word and word not in special_tokens.names]
    words = _filled([*special_tokens.first, *words], vocab_size, special_tokens)[own]
    return fastbpe_contents(words, merges), words, merges


def _word_bpe(
    texts: Iterable[str], split: Split, vocab_size: int, special_tokens: SpecialTokens
) -> tuple[list[str], Merges]:
    def ending(character: str) -> list[str]:
        return [character + END]

    longest, affix = _LONGEST_WORD, {"end_of_word_suffix": END}
    return _of_words(texts, split, longest, vocab_size, special_tokens, ending, **affix)


def _byte_bpe(
    texts: Iterable[str], vocab_size: int, special_tokens: SpecialTokens, *, add_prefix_space: bool
) -> str:
    base = [*special_tokens.first, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    num_pieces = _num_pieces(vocab_size, special_tokens, base)
    splitters = [pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space), _SHORT]
    splitter = pre_tokenizers.Sequence(splitters)
    tokens, merges = _learn_merges(texts, base, num_pieces, splitter)
    tokens = _filled(tokens, vocab_size, special_tokens)
    return content_of("byte_bpe", tokens, merges, special_tokens)


def _of_words(
    texts: Iterable[str],
    split: Split,
    longest: int,
    vocab_size: int,
    special_tokens: SpecialTokens,
    other_pieces: Split,
    **affix: str,
) -> tuple[list[str], Merges]:
    """Trains a vocabulary on words, and its merges.

    After the special tokens come the characters and then their other pieces.

    Args:
      longest: The length of the longest words; others are left out.
      other_pieces: Returns the other piece of a character ("##x", "x</w>"), if it has one.
      affix: The option of `BpeTrainer` that defines these pieces.
    """
    lines = [" ".join(word for word in split(text) if len(word) <= longest) for text in texts]
    counts = Counter(chain.from_iterable(lines))
    del counts[" "]
    if not counts:
        raise UserError(
            "there is no text to train a vocabulary on, or all words have more than "
            "data.max_input_chars_per_word characters: set a larger one, data.characters_apart="
            "True for sequences such as DNA, or data.tokenizer=byte_bpe"
        )
    by_frequency = sorted(counts, key=lambda character: (-counts[character], character))
    half = (vocab_size - len(special_tokens.last)) // 2
    sizes = accumulate(1 + len(other_pieces(character)) for character in by_frequency)
    number = max(MIN_ALPHABET, sum(size <= half for size in sizes))
    characters, rare = sorted(by_frequency[:number]), by_frequency[number:]
    base = [*special_tokens.first, *characters, *chain.from_iterable(map(other_pieces, characters))]
    num_pieces = _num_pieces(vocab_size, special_tokens, base)
    if rare:
        dropped = dict.fromkeys(map(ord, rare))
        lines = [line.translate(dropped) for line in lines]
    splitter = pre_tokenizers.WhitespaceSplit()
    tokens, merges = _learn_merges(lines, base, num_pieces, splitter, **affix)
    others = [piece for character in rare for piece in (character, *other_pieces(character))]
    tokens += others[: num_pieces - len(tokens)]
    return _filled(tokens, vocab_size, special_tokens), merges


def _learn_merges(
    texts: Iterable[str],
    base: Sequence[str],
    num_tokens: int,
    splitter: pre_tokenizers.PreTokenizer,
    **affix: str,
) -> tuple[list[str], Merges]:
    """Learns the merges of BPE.

    Args:
      texts: The texts, all of whose characters are in `base`, split into words.
      base: The first tokens, among them those of single characters.
      num_tokens: The largest number of tokens.
      affix: An option of `BpeTrainer`.

    Returns:
      The tokens in the order of their ids, and the merged pairs of tokens in their order.
    """
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = splitter
    trainer = trainers.BpeTrainer(
        vocab_size=num_tokens,
        min_frequency=MIN_FREQUENCY,
        special_tokens=list(base),
        show_progress=False,
        **affix,
    )
    library.train_from_iterator(texts, trainer)
    model = json.loads(library.to_str())["model"]
    return sorted(model["vocab"], key=model["vocab"].get), list(map(tuple, model["merges"]))


def _num_pieces(vocab_size: int, special_tokens: SpecialTokens, base: Sequence[str]) -> int:
    """Returns the number of tokens before the last special ones; refuses one that is too small."""
    num_last = len(special_tokens.last)
    if len(base) + num_last >= vocab_size:
        raise UserError(
            f"a vocabulary of {vocab_size} tokens is too small for this corpus: it needs more than "
            f"{len(base) + num_last}, which the characters or bytes and the special tokens take"
        )
    return vocab_size - num_last


def _filled(tokens: list[str], vocab_size: int, special_tokens: SpecialTokens) -> list[str]:
    """Fills a vocabulary up with "[unused0]", ... and ends it with the last special tokens."""
    num_unused = vocab_size - len(tokens) - len(special_tokens.last)
    return [*tokens, *(f"[unused{i}]" for i in range(num_unused)), *special_tokens.last]


def _sentencepiece(
    texts: Iterable[str],
    vocab_size: int,
    special_tokens: SpecialTokens,
    *,
    model_type: str,
    lowercase: bool,
    sentencepiece_rules: str,
) -> bytes:
    """Returns a serialized model."""
    if special_tokens.last:
        # The model has only the library's own three special tokens, followed by pieces.
        pieces: dict[str, Any] = {"pad_id": -1, "unk_id": 0, "bos_id": 1, "eos_id": 2}
        own = ("<unk>", "<s>", "</s>")
        added = {*special_tokens.first, *special_tokens.last}
        num_pieces = vocab_size - len(added.difference(own))
    else:
        pieces = {"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3}
        num_pieces = vocab_size
        pieces.update(
            pad_piece=special_tokens.pad,
            unk_piece=special_tokens.unk,
            bos_piece=special_tokens.cls,
            eos_piece=special_tokens.sep,
            control_symbols=[special_tokens.mask],
        )
    folds = lowercase and sentencepiece_rules == "plain"
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_sentencepiece_lines(texts, lowercase, sentencepiece_rules),
            model_writer=model,
            model_type=model_type,
            vocab_size=num_pieces,
            normalization_rule_name="nmt_nfkc_cf" if folds else "nmt_nfkc",
            num_threads=_SENTENCEPIECE_THREADS,
            max_sentence_length=8 * _SENTENCEPIECE_LINE,
            minloglevel=2,
            # These pieces never match text.
            **pieces,
        )
    except RuntimeError as error:
        raise UserError(
            f"SentencePiece cannot train {vocab_size} tokens ({num_pieces} pieces) on this text; "
            f"set another model.vocab_size: {str(error).rpartition('] ')[2]}"
        ) from error
    return model.getvalue()


def _sentencepiece_lines(texts: Iterable[str], lowercase: bool, rules: str) -> Iterator[str]:
    for line in chain.from_iterable(text.splitlines() for text in texts):
        line = normalize(line, lowercase, rules)
        for start in range(0, len(line), _SENTENCEPIECE_LINE):
            yield line[start : start + _SENTENCEPIECE_LINE]


_TRAINERS: dict[str, Callable[..., Any]] = {
    "wordpiece": _wordpiece,
    "sentencepiece": _sentencepiece,
    "byte_bpe": _byte_bpe,
    "fastbpe": _fastbpe,
    "moses_bpe": _moses_bpe,
    "bert_bpe": _bert_bpe,
    "protein": esm_vocabulary,
}


def extend(tokenizer: Tokenizer, add_tokens: str, counts: WordCounts) -> Tokenizer:
    """Returns a tokenizer with more tokens; the same counts give the same tokens, in any order.

    Args:
      tokenizer: A tokenizer that `extended_size` accepts.
      add_tokens: See `config.data.add_tokens`. Of the words that WordPiece or SentencePiece splits,
        those are chosen that save most tokens of the text.
    """
    if isinstance(tokenizer, JsonTokenizer):
        found, vocabulary = _with_merges(tokenizer, int(add_tokens), counts)
    else:
        if is_number(add_tokens):
            words = _words_that_save_most(tokenizer, counts)[: int(add_tokens)]
        else:
            words = words_of_file(add_tokens, tokenizer)
        found, vocabulary = len(words), placed(tokenizer.tokens, words)
        if isinstance(tokenizer, SentencePieceTokenizer):
            vocabulary = _with_pieces(tokenizer, vocabulary)
    if is_number(add_tokens) and found < int(add_tokens):
        raise UserError(
            f"config.data.add_tokens is {add_tokens}, but the text has only {found} tokens to add "
            f"that occur {MIN_FREQUENCY} times: set it to {found} or less"
        )
    options = {k: x for k, x in tokenizer.options.items() if k not in ("kind", "special_tokens")}
    make = load_kind(tokenizer.kind).tokenizer
    extended = make(vocabulary, special_tokens=tokenizer.special_tokens, **options)
    # The text is no longer searched for placeholders that are gone.
    added = {i: token for i, token in tokenizer.added.items() if token.content in extended.ids}
    mask = AddedToken(tokenizer.special_tokens.mask, lstrip=tokenizer.mask_takes_space)
    return extended.with_added(added | {tokenizer.mask_id: mask}, "config.data.add_tokens")


def tokens_per_word(tokenizer: Tokenizer, counts: WordCounts) -> float:
    """Returns the mean number of tokens of the words of a text."""
    total = sum(count * len(tokenizer.word_pieces(word)) for word, count in counts)
    return total / max(1, sum(count for _, count in counts))


def _words_that_save_most(tokenizer: Tokenizer, counts: WordCounts) -> list[str]:
    saved = []
    for word, count in counts:
        more = len(tokenizer.word_pieces(word)) - 1
        if more and count >= MIN_FREQUENCY:
            saved.append((-count * more, word))
    return [word for _, word in sorted(saved)]


def _with_pieces(tokenizer: SentencePieceTokenizer, pieces: Sequence[str]) -> bytes:
    """Returns the serialized unigram model with more or other pieces.

    The score of a new piece is above that of the pieces that it replaces by 0.1 for each piece that
    it saves. So text keeps its pieces, except where a new one stands for several of them, or where
    two ways to split it were almost equally probable.
    """
    model = sentencepiece_model_pb2.ModelProto.FromString(tokenizer.model)
    # The score that the library gives an unknown character.
    unknown = min(p.score for p in model.pieces if p.type == p.NORMAL) - 10
    scores = [unknown if p.type == p.UNKNOWN else p.score for p in model.pieces]
    for old, new in zip_longest(list(model.pieces), pieces):
        if not old or old.piece != new:
            piece, replaced = old or model.pieces.add(), tokenizer.word_pieces(new)
            piece.piece, piece.type = new, piece.NORMAL
            piece.score = sum(scores[i] for i in replaced) + 0.1 * (len(replaced) - 1)
    model.trainer_spec.vocab_size = len(model.pieces)
    return model.SerializeToString()


def _with_merges(tokenizer: JsonTokenizer, number: int, counts: WordCounts) -> tuple[int, str]:
    """Returns the number of tokens that were found, and a vocabulary with them."""
    old = tokenizer.tokens
    # The library joins characters, so each stands for a token.
    texts = []
    for word, count in counts:
        characters = "".join(chr(_FIRST_CHARACTER + i) for i in tokenizer.word_pieces(word))
        texts += [f"{characters} " * min(1000, count - first) for first in range(0, count, 1000)]
    alphabet = sorted(set().union(*texts) - {" "})
    splitter = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), _SHORT])
    # More than `number`, because some may be spelled as other tokens are.
    _, learned = _learn_merges(texts, alphabet, len(alphabet) + 2 * number, splitter)
    new: dict[str, None] = {}
    merges = list(tokenizer.merges)
    for pair in learned:
        first, second = ("".join(old[ord(c) - _FIRST_CHARACTER] for c in part) for part in pair)
        if first + second not in tokenizer.ids and first + second not in new:
            if len(new) == number:
                break
            new[first + second] = None
        merges.append((first, second))
    special, composes = tokenizer.special_tokens, tokenizer.normalizer is not None
    content = content_of("byte_bpe", placed(old, list(new)), merges, special, composes=composes)
    return len(new), content
