"""A shape is a type that payloads are read as and written from: strict, compiled once, kept by type.

Fields are stored under their own names, never under aliases. A written value is read back before it is taken, so that what stands in the
store can be read by the model that wrote it; the error belongs to the step that made it, not to the next one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING as DATACLASS_MISSING
from dataclasses import fields, is_dataclass
from typing import Any, Literal

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import PydanticSerializationError, to_json

from conductor import codec
from conductor.declare.hints import MISSING, bare, describe
from conductor.errors import BadInput, DeclarationError

__all__ = ["Misfit", "Shape", "refuse", "shape_of"]

_SIMPLE = (str, int, bool, float)
_TOLD = 3  # problems of one value
_KINDS: Mapping[type, str] = {
    type(None): "nothing (null)", bool: "true or false", int: "a whole number", float: "a number with a decimal point", str: "text",
    list: "a list", dict: "an object",
}


class Misfit(Exception):
    """A value does not fit its shape: which field, and what is wrong. It never holds the value itself, which may be secret."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem

    @classmethod
    def of(cls, error: ValidationError) -> Misfit:
        """The first few problems. Of what was given only the kind is told."""
        found = error.errors(include_url=False, include_context=False)
        told = [(".".join(map(str, one["loc"])) or "value", _problem(one["type"], one["msg"], one["input"])) for one in found[:_TOLD]]
        rest = f"; and {len(found) - _TOLD} more" if len(found) > _TOLD else ""
        strict = "; types are strict" if any(_is_kind(one["type"]) for one in found) else ""
        return cls(told[0][0], "; ".join([told[0][1], *(f"{field}: {problem}" for field, problem in told[1:])]) + rest + strict)


def _is_kind(error: str) -> bool:
    """Whether pydantic names a wrong kind of value, not a wrong value."""
    return error.endswith(("_type", "_from_float", "_parsing"))


def _problem(error: str, message: str, given: Any) -> str:
    return f"{message}, {_KINDS.get(type(given), type(given).__name__)} was given" if _is_kind(error) else message


class Shape:
    """One type: `read` makes a value of a payload, `write` a payload of a value, `accept` checks what a caller sends from outside."""

    __slots__ = ("_dump", "_extra", "_free", "_load", "_simple", "text", "type")

    def __init__(self, annotation: Any) -> None:
        self.type = annotation
        self.text = describe(annotation)
        adapter: TypeAdapter[Any] = TypeAdapter(Any if annotation is MISSING else annotation)
        self._load = adapter.validator.validate_json
        self._dump = adapter.serializer.to_json
        self._simple = annotation if annotation in _SIMPLE else None
        self._free = annotation is MISSING or annotation is Any
        self._extra: Literal["forbid"] | None = None if _allows_extra(adapter.core_schema) else "forbid"

    def read(self, payload: str) -> Any:
        """The value, or Misfit."""
        text = payload[3:] if payload.startswith("j1:") else codec.unpack(payload)
        try:
            return self._load(text, strict=True, by_alias=False, by_name=True)
        except ValidationError as error:
            raise Misfit.of(error) from None

    def write(self, value: Any, *, limit: int, what: str) -> str:
        """The payload, or Misfit, or what the codec refuses."""
        if self._free or type(value) is self._simple:
            return codec.encode(value, limit=limit, what=what)
        text = codec.check_json(self._to_json(value), value, limit=limit, what=what)
        try:
            self._load(text, strict=True, by_alias=False, by_name=True)
        except ValidationError as error:
            raise Misfit.of(error) from None
        return codec.pack(text)

    def accept(self, value: Any, *, limit: int, what: str) -> str:
        """The payload of a value from outside: an instance, or plain data. Unknown fields are refused, defaults are filled in."""
        text = codec.check_json(self._plain_json(value), value, limit=limit, what=what)
        codec.check_controls(text, what)
        try:
            valid = self._load(text, strict=True, extra=self._extra, by_alias=True, by_name=True)
        except ValidationError as error:
            raise (self._missing() if value is None else self._unknown_field(error)) or Misfit.of(error) from None
        return self.write(valid, limit=limit, what=what)

    def _to_json(self, value: Any) -> str:
        try:
            return self._dump(value, round_trip=True, by_alias=False, warnings=False).decode()
        except PydanticSerializationError as error:
            raise Misfit("value", codec.serialization_problem(error)) from None

    def _plain_json(self, value: Any) -> str:
        model = bare(self.type)
        if not isinstance(value, BaseModel) and not is_dataclass(value):
            try:
                return to_json(value, by_alias=False, round_trip=True).decode()
            except PydanticSerializationError as error:
                raise Misfit("value", codec.serialization_problem(error)) from None
        if isinstance(model, type) and not isinstance(value, model):
            raise Misfit("value", f"it is a {type(value).__qualname__}, not a {self.text}")
        return self._to_json(value)

    def _missing(self) -> Misfit:
        needed = ", ".join(_required(bare(self.type)))
        return Misfit("value", f"nothing was given; {self.text} was expected" + (f", which needs {needed}" if needed else ""))

    def _unknown_field(self, error: ValidationError) -> Misfit | None:
        wrong = next((found for found in error.errors(include_input=False, include_url=False) if found["type"] == "extra_forbidden"), None)
        if wrong is None:
            return None
        fields = getattr(bare(self.type), "model_fields", None) if len(wrong["loc"]) == 1 else None
        known = f" (known: {', '.join(fields)})" if isinstance(fields, Mapping) else ""
        return Misfit(".".join(map(str, wrong["loc"])), f"no such field{known}")


def _required(model: Any) -> list[str]:
    """The fields without a default of a model or a dataclass; a TypedDict does not know its own if its annotations are texts."""
    if isinstance(known := getattr(model, "model_fields", None), Mapping):
        return [name for name, field in known.items() if field.is_required()]
    if is_dataclass(model):
        return [field.name for field in fields(model) if field.init and field.default is field.default_factory is DATACLASS_MISSING]
    return []


def _allows_extra(schema: Any) -> bool:
    """Whether some model inside says that it takes extra fields: then its own word counts."""
    if isinstance(schema, Mapping):
        said = "allow" in (schema.get("extra_behavior"), schema.get("extra_fields_behavior"))
        return said or any(_allows_extra(inner) for key, inner in schema.items() if key != "metadata")
    return isinstance(schema, (list, tuple)) and any(_allows_extra(inner) for inner in schema)


_shapes: dict[Any, Shape] = {}


def shape_of(annotation: Any, where: str) -> Shape:
    """The shape of a type; DeclarationError if JSON cannot carry it."""
    try:
        kept = _shapes.get(annotation)
    except TypeError:  # an annotation that cannot be hashed is compiled each time
        return _compile(annotation, where)
    if kept is None:
        kept = _shapes[annotation] = _compile(annotation, where)
    return kept


def _compile(annotation: Any, where: str) -> Shape:
    try:
        return Shape(annotation)
    except (PydanticUserError, NameError, TypeError) as error:
        remedy = "use a pydantic model, a dataclass or a plain type"
        problem = f"{describe(annotation)} cannot be carried as JSON; {remedy} ({_first_line(error)})"
        raise DeclarationError(where=where, problem=problem) from None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def refuse(misfit: Misfit, what: str) -> BadInput:
    """The error a caller sees when what it sent does not fit."""
    return BadInput(what=what, field=misfit.field, problem=misfit.problem)
