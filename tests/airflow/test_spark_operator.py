"""``LanceSparkSubmitOperator``: what is on its command lines and what is not, how it waits, ends and is killed.

Local Spark is real. YARN and Kubernetes cannot be had: a script stands in for ``spark-submit`` there, whose driver
claims and reports with nothing but what it was handed.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_lance.assets.lance import create_asset
from airflow_provider_lance.operators.spark import LanceSparkSubmitOperator
from airflow_provider_lance.system.process_groups import find_processes
from airflow_provider_lance.tasks.driver_claim import DriverClaim
from tests.airflow.conftest import NewDag, RunDag, connection
from tests.airflow.fake_spark_submit import RESULT
from tests.airflow.kubernetes_api import KubernetesApi
from tests.airflow.real_server import KEY, RealServer, serve
from tests.airflow.standalone import eventually

ROOT = Path(__file__).parents[2]
STORAGE_SECRET = "MARKED-STORAGE-77ab01"
LOG = logging.getLogger(__name__)
pytestmark = [pytest.mark.timeout(600)]


def spark_connection(master: str, deploy_mode: str | None = None, **extra: Any) -> Any:
    extra |= {"deploy-mode": deploy_mode} if deploy_mode else {}
    return connection("spark_test", json.dumps({"conn_type": "spark", "host": master, "extra": extra}))


def table(uri: Path | str, rows: int = 60) -> str:
    """A table of six fragments with an empty computed column ``n``."""
    from tests.engine.backfills import declare, people

    declare(people(str(uri), rows=rows, per_fragment=10), "n", "length(text) + id")
    return str(uri)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    folder = tmp_path_factory.mktemp("spark")
    (folder / "lake").mkdir()
    table(folder / "lake" / "t.lance")
    with serve(folder) as server, connection("lance_default", server.connection):
        yield server
        assert {job["state"] for job in server.jobs()} <= {"DONE"}, "no job is left behind"


class Recorded:
    """What the stand-in for ``spark-submit`` saw."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def started(self) -> bool:
        return self.path.exists()

    def __getitem__(self, name: str) -> Any:
        return json.loads(self.path.read_text())[name]

    @property
    def options(self) -> dict[str, str]:
        return {name: value for name, value in zip(self["argv"], self["argv"][1:], strict=False) if name[:2] == "--"}

    @property
    def conf(self) -> dict[str, str]:
        argv = self["argv"]
        pairs = [argv[at + 1].partition("=") for at, name in enumerate(argv) if name == "--conf"]
        return {name: value for name, _, value in pairs}


@pytest.fixture
def spark_submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorded:
    """A ``spark-submit`` that comes first on the PATH."""
    script = tmp_path / "bin" / "spark-submit"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m tests.airflow.fake_spark_submit "$@"\n')
    script.chmod(0o755)
    record = tmp_path / "record.json"
    monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])))
    monkeypatch.setenv("FAKE_SPARK_RECORD", str(record))
    return Recorded(record)


@pytest.fixture
def kubernetes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubernetesApi]:
    with KubernetesApi() as api:
        monkeypatch.setenv("AIRFLOW__KUBERNETES_EXECUTOR__IN_CLUSTER", "False")
        monkeypatch.setenv("AIRFLOW__KUBERNETES_EXECUTOR__CONFIG_FILE", str(api.kube_config(tmp_path)))
        monkeypatch.setenv("FAKE_KUBERNETES", api.url)
        yield api


class Failures:
    """Collects why tasks failed, as their callbacks are told."""

    def __init__(self) -> None:
        self.seen: list[BaseException] = []

    def __call__(self, context: Any) -> None:
        self.seen.append(context["exception"])

    @property
    def text(self) -> str:
        return "\n".join(str(error) for error in self.seen)


@pytest.fixture
def failures() -> Failures:
    return Failures()


def backfill(**arguments: Any) -> LanceSparkSubmitOperator:
    request = {"id": ["t"], "column": "n"}
    return LanceSparkSubmitOperator(
        task_id="fill",
        operation="alter_table_backfill_columns",
        request=request,
        conn_id="spark_test",
        **arguments,
    )


