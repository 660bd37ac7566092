"""What an editor shows of a public class: each argument with a sentence, what the task returns, and its guide."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import pytest
from airflow.sdk import BaseOperator, BaseSensorOperator

from airflow_provider_lance.assets.lance import create_asset
from airflow_provider_lance.declarations import (
    LanceChecks,
    LanceIndex,
    LanceTable,
    LanceView,
    LanceViewFunction,
    load_declarations,
)
from airflow_provider_lance.decorators.lance import _LanceDecoratedOperator, lance_task
from airflow_provider_lance.get_provider_info import get_provider_info
from airflow_provider_lance.hooks.lance import LanceNamespaceHook
from airflow_provider_lance.operators.version import stage_version
from airflow_provider_lance.task_groups.lance import LanceTaskGroup
from airflow_provider_lance.tasks import operator_arguments

ROOT = Path(__file__).parents[2]
PACKAGE = "airflow_provider_lance"
PARAMETER = re.compile(r":(?:param (\w+)|(return)): (.*?)(?=\n\s*:(?:param \w+|return): |\Z)", re.DOTALL)
SENTENCE = re.compile(r"(?!Of )[A-Z`].*\.", re.DOTALL)
TEMPLATED = " (templated)"


def public_classes() -> Iterator[type]:
    info = get_provider_info()
    for kind in ("hooks", "operators", "sensors", "triggers"):
        for entry in info[kind]:
            for module in entry["python-modules"]:
                for name, found in vars(importlib.import_module(module)).items():
                    if inspect.isclass(found) and found.__module__ == module and re.match(r"Lance\w+$", name):
                        yield found


DECLARATIONS = (LanceTable, LanceView, LanceIndex, LanceChecks, LanceViewFunction, LanceTaskGroup)
CLASSES = sorted(set(public_classes()), key=lambda found: found.__name__)
TASKS = [found for found in CLASSES if issubclass(found, BaseOperator)]
FUNCTIONS: list[Callable[..., object]] = [
    create_asset,
    lance_task,
    load_declarations,
    stage_version,
    *(
        method
        for name, method in vars(LanceNamespaceHook).items()
        if inspect.isfunction(method) and not name.startswith("_") and len(inspect.signature(method).parameters) > 1
    ),
]


def documented(found: object) -> dict[str, str]:
    """The texts of a docstring by the name of the argument; the result's is ``return``."""
    text = inspect.getdoc(found) or ""
    return {name or result: " ".join(words.split()) for name, result, words in PARAMETER.findall(text)}


def constructor(found: type) -> inspect.Signature:
    return inspect.signature(vars(found)["__init__"])


def named(signature: inspect.Signature) -> set[str]:
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return {name for name, parameter in signature.parameters.items() if name != "self" and parameter.kind not in kinds}


def arguments(found: type) -> set[str]:
    """The arguments of a class that this package declares, those of its base classes included."""
    bases = [base for base in found.__mro__ if base.__module__.startswith(PACKAGE) and "__init__" in vars(base)]
    return {name for base in bases for name in named(constructor(base))}


def passed_on(found: type) -> set[str]:
    """The arguments of the base classes, Airflow's included."""
    bases = [base for base in found.__mro__[1:] if "__init__" in vars(base) and issubclass(base, BaseOperator)]
    return {name for base in bases for name in named(constructor(base))}


def assert_sentences(texts: dict[str, str]) -> None:
    for name, text in texts.items():
        sentence = text.removesuffix(TEMPLATED)
        assert SENTENCE.fullmatch(sentence), f"{name}: {text}"
        assert TEMPLATED not in sentence, f"{name}: {text}"


@pytest.mark.parametrize("found", CLASSES, ids=lambda found: found.__name__)
def test_each_argument_of_a_class_is_documented_in_complete_sentences(found: type) -> None:
    texts = documented(found)
    assert {name for name in texts if name != "return"} == arguments(found)
    assert_sentences(texts)


@pytest.mark.parametrize("found", DECLARATIONS, ids=lambda found: found.__name__)
def test_each_argument_of_a_declaration_is_documented_in_complete_sentences(found: type) -> None:
    texts = documented(found)
    assert set(texts) - {"kwargs"} == named(inspect.signature(found))
    assert_sentences(texts)


@pytest.mark.parametrize("found", FUNCTIONS, ids=lambda found: found.__name__)
def test_each_argument_of_a_function_is_documented_in_complete_sentences(found: Callable[..., object]) -> None:
    texts = documented(found)
    assert set(texts) >= named(inspect.signature(found))
    assert_sentences(texts)


@pytest.mark.parametrize("found", TASKS, ids=lambda found: found.__name__)
def test_an_argument_says_that_it_is_templated_where_it_is(found: type[BaseOperator]) -> None:
    templated = {name for name, text in documented(found).items() if text.endswith(TEMPLATED)}
    assert templated == arguments(found) & set(found.template_fields)


def test_the_decorator_says_what_is_templated() -> None:
    templated = {name for name, text in documented(lance_task).items() if text.endswith(TEMPLATED)}
    assert templated == {"lance_conn_id"}
    assert templated <= set(_LanceDecoratedOperator.template_fields)


@pytest.mark.parametrize("found", [*CLASSES, create_asset, lance_task, stage_version], ids=lambda found: found.__name__)
def test_the_guide_that_is_named_is_a_page(found: type | Callable[..., object]) -> None:
    pages = re.findall(r"``(docs/[\w/.-]+\.md)``", inspect.getdoc(found) or "")
    assert pages
    for page in pages:
        assert (ROOT / page).is_file(), page


@pytest.mark.parametrize("found", CLASSES, ids=lambda found: found.__name__)
def test_a_class_says_what_its_task_returns(found: type) -> None:
    assert ("return" in documented(found)) == (found is not LanceNamespaceHook)


@pytest.mark.parametrize("found", TASKS, ids=lambda found: found.__name__)
def test_an_editor_completes_the_arguments_of_the_base_classes(found: type) -> None:
    """Airflow's own keyword arguments are among them: a type checker refuses what a TypedDict does not have."""
    keywords = [
        parameter
        for parameter in constructor(found).parameters.values()
        if parameter.kind is inspect.Parameter.VAR_KEYWORD
    ]
    assert len(keywords) == 1
    if found.__name__ == "LanceSparkSubmitOperator":
        return  # its keywords are those of Airflow's SparkSubmitOperator, which no type describes
    unpacked = re.fullmatch(r"Unpack\[(\w+)\]", str(keywords[0].annotation))
    assert unpacked, keywords[0]
    module = importlib.import_module(found.__module__)
    typed = set(getattr(module, unpacked[1]).__annotations__)
    expected = passed_on(found)
    assert expected - typed == set()
    newer_airflow = set(operator_arguments.AirflowArguments.__annotations__)
    assert typed - expected <= newer_airflow


def test_the_base_classes_of_airflow_have_no_argument_that_is_not_typed() -> None:
    assert named(constructor(BaseOperator)) <= set(operator_arguments.AirflowArguments.__annotations__)
    assert named(constructor(BaseSensorOperator)) <= set(operator_arguments.SensorArguments.__annotations__)


@pytest.mark.parametrize("found", TASKS, ids=lambda found: found.__name__)
def test_each_word_that_an_argument_accepts_is_documented(found: type[BaseOperator]) -> None:
    module = importlib.import_module(found.__module__)
    for name, parameter in constructor(found).parameters.items():
        words = get_args(getattr(module, str(parameter.annotation), None))
        if words and name.startswith(("if_", "on_")):
            for word in words:
                assert f"``{word}``" in documented(found)[name], f"{name}: {word}"
