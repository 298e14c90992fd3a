"""Reads queries, documents and judgements: folders of BEIR (Thakur et al. 2021) and of NanoBEIR."""

import re
from collections.abc import Iterator, Sequence

from etils import epath

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.base.progress import say
from bert_jax.tasks.example_task import as_number
from bert_jax.tasks.retrieval import Retrieval, make_retrieval
from bert_jax.tasks.task import places
from bert_jax.text.bad_records import BadRecords
from bert_jax.text.guess_format import TABLES
from bert_jax.text.readers import open_text, suffix_of
from bert_jax.text.tables import TableRow, files_of, read_rows

# The splits of a folder's judgements, in the order of preference.
_SPLITS = ("test", "dev", "validation", "train")
# The folders of judgements in a download from BEIR, and in one from the Hub.
_JUDGED = ("qrels", "data", "")
# The columns of judgements without a header, by their number. The second of four is TREC's.
_NAMELESS = {3: ("query-id", "corpus-id", "score"), 4: ("query-id", "", "corpus-id", "score")}


def read_data_sets(
    source: epath.PathLike, key: str, skip_own: bool = False
) -> dict[str, Retrieval]:
    """Reads one or several data sets; see `read_retrieval`.

    Args:
      source: What `read_retrieval` reads; or a folder with the files of several data sets, as
        NanoBEIR has (qrels/NanoNQ-00000-of-00001.parquet); or a folder of folders.

    Returns:
      The data sets by their names; that of a single one is "".
    """
    folder = files.checked_path(source, key)
    sources = {"": folder}
    if folder.is_dir() and not _judged_table(folder):
        # Names of files end where the number of a part or a suffix begins.
        judged = sorted({_stem(path) for path in (folder / "qrels").glob("*.*")})
        of_files = {stem: _table(folder / "qrels", stem) for stem in judged}
        of_folders = {path.name: path for path in sorted(folder.iterdir()) if _is_data_set(path)}
        sources = {name: path for name, path in of_files.items() if path} or of_folders or sources
    return {name: read_retrieval(path, key, skip_own) for name, path in sources.items()}


def read_retrieval(source: epath.PathLike, key: str, skip_own: bool = False) -> Retrieval:
    """Reads the corpus, the queries and the judgements of a folder of BEIR.

    The three are tables such as corpus.jsonl, queries.jsonl and qrels/test.tsv, or folders of
    tables, as BEIR and MTEB have on the Hub. Judgements of documents that the corpus lacks count,
    and those of unknown queries do not, as in sentence-transformers; both are reported. NanoBEIR
    has a ranking of BM25 too, and its blank texts are left out.

    Args:
      source: The folder, whose split is test if there is one; or the file of a split in it.
      skip_own: See `make_retrieval`.
    """
    path = files.checked_path(source, key)
    folder, judgements = path, path
    if path.is_file():
        above = (x for x in path.parents[:3] if _part(x, "corpus", path))
        folder = next(above, path.parent.parent)
    else:
        judgements = _judged_table(folder) or folder / "qrels" / "test.tsv"
    # Only the files of NanoBEIR have the name of a data set.
    keeps_blank = _stem(judgements) in _SPLITS
    documents, queries = (
        _texts(_part(folder, name, judgements) or folder / f"{name}.jsonl", keeps_blank)
        for name in ("corpus", "queries")
    )
    rankings = _part(folder, "bm25", judgements)
    ranked = _rankings(rankings) if rankings else {}
    judged: dict[str, dict[str, float]] = {}
    lost_queries, lost_documents = [], []
    for query, document, grade in _judgements(judgements):
        if query not in queries:
            lost_queries.append(query)
        elif document not in documents and grade > 0:
            lost_documents.append(document)
        # The last of several judgements counts, as in BEIR's own reader.
        judged.setdefault(query, {})[document] = grade
    for name, ids, effect in (
        ("queries", lost_queries, "they are left out"),
        ("documents", lost_documents, "they count as relevant and are never found"),
    ):
        if ids:
            missing = f"judgements of {name} that are missing, such as {ids[0]!r}"
            say(f"warning: {judgements} has {len(ids):,} {missing}: {effect}")
    data = make_retrieval(documents, queries, judged, skip_own, ranked)
    if not data.queries:
        raise UserError(f"{judgements}: no query has a document with a score above 0")
    return data


