"""A claim as a Kubernetes secret, for a driver that runs in a pod: written for one attempt, deleted after it.

The cluster is the one in which Airflow's own Spark hook deletes pods. The Kubernetes client is optional
(``airflow-provider-lance[kubernetes]``) and imported where it is used.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterator, Mapping

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from airflow_provider_lance.tasks.driver_claim import DriverClaim
from airflow_provider_lance.tasks.errors import TaskLog

INSTALL = "Install it with `pip install 'airflow-provider-lance[kubernetes]'`."
#: Variable of the driver → key in the secret.
_VARIABLES = {"LANCE_JOB_TOKEN": "launch-token", "LANCE_API_KEY": "claim-token"}
_LONGEST_NAME = 253
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


def secret_name(prefix: str, claim: DriverClaim) -> str:
    """The name of the secret of one attempt, so that tasks which run at the same time never share a secret."""
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
    """The Spark settings with which the driver's pod reads its variables from the secret."""
    return {f"spark.kubernetes.driver.secretKeyRef.{variable}": f"{name}:{key}" for variable, key in _VARIABLES.items()}


@contextlib.contextmanager
def claim_secret(name: str, namespace: str, claim: DriverClaim, log: TaskLog) -> Iterator[None]:
    """Write the secret, and delete it afterwards."""
    values = dict(zip(_VARIABLES.values(), (claim.launch_token, claim.claim_token), strict=True))
    secrets = _Secrets(namespace)
    secrets.write(name, values, {"app.kubernetes.io/managed-by": "airflow-provider-lance"})
    try:
        yield
    finally:
        secrets.delete(name, log)


class _Secrets:
    """The secrets of one Kubernetes namespace."""

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
                # A worker that died left it behind. The claim of this attempt has passed to this worker.
                self._client.replace_namespaced_secret(name, self._namespace, body)
            return
        except self._error as error:
            failure = f"HTTP {error.status} {error.reason}"
        # It is raised outside of the except block, because the client's own exception may show the body it sent.
        raise AirflowException(
            f"Secret {name!r} cannot be written in Kubernetes namespace {self._namespace!r}: {failure}. The worker's "
            "account needs the verbs create, update and delete on secrets there."
        )

    def delete(self, name: str, log: TaskLog) -> None:
        try:
            self._client.delete_namespaced_secret(name, self._namespace)
        except self._error as error:
            if error.status != 404:
                log.warning("Secret %s could not be deleted (HTTP %s); its claim is over.", name, error.status)
