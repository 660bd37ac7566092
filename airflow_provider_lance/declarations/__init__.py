"""What tables and views should be: the objects that you write in a DAG, and the function that reads YAML files.

``LanceApplyOperator`` and ``airflow-lance apply`` bring a namespace to a declaration. ``LanceTaskGroup`` makes tasks of
one. These names stay, while the modules that define them may change. Importing this module imports neither Arrow nor
Lance, and reads no file.
"""

from __future__ import annotations

from airflow_provider_lance.declarations.collection import Declarations, load_declarations
from airflow_provider_lance.declarations.table import (
    DeclarationError,
    LanceChecks,
    LanceIndex,
    LanceTable,
    LanceView,
    LanceViewFunction,
)

__all__ = [
    "DeclarationError",
    "Declarations",
    "LanceChecks",
    "LanceIndex",
    "LanceTable",
    "LanceView",
    "LanceViewFunction",
    "load_declarations",
]
