"""What Airflow learns about this package without importing the rest of it: the entry point's one function."""

from __future__ import annotations

from typing import Any

from airflow_provider_lance.configuration import describe_configuration

_PACKAGE = "airflow_provider_lance"


def get_provider_info() -> dict[str, Any]:
    """The provider's description, as ``provider_info.schema.json`` of Airflow wants it."""
    return {
        "package-name": "airflow-provider-lance",
        "name": "Lance",
        "description": "Lance tables, column backfills and materialized views through the Lance namespace API.",
        "integrations": [
            {
                "integration-name": "Lance",
                "external-doc-url": "https://lance.org/format/namespace/",
                "tags": ["service"],
            }
        ],
        "hooks": _modules("hooks.lance"),
        "operators": _modules(
            "operators.backfill",
            "operators.check",
            "operators.job",
            "operators.materialized_view",
            "operators.operation",
            "operators.spark",
            "operators.table",
            "operators.tag",
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
                        "schema": "Scheme (http or https)",
                        "login": "OAuth2 client id",
                        "password": "API key, bearer token or client secret",
                    },
                    "placeholders": {
                        "host": "namespace.example.com, or https://namespace.example.com/lance",
                        "port": "2333",
                        "schema": "http",
                        "login": "only for OAuth2",
                        "password": "the one secret of the chosen authentication",
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


def _modules(*names: str) -> list[dict[str, Any]]:
    return [{"integration-name": "Lance", "python-modules": [f"{_PACKAGE}.{name}" for name in names]}]


def _connection_fields() -> dict[str, Any]:
    """The extras of a ``lance`` connection as form fields; their defaults are only the form's, the hook has its own."""

    def text(label: str, description: str, **schema: Any) -> dict[str, Any]:
        return {"label": label, "description": description, "schema": {"type": ["string", "null"], **schema}}

    def number(label: str, description: str, default: float) -> dict[str, Any]:
        return {
            "label": label,
            "description": description,
            "schema": {"type": ["number", "null"], "default": default, "exclusiveMinimum": 0},
        }

    def json_object(label: str, description: str) -> dict[str, Any]:
        return {"label": label, "description": description, "schema": {"type": ["object", "null"]}}

    return {
        "auth": text(
            "Authentication",
            "How the password is used. Empty: API key if there is a password, else none.",
            enum=["none", "api_key", "bearer", "oauth2", None],
        ),
        "token_url": text("OAuth2 token URL", "Default: /oauth/token at the server."),
        "scope": text("OAuth2 scope", "Asked for with the token."),
        "base_path": text("Base path", "What comes before /v1 in the server's URLs."),
        "delimiter": text("Identifier delimiter", "Splits identifiers given as one string. Default: $."),
        "database": text("Database", "Sent as x-lancedb-database; LanceDB Cloud and Enterprise want it."),
        "context": json_object("Context", "Sent with every request as x-lance-ctx-<key>."),
        "connect_timeout": number("Connect timeout", "Seconds until a connection stands.", 5),
        "timeout": number("Timeout", "Seconds until an answer comes.", 30),
        "verify": text("TLS verification", "true, false, or the path of a CA bundle."),
        "client_cert": text("Client certificate", "Path of a PEM file, for mutual TLS."),
        "client_private_key": text("Client private key", "Path of a PEM file, if it is not in the certificate's."),
        "proxy": text("Proxy", "URL of an HTTP proxy.", format="password"),
        "impl": text("Implementation", "rest, or another lance_namespace implementation such as dir. Default: rest."),
        "properties": json_object("Properties", "Of an implementation other than rest, such as its root."),
        "job_url": text("Job page", "URL with {job_id}, linked from tasks. Default: what the server itself names."),
        "asset_authority": text("Asset authority", "What lance:// assets call this namespace, for OpenLineage."),
    }
