"""Trains vocabularies. The same texts give the same bytes in every run."""

import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain
from typing import Any

import sentencepiece
from tokenizers import pre_tokenizers

from bert_jax.base.errors import UserError
from bert_jax.tokenizers.base import SpecialTokens
from bert_jax.tokenizers.merges import Merges, learn_merges
from bert_jax.tokenizers.sentencepiece import normalize
from bert_jax.tokenizers.tokenizer_json import BYTE_SPACE, content_of
from bert_jax.tokenizers.word_bpe import END
from bert_jax.tokenizers.wordpiece import WordSplitter

# So many different characters of a text always get tokens. Further ones get them in up to half of
# the vocabulary, and in places that are free after the training. Words with others become [UNK].
MIN_ALPHABET = 1000
_split_cased = WordSplitter(lowercase=False).split
# The number of threads affects rounding, so the number must not depend on the machine.
_SENTENCEPIECE_THREADS = 2
# Longer lines are cut, because the library would drop them.
_SENTENCEPIECE_LINE = 4000
_NO_TEXT = (
    "there is no text to train a vocabulary on, or all words have more than "
    "data.max_input_chars_per_word characters: set a larger one, data.characters_apart=True for "
    "sequences such as DNA, or data.tokenizer=byte_bpe"
)
# Words, and how often each occurs.
WordCounts = Sequence[tuple[str, int]]


def train_wordpiece(
    counts: WordCounts, *, vocab_size: int, special_tokens: SpecialTokens
) -> list[str]:
    """Trains a vocabulary of `vocab_size` tokens on the counts of words.

    If the pieces are too few, "[unused0]", "[unused1]", ... fill up the vocabulary, as in Google's
    vocabularies.

    Raises:
      UserError: The characters of the corpus do not fit in `vocab_size`.
    """

    def spelled(word: str) -> list[str]:
        return [word[0], *(f"##{character}" for character in word[1:])]

    return _train(counts, vocab_size, special_tokens, _pieces, spelled, prefix="##")[0]


def train_word_bpe(
    counts: WordCounts, *, vocab_size: int, special_tokens: SpecialTokens
) -> tuple[list[str], Merges]:
    """Trains a vocabulary of `vocab_size` tokens on the counts of words, and its merges.

    The first tokens after the special ones are the characters, inside a word and at its end. As for
    WordPiece, "[unused0]", ... fill up the vocabulary if the corpus is too small.

    Raises:
      UserError: The characters of the corpus do not fit in `vocab_size`.
    """

    def pieces_of(character: str) -> list[str]:
        return [character, character + END]

    def spelled(word: str) -> list[str]:
        return [*word[:-1], word[-1] + END]

    return _train(counts, vocab_size, special_tokens, pieces_of, spelled)


def train_bert_bpe(counts: WordCounts, *, vocab_size: int, special_tokens: SpecialTokens) -> str:
    """Does as `train_word_bpe`; returns a tokenizer.json."""
    tokens, merges = train_word_bpe(counts, vocab_size=vocab_size, special_tokens=special_tokens)
    return content_of("bert_bpe", tokens, merges, special_tokens)


def _train(
    counts: WordCounts,
    vocab_size: int,
    special_tokens: SpecialTokens,
    pieces_of: Callable[[str], list[str]],
    spelled: Callable[[str], list[str]],
    prefix: str = "",
) -> tuple[list[str], Merges]:
    """Trains a vocabulary and its merges.

    Args:
      pieces_of: Returns the tokens of a character.
      spelled: Returns the tokens of the characters of a word.
      prefix: The prefix of tokens that continue a word.
    """
    num_pieces = vocab_size - len(special_tokens.last)
    characters = _by_frequency(_character_counts(counts))
    tokens = _base_tokens(characters, num_pieces, special_tokens, pieces_of)
    ids = {token: i for i, token in enumerate(tokens)}
    # As in the library, a character without a token is left out of its words.
    words = (([ids[x] for x in spelled(word) if x in ids], count) for word, count in counts)
    merges = learn_merges(words, tokens, num_pieces, prefix)
    _add_characters(tokens, characters, num_pieces, pieces_of)
    return _filled(tokens, vocab_size, special_tokens), merges


def _character_counts(counts: WordCounts) -> Counter[str]:
    characters: Counter[str] = Counter()
    for word, count in counts:
        for character in word:
            characters[character] += count
    return characters


def _add_characters(
    tokens: list[str],
    characters: Sequence[str],
    num_pieces: int,
    pieces_of: Callable[[str], list[str]],
) -> None:
    """Adds the characters that are not among the tokens, as far as there is room."""
    known = set(tokens)
    for character in characters:
        pieces = pieces_of(character)
        if len(tokens) + len(pieces) <= num_pieces and character not in known:
            tokens += pieces