def _table(folder: epath.Path, *stems: str) -> epath.Path | None:
    """Finds the first table with one of these names in a folder; see `places`."""
    names = (f"{stem}.{format}" for stem in stems for format in TABLES)
    return next((path for name in names for path in places(folder, name)), None)


def _judged_table(folder: epath.Path) -> epath.Path | None:
    """Finds the judgements of a split."""
    return next(filter(None, (_table(folder / place, *_SPLITS) for place in _JUDGED)), None)


def _is_data_set(folder: epath.Path) -> bool:
    judgements = _judged_table(folder)
    return judgements is not None and _part(folder, "corpus", judgements) is not None


def _part(folder: epath.Path, name: str, judgements: epath.Path) -> epath.Path | None:
    """Finds the corpus or the queries: in a folder of several, those of the same name."""
    return _table(folder, name) or _table(folder / name, _stem(judgements), name, *_SPLITS)


def _stem(path: epath.Path) -> str:
    """Returns the name of a table without the number of its part and its suffix."""
    return re.split(r"-[\d*]+-of-|\.", path.name)[0]


def _rankings(path: epath.Path) -> dict[str, list[str]]:
    """Reads the ids of the documents that were found for each query."""
    columns, ranked = ("query-id", "corpus-ids"), {}
    for row in read_rows(path, columns, BadRecords(), lists=columns[1:]):
        query, found = (row.values[name] for name in columns)
        if not isinstance(found, list):
            raise UserError(f"{row.where}: corpus-ids is {found!r}, not a list")
        ranked[query] = list(map(str, found))
    return ranked


def _texts(path: epath.Path, keeps_blank: bool) -> dict[str, str]:
    """Reads the texts of a file by id, each after its title, if it has one."""
    texts: dict[str, str] = {}
    for row in read_rows(path, (), BadRecords()):
        id, text = _value(row, "_id", "id"), _value(row, "text")
        if not id:
            raise UserError(f"{row.where}: the id is missing")
        if id in texts:
            raise UserError(f"{row.where}: the id {id!r} is that of an earlier row too")
        title = _value(row, "title") if "title" in row.values else ""
        texts[id] = f"{title} {text}".strip()
    if not texts:
        raise UserError(f"{path} has no rows")
    if keeps_blank or all(texts.values()):
        return texts
    say(f"{list(texts.values()).count('')} blank texts of {path} are left out")
    return {id: text for id, text in texts.items() if text}


def _judgements(path: epath.Path) -> Iterator[tuple[str, str, float]]:
    """Yields the ids of a query and a document, and how relevant the document is."""
    header: Sequence[str] = ()
    if separator := {".tsv": "\t", ".csv": ","}.get(suffix_of(path)):
        with open_text(files_of(path)[0]) as (_, stream):
            names = stream.readline().decode("utf-8-sig", "replace").strip().split(separator)
        # In a header, the last name is "score".
        header = _NAMELESS.get(len(names), ()) if as_number(names[-1]) is not None else ()
    for row in read_rows(path, (), BadRecords(), header=header):
        # Without a score, there are only the two ids.
        score = "1" if len(row.values) == 2 else _value(row, "score")
        if (grade := as_number(score)) is None:
            raise UserError(f"{row.where}: score is {score!r}, not a number")
        query, document = _value(row, "query-id"), row.values.get("corpus-id")
        for id in document if isinstance(document, list) else [_value(row, "corpus-id")]:
            yield query, str(id), grade


def _value(row: TableRow, *names: str) -> str:
    """Returns the text of the first of several fields that a row has."""
    for name in names:
        if isinstance(text := row.values.get(name), str):
            return text.strip()
    raise UserError(f"{row.where}: no text in {names[0]!r}; its fields: {', '.join(row.values)}")
