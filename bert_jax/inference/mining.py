"""Finds hard negatives: texts that a model takes for answers to a query, but that are none.

The rules are those of `mine_hard_negatives` in sentence-transformers 6.2, but a reranker is used
whenever there is one, and the text of the query itself is no candidate. Texts and vectors are in
files, so that a corpus may be larger than the memory.
"""

import contextlib
import hashlib
import itertools
import math
import os
import sqlite3
import tempfile
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.base.hashes import stable_hash
from bert_jax.base.progress import Progress
from bert_jax.heads.reranker import pair_scores
from bert_jax.inference.bert import Bert
from bert_jax.interop.embedding import Embedding

if TYPE_CHECKING:
    from bert_jax.inference.finetuned import FineTuned

# How many texts are encoded at once, and for how many queries negatives are chosen at once.
_TEXTS, _QUERIES = 1024, 128


class Rules(NamedTuple):
    """Which candidates become negatives. A limit that is None removes none.

    Attributes:
      num_negatives: The number of negatives of a query.
      range_min: The number of best candidates within the limits that are left out.
      range_max: The number of best candidates within the limits, after which none is taken. None
        is range_min + num_negatives + P, where P is the largest number of positives of a query. If
        a margin, `max_score` or, with a reranker, `min_score` is given, it is range_min + 10
        num_negatives + P.
      relative_margin: Scores above m - |m| relative_margin are removed, where m is the lowest score
        of a positive of the query.
      absolute_margin: Scores above m - absolute_margin are removed.
      max_score: Scores above are removed.
      min_score: Scores below are removed.
      sampling: "top" takes the best, "random" any. A text is drawn by its hash with `seed`, so that
        the order of the texts has no effect.
      include_positives: Whether positives are candidates that no limit removes.
    """

    num_negatives: int = 5
    range_min: int = 0
    range_max: int | None = None
    relative_margin: float | None = None
    absolute_margin: float | None = None
    max_score: float | None = None
    min_score: float | None = None
    sampling: str = "top"
    seed: int = 0
    include_positives: bool = False

    def removing(self, score: float, lowest: float) -> str:
        """Returns the name of the first limit that removes a score; "" if none does."""
        highest = {
            "absolute_margin": lowest - (self.absolute_margin or 0),
            "relative_margin": lowest - abs(lowest) * (self.relative_margin or 0),
            "max_score": self.max_score,
        }
        for name, bound in highest.items():
            if getattr(self, name) is not None and score > bound:
                return name
        return "min_score" if self.min_score is not None and score < self.min_score else ""


def mine(
    bert: Bert,
    pairs: Iterable[tuple[str, Sequence[str]]],
    corpus: Iterable[str],
    rules: Rules,
    *,
    reranker: "FineTuned | None" = None,
    embedding: Embedding | None = None,
    folder: Path | None = None,
    counts: Counter[str] | None = None,
    shows_progress: bool = False,
) -> Iterator[dict[str, Any]]:
    """Yields each distinct query with hard negatives: texts of the corpus and positives of others.

    In memory are the queries, and a number for each positive.

    Args:
      pairs: Queries with one or more positives. Equal queries are joined. Spaces at the ends of
        all texts are removed, so that no copy of a positive is a negative for them.
      reranker: Its scores replace those of `bert`, which finds the candidates.
      embedding: From `Bert.embedding_with`, normalized; its prompts are used.
      folder: Where vectors are kept, a new folder or that of an earlier call. A call with the same
        model and texts continues one that was interrupted. By default, a temporary folder.
      counts: Takes the numbers of candidates that each rule removed, of queries with fewer than
        `num_negatives` negatives, and of those without any, which are left out.

    Yields:
      "anchor", the lists "positive" and "negative" of texts, and "positive_scores" and
      "negative_scores". With `include_positives`: "query", "documents" with any positives that were
      not found at the end, their "labels" (1 and 0) and "scores".
    """
    bert.require_dense("mining")
    if reranker:
        # A model that is no reranker is refused before hours of computation.
        reranker.rerank("", [""])
    embedding = embedding or bert.embedding_with(None, True, None)
    counts = Counter() if counts is None else counts
    with contextlib.ExitStack() as stack:
        # SQLite keeps a database without a name in a temporary file.
        database = stack.enter_context(contextlib.closing(sqlite3.connect("")))
        texts, positives_of = _Texts(database), {}
        for text in corpus:
            texts.add(text.strip())
        for query, positives in pairs:
            found = map(texts.add, map(str.strip, positives))
            positives_of.setdefault(query.strip(), {}).update(dict.fromkeys(found))
        queries, own = list(positives_of), [list(numbers) for numbers in positives_of.values()]
        if not queries:
            raise UserError("there is no query with a positive")
        most = max(map(len, own))
        rules = _with_range(rules, most, len(texts), bool(reranker))
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bert_jax_")))
        folder.mkdir(exist_ok=True)
        stack.enter_context(files.lock_directory(folder, f"another process mines in {folder}"))
        sides = (texts, embedding.for_documents()), (queries, embedding.for_queries())
        documents_NxD, queries_QxD = (_vectors(bert, *x, folder, shows_progress) for x in sides)
        depth = rules.range_max + most
        with Progress("mining", len(queries), "queries", enabled=shows_progress) as progress:
            for start in range(0, len(queries), _QUERIES):
                part = slice(start, start + _QUERIES)
                group = queries[part], own[part], queries_QxD[part]
                scored = _search(bert, *group, texts, documents_NxD, depth)
                if reranker:
                    with warnings.catch_warnings():
                        if start:
                            # Those of the first group, such as of texts that are cut, are enough.
                            warnings.simplefilter("ignore")
                        scored = _reranked(reranker, scored, texts)
                yield from filter(None, (_row(each, texts, rules, counts) for each in scored))
                progress.advance(len(scored))


