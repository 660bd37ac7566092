"""Functions of DAG files: they load where the file does not exist, and what cannot travel is refused when declared."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from airflow_provider_lance.definitions.functions.envelope import wrap
from airflow_provider_lance.definitions.functions.failure_policy import UdfError
from airflow_provider_lance.definitions.functions.pickling import pickle_function
from airflow_provider_lance.definitions.functions.table_function import wrap_table_function

BESIDE = """
import math
SCALE, WORDS = 3, {"alpha", "beta", "gamma", "delta", "epsilon"}
class Tool:
    def run(self, x): return x * SCALE + len(WORDS)
def scaled(x): return Tool().run(x) + math.floor(1.5)
"""
IN_PACKAGE = """
from beside_pkg import OFFSET
import beside_pkg
def shifted(x): return x + OFFSET + beside_pkg.OFFSET
"""
DAG_FILE = """
import functools, io, logging, socket, sqlite3, threading
import beside
import beside_pkg.inner
from beside import scaled
from airflow_provider_lance.definitions.functions.envelope import udf
OFFSET = 5
LOCK, FILE, LOG, MEMORY = threading.Lock(), open(__file__), logging.getLogger("x"), io.StringIO("in memory")
CONNECTION = sqlite3.connect(":memory:")
def helper(x): return x + OFFSET
def plain(x): return helper(x) if x not in {"a", "b", "c", "d"} else 0
def uses_a_function_beside(x): return scaled(x)
def uses_a_module_beside(x): return beside.scaled(x) + beside_pkg.inner.shifted(x)
def logs(x):
    LOG.info(MEMORY.getvalue())
    return x
def make(n): return lambda x: x + n + OFFSET
@udf(on_error="null")
class Model:
    SIZE = {"one", "two", "three", "four"}
    def setup(self): self.n = OFFSET
    def __call__(self, x): return x + self.n + len(self.SIZE)
class Derived(Model):
    def __call__(self, x): return super().__call__(x) * 2
rounded = functools.partial(helper)
def locked(x):
    with LOCK: return x
def through_another(x): return locked(x)
def reads(x): return FILE.read()
def queries(x): return CONNECTION.execute("select 1")
class Holds:
    lock = LOCK
    def __call__(self, x): return x
def remembers(x, lock=LOCK): return x
def closes_over():
    inside = threading.Lock()
    def inner(x):
        with inside: return x
    return inner
over = closes_over()
def imports_beside(x):
    import beside
    return beside.scaled(x)
def imports_unseen(x):
    from never_imported import thing
    return thing
def imports_installed(x):
    import json
    import not_here_but_on_the_workers
    return x
"""


LoadDagFile = Callable[..., ModuleType]


@pytest.fixture
def dag_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoadDagFile]:
    """Imports the DAG file from a folder as Airflow does: under a name of its own, with the folder on the path."""
    before = set(sys.modules)

    def load(folder: str = "dags", above: str = "") -> ModuleType:
        for name in set(sys.modules) - before:
            if name.startswith(("beside", "unusual_prefix_")):
                del sys.modules[name]
        root = tmp_path / folder
        (root / "beside_pkg").mkdir(parents=True)
        (root / "beside.py").write_text("# moved\n" * bool(above) + BESIDE)
        (root / "beside_pkg" / "__init__.py").write_text("OFFSET = 7\n")
        (root / "beside_pkg" / "inner.py").write_text(IN_PACKAGE)
        (root / "never_imported.py").write_text("thing = 1\n")
        path = root / "my_dag.py"
        path.write_text(above + DAG_FILE)
        monkeypatch.syspath_prepend(str(root))
        name = f"unusual_prefix_{hashlib.sha1(str(path).encode()).hexdigest()}_my_dag"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module

    yield load
    for name in set(sys.modules) - before:
        if name.startswith(("beside", "unusual_prefix_")):
            del sys.modules[name]


def elsewhere(pickles: dict[str, bytes], folder: Path) -> dict[str, Any]:
    """What the functions return for 10 in an interpreter that has none of the files."""
    for name, payload in pickles.items():
        (folder / f"{name}.pickle").write_bytes(payload)
    program = """
import cloudpickle, json, pathlib, sys
answers = {}
for file in sorted(pathlib.Path(sys.argv[1]).glob("*.pickle")):
    function = cloudpickle.loads(file.read_bytes())
    if isinstance(function, type):
        function = function()
        function.setup()
    answers[file.stem] = [function(10), getattr(function, "__module__", None)]
