"""A trained BERT and the questions that can be put to it."""

import math
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, NoReturn

import jax
import numpy as np

from bert_jax.errors import UserError
from bert_jax.inference import POOLINGS, buckets
from bert_jax.inference.arguments import checked, listed, no_attribute, whole_number
from bert_jax.inference.compiled_forward import Inputs, Programs
from bert_jax.inference.encode_text import Text, encode
from bert_jax.interop.pretrained import Pretrained
from bert_jax.interop.weights import HEADS, unflatten
from bert_jax.tokenizers import MASK, TokenRow

# Tokens of a full batch. A CPU's cache has room for the activations of so many; an
# accelerator wants more of them at once.
_BATCH_TOKENS = {"cpu": 1024}
_ACCELERATOR_BATCH_TOKENS = 2**15
# Batches that are computed while the results of earlier ones are taken.
_IN_FLIGHT = 2
# [CLS], a token and [SEP], twice.
_LEAST_LENGTH = 5
POOLER, MLM_HEAD, NSP_HEAD = HEADS.values()


class Guess(NamedTuple):
    """A token in the place of a mask, and its probability."""

    token: str
    probability: float


class Score(NamedTuple):
    """A text's pseudo-log-likelihood (Salazar et al. 2020, arXiv:1910.14659).

    Attributes:
      log_likelihood: The sum of the tokens' log-probabilities, in nats.
      tokens: The text's word pieces.
      log_probs: log P of each, in nats, with it alone masked.
    """

    log_likelihood: float
    tokens: list[str]
    log_probs: list[float]

    @property
    def perplexity(self) -> float:
        """exp of the mean loss of a token: the pseudo-perplexity of this text."""
        return math.exp(-self.log_likelihood / len(self.tokens))


class Attention(NamedTuple):
    """How a text's tokens attend to each other.

    Attributes:
      tokens: L of them, [CLS] and [SEP] among them.
      num_first: How many of them are of segment A.
      probabilities_NxAxLxL: float32, of N layers and A heads; each row, a token's, adds
        up to 1.
      guesses: For each masked position, what may stand there; empty without a mask, or
        without a masked-LM head.
    """

    tokens: list[str]
    num_first: int
    probabilities_NxAxLxL: np.ndarray
    guesses: dict[int, list[Guess]]


