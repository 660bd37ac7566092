"""A program: tells, as JSON, what operators, sensors and triggers the provider has and what their arguments are.

With an argument it runs the Python code on its standard input inside a DAG instead. In a process of its own, because
Airflow reads its home when it is imported.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from typing import TypedDict

from airflow_provider_lance.get_provider_info import get_provider_info

KINDS = ("operators", "sensors", "triggers")
PACKAGE = "airflow_provider_lance"


class ProviderClass(TypedDict):
    """An operator, sensor or trigger; ``parameters`` are its arguments with their defaults as Python writes them."""

    kind: str
    name: str
    module: str
    templated: list[str]
    parameters: dict[str, str | None]


def describe() -> list[ProviderClass]:
    from airflow.sdk import BaseOperator
    from airflow.triggers.base import BaseTrigger

    info = get_provider_info()
    return [
        {
            "kind": kind,
            "name": name,
            "module": module.rpartition(".")[2],
            "templated": sorted(getattr(found, "template_fields", ())),
            "parameters": parameters(found),
        }
        for kind in KINDS
        for entry in info[kind]
        for module in entry["python-modules"]
        for name, found in vars(importlib.import_module(module)).items()
        if inspect.isclass(found)
        and issubclass(found, BaseOperator | BaseTrigger)
        and found.__module__ == module
        and not name.startswith("_")
    ]


def parameters(found: type) -> dict[str, str | None]:
    """Name → default as Python writes it, ``None`` for a required one; what this package declares, not Airflow."""
    declared: dict[str, str | None] = {}
    for base in found.__mro__:
        if not base.__module__.startswith(PACKAGE) or "__init__" not in vars(base):
            continue
        for parameter in inspect.signature(vars(base)["__init__"]).parameters.values():
            if parameter.name != "self" and parameter.kind is not parameter.VAR_KEYWORD:
                default = None if parameter.default is parameter.empty else repr(parameter.default)
                declared.setdefault(parameter.name, default)
    return declared


def run_examples() -> None:
    from airflow.sdk import DAG

    for number, example in enumerate(json.load(sys.stdin)):
        with DAG(f"example_{number}", schedule=None):
            exec(compile(example["code"], example["page"], "exec", dont_inherit=True), {"__name__": "example"})


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run_examples()
    else:
        print(json.dumps(describe()))
