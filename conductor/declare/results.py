"""`Results[T]`: the results of an `each`, in input order, read from the store by pages only when they are looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, overload

from conductor import codec

__all__ = ["PAGE", "Results"]

T_co = TypeVar("T_co", covariant=True)

PAGE = 1000

ReadPage = Callable[[int, int], Sequence[str | None]]


class Results(Sequence[T_co]):
    """A lazy sequence. `read_page(start, stop)` gives the payloads of that range (None for a skipped item), `decode` makes values of them.

    Only the last page looked at is kept, so that walking over a million results needs the memory of a thousand.
    """

    __slots__ = ("_at", "_decode", "_kept", "_page", "_read_page", "_total")

    def __init__(self, read_page: ReadPage, total: int, *, decode: Callable[[str], Any] = codec.decode, page: int = PAGE) -> None:
        self._read_page = read_page
        self._total = total
        self._decode = decode
        self._page = page
        self._at = -1
        self._kept: Sequence[str | None] = ()

    @classmethod
    def of(cls, payloads: Sequence[str | None], decode: Callable[[str], Any] = codec.decode) -> Results[T_co]:
        """Results that are in memory already."""
        return cls(lambda start, stop: payloads[start:stop], len(payloads), decode=decode)

    def with_decoder(self, decode: Callable[[str], Any]) -> Results[Any]:
        """The same results, read as another type."""
        return Results(self._read_page, self._total, decode=decode, page=self._page)

    def payloads(self) -> Iterator[str | None]:
        """All payloads in order, page by page."""
        for start in range(0, self._total, self._page):
            yield from self._load(start // self._page)

    def __len__(self) -> int:
        return self._total

    def __iter__(self) -> Iterator[T_co]:
        for payload in self.payloads():
            yield self._value(payload)

    @overload
    def __getitem__(self, index: int) -> T_co: ...

    @overload
    def __getitem__(self, index: slice) -> list[T_co]: ...

    def __getitem__(self, index: int | slice) -> T_co | list[T_co]:
        if isinstance(index, slice):
            return [self._at_index(found) for found in range(*index.indices(self._total))]
        found = index + self._total if index < 0 else index
        if not 0 <= found < self._total:
            raise IndexError(f"result {index} of {self._total}")
        return self._at_index(found)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, (str, bytes)):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<Results: {self._total}>"

    def _at_index(self, index: int) -> T_co:
        number, offset = divmod(index, self._page)
        value: T_co = self._value(self._load(number)[offset])
        return value

    def _load(self, number: int) -> Sequence[str | None]:
        if number == self._at:
            return self._kept
        start = number * self._page
        stop = min(start + self._page, self._total)
        page = self._read_page(start, stop)
        if len(page) != stop - start:
            raise LookupError(f"results {start} to {stop} are incomplete: {len(page)} of {stop - start} were read")
        self._at, self._kept = number, page
        return page

    def _value(self, payload: str | None) -> Any:
        return None if payload is None else self._decode(payload)