print(json.dumps(answers))
"""
    command = [sys.executable, "-P", "-c", program, str(folder)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    assert answer.returncode == 0, answer.stderr
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


def test_what_a_dag_file_defines_loads_where_the_file_is_not(dag_file: LoadDagFile, tmp_path: Path) -> None:
    module = dag_file()
    names = ("plain", "uses_a_function_beside", "uses_a_module_beside", "logs", "Model", "Derived", "rounded")
    pickles = {name: pickle_function(getattr(module, name)) for name in names}
    pickles["made"] = pickle_function(module.make(100))
    (tmp_path / "pickles").mkdir()
    assert elsewhere(pickles, tmp_path / "pickles") == {
        "plain": [15, "my_dag"],
        "uses_a_function_beside": [36, "my_dag"],
        "uses_a_module_beside": [60, "my_dag"],
        "logs": [10, "my_dag"],
        "Model": [19, "my_dag"],
        "Derived": [38, "my_dag"],
        "rounded": [15, "functools"],
        "made": [115, "my_dag"],
    }


def test_the_decorator_and_table_functions_use_the_same_pickle(dag_file: LoadDagFile) -> None:
    import pyarrow as pa

    module = dag_file()
    assert wrap(module.Model).policy.on_error == "null"
    wrapped = wrap_table_function(module.plain, pa.schema([("n", pa.int64())]))
    assert wrapped.envelope.pickle == pickle_function(module.plain)


@pytest.mark.parametrize("name", ["plain", "uses_a_module_beside", "Model", "Derived"])
def test_the_same_function_has_the_same_pickle_wherever_its_file_lies(dag_file: LoadDagFile, name: str) -> None:
    """A new pickle is a new rule, and all values would be computed again."""
    first = pickle_function(getattr(dag_file("version_1"), name))
    moved = pickle_function(getattr(dag_file("version_2", above="# a comment\n\nUNUSED = 1\n"), name))
    assert first == moved
    assert b"version_1" not in first


def test_the_order_of_sets_does_not_depend_on_the_process(dag_file: LoadDagFile, tmp_path: Path) -> None:
    module = dag_file()
    program = f"""
import importlib.util, sys
sys.path.insert(0, {str(tmp_path / "dags")!r})
spec = importlib.util.spec_from_file_location({module.__name__!r}, {module.__file__!r})
module = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = module
spec.loader.exec_module(module)
from airflow_provider_lance.definitions.functions.envelope import wrap
print([wrap(getattr(module, name)).sha256 for name in ("plain", "uses_a_module_beside", "Model")])
"""
    seen = set()
    for seed in ("1", "2"):
        command = [sys.executable, "-c", program]
        answer = subprocess.run(command, env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=False)
        assert answer.returncode == 0, answer.stderr
        seen.add(answer.stdout)
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("locked", "locked uses `LOCK`, a _thread.lock, which cannot travel"),
        ("through_another", "through_another uses `LOCK`, a _thread.lock"),
        ("reads", r"reads uses `FILE`, a _io.TextIOWrapper, .* \(an open file\)"),
        ("queries", "queries uses `CONNECTION`, a sqlite3.Connection"),
        ("Holds", "Holds uses `Holds.lock`, a _thread.lock"),
        ("remembers", "remembers uses a default value, a _thread.lock"),
        ("over", "inner uses `inside`, a _thread.lock"),
        ("imports_beside", "imports_beside imports beside when it runs, which is not installed"),
        ("imports_unseen", "imports_unseen imports never_imported when it runs, which is not installed"),
    ],
)
def test_what_cannot_travel_is_refused_with_its_name(dag_file: LoadDagFile, name: str, sentence: str) -> None:
    with pytest.raises(UdfError, match=sentence):
        wrap(getattr(dag_file(), name))


def test_modules_that_only_the_workers_have_may_be_imported(dag_file: LoadDagFile) -> None:
    assert wrap(dag_file().imports_installed).pickle


def test_what_is_installed_travels_by_reference() -> None:
    import pyarrow.compute as pc

    assert len(pickle_function(pc.utf8_length)) < 200
    assert len(pickle_function(json.dumps)) < 100


def test_a_failing_function_names_its_file_and_the_line_within_it(dag_file: LoadDagFile) -> None:
    import traceback

    import cloudpickle

    loaded = cloudpickle.loads(pickle_function(dag_file().helper))
    with pytest.raises(TypeError) as caught:
        loaded("text")
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (last.filename, last.lineno, last.name) == ("my_dag.py:helper", 1, "helper")


def test_nothing_stays_registered_in_cloudpickle(dag_file: LoadDagFile) -> None:
    import cloudpickle

    before = cloudpickle.list_registry_pickle_by_value()
    module = dag_file()
    wrap(module.plain)
    with pytest.raises(UdfError):
        wrap(module.locked)
    assert cloudpickle.list_registry_pickle_by_value() == before