class Bert:
    """A BERT in memory, to be asked; `bert_jax.load` makes one.

    Shapes are compiled when they first come up: the first question of a length takes
    a second or two more.

    Attributes:
      source: Where it was read.
      config: The model's hyperparameters.
      tokenizer: Its tokenizer.
      max_length: Tokens of the longest text; what is beyond is cut off, with a warning.
      notes: What there was to say when it was read, a sentence each.
    """

    def __init__(self, pretrained: Pretrained):
        if pretrained.tokenizer is None:
            raise UserError(
                f"{pretrained.source} has no tokenizer; give it one with python -m "
                "bert_jax.convert --vocab=vocab.txt"
            )
        pretrained.fit_vocabulary()
        weights = pretrained.weights
        self.source = pretrained.source
        self.config = pretrained.model_config
        self.tokenizer = pretrained.tokenizer
        self.max_length = pretrained.max_length
        self.notes = pretrained.warnings
        self._lacking = {
            name: f"{self.source} has no {name}"
            for head, name in HEADS.items()
            if not any(key.startswith(head) for key in weights)
        } | {
            name: f"the {name} of {self.source} was initialised at random by a conversion, and "
            "never trained"
            for name in pretrained.untrained_heads
        }
        self._programs = Programs(self.config, unflatten(weights, self.config))
        self._batch_tokens = _BATCH_TOKENS.get(jax.default_backend(), _ACCELERATOR_BATCH_TOKENS)

    def fill_mask(
        self, text: str, text_b: str | None = None, *, top_k: int = 5
    ) -> list[list[Guess]]:
        """What may stand in the place of each [MASK], all masks unknown at once.

        Args:
          text: With one [MASK] or more.
          text_b: A second sentence, if there is one.
          top_k: Guesses a mask.

        Returns:
          For each mask, in order, its guesses, the likeliest first.

        Raises:
          UserError: no mask, or one beyond `max_length`; no trained masked-LM head.
        """
        self._require("a masked word", MLM_HEAD)
        sides = checked(text, text_b)
        given = sum(side.count(MASK) for side in sides)
        if not given:
            raise UserError(f"{text[:40]!r} has no {MASK}; put it where a word is to be found")
        (row,) = self.rows([text if text_b is None else (text, text_b)], masks=True)
        guesses = self._guesses(row, top_k)
        if len(guesses) < given:
            raise UserError(
                f"the text is longer than {self.max_length} tokens, and {given - len(guesses)} "
                f"{MASK} in it stands beyond them; shorten it"
            )
        return list(guesses.values())

    def next_sentence(self, text: str, text_b: str) -> float:
        """The probability that `text_b` comes after `text` where both were written.

        Raises:
          UserError: a sentence is empty; no trained next-sentence head.
        """
        self._require("the next sentence", POOLER, NSP_HEAD)
        checked(text, text_b)
        rows = self.rows([(text, text_b)])
        ((_, log_probs_2),) = self._run(rows, self._programs.next_sentence_log_probs)
        return float(np.exp(log_probs_2[0]))

    def encode(
        self,
        texts: Iterable[Text],
        *,
        pooling: str = "mean",
        layers: int | Sequence[int] = -1,
        max_length: int | None = None,
    ) -> np.ndarray | list[np.ndarray]:
        """Contextual features of texts, or of their tokens.

        Args:
          texts: Sentences, or pairs of them.
          pooling: "cls" takes the first token's hidden state; "mean" averages those of
            all tokens, [CLS] and [SEP] among them; "tokens" takes every token's.
          layers: 0 is the embeddings' output, n that of the n-th block, -1 the last; K of
            them when it is a sequence.
          max_length: Cuts longer texts off earlier than the model does.

        Returns:
          float32 [N, D], or [N, K, D] of a sequence of layers. With "tokens" a list of
          [L, D] or [L, K, D], where L is of each text.

        Raises:
          UserError: an empty text, a layer that is not there, an unknown pooling.
        """
        one_layer = not isinstance(layers, Iterable)
        chosen = self.layers([layers] if one_layer else layers)
        if pooling not in POOLINGS:
            raise UserError(f"pooling is {pooling!r}; it must be one of {', '.join(POOLINGS)}")
        features = self.features(self.rows(listed("encode", texts), max_length), chosen, pooling)
        if one_layer:
            features = [x[..., 0, :] for x in features]
        if pooling == "tokens":
            return features
        if not features:
            width = () if one_layer else (len(chosen),)
            return np.zeros((0, *width, self.config.hidden_size), np.float32)
        return np.stack(features)

    def score(self, text: str) -> Score:
        """How likely each token of a text is, given all others.

        Raises:
          UserError: the text is empty; no trained masked-LM head.
        """
        self._require("a score", MLM_HEAD)
        checked(text)
        (row,) = self.rows([text])
        # Between [CLS] and [SEP].
        ids = row.input_ids_L[1:-1].tolist()
        masked = [row._replace(input_ids_L=row.input_ids_L.copy()) for _ in ids]
        for i, copy in enumerate(masked):
            copy.input_ids_L[1 + i] = self.tokenizer.mask_id

        def program(inputs: Inputs) -> jax.Array:
            positions_B = np.argmax(inputs.input_ids_BxL == self.tokenizer.mask_id, axis=1)
            return self._programs.mlm_log_probs(inputs, positions_B[:, None].astype(np.int32))

        log_probs = [0.0] * len(ids)
        for i, log_probs_1xV in self._run(masked, program):
            log_probs[i] = float(log_probs_1xV[0, ids[i]])
        tokens = [self.tokenizer.id_to_token(i) for i in ids]
        return Score(math.fsum(log_probs), tokens, log_probs)

    def attention(
        self,
        text: str,
        text_b: str | None = None,
        *,
        top_k: int = 5,
        max_length: int | None = None,
    ) -> Attention:
        """What every token of a text attends to, in every layer and head.

        [MASK] in the text is the mask token; where the model has its masked-LM head, the
        answer says what may stand there; else it warns.

        Raises:
          UserError: a sentence is empty.
        """
        given = sum(side.count(MASK) for side in checked(text, text_b))
        (row,) = self.rows([text if text_b is None else (text, text_b)], max_length, masks=True)
        guesses = {} if MLM_HEAD in self._lacking else self._guesses(row, top_k)
        if given and MLM_HEAD in self._lacking:
            warnings.warn(f"{self._lacking[MLM_HEAD]}: no predictions for {MASK}", stacklevel=2)
        elif len(guesses) < given:
            warnings.warn(
                f"{given - len(guesses)} {MASK} beyond the length: no predictions", stacklevel=2
            )
        ((_, probabilities_NxAxLxL),) = self._run([row], self._programs.attention)
        length = len(row.input_ids_L)
        return Attention(
            [self.tokenizer.id_to_token(i) for i in row.input_ids_L],
            row.num_first,
            probabilities_NxAxLxL[..., :length, :length],
            guesses,
        )

    def rows(
        self, texts: Iterable[Text], max_length: int | None = None, *, masks: bool = False
    ) -> list[TokenRow]:
        """Tokenizes texts; warns of those that are cut off.

        Raises:
          UserError: an empty text, or a length that cannot be.
        """
        length = self.length(max_length)
        texts = list(texts)
        if any(isinstance(text, tuple) for text in texts):
            self.require_segments()
        rows = encode(self.tokenizer, texts, length, masks=masks)
        if cut := sum(row.num_cut > 0 for row in rows):
            which = "the text is" if len(rows) == 1 else f"{cut:,} of {len(rows):,} texts are"
            warnings.warn(f"{which} longer than {length} tokens, and cut off there", stacklevel=3)
        return rows

    def require_segments(self) -> None:
        """Raises UserError if the model tells no second sentence from a first."""
        if self.config.type_vocab_size < 2:
            raise UserError(f"{self.source} knows one segment, and takes no pair of sentences")

    def length(self, max_length: int | None) -> int:
        """The length asked for, or the model's.

        Raises:
          UserError: the model has no such length.
        """
        if max_length is None:
            return self.max_length
        max_length = whole_number("max_length", max_length)
        if not _LEAST_LENGTH <= max_length <= self.max_length:
            raise UserError(
                f"max_length is {max_length}; for {self.source} it must be from {_LEAST_LENGTH} "
                f"to {self.max_length}"
            )
        return max_length

    def layers(self, layers: Iterable[int]) -> tuple[int, ...]:
        """The layers asked for, counted from 0, the embeddings.

        Raises:
          UserError: the model does not have one of them.
        """
        count = self.config.num_hidden_layers + 1
        layers = [whole_number("layers", layer) for layer in layers]
        for layer in layers:
            if not -count <= layer < count:
                raise UserError(
                    f"layers has {layer}; {self.source} has the layers 0 (embeddings) to "
                    f"{count - 1}, which are -{count} to -1 from the end"
                )
        if not layers:
            raise UserError("layers is empty; name at least one, such as -1")
        return tuple(layer % count for layer in layers)

    def features(
        self, rows: Sequence[TokenRow], layers: tuple[int, ...], pooling: str
    ) -> list[np.ndarray]:
        """Features of rows, in their order: float32 [K, D], or [L, K, D] of "tokens"."""
        features: list[np.ndarray] = [np.zeros(0)] * len(rows)

        def program(inputs: Inputs) -> jax.Array:
            return self._programs.features(inputs, layers, pooling)

        for i, x in self._run(rows, program):
            features[i] = x.swapaxes(0, 1)[: len(rows[i].input_ids_L)] if x.ndim == 3 else x
        return features

    def _run(
        self, rows: Sequence[TokenRow], program: Callable[[Inputs], jax.Array]
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Runs all rows in batches; yields the place of each, and its part of the results."""
        batches = buckets.plan(
            [len(row.input_ids_L) for row in rows],
            max_length=self.config.max_position_embeddings,
            batch_tokens=self._batch_tokens,
        )
        running: deque[tuple[list[int], jax.Array]] = deque()
        for batch in batches:
            running.append((batch.indices, program(_padded(rows, batch))))
            if len(running) > _IN_FLIGHT:
                yield from self._taken(*running.popleft())
        for indices, results in running:
            yield from self._taken(indices, results)

    def _taken(self, indices: list[int], results: jax.Array) -> Iterator[tuple[int, np.ndarray]]:
        taken = np.asarray(results)[: len(indices)]
        if np.isnan(taken).any():
            raise UserError(f"{self.source} computes NaN: its weights are damaged")
        yield from zip(indices, taken, strict=True)

    def _guesses(self, row: TokenRow, top_k: int) -> dict[int, list[Guess]]:
        """The likeliest tokens of each masked position."""
        top_k = whole_number("top_k", top_k)
        if not 1 <= top_k <= self.config.vocab_size:
            raise UserError(
                f"top_k is {top_k}; it must be from 1 to the {self.config.vocab_size:,} entries of "
                "the vocabulary"
            )
        positions = np.flatnonzero(row.input_ids_L == self.tokenizer.mask_id)
        if not len(positions):
            return {}
        # Few shapes, whatever the number of masks.
        padded = np.zeros((1, 1 << (len(positions) - 1).bit_length()), np.int32)
        padded[0, : len(positions)] = positions

        def program(inputs: Inputs) -> jax.Array:
            return self._programs.mlm_log_probs(inputs, padded)

        ((_, log_probs_MxV),) = self._run([row], program)
        guesses = {}
        for position, log_probs_V in zip(positions.tolist(), log_probs_MxV, strict=False):
            best = np.argsort(-log_probs_V, kind="stable")[:top_k]
            guesses[position] = [
                Guess(self.tokenizer.id_to_token(i), math.exp(log_probs_V[i])) for i in best
            ]
        return guesses

    def __getattr__(self, name: str) -> NoReturn:
        raise no_attribute(self, name)

    def _require(self, what: str, *heads: str) -> None:
        for head in heads:
            if head in self._lacking:
                raise UserError(
                    f"{self._lacking[head]}, which {what} asks for; features need no head"
                )


def _padded(rows: Sequence[TokenRow], batch: buckets.Batch) -> Inputs:
    shape = (batch.rows, batch.length)
    ids_BxL, types_BxL = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    lengths_B = np.zeros(batch.rows, np.int32)
    for place, i in enumerate(batch.indices):
        row = rows[i]
        length = lengths_B[place] = len(row.input_ids_L)
        ids_BxL[place, :length] = row.input_ids_L
        types_BxL[place, row.num_first : length] = 1
    return Inputs(ids_BxL, types_BxL, lengths_B)
