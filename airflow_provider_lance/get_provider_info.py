"""``get_provider_info``: describes the package to Airflow, which calls it without importing the rest."""

from __future__ import annotations

from typing import Any

from airflow_provider_lance.configuration import describe_configuration

_PACKAGE = "airflow_provider_lance"
_GUIDES = (
    "start",
    "connection",
    "loading",
    "declarations",
    "backfill",
    "udfs",
    "views",
    "assets",
    "spark-submit",
    "operators/index",
)


def get_provider_info() -> dict[str, Any]:
    """The provider's description, which follows Airflow's ``provider_info.schema.json``."""
    return {
        "package-name": "airflow-provider-lance",
        "name": "Lance",
        "description": "Lance tables, column backfills and materialized views through the Lance namespace API.",
        "integrations": [
            {
                "integration-name": "Lance",
                "external-doc-url": "https://lance.org/format/namespace/",
                "logo": "/docs/images/logo.svg",
                "how-to-guide": [f"/docs/{page}.md" for page in _GUIDES],
                "tags": ["service", "machine-learning", "embeddings"],
            }
        ],
        "hooks": _modules("hooks.lance"),
        "operators": _modules(
            "operators.apply",
            "operators.backfill",
            "operators.check",
            "operators.columns",
            "operators.job",
            "operators.materialized_view",
            "operators.operation",
            "operators.spark",
            "operators.table",
            "operators.tag",
            "operators.version",
            "operators.write",
        ),
        "sensors": _modules("sensors.job", "sensors.table"),
        "triggers": _modules("triggers.job", "triggers.table"),
        "connection-types": [
            {
                "connection-type": "lance",
                "hook-class-name": f"{_PACKAGE}.hooks.lance.LanceNamespaceHook",
                "hook-name": "Lance Namespace",
                "ui-field-behaviour": {
                    "hidden-fields": [],
                    "relabeling": {
                        "host": "Host or URL",
                        "schema": "Scheme",
                        "login": "OAuth2 client id",
                        "password": "API key, token or secret",
                    },
                    "placeholders": {
                        "host": "namespace.example.com, or https://namespace.example.com/lance",
                        "port": "2333 (default)",
                        "schema": "http (default) or https",
                        "login": "only for OAuth2",
                        "password": "API key, bearer token or OAuth2 client secret",
                    },
                },
                "conn-fields": _connection_fields(),
            }
        ],
        "extra-links": [f"{_PACKAGE}.links.job.LanceJobLink", f"{_PACKAGE}.links.job.LanceSparkLink"],
        "asset-uris": [
            {
                "schemes": ["lance"],
                "handler": f"{_PACKAGE}.assets.lance.sanitize_uri",
                "factory": f"{_PACKAGE}.assets.lance.create_asset",
                "to_openlineage_converter": f"{_PACKAGE}.assets.lance.convert_asset_to_openlineage",
            }
        ],
        "task-decorators": [{"name": "lance", "class-name": f"{_PACKAGE}.decorators.lance.lance_task"}],
        "config": describe_configuration(),
    }


def _modules(*names: str) -> list[dict[str, object]]:
    return [{"integration-name": "Lance", "python-modules": [f"{_PACKAGE}.{name}" for name in names]}]


def _connection_fields() -> dict[str, dict[str, object]]:
    """The extras of a ``lance`` connection as form fields.

    Airflow's form draws a group for each ``section``, closed until it is opened, in the order of the first field of
    each. A default is what the form shows and stores.
    """

    def text(label: str, description: str, **schema: object) -> dict[str, object]:
        return {"label": label, "description": description, "schema": {"type": ["string", "null"], **schema}}

    def number(label: str, description: str, default: float) -> dict[str, object]:
        return {
            "label": label,
            "description": description,
            "schema": {"type": ["number", "null"], "default": default, "exclusiveMinimum": 0},
        }

    def json_object(label: str, description: str) -> dict[str, object]:
        return {"label": label, "description": description, "schema": {"type": ["object", "null"]}}

    groups: dict[str, dict[str, dict[str, object]]] = {
        "Server": {
            "auth": text(
                "Authentication",
                "How the password is used. auto: as an API key if there is one.",
                enum=["auto", "api_key", "bearer", "oauth2", "none"],
                default="auto",
            ),
            "database": text("Database", "For LanceDB Cloud and Enterprise."),
            "base_path": text("Base path", "What comes before /v1 in the server's URLs."),
            "timeout": number("Timeout", "Seconds until an answer comes.", 30),
        },
        "OAuth2": {
            "token_url": text("Token URL", "Default: /oauth/token at the server."),
            "scope": text("Scope", "Asked for with the token."),
        },
        "TLS and proxy": {
            "verify": text("TLS verification", "true (default), false, or the path of a CA bundle."),
            "client_cert": text("Client certificate", "Path of a PEM file."),
            "client_private_key": text("Client private key", "Path of a PEM file, if the certificate's has no key."),
            "proxy": text("Proxy", "URL of an HTTP proxy.", format="password"),
            "connect_timeout": number("Connect timeout", "Seconds until a connection stands.", 5),
        },
        "Names and links": {
            "delimiter": text("Identifier delimiter", "Splits identifiers given as one string. Default: $."),
            "job_url": text("Job page", "URL with {job_id}. Default: the page that the server names."),
            "asset_authority": text("Asset authority", "The name of this namespace in lance:// assets."),
            "context": json_object("Context", "Sent with every request as x-lance-ctx-<key>."),
        },
        "Without a server": {
            "impl": text("Implementation", "One of lance_namespace, such as dir. Default: rest, a server."),
            "properties": json_object("Properties", "Of that implementation, such as its root."),
        },
    }
    for section, fields in groups.items():
        for each in fields.values():
            schema = each["schema"]
            assert isinstance(schema, dict)
            schema["section"] = section
    return {name: each for fields in groups.values() for name, each in fields.items()}
