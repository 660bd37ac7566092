"""Functions as pickles that can be loaded where the file of the function does not exist.

Installed modules are pickled by reference. Everything else is pickled by value: functions, classes and modules of a DAG
file, of modules beside it, and of ``__main__``. A function gives the same bytes wherever its file is and whatever is
above it in that file, because another pickle is another rule, whose values are computed again.
"""

from __future__ import annotations

import dis
import io
import json
import os
import pickle
import re
import site
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import CodeType, FunctionType, ModuleType

import cloudpickle

from airflow_provider_lance.definitions.functions.envelope import OPTIONS_ATTRIBUTE
from airflow_provider_lance.definitions.functions.failure_policy import UdfError

#: Airflow imports a DAG file under this prefix and the SHA-1 of its path. No other process can import that name.
_DAG_FILE = re.compile(r"^unusual_prefix_[0-9a-f]{40}_")
_OWN_PACKAGE = __name__.partition(".")[0]  # the engine ships it to the workers
_MODULE_MACHINERY = ("__builtins__", "__cached__", "__file__", "__loader__", "__path__", "__spec__")
_NOT_STORED = ("__firstlineno__", OPTIONS_ATTRIBUTE)  # attributes of a class
_ADVICE = "Make it inside the function, or in setup() of a class (docs/udfs.md, What travels)."
# The program looks for top-level names only, because Python imports a package to find its submodules.
_ASK = """
import importlib.util, json, sys
found = {}
for name in json.loads(sys.argv[1]):
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        spec = None
    if spec is not None:
        found[name] = [spec.origin, *(spec.submodule_search_locations or ())]
print(json.dumps(found))
"""


def pickle_function(function: Callable[..., object]) -> bytes:
    """The pickle of a function; UdfError says what cannot be pickled and what to do instead."""
    loose = _loose_modules()
    with _by_value(loose):
        try:
            payload, imported = _dump(function)
        except Exception as error:
            raise UdfError(_refusal(function, error)) from error
    for owner, name in imported:
        _refuse_import_of_loose_module(owner, name, loose)
    return payload


