"""The plan of a store that is being prepared, and the files that its processes write.

    DIR/unfinished/             removed when the store is finished
        plan.json               see `Plan`
        count-00000.json ...    the result of a stage for a part of the input
        choice-00000.json ...   what is done with its documents, see `choices.ChosenDocuments`
        vocabulary.json         see `part_stages.Vocabulary`
        *.error.json            instead of a result: why there is none
    DIR/train/ ...              files of the store, as they become complete

Each file is renamed into place once it is complete. A restart with the same plan does only what is
missing. Two processes that do the same work write the same bytes.
"""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from etils import epath
from ml_collections import ConfigDict

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.store.manifest import RECORDED, store_options
from bert_jax.store.token_store import SPLITS
from bert_jax.text.corpus import Corpus
from bert_jax.text.sources import Piece, Source, source_name

UNFINISHED = "unfinished"
_PLAN = "plan.json"
_ERROR = ".error.json"
# The largest size of a part, as the input is stored.
PART_BYTES = 2**27
Directory = Path | epath.Path
Record = TypeVar("Record", bound=NamedTuple)


class Plan(NamedTuple):
    """What determines the content of a store, and the parts of the work.

    Attributes:
      options: See `store_options`.
      data: The keys of the `data` section that affect a store, also those that are not recorded.
      version: The version of the files beside the plan. An unfinished store of another version is
        not continued.
    """

    options: dict[str, Any]
    data: dict[str, Any]
    sources: list[Source]
    parts: list[list[Piece]]
    version: int = 2

    @property
    def source_names(self) -> list[str]:
        """The names of the sources, in order; one empty name if `data.sources` names none."""
        return list(dict.fromkeys(map(source_name, self.sources)))

    @property
    def has_parts(self) -> bool:
        """Whether the splits of the store are divided into parts: several, or of named sources."""
        return len(self.parts) > 1 or self.source_names != [""]

    def source_name(self, number: int) -> str:
        return source_name(self.sources[self.parts[number][0].source])

    def parts_of(self, name: str) -> list[int]:
        """Returns the numbers of the parts of a source, which are consecutive."""
        return [number for number in range(len(self.parts)) if self.source_name(number) == name]

    def megabytes(self, number: int) -> float:
        sizes = [self.sources[piece.source].get("bytes", 0) for piece in self.parts[number]]
        pieces = zip(self.parts[number], sizes, strict=True)
        return sum((size if p.stop is None else p.stop - p.start) for p, size in pieces) / 1e6


class _Error(NamedTuple):
    message: str


def make_plan(data: ConfigDict, vocab_size: int, corpus: Corpus) -> Plan:
    """Returns the plan for a corpus; `data` is the `data` section of a checked config."""
    used = {key: data[key] for key in RECORDED}
    parts = corpus.parts(PART_BYTES)
    plan = Plan(store_options(data, vocab_size), used, corpus.sources, parts)
    return _from_json(_to_json(plan))


def start(output: Directory, plan: Plan, *, may_replace: bool) -> None:
    """Begins a store, or continues an unfinished one with the same plan.

    Args:
      output: An empty directory, or that of an unfinished store.
      may_replace: Whether an unfinished store with another plan is removed, or else refused.
    """
    try:
        found = files.read_json(output / UNFINISHED / _PLAN)
    except FileNotFoundError:
        if foreign := sorted({path.name for path in output.glob("*")} - {UNFINISHED}):
            raise UserError(
                f"{output} holds {foreign[0]}, which is not part of an unfinished token store: "
                "use an empty directory"
            ) from None
    else:
        if found == _to_json(plan):
            # The errors of an earlier attempt.
            for name in written(output):
                if name.endswith(_ERROR):
                    (output / UNFINISHED / name).unlink(missing_ok=True)
            return
        if not may_replace:
            raise UserError(
                f"{output} holds an unfinished token store with other settings or texts: use "
                "another directory, or remove it if nobody is writing to it"
            )
    # The plan goes last: the files beside it are known by it.
    for name in (*SPLITS, "tokenizer", UNFINISHED):
        files.remove_directory(output / name)
    write_record(output, _PLAN, plan)


def read_plan(output: Directory) -> Plan:
    return _from_json(files.read_json(output / UNFINISHED / _PLAN))


def _to_json(plan: Plan) -> dict[str, Any]:
    return json.loads(json.dumps(plan._asdict()))


def _from_json(values: dict[str, Any]) -> Plan:
    parts = [[Piece(*piece) for piece in part] for part in values["parts"]]
    return Plan(values["options"], values["data"], values["sources"], parts)


def result_name(stage: str, number: int) -> str:
    return f"{stage}-{number:05d}.json"


def write_record(output: Directory, name: str, record: NamedTuple) -> None:
    """Writes a file of the unfinished store atomically."""
    (output / UNFINISHED).mkdir(parents=True, exist_ok=True)
    files.write_whole(output / UNFINISHED / name, json.dumps(record._asdict()).encode())


def read_record(output: Directory, name: str, kind: type[Record]) -> Record:
    """Returns the record, a NamedTuple, that `write_record` has written."""
    return kind(**files.read_json(output / UNFINISHED / name))


def is_written(output: Directory, name: str) -> bool:
    return (output / UNFINISHED / name).exists()


def written(output: Directory) -> set[str]:
    """Returns the names of the files of the unfinished store."""
    return {os.path.basename(path) for path in (output / UNFINISHED).iterdir()}


def write_error(output: Directory, name: str, message: str) -> None:
    """Writes why the file of this name cannot be made."""
    write_record(output, name.replace(".json", _ERROR), _Error(message))


def raise_error(output: Directory) -> None:
    """Raises the error of the lowest part, if there is any."""
    if names := sorted(name for name in written(output) if name.endswith(_ERROR)):
        raise UserError(read_record(output, names[0], _Error).message)
