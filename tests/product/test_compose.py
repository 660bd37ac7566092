"""The deployment's files: valid, without default passwords, and made of commands that exist and parse."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
ONE_SHOT = {"storage-bucket", "airflow-migrate"}


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yaml").read_text())
    return found


def test_it_is_a_valid_compose_file() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    answer = subprocess.run([*command, ROOT / "docker-compose.yaml"], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_every_lasting_service_has_a_health_check_and_only_starts_after_what_it_needs(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        assert ("healthcheck" in service) is (name not in ONE_SHOT), name
        for other, need in (service.get("depends_on") or {}).items():
            assert need["condition"] == (
                "service_completed_successfully" if other in ONE_SHOT else "service_healthy"
            ), f"{name} → {other}"


def test_ports_are_published_on_loopback_only(compose: dict[str, Any]) -> None:
    published = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_secrets_come_from_files_and_nowhere_else(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        for variable, value in (service.get("environment") or {}).items():
            if any(word in variable.upper() for word in ("PASSWORD", "SECRET", "TOKEN")):
                assert variable.endswith("_FILE"), f"{name}: {variable}"
                assert str(value).startswith("/run/secrets/"), f"{name}: {variable}"
        assert set(service.get("secrets") or []) <= set(compose["secrets"]), name
    assert all(set(secret) == {"file"} for secret in compose["secrets"].values())


def test_every_command_of_ours_parses(compose: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_provider_lance.cli.main import make_parser

    ours = [s["command"] for s in compose["services"].values() if (s.get("command") or [""])[0] == "airflow-lance"]
    assert ours
    for command in ours:
        options = make_parser().parse_args(command[1:])
        assert options.port == 2333


def test_every_other_program_is_installed_with_us(compose: dict[str, Any]) -> None:
    programs = {s["command"][0] for s in compose["services"].values() if s.get("build")}
    assert programs == {"airflow", "airflow-lance", "spark-class"}
    for program in programs:
        assert (Path(sys.executable).parent / program).exists(), program


def test_the_embedded_configuration_is_one_the_server_reads(compose: dict[str, Any]) -> None:
    from airflow_provider_lance.namespace.config import ServerConfig

    config = ServerConfig.from_dict(tomllib.loads(compose["configs"]["namespace_config"]["content"]), {})
    assert config.cluster("spark").master == "spark://spark-master:7077"


def test_every_image_of_others_is_a_certain_version(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        tag = service["image"].rpartition(":")[2]
        assert any(character.isdigit() for character in tag), f"{name}: {service['image']}"


def test_spark_workers_write_where_the_image_lets_them(compose: dict[str, Any]) -> None:
    command = compose["services"]["spark-worker"]["command"]
    assert command[command.index("--work-dir") + 1].startswith("/tmp/")


def test_the_image_copies_what_is_there_and_what_its_context_has() -> None:
    lines = [line.split() for line in (ROOT / "Dockerfile").read_text().splitlines() if line.startswith("COPY")]
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert lines
    assert "*" in ignored
    for _, *sources, _ in lines:
        for source in sources:
            assert (ROOT / source).exists(), source
            assert f"!{source}" in ignored, source


def test_made_secrets_become_variables_of_the_process_and_stay_private(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    runs = []
    for _ in range(2):
        subprocess.run([tmp_path / "scripts" / "compose-secrets"], check=True, capture_output=True)
        runs.append({path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()})
    made = runs[0]
    assert runs[1] == made  # the second run keeps what is there
    assert all(len(value) >= 24 for value in made.values())
    # Nobody else enters the folder; each file is mounted with its mode into containers whose users are not its owner.
    assert (tmp_path / "secrets").stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "secrets").iterdir()} == {0o644}
    compose = yaml.safe_load((ROOT / "docker-compose.yaml").read_text())
    assert {f"./secrets/{name}" for name in made} == {secret["file"] for secret in compose["secrets"].values()}
    environment = {"PATH": os.environ["PATH"], "SECRETS_DIR": str(tmp_path / "secrets"), "POSTGRES_HOST": "db"}
    shown = "import json, os; print(json.dumps(dict(os.environ)))"
    answer = subprocess.run(
        [tmp_path / "scripts" / "compose-entrypoint", sys.executable, "-c", shown],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    seen = json.loads(answer.stdout)
    password = made["postgres_password"]
    assert seen["LANCE_REGISTRY"] == f"postgresql+psycopg://airflow:{password}@db:5432/lance_jobs"
    assert seen["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] == f"postgresql+psycopg2://airflow:{password}@db:5432/airflow"
    connection = json.loads(seen["AIRFLOW_CONN_LANCE_DEFAULT"])
    assert connection["password"] == made["lance_api_key"]
    assert made["lance_keys"] == f"all:{made['lance_api_key']}"
    assert seen["AWS_SECRET_ACCESS_KEY"] == made["s3_secret_key"]
    assert seen["AIRFLOW__API__SECRET_KEY"] == made["airflow_api_secret"]
    assert seen["AIRFLOW__API_AUTH__JWT_SECRET"] == made["airflow_jwt_secret"]
    assert seen["AIRFLOW__CORE__FERNET_KEY"] == made["airflow_fernet_key"]


def test_health_checks_of_airflow_find_its_database(compose: dict[str, Any], tmp_path: Path) -> None:
    """They do not pass through the entry point, so none of its variables are theirs."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    subprocess.run([tmp_path / "scripts" / "compose-secrets"], check=True, capture_output=True)
    for name, service in compose["services"].items():
        if name.startswith("airflow-") and name not in ONE_SHOT:
            assert "compose-entrypoint" in service["environment"]["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_CMD"], name
    answer = subprocess.run(
        [Path(sys.executable).parent / "airflow", "config", "get-value", "database", "sql_alchemy_conn"],
        env={
            **{name: str(value) for name, value in compose["services"]["airflow-scheduler"]["environment"].items()},
            "AIRFLOW_HOME": str(tmp_path / "airflow"),
            "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(tmp_path / "logs"),
            "PATH": f"{tmp_path / 'scripts'}:{os.environ['PATH']}",
            "SECRETS_DIR": str(tmp_path / "secrets"),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    password = (tmp_path / "secrets" / "postgres_password").read_text()
    assert f"postgresql+psycopg2://airflow:{password}@postgres:5432/airflow" in answer.stdout, answer.stderr


def test_a_secret_that_cannot_be_read_stops_the_role() -> None:
    other = {"user": 50000, "group": 50000, "extra_groups": []} if os.geteuid() == 0 else {}
    with tempfile.TemporaryDirectory() as folder:  # not pytest's own, which other users cannot enter
        Path(folder).chmod(0o755)
        entrypoint = shutil.copy(ROOT / "scripts" / "compose-entrypoint", folder)
        secret = Path(folder, "s3_secret_key")
        secret.write_text("x" * 24)
        secret.chmod(0)
        answer = subprocess.run(
            [entrypoint, "true"],
            env={"PATH": os.environ["PATH"], "SECRETS_DIR": folder},
            capture_output=True,
            text=True,
            check=False,
            **other,  # type: ignore[call-overload]
        )
    assert answer.returncode == 1
    assert f"{secret} is not readable by uid" in answer.stderr