def plain_module_name(name: str) -> str:
    """The name of a DAG file's module as its author knows it."""
    return _DAG_FILE.sub("", name)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """cloudpickle without what differs between processes: paths, line numbers, class ids and the order of sets."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.imported: set[tuple[str, str]] = set()
        # The results by the ids of their originals, which are kept so that no other object gets the same id.
        self._codes: dict[int, CodeType] = {}
        self._sets: dict[int, tuple[object, _OrderedSet]] = {}

    def reducer_override(self, obj: object) -> object:
        if isinstance(obj, io.IOBase) and obj not in (sys.stdout, sys.stderr) and type(obj) not in _IN_MEMORY:
            raise pickle.PicklingError("an open file")
        if isinstance(obj, CodeType):
            self.imported |= {(obj.co_qualname, name) for name in _imported_names(obj)}
            return self.dispatch_table[CodeType](self._portable(obj))
        if isinstance(obj, ModuleType) and _travels_by_value(obj):
            return ModuleType, (plain_module_name(obj.__name__),), self._contents(obj)
        if isinstance(obj, FunctionType):
            names = {name: obj.__globals__[name] for name in ("__package__", "__name__") if name in obj.__globals__}
            if "__name__" in names:
                names["__name__"] = plain_module_name(names["__name__"])
            self.globals_ref.setdefault(id(obj.__globals__), names)
        reduced = super().reducer_override(obj)
        if isinstance(obj, FunctionType) and isinstance(reduced, tuple):
            reduced[2][0].pop(OPTIONS_ATTRIBUTE, None)
            slots = reduced[2][1]
            slots["__globals__"] = self._stable(slots["__globals__"])
            slots["__module__"] = plain_module_name(slots.get("__module__") or "")
        elif isinstance(obj, type) and isinstance(reduced, tuple) and len(reduced) > 2:
            make, arguments, (members, *slots), *rest = reduced
            members = {name: value for name, value in members.items() if name not in _NOT_STORED}
            # Without the id of a tracker, each unpickled class is one of its own.
            arguments = (*map(self._stable, arguments[:-2]), None, arguments[-1])
            return make, arguments, (self._stable(members), *slots), *rest
        return reduced

    def _portable(self, code: CodeType, above: int | None = None, file: str | None = None) -> CodeType:
        """The code with lines counted from its function's first, in a file of that function's name."""
        if id(code) in self._codes:
            return code
        above = code.co_firstlineno - 1 if above is None else above
        file = f"{os.path.basename(code.co_filename)}:{code.co_qualname}" if file is None else file
        constants = tuple(
            self._portable(each, above, file) if isinstance(each, CodeType) else self._ordered(each)
            for each in code.co_consts
        )
        found = code.replace(co_filename=file, co_firstlineno=code.co_firstlineno - above, co_consts=constants)
        self._codes[id(found)] = found
        return found

    def _ordered(self, value: object) -> object:
        if type(value) is not set and type(value) is not frozenset:
            return value
        return self._sets.setdefault(id(value), (value, _OrderedSet(value)))[1]

    def _stable(self, value: object) -> object:
        """A part of a reduced object with plain module names, and with the members of sets in order."""
        if type(value) is dict:
            return self._stable_names(value)
        return plain_module_name(value) if type(value) is str else value

    def _stable_names(self, values: Mapping[str, object]) -> dict[str, object]:
        return {
            name: plain_module_name(str(each)) if name in ("__module__", "__name__") else self._ordered(each)
            for name, each in values.items()
        }

    def _contents(self, module: ModuleType) -> dict[str, object]:
        return self._stable_names({name: each for name, each in vars(module).items() if name not in _MODULE_MACHINERY})


_IN_MEMORY = (io.BytesIO, io.StringIO)


class _OrderedSet:
    """Stands for a set while it is pickled: its members in an order that does not depend on the process."""

    def __init__(self, members: set[object] | frozenset[object]) -> None:
        self.kind, self.members = type(members), sorted(members, key=lambda each: (type(each).__name__, repr(each)))

    def __reduce__(self) -> tuple[type, tuple[list[object]]]:
        return self.kind, (self.members,)


def _dump(value: object) -> tuple[bytes, set[tuple[str, str]]]:
    with io.BytesIO() as file:
        pickler = _Pickler(file)
        pickler.dump(value)
        return file.getvalue(), pickler.imported


def _travels_by_value(module: ModuleType) -> bool:
    registered = cloudpickle.list_registry_pickle_by_value()
    parts = module.__name__.split(".")
    return any(".".join(parts[:end]) in registered for end in range(1, len(parts) + 1))


@contextmanager
def _by_value(modules: Mapping[str, ModuleType]) -> Iterator[None]:
    added = [module for name, module in modules.items() if name not in cloudpickle.list_registry_pickle_by_value()]
    for module in added:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in added:
            cloudpickle.unregister_pickle_by_value(module)


def _loose_modules() -> dict[str, ModuleType]:
    """Modules of this process that another interpreter of this installation would not find by their names."""
    installed = tuple(_installed_folders())
    dag_files, asked = {}, {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(module, ModuleType) or not isinstance(file, str) or module.__name__ != name:
            continue
        if _DAG_FILE.match(name):
            dag_files[name] = module
        elif name.partition(".")[0] not in ("__main__", "__mp_main__", _OWN_PACKAGE) and not file.startswith(installed):
            asked[name] = module
    found = _find_elsewhere({name.partition(".")[0] for name in asked})
    return dag_files | {name: module for name, module in asked.items() if not _is_there(module, found)}


def _installed_folders() -> Iterable[str]:
    paths = [sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    for path in {*paths, *site.getsitepackages(), site.getusersitepackages()}:
        yield path + os.sep
        yield os.path.realpath(path) + os.sep


def _find_elsewhere(names: set[str]) -> dict[str, list[str | None]]:
    """Where a new interpreter finds these modules, without the folders that Airflow or a script put on the path."""
    if not names:
        return {}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-P", "-W", "ignore", "-c", _ASK, json.dumps(sorted(names))]
    answer = subprocess.run(  # noqa: S603 - our own interpreter and program
        command, env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    found: dict[str, list[str | None]] = json.loads(answer.stdout) if answer.returncode == 0 else {}
    return found


def _is_there(module: ModuleType, found: Mapping[str, list[str | None]]) -> bool:
    file = str(module.__file__)
    origin, *folders = found.get(module.__name__.partition(".")[0]) or [None]
    return file == origin or any(file.startswith(f"{folder}{os.sep}") for folder in folders)


def _imported_names(code: CodeType) -> Iterator[str]:
    """The modules that the code itself imports when it runs; a relative import begins with dots."""
    instructions = list(dis.get_instructions(code))
    for index, each in enumerate(instructions):
        if each.opname == "IMPORT_NAME":
            level = instructions[index - 2].argval if index > 1 else 0
            yield ("." * level if isinstance(level, int) else "") + str(each.argval)


def _refuse_import_of_loose_module(owner: str, name: str, loose: Mapping[str, ModuleType]) -> None:
    relative = name.startswith(".")
    if not relative and not _is_loose(name, loose):
        return
    where = "relative to its own package" if relative else "which is not installed: it only lies beside the DAG file"
    raise UdfError(
        f"{owner} imports {name} when it runs, {where}. Import it at the top of the file, so that what is used of it "
        "travels with the function, or install it for Spark's workers and name the function by its import path."
    )


def _is_loose(name: str, loose: Mapping[str, ModuleType]) -> bool:
    top = name.partition(".")[0]
    if name in loose or top in loose:
        return True
    if top in sys.stdlib_module_names or top in sys.modules:
        return False
    import importlib.util

    spec = importlib.util.find_spec(top)
    if spec is None:
        return False  # it may be installed where Spark's workers run
    places = [spec.origin, *(spec.submodule_search_locations or ())]
    installed = tuple(_installed_folders())
    if any(place is None or place == "frozen" or place.startswith(installed) for place in places):
        return False
    return _find_elsewhere({top}).get(top) != places


def _refusal(function: object, error: Exception) -> str:
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    culprit = _culprit(function, set())
    if culprit is None:
        return f"{name} cannot be pickled: {error}. {_ADVICE}"
    where, value, reason = culprit
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    return f"{name} uses {where}, a {kind}, which cannot travel to Spark's workers ({reason}). {_ADVICE}"


def _culprit(value: object, seen: set[int]) -> tuple[str, object, Exception] | None:
    """The name, the value and the error of the innermost named part that cannot be pickled."""
    seen.add(id(value))
    for name, part in _named_parts(value):
        if id(part) in seen:
            continue
        try:
            _dump(part)
        except Exception as reason:
            return _culprit(part, seen) or (name, part, reason)
    return None


def _named_parts(value: object) -> Iterator[tuple[str, object]]:
    """The parts of a function, class or module, by name."""
    value = getattr(value, "__func__", value)
    if isinstance(value, FunctionType):
        names = sorted(_global_names(value.__code__))
        yield from ((f"`{name}`", value.__globals__[name]) for name in names if name in value.__globals__)
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        yield from ((f"`{name}`", cell.cell_contents) for name, cell in cells)
        yield from (("a default value", each) for each in value.__defaults__ or ())
    elif isinstance(value, ModuleType) and _travels_by_value(value):
        yield from ((f"`{value.__name__}.{name}`", part) for name, part in vars(value).items() if name[:2] != "__")
    elif isinstance(value, type):
        yield from ((f"`{value.__qualname__}.{name}`", part) for name, part in vars(value).items() if name[:2] != "__")
        yield from ((f"`{name}`", part) for name, part in vars(value).items() if isinstance(part, FunctionType))
    elif hasattr(value, "__dict__") and not isinstance(value, ModuleType):
        yield f"`{type(value).__qualname__}`", type(value)


def _global_names(code: CodeType) -> set[str]:
    names = {each.argval for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return names.union(*(_global_names(each) for each in code.co_consts if isinstance(each, CodeType)))