def assert_no_secret(recorded: Recorded) -> None:
    assert len(recorded["secrets"]) == 3
    for secret in (*recorded["secrets"], KEY):
        assert len(secret) > 16
        assert secret not in " ".join(recorded["argv"])
        assert KEY not in " ".join(recorded["environment"].get(name, "") for name in ("LANCE_JOB_TOKEN_FILE",))


class TestCommandLines:
    @pytest.mark.parametrize("deploy_mode", ["client", "cluster"])
    @pytest.mark.parametrize("master", ["yarn", "k8s://https://cluster.test:6443"])
    def test_a_claim_is_handed_over_in_a_private_file(
        self,
        run_dag: RunDag,
        new_dag: NewDag,
        real: RealServer,
        spark_submit: Recorded,
        master: str,
        deploy_mode: str,
    ) -> None:
        with new_dag() as dag:
            backfill(conf={"spark.executor.instances": "3"}, num_executors=2, files="/etc/hostname")
        with spark_connection(master, deploy_mode, namespace="spark"):
            run = run_dag(dag)
        assert run.state == "success"
        done = run.xcom("fill")
        assert done == {
            "job_id": run.xcom("fill", "job_id"),
            "job_type": "backfill_column",
            "table_id": ["t"],
            "state": "DONE",
            "version": RESULT["published_version"],
            "result": RESULT,
        }
        links = {"yarn": "http://rm.test:8088/proxy/application_1_0001/"} if deploy_mode == "cluster" else {}
        client = "http://10.1.2.3:4040" if deploy_mode == "client" else ""  # nothing is seen of a driver in a pod
        assert run.xcom("fill", "_link_LanceSparkLink") == links.get(master, client)
        assert run.xcom("fill", "_link_LanceJobLink") == f"{real.url}/ui/jobs/{done['job_id']}"

        assert spark_submit.options["--master"] == master
        assert spark_submit.options["--deploy-mode"] == deploy_mode
        assert spark_submit.options["--job-id"] == done["job_id"]
        assert spark_submit.options["--namespace"] == real.url
        assert spark_submit.options["--num-executors"] == "2"
        assert spark_submit.conf["spark.executor.instances"] == "3"
        assert_no_secret(spark_submit)
        token_file = Path(spark_submit["token_file"])
        assert spark_submit["token_mode"] == 0o600
        assert not token_file.exists(), "it is gone with the driver"
        if deploy_mode == "client":
            assert spark_submit["environment"]["LANCE_JOB_TOKEN_FILE"] == str(token_file)
            assert spark_submit["environment"]["PYSPARK_DRIVER_PYTHON"]
            assert str(token_file) not in " ".join(spark_submit["argv"])
            assert spark_submit.options["--files"] == "/etc/hostname"
        else:
            prefix = "spark.yarn.appMasterEnv" if master == "yarn" else "spark.kubernetes.driverEnv"
            assert spark_submit.conf[f"{prefix}.LANCE_JOB_TOKEN_FILE"] == token_file.name
            assert spark_submit.options["--files"] == f"/etc/hostname,{token_file}"

    def test_a_claim_is_handed_over_in_a_kubernetes_secret(
        self,
        run_dag: RunDag,
        new_dag: NewDag,
        real: RealServer,
        spark_submit: Recorded,
        kubernetes: KubernetesApi,
    ) -> None:
        with new_dag(params={"team": "search"}) as dag:
            backfill(claim_secret="lance-{{ params.team }}", application="local:///opt/lance/engine/app.py")
        with spark_connection("k8s://https://cluster.test:6443", "cluster", namespace="spark"):
            run = run_dag(dag)
        assert run.state == "success"
        name = f"lance-search-{run.xcom('fill', 'job_id')}-1"
        assert [call for call in kubernetes.calls if call[0] != "GET"] == [
            ("POST", f"spark/{name}"),
            ("DELETE", f"spark/{name}"),
        ]
        assert not kubernetes.secrets
        prefix = "spark.kubernetes.driver.secretKeyRef"
        assert spark_submit.conf[f"{prefix}.LANCE_JOB_TOKEN"] == f"{name}:launch-token"
        assert spark_submit.conf[f"{prefix}.LANCE_API_KEY"] == f"{name}:claim-token"
        assert "--files" not in spark_submit.options
        assert "local:///opt/lance/engine/app.py" in spark_submit["argv"]
        assert spark_submit["token_file"] is None
        assert_no_secret(spark_submit)
        (body,) = kubernetes.bodies
        assert set(body["stringData"].values()) <= set(spark_submit["secrets"]), "the claim's tokens and nothing else"

    def test_the_secret_of_a_dead_worker_is_replaced(self, airflow_home: Path, kubernetes: KubernetesApi) -> None:
        from airflow_provider_lance.tasks.kubernetes_secret import claim_secret, secret_name

        claim = DriverClaim("0a-1", 2, "launch", "claim", 60.0)
        name = secret_name("lance", claim)
        kubernetes.secrets["spark", name] = {"data": {"launch-token": "b2xk"}}
        with claim_secret(name, "spark", claim, LOG):
            assert kubernetes.secrets["spark", name]["data"]["launch-token"] == "bGF1bmNo"
        assert kubernetes.calls == [(verb, f"spark/{name}") for verb in ("POST", "PUT", "DELETE")]

    def test_names_of_secrets_belong_to_one_attempt(self) -> None:
        from airflow_provider_lance.tasks.kubernetes_secret import secret_name

        named = [
            secret_name("lance", DriverClaim(job, n, "", "", 1.0)) for job in ("a_b", "a-b", "A-B") for n in (1, 2)
        ]
        assert len(set(named)) == 6
        assert all(name == name.lower() and "_" not in name for name in named)
        with pytest.raises(Exception, match="cannot name a Kubernetes secret"):
            secret_name("Lance_", DriverClaim("a", 1, "", "", 1.0))

    def test_an_account_without_rights_is_told_which_it_needs(
        self,
        airflow_home: Path,
        kubernetes: KubernetesApi,
    ) -> None:
        from airflow_provider_lance.tasks.kubernetes_secret import claim_secret

        kubernetes.denied = True
        with (
            pytest.raises(Exception, match=r"HTTP 403 Forbidden.*verbs create, update and delete") as raised,
            claim_secret("lance-x", "spark", DriverClaim("x", 1, "LAUNCH-TOKEN", "CLAIM-TOKEN", 60.0), LOG),
        ):
            pass
        assert "TOKEN" not in str(raised.value)

    def test_without_the_kubernetes_client_the_message_says_what_to_install(
        self, airflow_home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from airflow_provider_lance.tasks.kubernetes_secret import claim_secret

        monkeypatch.setitem(sys.modules, "kubernetes.client.exceptions", None)
        with (
            pytest.raises(Exception, match=r"airflow-provider-lance\[kubernetes\]"),
            claim_secret("lance-x", "spark", DriverClaim("x", 1, "", "", 60.0), LOG),
        ):
            pass

    @pytest.mark.parametrize("mode", ["job", "spec"])
    def test_standalone_cluster_mode_is_refused(
        self,
        run_dag: RunDag,
        new_dag: NewDag,
        real: RealServer,
        spark_submit: Recorded,
        failures: Failures,
        mode: str,
    ) -> None:
        before = len(real.jobs())
        with new_dag(default_args={"on_failure_callback": failures, "retries": 1}) as dag:
            if mode == "job":
                backfill()
            else:
                spec = {"job_type": "backfill_column", "location": "/nowhere/t.lance", "request": {"column": "n"}}
                LanceSparkSubmitOperator(task_id="fill", spec=spec, conn_id="spark_test")
        with spark_connection("spark://master.test:7077", "cluster"):
            run = run_dag(dag)
        assert run.state == "failed"
        assert run.instance("fill").try_number == 1, "another try could not help"
        assert "Use deploy mode `client`" in failures.text
        assert not spark_submit.started
        assert len(real.jobs()) == before, "no job was submitted"


def test_a_retry_whose_old_driver_lives_waits_and_takes_its_result(
    run_dag: RunDag, new_dag: NewDag, real: RealServer, spark_submit: Recorded
) -> None:
    request = {"id": ["t"], "column": "n", "cluster": "external"}
    job_id = real.wire.call("alter_table_backfill_columns", request).value["job_id"]
    token = uuid.uuid4().hex
    claim = real.wire.call("claim_job", {"job_id": job_id, "attempt": 1, "launch_token": token}).value
    reports = {"job_id": job_id, "claim_token": claim["claim_token"]}
    old_result = {"rows_assigned": 41, "published_version": 3}
    waited: list[float] = []

    def old_driver() -> None:
        began = time.monotonic()
        for seq in range(1, 8):
            progress = {"phase": "compute", "fragments_done": seq, "fragments_total": 8}
            real.wire.call("report_job", {**reports, "seq": seq, "progress": progress})
            time.sleep(0.4)
        waited.append(time.monotonic() - began)
        real.wire.call("report_job", {**reports, "seq": 9, "terminal": {"state": "DONE", "result": old_result}})

    with new_dag() as dag:
        LanceSparkSubmitOperator(task_id="fill", job_id=job_id, conn_id="spark_test")
    thread = threading.Thread(target=old_driver)
    thread.start()
    with spark_connection("local[2]"):
        run = run_dag(dag)
    thread.join()
    assert run.state == "success"
    assert run.xcom("fill")["result"] == old_result
    assert run.xcom("fill")["version"] == 3
    assert waited, "the task ended after the old driver"
    assert not spark_submit.started, "no second driver was started"


def test_a_success_that_was_lost_takes_the_jobs_result_again(
    run_dag: RunDag, new_dag: NewDag, real: RealServer, spark_submit: Recorded
) -> None:
    before = len(real.jobs())
    ends: list[str] = []

    def lose_the_first(context: Any, result: Any) -> None:
        ends.append(result["job_id"])
        if len(ends) == 1:
            raise RuntimeError("the success never arrived")

    with new_dag() as dag:
        backfill(retries=1, retry_delay=timedelta(0), post_execute=lose_the_first)
    with spark_connection("yarn", "client"):
        assert run_dag(dag).state == "success"
    assert len(ends) == 2
    assert ends[0] == ends[1]
    assert len(real.jobs()) == before + 1


def spec_of(uri: str, **request: Any) -> dict[str, Any]:
    return {"job_type": "backfill_column", "location": uri, "request": {"column": "n", **request}}


class TestSpec:
    """With real local Spark and no server at all."""

    @pytest.fixture(autouse=True)
    def local(self) -> Iterator[None]:
        with spark_connection("local[2]"):
            yield

    def test_runs_reports_and_leaves_no_secret(
        self,
        run_dag: RunDag,
        new_dag: NewDag,
        tmp_path: Path,
        real: RealServer,
        capfd: pytest.CaptureFixture[str],
    ) -> None:
        from tests.engine.backfills import assert_filled

        uri = table(tmp_path / "numbers.lance")
        asset = create_asset(authority="lake", table_id=["numbers"])
        reported: list[Any] = []
        storage = json.dumps({"conn_type": "generic", "extra": {"secret_access_key": STORAGE_SECRET}})
        with new_dag(params={"folder": str(tmp_path)}) as dag:
            LanceSparkSubmitOperator(
                task_id="fill",
                spec=spec_of("{{ params.folder }}/numbers.lance", concurrency=1),
                storage_conn_id="storage_test",
                conn_id="spark_test",
                outlets=[asset],
                on_success_callback=lambda context: reported.append(
                    context["task"].get_openlineage_facets_on_complete(context["ti"])
                ),
            )
        with connection("storage_test", storage):
            run = run_dag(dag)
        assert run.state == "success"
        assert_filled(uri)
        ((output,),) = [lineage.outputs for lineage in reported]
        assert (output.namespace, output.name) == ("lance://lake", "numbers")
        assert output.outputFacets["outputStatistics"].rowCount == 60
        done = run.xcom("fill")
        assert done["job_id"] == run.xcom("fill", "job_id")
        assert done["job_id"].startswith("spec-")
        assert (done["job_type"], done["table_id"], done["state"]) == ("backfill_column", ["numbers"], "DONE")
        assert done["result"]["rows_assigned"] == 60
        assert done["version"] == done["result"]["published_version"]
        assert run.xcom("fill", "_link_LanceSparkLink").startswith("http://")
        assert run.asset_extras("lance://lake/numbers") == [
            {"version": done["version"], "job_id": done["job_id"], "rows": 60}
        ]
        log = capfd.readouterr().out
        assert "Progress: " in log
        assert "rows 60/60" in log
        assert f"numbers: 60 rows computed, version {done['version']}, in" in log
        assert STORAGE_SECRET not in log
        drivers = [line for line in real.arguments.seen if "--while-locked" in line]
        assert drivers, "the driver was seen"
        assert not [line for line in real.arguments.seen if STORAGE_SECRET in line and "pytest" not in line]

    def test_a_retry_continues_what_the_dead_driver_left(
        self,
        run_dag: RunDag,
        new_dag: NewDag,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        failures: Failures,
        capfd: pytest.CaptureFixture[str],
    ) -> None:
        from tests.engine.backfills import assert_filled

        uri = table(tmp_path / "t.lance")
        monkeypatch.setenv("LANCE_ENGINE_TEST_FAULT", f"after-commit:once:{tmp_path / 'died'}")
        with new_dag(default_args={"on_retry_callback": failures}) as dag:
            LanceSparkSubmitOperator(
                task_id="fill",
                spec=spec_of(uri, commit_granularity=2, concurrency=1),
                conn_id="spark_test",
                retries=1,
                retry_delay=timedelta(0),
            )
        run = run_dag(dag)
        assert (tmp_path / "died").exists()
        assert "ended without a word" in failures.text
        assert run.state == "success"
        assert run.instance("fill").try_number == 2
        assert_filled(uri)
        done = run.xcom("fill")
        assert done["result"]["rows_assigned"] == 60, "what the first driver committed counts: it is the same job"
        assert "were committed by an earlier attempt" in capfd.readouterr().out

    def test_a_failed_job_says_its_phase_and_is_not_tried_again(
        self, run_dag: RunDag, new_dag: NewDag, tmp_path: Path, failures: Failures
    ) -> None:
        uri = table(tmp_path / "t.lance")
        path = tmp_path / "job.json"
        path.write_text(json.dumps(spec_of(uri, where="nothing > 3")))
        with new_dag(default_args={"on_failure_callback": failures, "retries": 1}) as dag:
            LanceSparkSubmitOperator(task_id="fill", spec=str(path), conn_id="spark_test")
        run = run_dag(dag)
        assert run.state == "failed"
        assert run.instance("fill").try_number == 1
        assert "failed in validate." in failures.text
        assert "nothing" in failures.text

    @pytest.mark.parametrize(
        ("spec", "sentence"),
        [
            (
                {"location": "/t.lance"},
                "job_type is None; it must be backfill_column, refresh_materialized_view or write",
            ),
            ({"job_type": "backfill_column"}, "location is None; it must be the path or URI"),
            ({**spec_of("/t.lance"), "colunm": "n"}, "has no field 'colunm'; it has job_type, table_id"),
            ({**spec_of("/t.lance"), "request": "n"}, "request is 'n'; it must be an object"),
            ({**spec_of("/t.lance"), "table_id": "t"}, "table_id is 't'; it must be a list"),
            ({**spec_of("/t.lance"), "storage_options": {}}, "Credentials do not belong into a job spec"),
            ({**spec_of("/t.lance"), "managed": True}, "cannot be written without that namespace"),
            ("/nowhere/job.json", "'/nowhere/job.json' cannot be run. No such file"),
            ("{not json", "Expecting property name"),
        ],
    )
    def test_a_wrong_spec_gets_a_sentence_before_anything_starts(
        self,
        run_dag: RunDag,
        new_dag: NewDag,
        spark_submit: Recorded,
        failures: Failures,
        spec: Any,
        sentence: str,
    ) -> None:
        with new_dag(default_args={"on_failure_callback": failures, "retries": 1}) as dag:
            LanceSparkSubmitOperator(task_id="fill", spec=spec, conn_id="spark_test")
        run = run_dag(dag)
        assert run.state == "failed"
        assert run.instance("fill").try_number == 1
        assert sentence in failures.text
        assert not spark_submit.started

    def test_a_storage_connection_without_options_gets_a_sentence(
        self, run_dag: RunDag, new_dag: NewDag, spark_submit: Recorded, failures: Failures
    ) -> None:
        with new_dag(default_args={"on_failure_callback": failures}) as dag:
            LanceSparkSubmitOperator(
                task_id="fill", spec=spec_of("/t.lance"), storage_conn_id="storage_test", conn_id="spark_test"
            )
        with connection("storage_test", json.dumps({"conn_type": "aws", "login": "me", "password": "mine"})):
            assert run_dag(dag).state == "failed"
        assert "must hold storage options as Lance names them" in failures.text
        assert not spark_submit.started

    @pytest.mark.parametrize("kill", ["the task", "the worker"])
    def test_a_kill_leaves_no_process(self, tmp_path: Path, kill: str) -> None:
        """Java, the Python driver and its workers: all of them carry the mark in their environment."""
        import pyarrow as pa

        from tests.engine.backfills import declare_function, people

        asleep = str(tmp_path / "asleep")

        def slow(number: int) -> int:
            Path(asleep).touch()
            time.sleep(1)
            return number

        uri = str(tmp_path / "slow.lance")
        declare_function(people(uri), slow, ["id"], {"n": pa.int64()})
        mark = f"LANCE_TEST_MARK={uuid.uuid4().hex}"
        program = tmp_path / "worker.py"
        program.write_text(WORKER)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        environment["AIRFLOW_HOME"] = str(tmp_path / "home")
        name, _, value = mark.partition("=")
        with (tmp_path / "worker.log").open("wb") as log:
            worker = subprocess.Popen(
                [sys.executable, str(program), json.dumps(spec_of(uri))],
                env={**environment, name: value},
                stdout=log,
                stderr=log,
            )
        try:
            eventually(lambda: os.path.exists(asleep) or worker.poll() is not None, 120, "a row to be computed")
            assert worker.poll() is None, (tmp_path / "worker.log").read_text()[-3000:]
            assert len(list(find_processes(mark))) >= 4, "the worker, Java, the driver and its workers"
            os.kill(worker.pid, signal.SIGTERM if kill == "the task" else signal.SIGKILL)
            worker.wait(timeout=30)
            eventually(lambda: not list(find_processes(mark)), 60, "every process to be gone")
        finally:
            for process in find_processes(mark):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)


#: A worker's process as Airflow's task runner is one: SIGTERM calls ``on_kill``.
WORKER = """
import json, signal, sys
from types import SimpleNamespace
from airflow.sdk.bases.operator import ExecutorSafeguard
from airflow_provider_lance.operators.spark import LanceSparkSubmitOperator

operator = LanceSparkSubmitOperator(task_id="fill", spec=json.loads(sys.argv[1]), conn_id="spark_test")
signal.signal(signal.SIGTERM, lambda *_: operator.on_kill())
ExecutorSafeguard.tracker.set(operator)
ti = SimpleNamespace(
    dag_id="d", run_id="r", task_id="fill", map_index=-1, max_tries=0, try_number=1, xcom_push=lambda **_: None
)
operator.execute(context={"ti": ti})
"""
