"""A claim as a Kubernetes secret, for a driver that runs in a pod: written for one attempt, deleted after it.

The cluster is reached as Airflow's own Spark hook reaches it to delete pods. The Kubernetes client is optional
(``airflow-provider-lance[kubernetes]``) and imported where it is used.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from airflow_provider_lance.operators.claim import Claim

INSTALL = "Install it with `pip install 'airflow-provider-lance[kubernetes]'`."
#: Variable of the driver → key in the secret.
_VARIABLES = {"LANCE_JOB_TOKEN": "launch-token", "LANCE_API_KEY": "claim-token"}
_LONGEST_NAME = 253
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


def secret_name(prefix: str, claim: Claim) -> str:
    """A name of this attempt's own, so that tasks which run at the same time never meet in one secret."""
    plain = re.sub(r"[^a-z0-9-]", "-", claim.job_id.lower())
    if plain != claim.job_id or len(plain) > 64:
        plain = f"{plain[:48]}-{hashlib.sha256(claim.job_id.encode()).hexdigest()[:12]}"
    name = f"{prefix}-{plain}-{claim.attempt}"
    if not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
        raise AirflowFailException(
            f"claim_secret={prefix!r} makes {name!r}, which cannot name a Kubernetes secret: take lower-case letters, "
            "digits and dashes."
        )
    return name


def secret_conf(name: str) -> dict[str, str]:
    """The Spark settings with which the driver's pod gets its variables out of the secret."""
    return {f"spark.kubernetes.driver.secretKeyRef.{variable}": f"{name}:{key}" for variable, key in _VARIABLES.items()}


@contextlib.contextmanager
def claim_secret(name: str, namespace: str, claim: Claim, log: Any) -> Iterator[None]:
    """The secret, for as long as the driver runs."""
    values = dict(zip(_VARIABLES.values(), (claim.launch_token, claim.claim_token), strict=True))
    secrets = _Secrets(namespace)
    secrets.write(name, values, {"app.kubernetes.io/managed-by": "airflow-provider-lance"})
    try:
        yield
    finally:
        secrets.delete(name, log)


class _Secrets:
    def __init__(self, namespace: str) -> None:
        try:
            from airflow.providers.cncf.kubernetes.kube_client import get_kube_client
            from kubernetes.client.exceptions import ApiException
        except ImportError:
            raise AirflowFailException(f"A Kubernetes secret needs the Kubernetes client. {INSTALL}") from None
        self._namespace = namespace
        self._client = get_kube_client()
        self._error = ApiException

    def write(self, name: str, values: Mapping[str, str], labels: Mapping[str, str]) -> None:
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "Opaque",
            "metadata": {"name": name, "namespace": self._namespace, "labels": dict(labels)},
            "stringData": dict(values),
        }
        failure: str
        try:
            try:
                self._client.create_namespaced_secret(self._namespace, body)
            except self._error as error:
                if error.status != 409:
                    raise
                # Left behind by a worker that died: the attempt is ours now, and so is its secret.
                self._client.replace_namespaced_secret(name, self._namespace, body)
            return
        except self._error as error:
            failure = f"HTTP {error.status} {error.reason}"
        # Outside of the except block: what the client raised may show the body it sent.
        raise AirflowException(
            f"Secret {name!r} cannot be written in Kubernetes namespace {self._namespace!r}: {failure}. The worker's "
            "account needs the verbs create, update and delete on secrets there."
        )

    def delete(self, name: str, log: Any) -> None:
        try:
            self._client.delete_namespaced_secret(name, self._namespace)
        except self._error as error:
            if error.status != 404:
                log.warning("Secret %s could not be deleted (HTTP %s); its claim is over.", name, error.status)
