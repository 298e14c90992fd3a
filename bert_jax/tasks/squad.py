"""SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016, 2018): finding the answer to a question in a text."""

import copy
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from etils import epath

from bert_jax.base import files
from bert_jax.tasks import squad_data
from bert_jax.tasks.squad_answers import Ranking, rank_answers, score_1, score_2
from bert_jax.tasks.squad_data import Windows
from bert_jax.tasks.task import Task, find_files, split_files
from bert_jax.text.bad_records import BadRecords


class SquadTask(Task):
    """Question answering on SQuAD; see `Task`.

    Args:
      source: A folder with train-v1.1.json, dev-v1.1.json, test-v1.1.json (or v2.0), or with
        train, validation and test as `datasets` exports them (.json, .jsonl, .parquet, .arrow); or
        files as "train=FILE,validation=FILE".
    """

    head = "question_answering"
    metric = "f1"

    def __init__(self, *args: Any):
        super().__init__(*args)
        self._threshold = self._options["null_threshold"]

    @property
    def settings(self) -> str:
        return f" null_threshold={self._threshold!r}" if self._options["version"] == "2.0" else ""

    def open_sources(self, source: str) -> dict[str, epath.Path]:
        version = self._options["version"]
        names = split_files(
            "json",
            "jsonl",
            "parquet",
            "arrow",
            train=[f"train-v{version}.json"],
            validation=[f"dev-v{version}.json"],
            test=[f"test-v{version}.json"],
        )
        return find_files(source, names)

    def read(self, source: epath.Path, split: str, bad_rows: BadRecords) -> Windows:
        questions = squad_data.tokenized_questions(
            # Questions on the same paragraph are alike.
            self.part(
                split,
                squad_data.read_file(source, bad_rows, self._options["version"]),
                group=lambda question: question[1],
            ),
            self._tokenizer,
            bad_rows,
            version=self._options["version"],
            split=split,
        )
        self.check_not_empty(source, split, questions)
        return Windows(
            questions,
            self._tokenizer,
            max_seq_length=self._max_seq_length,
            doc_stride=self._options["doc_stride"],
            max_query_length=self._options["max_query_length"],
        )

    def score(self, rows: Windows, outputs: dict[str, np.ndarray]) -> dict[str, float]:
        """Computes "exact_match" and "f1" for SQuAD 1.1; for 2.0 see `score_2`."""
        answers = {question.id: question.answers for question in rows.questions}
        rankings = self._rank(rows, outputs)
        # In 2.0 the best threshold is found among the spans of all questions.
        spans = {r.question: r.best_span.text if r.best_span else "" for r in rankings}
        if self._options["version"] == "1.1":
            return score_1(answers, spans)
        odds = {r.question: r.null_odds or 0.0 for r in rankings}
        return score_2(answers, spans, odds, self._threshold)

    def tuned(self, results: Mapping[str, Any]) -> Task:
        """Takes the threshold with the best F1 on the validation split, unless one is set.

        Section 4.3 of the paper does so.
        """
        if self._threshold or not self.settings:
            return self
        task = copy.copy(self)
        task._threshold = results["validation"]["best_f1_thresh"]
        return task

    def write_predictions(
        self, rows: Windows, outputs: dict[str, np.ndarray], path: epath.PathLike
    ) -> None:
        """Writes predictions.json for the leaderboard, and more files beside it.

        nbest_predictions.json holds the candidates for each question with their probabilities
        and logits. For SQuAD 2.0, null_odds.json holds the score of no answer minus the
        score of the best span.
        """
        path = epath.Path(path)
        rankings = self._rank(rows, outputs)
        shown = ("text", "probability", "start_logit", "end_logit")
        best = {
            r.question: [{key: getattr(a, key) for key in shown} for a in r.answers]
            for r in rankings
        }
        _write_json(path.with_name(f"nbest_{path.name}"), best)
        if self._options["version"] == "2.0":
            name = path.name.replace("predictions", "null_odds")
            _write_json(path.with_name(name), {r.question: r.null_odds for r in rankings})
        # Written last: if this file exists, all of them do.
        _write_json(path, {r.question: r.prediction(self._threshold) for r in rankings})

    def predictions_name(self, split: str) -> str:
        """Returns predictions.json, or SPLIT_predictions.json for other splits than validation."""
        return "predictions.json" if split == "validation" else f"{split}_predictions.json"

    def _rank(self, rows: Windows, outputs: dict[str, np.ndarray]) -> list[Ranking]:
        rankings = rank_answers(
            rows,
            outputs["start_logits"],
            outputs["end_logits"],
            n_best=self._options["n_best"],
            max_answer_length=self._options["max_answer_length"],
            with_no_answer=self._options["version"] == "2.0",
        )
        return list(rankings)


def _write_json(path: epath.Path, content: dict[str, Any]) -> None:
    files.write_whole(path, (json.dumps(content, indent=4) + "\n").encode())