class _Scored(NamedTuple):
    """A query, and the scores of its positives and of its candidates by number."""

    query: str
    positives: dict[int, float]
    candidates: dict[int, float]


def _with_range(rules: Rules, most_positives: int, num_texts: int, is_reranked: bool) -> Rules:
    """Returns the rules with a `range_max`; see `Rules`."""
    limits = [rules.relative_margin, rules.absolute_margin, rules.max_score]
    if is_reranked:
        limits.append(rules.min_score)
    factor = 1 if all(limit is None for limit in limits) else 10
    range_max = rules.range_max
    if range_max is None:
        range_max = rules.range_min + factor * rules.num_negatives + most_positives
    room = min(range_max - rules.range_min, num_texts - 1)
    if rules.range_min < 0 or not 0 < rules.num_negatives <= room:
        raise UserError(
            f"num_negatives is {rules.num_negatives}, with range_min {rules.range_min}, range_max "
            f"{range_max} and {num_texts:,} different texts: there are not so many candidates"
        )
    return rules._replace(range_max=range_max)


def _vectors(
    bert: Bert, texts: Collection[str], embedding: Embedding, folder: Path, shows_progress: bool
) -> np.memmap:
    """Computes the vectors of texts in a file that grows by whole chunks, float32 [N, D]."""
    made_of = bert.config, embedding, bert.tokenizer.fingerprint
    digest = hashlib.blake2b(repr(made_of).encode(), digest_size=16)
    for weights in jax.tree.leaves(bert.params):
        digest.update(np.asarray(weights).tobytes())
    for text in texts:
        digest.update(repr(text).encode())
    path, width, num_cut = folder / f"{digest.hexdigest()}.f32", bert.width(embedding), 0
    with path.open("ab") as file:
        # The last chunk of a process that was killed may be incomplete.
        done = file.tell() // (4 * width * _TEXTS) * _TEXTS
        file.truncate(4 * width * done)
        left, shown = itertools.islice(texts, done, None), {"done": done, "enabled": shows_progress}
        with Progress("vectors", len(texts), "texts", **shown) as progress:
            while chunk := list(itertools.islice(left, _TEXTS)):
                rows = bert.embedding_rows(chunk, embedding, warns=False)
                num_cut += sum(row.num_cut > 0 for row in rows)
                if not file.tell():
                    bert.warn_about_unknown(rows)
                file.write(np.concatenate(bert.features(rows, bert.layers([-1]), embedding)))
                file.flush()
                os.fsync(file.fileno())
                progress.advance(len(chunk))
    bert.warn_about_cut(num_cut, len(texts) - done, embedding.max_length)
    return np.memmap(path, np.float32, "r").reshape(-1, width)


