"""Lance tables as Airflow assets: ``lance://<authority>/<part>/<part>``.

The authority names the namespace (its host, or a name of your own) and is required; each part of the table's
identifier is percent-encoded, so that a part may hold ``/``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, quote, unquote, urlsplit

from airflow.providers.common.compat.sdk import Asset

from airflow_provider_lance.api.ids import Identifier, parse_id

if TYPE_CHECKING:
    from airflow.providers.common.compat.openlineage.facet import Dataset

SCHEME = "lance"


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """Airflow's handler for ``lance://`` URIs: one spelling per table, and a refusal for what names none."""
    authority = uri.netloc.rpartition("@")[2].lower()
    if not authority:
        # lance:///t cannot be repaired here: Airflow reassembles it to lance:/t, which is another URI.
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
    extra: dict[str, Any] | None = None,
    **kwargs: Any,
) -> Asset:
    """The asset of a table.

    >>> create_asset(authority="prod", table_id=["sales", "orders"]).uri
    'lance://prod/sales/orders'

    :param authority: which namespace; the same word wherever the asset is used.
    :param table_id: the table's identifier, a list or one string with ``delimiter``.
    :param extra: the asset's own extra.
    :param kwargs: further arguments of ``Asset``, such as ``watchers`` and ``group``.
    """
    path = asset_path(parse_id(table_id, delimiter))
    uri = sanitize_uri(urlsplit(f"{SCHEME}://{authority}/{path}")).geturl()
    return Asset(name=uri, uri=uri, extra=extra or {}, **kwargs)


def table_of(asset: Any) -> tuple[str, list[str]] | None:
    """``(authority, table id)`` of a Lance asset; ``None`` for any other."""
    uri = urlsplit(str(getattr(asset, "uri", "") or ""))
    if uri.scheme != SCHEME or not uri.netloc:
        return None
    return uri.netloc, _parts(uri.path)


def assets_of(outlets: Iterable[Any], table_id: Sequence[str]) -> list[Asset]:
    """Those of a task's outlets that are this table, in whichever namespace."""
    found = []
    for outlet in outlets:
        named = table_of(outlet)
        if named is not None and named[1] == list(table_id):
            found.append(outlet)
    return found


def write_events(context: Any, outlets: Iterable[Any], table_id: Sequence[str], **extra: Any) -> None:
    """Write ``extra``, as far as it is known, to the events of the outlets that are this table."""
    known = {key: value for key, value in extra.items() if value is not None}
    for asset in assets_of(outlets, table_id):
        context["outlet_events"][asset].extra.update(known)


def convert_asset_to_openlineage(asset: Asset, lineage_context: Any) -> Dataset | None:
    """Airflow's converter: the namespace is the authority, the name the identifier's path."""
    from airflow.providers.common.compat.openlineage.facet import Dataset

    named = table_of(asset)
    return Dataset(namespace=f"{SCHEME}://{named[0]}", name=asset_path(named[1])) if named else None


def _parts(path: str) -> list[str]:
    return [unquote(part) for part in path.split("/") if part]
