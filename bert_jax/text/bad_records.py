"""Refuses or skips records of the user's data that cannot be used."""

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping

from bert_jax.base.errors import UserError

# The number of skipped records whose file and line are reported.
NUM_FIRST = 3
# The reason of a `BadRecord` that is not in the encoding of its file.
INVALID_UTF8 = "invalid UTF-8"


class BadRecord(Exception):
    """A record that cannot be used.

    Attributes:
      reason: The kind of problem in a word or two. Skipped records are counted by reason.
      detail: The problem in full.
    """

    def __init__(self, reason: str, detail: str):
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail

    def __str__(self) -> str:
        return self.detail


class BadRecords:
    """Refuses bad records, or skips and counts them.

    Args:
      key: The config key that holds the policy, for messages; empty if no key can change it.
      advice: What else the user can do, by reason.

    Attributes:
      dropped: The number of skipped or repaired records by reason.
      first_dropped: Where the first skipped records are, FILE:LINE, by reason.
    """

    def __init__(
        self, policy: str = "refuse", key: str = "", advice: Mapping[str, str] | None = None
    ):
        self._skip, self._key, self._advice = policy == "skip", key, advice or {}
        self.dropped: Counter[str] = Counter()
        self.first_dropped: dict[str, list[str]] = {}

    def add(self, bad: BadRecord, where: object, *, is_required: bool = False) -> None:
        """Refuses or counts a bad record.

        Args:
          where: Where the record is; its text is FILE:LINE.
          is_required: Whether the record must not be skipped, whatever the policy.
        """
        if is_required or not self._skip:
            skip = "" if is_required or not self._key else f"{self._key}=skip continues anyway"
            advice = "; ".join(filter(None, (self._advice.get(bad.reason), skip)))
            raise UserError(f"{where}: {bad.detail}" + (f" ({advice})" if advice else "")) from None
        self.drop(bad.reason, where)

    def drop(self, reason: str, where: object) -> None:
        """Counts a record that is skipped whatever the policy; see `add`."""
        self.dropped[reason] += 1
        if self.dropped[reason] <= NUM_FIRST:
            self.first_dropped.setdefault(reason, []).append(str(where))

    @contextlib.contextmanager
    def catching(self, where: object, *, is_required: bool = False) -> Iterator[None]:
        """Passes a `BadRecord` raised inside the block to `add`; so is text that is not UTF-8."""
        try:
            yield
        except BadRecord as bad:
            self.add(bad, where, is_required=is_required)
        except UnicodeError:
            self.add(BadRecord(INVALID_UTF8, "not valid UTF-8"), where, is_required=is_required)


@contextlib.contextmanager
def reading_fields() -> Iterator[None]:
    """Raises BadRecord if the record whose fields the block reads has another form.

    The block does nothing else, so that no error of this package counts as one of the data.
    """
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise BadRecord("another form", f"{type(error).__name__}: {error}") from None
