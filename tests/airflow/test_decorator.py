"""``@task.lance`` and staged versions, in real DAGs."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any, Protocol, cast

import pytest

from airflow_provider_lance.decorators.lance import lance_task
from airflow_provider_lance.operators.table import LanceCreateEmptyTableOperator
from airflow_provider_lance.operators.version import LanceCreateTableVersionOperator, NotStagedError, stage_version
from tests.airflow.conftest import NewDag, RunDag, connection, pylance_server, rest_connection


class TaskLance(Protocol):
    """The decorator as tests call it: what it returns takes the function's arguments without ``namespace``."""

    def __call__(self, function: Callable[..., object] | None = None, /, **kwargs: object) -> Any: ...


task_lance = cast("TaskLance", lance_task)

pytestmark = [pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def managed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """pylance's server over a namespace that manages versions."""
    root = str(tmp_path_factory.mktemp("managed"))
    with pylance_server({"root": root, "table_version_tracking_enabled": "true"}) as url:
        yield url


def test_a_version_is_staged_by_one_task_and_created_by_another(run_dag: RunDag, new_dag: NewDag, managed: str) -> None:
    table = f"t{uuid.uuid4().hex[:8]}"
    with connection("lance_default", rest_connection(managed)):
        with new_dag() as dag:

            @task_lance
            def load(rows: int, *, namespace: Any) -> int:
                import lance
                import pyarrow as pa

                data = pa.table({"id": list(range(rows))})
                return lance.write_dataset(data, namespace_client=namespace, table_id=[table], mode="append").version

            @task_lance(lance_conn_id="lance_default")  # type: ignore[untyped-decorator]
            def stage(*, namespace: Any) -> dict[str, Any]:
                return stage_version(namespace, [table], lambda opened: opened.delete("id < 4"))

            @task_lance
            def count(*, namespace: Any) -> Any:
                return namespace.count_table_rows({"id": [table]}).count

            create = LanceCreateEmptyTableOperator(task_id="create", table_id=table)
            before = count.override(task_id="before")()
            staged = stage()
            publish = LanceCreateTableVersionOperator(task_id="publish", table_id=table, staged=staged)
            again = LanceCreateTableVersionOperator(
                task_id="again", table_id=table, staged=staged, version=2, if_exists="skip"
            )
            create >> load(10) >> staged >> before >> publish >> count.override(task_id="after")() >> again
        run = run_dag(dag)
    assert run.xcom("load") == 1
    assert run.xcom("before") == 10, "a staged version is not published"
    assert run.xcom("stage")["version"] == 2
    assert run.xcom("publish")["version"] == 2
    assert run.xcom("after") == 6
    assert run.state == "success"


def test_nothing_is_staged_where_a_write_would_be_published(tables: str) -> None:
    import pyarrow as pa

    from airflow_provider_lance.api.client import LanceClient

    namespace: Any
    with LanceClient(tables) as namespace:
        namespace.create_table({"id": ["plain"], "mode": "overwrite"}, pa.table({"id": [1]}))
        with pytest.raises(NotStagedError, match="does not manage the versions"):
            stage_version(namespace, ["plain"], lambda opened: opened.delete("id = 1"))
        assert namespace.count_table_rows({"id": ["plain"]}).count == 1


def test_the_namespace_parameter_must_be_keyword_only(new_dag: NewDag) -> None:
    @task_lance
    def wrong(namespace: Any) -> None: ...

    with new_dag(), pytest.raises(ValueError, match="keyword-only parameter `namespace`"):
        wrong()


def test_answers_come_out_of_xcom_as_dicts_without_credentials(
    run_dag: RunDag, new_dag: NewDag, tables: str, capfd: pytest.CaptureFixture[str]
) -> None:
    from airflow.sdk import task

    secret = f"vended-{uuid.uuid4().hex}"
    with connection("lance_default", rest_connection(tables)):
        with new_dag() as dag:

            @task_lance
            def look(*, namespace: Any) -> Any:
                import pyarrow as pa

                namespace.create_table({"id": ["answers"], "mode": "overwrite"}, pa.table({"id": [1]}))
                answer = namespace.describe_table({"id": ["answers"]})
                answer.storage_options = {"secret_access_key": secret}
                return answer

            @task_lance
            def nested(*, namespace: Any) -> Any:
                from lance_namespace import DescribeTableResponse

                one = DescribeTableResponse(version=3, storage_options={"secret_access_key": secret})
                return {"one": one, "many": [one, (one,)], "storage_options": {"key": secret}}

            @task_lance(multiple_outputs=True)  # type: ignore[untyped-decorator]
            def several(*, namespace: Any) -> Any:
                return namespace.describe_table({"id": ["answers"]})

            @task
            def read(answer: Any, more: Any) -> list[Any]:
                found = [more["one"], more["many"][0], more["many"][1][0], sorted(more)]
                return [type(answer).__name__, answer["location"], *found]

            looked = look()
            looked >> several()
            read(looked, nested())
        run = run_dag(dag)
    assert run.state == "success"
    kind, location, *found = run.xcom("read")
    assert [kind, *found] == ["dict", {"version": 3}, {"version": 3}, {"version": 3}, ["many", "one"]]
    assert "answers" in location
    assert run.xcom("several", key="location") == location
    assert "storage_options" not in run.xcom("look")
    written = capfd.readouterr()
    assert secret not in written.out + written.err, "the task logs what it returned"