def _search(
    bert: Bert,
    queries: Sequence[str],
    own: Sequence[list[int]],
    queries_QxD: np.ndarray,
    texts: "_Texts",
    documents_NxD: np.ndarray,
    depth: int,
) -> list[_Scored]:
    """Finds the `depth` best candidates of each query."""
    # One more, because the text of the query itself is no candidate.
    found, scored = bert.search(queries_QxD, documents_NxD, depth + 1), []
    for query, numbers, vector_D, hits in zip(queries, own, queries_QxD, found, strict=True):
        same = texts.find(query)
        others = [(x["corpus_id"], x["score"]) for x in hits if x["corpus_id"] != same]
        (scores,) = bert.similarity(vector_D, documents_NxD[numbers])
        positives = dict(zip(numbers, scores.tolist(), strict=True))
        scored.append(_Scored(query, positives, dict(others[:depth])))
    return scored


def _reranked(reranker: "FineTuned", group: Sequence[_Scored], texts: "_Texts") -> list[_Scored]:
    """Replaces all scores by those of a reranker."""
    pairs = ((x.query, texts[n]) for x in group for n in (*x.positives, *x.candidates))
    scores = iter(pair_scores(reranker, pairs).tolist())
    return [
        _Scored(query, *({number: next(scores) for number in side} for side in sides))
        for query, *sides in group
    ]


def _row(
    scored: _Scored, texts: "_Texts", rules: Rules, counts: Counter[str]
) -> dict[str, Any] | None:
    """Chooses among the candidates of a query; returns None if none is left. See `mine`."""
    query, own, candidates = scored
    if not all(map(math.isfinite, (*own.values(), *candidates.values()))):
        raise UserError(f"a score of {query!r:.60} is not finite: the weights are damaged")
    lowest, passed = min(own.values()), []
    # A stable sort keeps equal scores in the order of the search.
    for number, score in sorted(candidates.items(), key=lambda candidate: -candidate[1]):
        limit = "" if number in own else rules.removing(score, lowest)
        if limit:
            counts[f"candidates removed by {limit}"] += 1
        elif rules.include_positives or number not in own:
            passed.append((number, score))
    counts["candidates removed by range_min"] += min(rules.range_min, len(passed))
    passed = passed[rules.range_min : rules.range_max]
    if rules.sampling == "random":
        shuffled = sorted(passed, key=lambda x: stable_hash(rules.seed, query, texts[x[0]]))
        drawn = shuffled[: rules.num_negatives]
        passed = [candidate for candidate in passed if candidate in drawn]
    chosen = dict(passed[: rules.num_negatives])
    if len(chosen) < rules.num_negatives:
        counts[f"queries with fewer than {rules.num_negatives} negatives"] += 1
    if not chosen:
        counts["queries without a negative, left out"] += 1
        return None
    if rules.include_positives:
        # Positives that were not found are at the end.
        ranking = chosen | own
        labels = [int(number in own) for number in ranking]
        documents, scores = _written(ranking, texts)
        return {"query": query, "documents": documents, "labels": labels, "scores": scores}
    positives, positive_scores = _written(own, texts)
    negatives, negative_scores = _written(chosen, texts)
    return {
        "anchor": query,
        "positive": positives,
        "negative": negatives,
        "positive_scores": positive_scores,
        "negative_scores": negative_scores,
    }


def _written(scores: dict[int, float], texts: "_Texts") -> tuple[list[str], list[float]]:
    rounded = [round(score, 6) for score in scores.values()]
    return [texts[number] for number in scores], rounded


class _Texts:
    """Distinct texts in a new database, numbered from 0 in the order of their first occurrence."""

    def __init__(self, database: sqlite3.Connection):
        self._execute, self._length = database.execute, 0
        database.execute("CREATE TABLE texts (number INTEGER PRIMARY KEY, text TEXT UNIQUE)")

    def add(self, text: str) -> int:
        """Returns the number of a text, a new one if need be."""
        new = self._length, text
        self._length += self._execute("INSERT OR IGNORE INTO texts VALUES (?, ?)", new).rowcount
        return self.find(text)

    def find(self, text: str) -> int | None:
        found = self._execute("SELECT number FROM texts WHERE text = ?", (text,)).fetchone()
        return found[0] if found else None

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, number: int) -> str:
        return self._execute("SELECT text FROM texts WHERE number = ?", (number,)).fetchone()[0]

    def __iter__(self) -> Iterator[str]:
        return (text for (text,) in self._execute("SELECT text FROM texts ORDER BY number"))
