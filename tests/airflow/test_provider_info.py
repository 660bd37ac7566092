"""The provider's own description: valid for Airflow, and true."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_lance.api.settings import AUTH_KINDS, AUTO_AUTH
from airflow_provider_lance.get_provider_info import get_provider_info

ROOT = Path(__file__).parents[2]


def airflow_schema(name: str) -> dict[str, Any]:
    import airflow

    found: dict[str, Any] = json.loads((Path(airflow.__file__).parent / name).read_text())
    return found


def test_it_is_valid_against_airflows_schema() -> None:
    import jsonschema  # type: ignore[import-untyped]

    info = get_provider_info()
    schema = airflow_schema("provider_info.schema.json")
    jsonschema.validate(info, schema)
    assert set(info) <= set(schema["properties"]), "Airflow reads nothing else"


@pytest.mark.parametrize("part", ["integrations", "connection-types", "task-decorators", "asset-uris", "extra-links"])
def test_its_parts_are_valid_as_those_of_airflows_own_providers(part: str) -> None:
    import jsonschema

    jsonschema.validate(get_provider_info()[part], airflow_schema("provider.yaml.schema.json")["properties"][part])


def test_the_logo_and_the_guides_are_files_of_the_repository() -> None:
    (integration,) = get_provider_info()["integrations"]
    assert len(integration["how-to-guide"]) >= 5
    for path in (integration["logo"], *integration["how-to-guide"]):
        assert (ROOT / path.removeprefix("/")).is_file(), path


def test_the_form_has_short_groups_and_shows_a_word_for_the_authentication() -> None:
    (connection,) = get_provider_info()["connection-types"]
    fields = connection["conn-fields"]
    groups: dict[str, list[str]] = {}
    for name, field in fields.items():
        groups.setdefault(field["schema"]["section"], []).append(name)
        assert len(field["description"]) <= 65, name
    assert next(iter(groups.items())) == ("Server", ["auth", "database", "base_path", "timeout"])
    assert max(map(len, groups.values())) <= 5
    auth = fields["auth"]["schema"]
    assert auth["default"] == AUTO_AUTH
    assert set(auth["enum"]) == {AUTO_AUTH, *AUTH_KINDS}, "no null"


def named_things() -> list[str]:
    info = get_provider_info()
    names = [
        f"{module}:"
        for kind in ("hooks", "operators", "sensors", "triggers")
        for entry in info[kind]
        for module in entry["python-modules"]
    ]
    classes = [
        *info["extra-links"],
        *(entry["hook-class-name"] for entry in info["connection-types"]),
        *(entry["class-name"] for entry in info["task-decorators"]),
        *(entry[key] for entry in info["asset-uris"] for key in ("handler", "factory", "to_openlineage_converter")),
    ]
    return names + [":".join(name.rsplit(".", 1)) for name in classes]


@pytest.mark.parametrize("name", named_things())
def test_everything_it_names_exists(name: str) -> None:
    module, _, attribute = name.partition(":")
    found: Any = importlib.import_module(module)
    if attribute:
        assert callable(getattr(found, attribute))


def test_every_module_with_operators_is_named() -> None:
    info = get_provider_info()
    named = {module for entry in info["operators"] for module in entry["python-modules"]}
    folder = Path(importlib.import_module("airflow_provider_lance.operators").__file__ or "").parent
    with_tasks = {
        f"airflow_provider_lance.operators.{path.stem}"
        for path in folder.glob("*.py")
        if path.stem not in {"__init__", "base", "job_base"}
        and any(line.startswith("class Lance") for line in path.read_text().splitlines())
    }
    assert with_tasks == named


def test_airflow_knows_the_provider(airflow_home: Path) -> None:
    from airflow.providers_manager import ProvidersManager

    manager = ProvidersManager()  # type: ignore[no-untyped-call]
    assert "airflow-provider-lance" in manager.providers
    hook = manager.hooks["lance"]
    assert hook is not None
    assert hook.hook_name == "Lance Namespace"
    assert "lance" in manager.asset_uri_handlers
    assert "airflow_provider_lance.links.job.LanceJobLink" in manager.extra_links_class_names
    assert "lance" in dict(manager.taskflow_decorators)


def test_the_form_has_every_extra(airflow_home: Path) -> None:
    from airflow.providers_manager import ProvidersManager

    manager = ProvidersManager()  # type: ignore[no-untyped-call]
    _ = manager.hooks["lance"]
    fields = {name for name in manager.connection_form_widgets if name.startswith("extra__lance__")}
    expected = {"auth", "base_path", "token_url", "scope", "delimiter", "database", "context", "connect_timeout"}
    expected |= {"timeout", "verify", "client_cert", "client_private_key", "proxy", "impl", "properties", "job_url"}
    expected |= {"asset_authority"}
    assert {name.removeprefix("extra__lance__") for name in fields} == expected
    behaviour = manager.field_behaviours["lance"]
    assert behaviour["relabeling"]["login"] == "OAuth2 client id"


def test_the_configuration_section_is_known(airflow_home: Path) -> None:
    from airflow.configuration import conf

    assert conf.getint("lance", "job_lease_seconds") == 21600
