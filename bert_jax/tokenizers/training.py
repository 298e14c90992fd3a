"""Trains vocabularies. The same texts give the same bytes in every run."""

import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import sentencepiece
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from bert_jax.errors import UserError
from bert_jax.tokenizers import albert
from bert_jax.tokenizers.base import SpecialTokens
from bert_jax.tokenizers.byte_bpe import Merges
from bert_jax.tokenizers.sentencepiece import fold
from bert_jax.tokenizers.words import WordSplitter

# The most characters that get their own entries. Words with a rarer character become [UNK].
MAX_ALPHABET = 1000
# Pieces that occur once are noise.
MIN_FREQUENCY = 2
# The number of threads affects rounding, so the number must not depend on the machine.
_SENTENCEPIECE_THREADS = 2
# Longer lines are cut, because the library would drop them.
_SENTENCEPIECE_LINE = 4000


def train_wordpiece(
    texts: Iterable[str], *, vocab_size: int, lowercase: bool, special_tokens: SpecialTokens
) -> list[str]:
    """Returns the `vocab_size` entries of a trained vocabulary.

    If the corpus is too small, "[unused0]", "[unused1]", ... fill up the vocabulary, as in
    Google's vocabularies.

    Raises:
      UserError: The characters of the corpus do not fit in `vocab_size`.
    """
    split = WordSplitter(lowercase).split
    texts = [" ".join(split(text)) for text in texts]
    num_pieces = vocab_size - len(special_tokens.last)
    base = _base_entries(texts, num_pieces, special_tokens)
    # The trainer breaks ties between pieces by id, and numbers "##x" entries in the order of a hash
    # map, which varies from run to run. As special tokens, they have fixed ids.
    trainer = trainers.WordPieceTrainer(
        vocab_size=num_pieces,
        min_frequency=MIN_FREQUENCY,
        special_tokens=base,
        initial_alphabet=[entry for entry in base if len(entry) == 1],
        limit_alphabet=sum(len(entry) == 1 for entry in base),
        show_progress=False,
    )
    backend = tokenizers.Tokenizer(models.WordPiece(unk_token=special_tokens.unk))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.train_from_iterator(texts, trainer, length=len(texts))
    ids = backend.get_vocab()
    entries = sorted(ids, key=ids.get)[:num_pieces]
    entries += [f"[unused{i}]" for i in range(num_pieces - len(entries))]
    return [*entries, *special_tokens.last]


def _base_entries(
    texts: Iterable[str], num_pieces: int, special_tokens: SpecialTokens
) -> list[str]:
    """Returns the first special tokens, the characters, and "##x" for those that continue words."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    characters = [c for c in counts if not c.isspace()]
    if not characters:
        raise UserError("there is no text to train a vocabulary on")
    characters = sorted(characters, key=lambda c: (-counts[c], c))[:MAX_ALPHABET]
    characters.sort()
    base = [*special_tokens.first, *characters, *(f"##{c}" for c in characters if _continues(c))]
    if len(base) >= num_pieces:
        num_last = len(special_tokens.last)
        raise UserError(
            f"a vocabulary of {num_pieces + num_last} entries is too small for this corpus: its "
            f"characters and the special tokens alone take {len(base) + num_last}"
        )
    return base


def _continues(character: str) -> bool:
    """Returns whether a character can continue a word; punctuation and CJK cannot."""
    return len(WordSplitter(lowercase=False).split(f"a{character}")) == 1


def train_byte_bpe(
    texts: Iterable[str], *, vocab_size: int, add_prefix_space: bool, special_tokens: SpecialTokens
) -> tuple[list[str], Merges]:
    """Returns the `vocab_size` entries of a trained vocabulary, and its merges.

    The first entries after the special tokens are the 256 bytes. As for WordPiece, "[unused0]",
    ... fill up the vocabulary if the corpus is too small.

    Raises:
      UserError: The bytes do not fit in `vocab_size`, or there is no text.
    """
    fewest = len({*special_tokens.first, *special_tokens.last}) + 256
    if vocab_size < fewest:
        raise UserError(
            f"a vocabulary of {vocab_size} entries is too small: the 256 bytes and the special "
            f"tokens alone take {fewest}"
        )
    texts = list(texts)
    if not any(text.strip() for text in texts):
        raise UserError("there is no text to train a vocabulary on")
    num_pieces = vocab_size - len(special_tokens.last)
    trainer = trainers.BpeTrainer(
        vocab_size=num_pieces,
        min_frequency=MIN_FREQUENCY,
        special_tokens=list(special_tokens.first),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    backend.train_from_iterator(texts, trainer, length=len(texts))
    ids = backend.get_vocab()
    entries = sorted(ids, key=ids.get)
    entries += [f"[unused{i}]" for i in range(num_pieces - len(entries))]
    merges = json.loads(backend.to_str())["model"]["merges"]
    return [*entries, *special_tokens.last], [tuple(pair) for pair in merges]


def train_sentencepiece(
    texts: Iterable[str],
    *,
    vocab_size: int,
    lowercase: bool,
    model_type: str,
    rules: str,
    special_tokens: SpecialTokens,
) -> bytes:
    """Returns a serialized model for a vocabulary of exactly `vocab_size` entries.

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
    folds = lowercase and rules == "plain"
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_lines(texts, lowercase, rules),
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
    except RuntimeError as e:
        # "INTERNAL: FILE.cc(638) [CONDITION] REASON"
        reason = str(e).partition("] ")[2].strip() or "it has no text"
        raise UserError(
            f"sentencepiece cannot train {vocab_size} entries on this corpus: {reason}"
        ) from None
    return model.getvalue()


def _lines(texts: Iterable[str], lowercase: bool, rules: str) -> Iterator[str]:
    for line in chain.from_iterable(text.splitlines() for text in texts):
        if rules == "albert":
            line = albert.normalize(line, lowercase)
        elif lowercase:
            line = fold(line)
        for start in range(0, len(line), _SENTENCEPIECE_LINE):
            yield line[start : start + _SENTENCEPIECE_LINE]