def _filled(tokens: list[str], vocab_size: int, special_tokens: SpecialTokens) -> list[str]:
    """Fills a vocabulary up with "[unused0]", ... and ends it with the last special tokens."""
    num_unused = vocab_size - len(tokens) - len(special_tokens.last)
    return [*tokens, *(f"[unused{i}]" for i in range(num_unused)), *special_tokens.last]


def _by_frequency(counts: Counter[str]) -> list[str]:
    """Returns the counted characters, the most frequent first."""
    characters = [c for c in counts if not c.isspace()]
    if not characters:
        raise UserError(_NO_TEXT)
    return sorted(characters, key=lambda c: (-counts[c], c))


def _base_tokens(
    characters: Sequence[str],
    num_pieces: int,
    special_tokens: SpecialTokens,
    pieces_of: Callable[[str], list[str]],
) -> list[str]:
    """Returns the first special tokens, the characters, and their other pieces ("##x" or "x</w>").

    These are as many characters as fit into half of the vocabulary, but at least MIN_ALPHABET.
    """
    sizes = accumulate(len(pieces_of(character)) for character in characters)
    number = max(MIN_ALPHABET, sum(size <= num_pieces // 2 for size in sizes))
    characters = sorted(characters[:number])
    others = [piece for character in characters for piece in pieces_of(character)[1:]]
    base = [*special_tokens.first, *characters, *others]
    if len(base) >= num_pieces:
        num_last = len(special_tokens.last)
        raise UserError(
            f"a vocabulary of {num_pieces + num_last} tokens is too small for this corpus: it "
            f"needs more than {len(base) + num_last}, which the characters and special tokens take"
        )
    return base


def _pieces(character: str) -> list[str]:
    """Returns "x" and, unless it is punctuation or CJK and cannot continue a word, "##x"."""
    continues = len(_split_cased(f"a{character}")) == 1
    return [character, f"##{character}"] if continues else [character]


def train_byte_bpe(counts: WordCounts, *, vocab_size: int, special_tokens: SpecialTokens) -> str:
    """Trains a vocabulary of `vocab_size` tokens on the counts of words; returns a tokenizer.json.

    The first tokens after the special ones are the 256 bytes. As for WordPiece, "[unused0]", ...
    fill up the vocabulary if the corpus is too small.

    Raises:
      UserError: The bytes do not fit in `vocab_size`, or there is no text.
    """
    fewest = len({*special_tokens.first, *special_tokens.last}) + 256
    if vocab_size < fewest:
        raise UserError(
            f"a vocabulary of {vocab_size} tokens is too small: the 256 bytes and the special "
            f"tokens alone take {fewest}"
        )
    if all(set(word) <= {BYTE_SPACE} for word, _ in counts):
        raise UserError(_NO_TEXT)
    tokens = [*special_tokens.first, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    ids = {token: i for i, token in enumerate(tokens)}
    words = (([ids[character] for character in word], count) for word, count in counts)
    merges = learn_merges(words, tokens, vocab_size - len(special_tokens.last))
    tokens = _filled(tokens, vocab_size, special_tokens)
    return content_of("byte_bpe", tokens, merges, special_tokens)


def train_sentencepiece(
    texts: Iterable[str],
    *,
    vocab_size: int,
    lowercase: bool,
    sentencepiece_type: str,
    sentencepiece_rules: str,
    special_tokens: SpecialTokens,
) -> bytes:
    """Trains a serialized model for a vocabulary of exactly `vocab_size` tokens.

    Raises:
      UserError: The corpus is too small, or has too many characters for the size.
    """
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
            sentence_iterator=_lines(texts, lowercase, sentencepiece_rules),
            model_writer=model,
            model_type=sentencepiece_type,
            vocab_size=num_pieces,
            normalization_rule_name="nmt_nfkc_cf" if folds else "nmt_nfkc",
            num_threads=_SENTENCEPIECE_THREADS,
            max_sentence_length=8 * _SENTENCEPIECE_LINE,
            minloglevel=2,
            # These pieces never match text.
            **pieces,
        )
    except RuntimeError as e:
        # "INTERNAL: FILE.cc(638) [CONDITION] REASON"
        reason = str(e).partition("] ")[2].strip() or "it has no text"
        raise UserError(
            f"sentencepiece cannot train {vocab_size} tokens on this corpus: {reason}"
        ) from None
    return model.getvalue()


def _lines(texts: Iterable[str], lowercase: bool, rules: str) -> Iterator[str]:
    for line in chain.from_iterable(text.splitlines() for text in texts):
        line = normalize(line, lowercase, rules)
        for start in range(0, len(line), _SENTENCEPIECE_LINE):
            yield line[start : start + _SENTENCEPIECE_LINE]
