"""A real Airflow for this folder: one home and one database per session, made before Airflow is first imported."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

# Airflow reads its home when it is imported, so this is at the top and not in a fixture.
_HOME = Path(tempfile.mkdtemp(prefix="lance-airflow-"))
(_HOME / "dags").mkdir()
os.environ.update(
    AIRFLOW_HOME=str(_HOME),
    AIRFLOW__CORE__DAGS_FOLDER=str(_HOME / "dags"),
    AIRFLOW__CORE__LOAD_EXAMPLES="False",
    AIRFLOW__CORE__UNIT_TEST_MODE="False",
    AIRFLOW__LOGGING__LOGGING_LEVEL="INFO",
    AIRFLOW__LANCE__POLL_INTERVAL="0.2",
    AIRFLOW__LANCE__DEFER_AFTER="0",  # tests of deferral do not wait for it
    AIRFLOW__API__BASE_URL="http://airflow.test",
)

import pytest  # noqa: E402

from tests.airflow.jobs_server import JobsServer  # noqa: E402

if TYPE_CHECKING:
    from airflow.models.taskinstance import TaskInstance
    from airflow.sdk import DAG

    from airflow_provider_lance.namespace import SparkNamespace


@pytest.fixture(scope="session")
def airflow_home() -> Iterator[Path]:
    """The initialised database."""
    import shutil

    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.utils.db import initdb

    initdb()
    DagBundlesManager().sync_bundles_to_db()  # type: ignore[no-untyped-call]
    yield _HOME
    shutil.rmtree(_HOME, ignore_errors=True)


@pytest.fixture
def jobs_server() -> Iterator[JobsServer]:
    with JobsServer() as server:
        yield server


@contextlib.contextmanager
def connection(conn_id: str, uri_or_json: str) -> Iterator[None]:
    name = f"AIRFLOW_CONN_{conn_id.upper()}"
    before = os.environ.get(name)
    os.environ[name] = uri_or_json
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def rest_connection(url: str, **extra: Any) -> str:
    return json.dumps({"conn_type": "lance", "host": url, "extra": extra})


@pytest.fixture
def lance_connection(jobs_server: JobsServer) -> Iterator[JobsServer]:
    """``lance_default`` points to the controllable server."""
    with connection("lance_default", rest_connection(jobs_server.url)):
        yield jobs_server


@contextlib.contextmanager
def pylance_server(properties: dict[str, str]) -> Iterator[str]:
    """pylance's own namespace server over a folder; yields its address."""
    from lance.namespace import RestAdapter

    adapter: Any = RestAdapter("dir", properties, port=0)
    adapter.start()
    try:
        yield f"http://127.0.0.1:{adapter.port}"
    finally:
        adapter.stop()


@pytest.fixture(scope="session")
def rest_adapter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """pylance's own namespace server over an empty folder."""
    with pylance_server({"root": str(tmp_path_factory.mktemp("namespace"))}) as url:
        yield url


@pytest.fixture
def tables(rest_adapter: str) -> Iterator[str]:
    """``lance_default`` points to pylance's server."""
    with connection("lance_default", rest_connection(rest_adapter)):
        yield rest_adapter


@pytest.fixture
def people(tmp_path: Path) -> Iterator[SparkNamespace]:
    """``lance_default`` is an in-process namespace with the table ``people``."""
    from airflow_provider_lance.namespace import SparkNamespace
    from tests.namespace.people import with_people

    namespace = with_people(tmp_path / "lake")
    kind = f"{SparkNamespace.__module__.rpartition('.')[0]}.{SparkNamespace.__name__}"
    extra = {"impl": kind, "properties": {"root": str(tmp_path / "lake")}}
    with connection("lance_default", json.dumps({"conn_type": "lance", "extra": extra})):
        yield namespace


class Run:
    """A finished DAG run, as a test looks at it."""

    def __init__(self, dag: DAG, dag_run: Any) -> None:
        self.dag, self.dag_run = dag, dag_run

    @property
    def state(self) -> str:
        return str(self.dag_run.state)

    def instance(self, task_id: str, map_index: int = -1) -> TaskInstance:
        from airflow.models.taskinstance import TaskInstance
        from airflow.utils.session import create_session
        from sqlalchemy import select

        with create_session() as session:
            return session.scalars(
                select(TaskInstance).where(
                    TaskInstance.dag_id == self.dag.dag_id,
                    TaskInstance.run_id == self.dag_run.run_id,
                    TaskInstance.task_id == task_id,
                    TaskInstance.map_index == map_index,
                )
            ).one()

    def task_state(self, task_id: str) -> str:
        return str(self.instance(task_id).state)

    def xcom(self, task_id: str, key: str = "return_value") -> Any:
        from airflow.models.xcom import XComModel
        from airflow.utils.session import create_session
        from sqlalchemy import select

        with create_session() as session:
            row = session.scalars(
                select(XComModel).where(
                    XComModel.dag_id == self.dag.dag_id,
                    XComModel.run_id == self.dag_run.run_id,
                    XComModel.task_id == task_id,
                    XComModel.key == key,
                )
            ).first()
            return None if row is None else XComModel.deserialize_value(row)

    def asset_extras(self, uri: str) -> list[dict[str, Any]]:
        from airflow.models.asset import AssetEvent, AssetModel
        from airflow.utils.session import create_session
        from sqlalchemy import select

        with create_session() as session:
            return [
                dict(event.extra)
                for event in session.scalars(
                    select(AssetEvent)
                    .join(AssetModel, AssetModel.id == AssetEvent.asset_id)
                    .where(AssetModel.uri == uri, AssetEvent.source_run_id == self.dag_run.run_id)
                )
            ]


class RunDag(Protocol):
    """Runs a DAG to its end; the keywords are those of ``dag.test``."""

    def __call__(self, dag: DAG, **kwargs: Any) -> Run: ...


class NewDag(Protocol):
    """Makes a DAG; the keywords are those of ``DAG``."""

    def __call__(self, **kwargs: Any) -> DAG: ...


@pytest.fixture
def run_dag(airflow_home: Path) -> RunDag:
    """Runs a DAG as ``airflow dags test`` does: for real, deferral and retries included, without a scheduler."""

    def run(dag: DAG, **kwargs: Any) -> Run:
        from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db

        bag = DagBag(os.devnull)
        bag.bag_dag(dag)
        sync_bag_to_db(bag, "dags-folder", None)
        return Run(dag, dag.test(**kwargs))

    return run


@pytest.fixture
def new_dag() -> NewDag:
    """An empty DAG with a name of its own, as a context manager."""

    def make(**kwargs: Any) -> DAG:
        from airflow.sdk import DAG

        return DAG(f"test_{uuid.uuid4().hex[:10]}", schedule=None, **kwargs)

    return make
