"""Makes a retrieval task of SQuAD 1.1's dev set: questions, and the paragraphs that answer them.

    python benchmarks/retrieval.py DATA/squad/squad-v1.1/dev-v1.1.json DIR

writes DIR/pairs.jsonl, the questions of the first 40 articles with their paragraphs, for training,
and DIR/beir, a folder of BEIR with those of the other articles. docs/results.md has what models
score.
"""

import json
import sys
from pathlib import Path

TRAINING_ARTICLES = 40


def main(source: str, target: str) -> None:
    articles = json.loads(Path(source).read_text())["data"]
    paragraphs = [
        (paragraph["context"], [question["question"].strip() for question in paragraph["qas"]])
        for article in articles[:TRAINING_ARTICLES]
        for paragraph in article["paragraphs"]
    ]
    pairs = [
        {"anchor": question, "positive": context}
        for context, questions in paragraphs
        for question in questions
    ]
    folder = Path(target) / "beir"
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    documents, queries, judgements = {}, [], ["query-id\tcorpus-id\tscore\n"]
    for article in articles[TRAINING_ARTICLES:]:
        for paragraph in article["paragraphs"]:
            document = documents.setdefault(paragraph["context"], f"d{len(documents):04}")
            for question in paragraph["qas"]:
                queries.append({"_id": question["id"], "text": question["question"].strip()})
                judgements.append(f"{question['id']}\t{document}\t1\n")
    corpus = [{"_id": id, "text": text} for text, id in documents.items()]
    (folder / "qrels" / "test.tsv").write_text("".join(judgements))
    for path, rows in (
        (Path(target) / "pairs.jsonl", pairs),
        (folder / "corpus.jsonl", corpus),
        (folder / "queries.jsonl", queries),
    ):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        print(f"{path}: {len(rows):,}")


if __name__ == "__main__":
    main(*sys.argv[1:])
