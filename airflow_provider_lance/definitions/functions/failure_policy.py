"""What happens to a row whose function raises: rules that are tried in order, and the policy that is made of them."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from airflow_provider_lance.definitions.json_types import JsonObject

ON_ERROR = ("fail", "null", "retry")
DEFAULT_RETRIES = 3
DEFAULT_BACKOFF = 0.1
MAX_BACKOFF = 60.0

#: Exceptions as classes, or by name such as ``"httpx.TimeoutException"``, which a DAG file need not import.
ErrorKinds = type[BaseException] | str | Sequence[type[BaseException] | str]
# Airflow imports a DAG file under this prefix; the class of the pickle has the plain name.
_DAG_FILE = re.compile(r"^unusual_prefix_[0-9a-f]{40}_")


class UdfError(ValueError):
    """A function cannot be wrapped or run: its envelope cannot be read, was altered, or is not allowed here."""


@dataclass(frozen=True)
class _Rule:
    error: ErrorKinds = ()
    match: str = ""

    action: ClassVar[str]

    def __post_init__(self) -> None:
        kinds: Iterable[object] = (self.error,) if isinstance(self.error, type | str) else self.error
        object.__setattr__(self, "error", tuple(_error_name(kind) for kind in kinds))
        try:
            re.compile(self.match)
        except (re.error, TypeError) as error:
            raise UdfError(f"match is {self.match!r}, which is no regular expression: {error}") from None

    def applies(self, error: BaseException) -> bool:
        """Whether the rule is for this error: one of its kinds or their subclasses, with a text that matches."""
        kinds = self.error if isinstance(self.error, tuple) else ()
        if kinds and not any(_is_a(error, str(kind)) for kind in kinds):
            return False
        return not self.match or re.search(self.match, str(error)) is not None

    def to_dict(self) -> JsonObject:
        document: JsonObject = {"action": self.action}
        if self.error:
            document["error"] = list(self.error) if isinstance(self.error, tuple) else [self.error]
        if self.match:
            document["match"] = self.match
        return document


@dataclass(frozen=True)
class Retry(_Rule):
    """Call the function again. After the last time, the rules behind this one decide.

    :param error: The exceptions that the rule is for, with their subclasses: classes or names such as
        ``"httpx.TimeoutException"``, one or several. By default it is for all.
    :param match: A regular expression that is searched in the text of the exception.
    :param retries: How many times the function is called again.
    :param backoff: The seconds before the first of these calls. They double with each call, up to a minute.
    """

    retries: int = DEFAULT_RETRIES
    backoff: float = DEFAULT_BACKOFF
    action: ClassVar[str] = "retry"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_retries(self.retries)
        if isinstance(self.backoff, bool) or not isinstance(self.backoff, int | float) or self.backoff < 0:
            raise UdfError(f"backoff is {self.backoff!r}; it must be a number of seconds, 0 or more")

    def delay(self, attempt: int) -> float:
        """The seconds before call ``attempt`` + 1. They vary a little, so that many tasks do not call at once."""
        return min(MAX_BACKOFF, self.backoff * 2.0 ** min(attempt, 30)) * random.uniform(0.75, 1.25)

    def to_dict(self) -> JsonObject:
        return {**super().to_dict(), "retries": self.retries, "backoff": self.backoff}


@dataclass(frozen=True)
class Skip(_Rule):
    """Leave the row null, count it as failed and go on. A chunker leaves the row out.

    :param error: The exceptions that the rule is for, with their subclasses: classes or names such as
        ``"httpx.TimeoutException"``, one or several. By default it is for all.
    :param match: A regular expression that is searched in the text of the exception.
    """

    action: ClassVar[str] = "skip"


@dataclass(frozen=True)
class Fail(_Rule):
    """Fail the job, with the row and the lines of the function in its message.

    :param error: The exceptions that the rule is for, with their subclasses: classes or names such as
        ``"httpx.TimeoutException"``, one or several. By default it is for all.
    :param match: A regular expression that is searched in the text of the exception.
    """

    action: ClassVar[str] = "fail"


FailureRule = Retry | Skip | Fail
_RULES: dict[str, type[Retry] | type[Skip] | type[Fail]] = {rule.action: rule for rule in (Retry, Skip, Fail)}


def read_rules(stored: object) -> tuple[FailureRule, ...]:
    """The rules of an envelope; UdfError where they cannot be read."""
    try:
        return tuple(_read_rule(each) for each in stored) if isinstance(stored, list | tuple) else ()
    except (KeyError, TypeError) as error:
        raise UdfError(f"the envelope's rules cannot be read: {error!r}") from None


def _read_rule(stored: Mapping[str, object] | FailureRule) -> FailureRule:
    if isinstance(stored, FailureRule):
        return stored
    fields: JsonObject = {name: value for name, value in stored.items() if name != "action"}
    return _RULES[str(stored["action"])](**fields)


@dataclass(frozen=True)
class ErrorPolicy:
    """What happens to a row whose function raises. The first of ``rules`` that is for the error decides.

    ``on_error`` is ``null`` where some rows may stay null, and ``fail`` otherwise. Without rules, all errors are the
    same: the function is called again ``retries`` times, and then ``on_error`` applies.
    """

    on_error: str = "fail"
    retries: int = 0
    rules: tuple[FailureRule, ...] = ()

    def __post_init__(self) -> None:
        if not self.rules:
            last = Skip() if self.on_error == "null" else Fail()
            rules = (Retry(retries=self.retries), last) if self.retries else (last,)
            object.__setattr__(self, "rules", rules)

    @classmethod
    def of(cls, on_error: str, retries: int | None = None) -> ErrorPolicy:
        if on_error not in ON_ERROR:
            raise UdfError(f"on_error is {on_error!r}; it must be one of {', '.join(ON_ERROR)}")
        if retries is not None:
            check_retries(retries)
        default = DEFAULT_RETRIES if on_error == "retry" else 0
        return cls("null" if on_error == "null" else "fail", default if retries is None else retries)

    @classmethod
    def of_rules(cls, rules: Sequence[FailureRule]) -> ErrorPolicy:
        most = max((rule.retries for rule in rules if isinstance(rule, Retry)), default=0)
        return cls("null" if any(isinstance(rule, Skip) for rule in rules) else "fail", most, (*rules, Fail()))

    def with_retries(self, retries: int) -> ErrorPolicy:
        """The same policy with another number of retries: of each rule that has some, or before all rules."""
        rules = [replace(rule, retries=retries) if isinstance(rule, Retry) else rule for rule in self.rules]
        if not any(isinstance(rule, Retry) for rule in rules):
            rules.insert(0, Retry(retries=retries))
        return ErrorPolicy(self.on_error, retries, tuple(rules))

    def decide(self, error: BaseException, attempt: int) -> float | Literal["skip", "fail"]:
        """After failed call ``attempt`` (0, 1, …): the seconds before the next one, or what becomes of the row."""
        for rule in self.rules:
            if not rule.applies(error):
                continue
            if not isinstance(rule, Retry):
                return "skip" if isinstance(rule, Skip) else "fail"
            if attempt < rule.retries:
                return rule.delay(attempt)
        return "fail"


def check_retries(retries: object) -> None:
    if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
        raise UdfError(f"retries is {retries!r}; it must be a whole number, 0 or more")


def _error_name(kind: object) -> str:
    if isinstance(kind, str) and kind:
        return kind
    if isinstance(kind, type) and issubclass(kind, BaseException):
        module = _DAG_FILE.sub("", kind.__module__)
        return kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"
    raise UdfError(f"a rule is for exceptions or their names, and {kind!r} is neither")


def _is_a(error: BaseException, name: str) -> bool:
    """Whether an exception or one of its bases has a name. Packages export classes of their inner modules."""
    package, _, last = name.partition(".")[0], *name.rpartition(".")[1:]
    for kind in type(error).__mro__:
        if kind.__name__ == last and ("." not in name or kind.__module__.partition(".")[0] == package):
            return True
    return False
