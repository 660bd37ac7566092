"""Lance tables as Airflow assets: ``lance://<authority>/<part>/<part>``.

The authority is required and names the namespace: its host, or a name of your own. Each part of the table's
identifier is percent-encoded, so that a part may hold ``/``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import SplitResult, quote, unquote, urlsplit

from airflow.providers.common.compat.sdk import Asset, AssetAlias

from airflow_provider_lance.api.ids import Identifier, parse_id

if TYPE_CHECKING:
    from airflow.providers.common.compat.openlineage.facet import Dataset
    from airflow.sdk.definitions.asset import AssetUriRef
    from pydantic import JsonValue

SCHEME = "lance"


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """Airflow's handler for ``lance://`` URIs: it gives each table one spelling, and refuses a URI without a table."""
    authority = uri.netloc.rpartition("@")[2].lower()
    if not authority:
        # A missing authority cannot be filled in here, because Airflow reassembles lance:///t to lance:/t.
        raise ValueError(
            "A Lance asset needs an authority: lance://<namespace>/<table>, such as lance://prod/sales/orders."
        )
    parts = _parts(uri.path)
    if not parts:
        raise ValueError(f"The Lance asset lance://{authority} names no table: lance://{authority}/<table>.")
    return SplitResult(SCHEME, authority, "/" + asset_path(parts), "", "")


def asset_path(table_id: Sequence[str]) -> str:
    """A table's identifier as a path: each part is encoded, so that ``["a/b"]`` and ``["a", "b"]`` stay two tables."""
    return "/".join(quote(part, safe="") for part in table_id)


def create_asset(
    *,
    authority: str,
    table_id: Identifier,
    delimiter: str = "$",
    extra: dict[str, JsonValue] | None = None,
    **kwargs: Any,
) -> Asset:
    """Make the asset of a table. Assets are documented in ``docs/assets.md``.

    >>> create_asset(authority="prod", table_id=["sales", "orders"]).uri
    'lance://prod/sales/orders'

    :param authority: The name of the namespace. It must be the same wherever the asset is used.
    :param table_id: The table's identifier, as a list of strings or as one string with the delimiter.
    :param delimiter: The delimiter of an identifier that is one string.
    :param extra: The asset's own extra.
    :param kwargs: The other arguments of Airflow's ``Asset``, such as ``watchers`` and ``group``.
    :return: The asset, which a DAG uses as an outlet, an inlet or a schedule.
    """
    parts = parse_id(table_id, delimiter)
    if any("{{" in part or "{%" in part for part in parts):
        raise ValueError(
            f"The name of an asset is fixed when the DAG is parsed, so the template in {parts} is never rendered. "
            f"Declare outlets=[create_alias(authority={authority!r})]: the operator adds the table that it changed."
        )
    path = asset_path(parts)
    uri = sanitize_uri(urlsplit(f"{SCHEME}://{authority}/{path}")).geturl()
    return Asset(name=uri, uri=uri, extra=extra or {}, **kwargs)


def create_alias(*, authority: str, name: str = "") -> AssetAlias:
    """Make an alias for the outlets of a task whose table is known only when it runs: templated or mapped.

    >>> create_alias(authority="prod").name
    'lance://prod'

    :param authority: The name of the namespace, as in :func:`create_asset`.
    :param name: A name for the alias, if a namespace needs several.
    :return: The alias. Operators add the asset of the table that they changed to it.
    """
    host = authority.strip().lower()
    if not host or "/" in host:
        raise ValueError(f"The authority is {authority!r}; it must be a name such as 'prod'.")
    return AssetAlias(name=f"{SCHEME}://{host}" + (f"/{name}" if name else ""))


def alias_authority(alias: AssetAlias) -> str | None:
    """The authority that an alias of :func:`create_alias` has in its name; ``None`` for any other alias."""
    uri = urlsplit(alias.name)
    return uri.netloc.lower() or None if uri.scheme == SCHEME else None


def table_of(asset: object) -> tuple[str, list[str]] | None:
    """The authority and the table's identifier of a Lance asset or a reference to one; ``None`` for other objects."""
    if isinstance(asset, AssetAlias):
        return None
    uri = urlsplit(str(getattr(asset, "uri", None) or getattr(asset, "name", None) or ""))
    if uri.scheme != SCHEME or not uri.netloc:
        return None
    return uri.netloc, _parts(uri.path)


def assets_of(outlets: Iterable[object], table_id: Sequence[str]) -> list[Asset | AssetUriRef]:
    """The assets among a task's outlets that are this table, in any namespace."""
    found = []
    for outlet in outlets:
        named = table_of(outlet)
        if named is not None and named[1] == list(table_id):
            found.append(cast("Asset | AssetUriRef", outlet))
    return found


def convert_asset_to_openlineage(asset: Asset, lineage_context: object) -> Dataset | None:
    """Airflow's converter to OpenLineage: the namespace is the authority, and the name is the identifier's path."""
    from airflow.providers.common.compat.openlineage.facet import Dataset

    named = table_of(asset)
    return Dataset(namespace=f"{SCHEME}://{named[0]}", name=asset_path(named[1])) if named else None


def _parts(path: str) -> list[str]:
    return [unquote(part) for part in path.split("/") if part]
