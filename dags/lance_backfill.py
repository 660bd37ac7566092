"""Backfill a column from the UI: press Trigger, fill in the form, watch the progress in the task's log.

The first task checks the names and suggests similar ones, so that a typing error is found before a Spark job starts.
The job runs while the task is deferred, so no worker waits for it. *Plan only* reports what would be done and changes
nothing.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, Param, task

from airflow_provider_lance.operators.backfill import LanceBackfillColumnOperator

PARAMS = {
    "table": Param("articles", type="string", minLength=1, title="Table", description="with $ between its parts"),
    "column": Param("text_length", type="string", minLength=1, title="Column", description="computed or virtual"),
    "where": Param(None, type=["null", "string"], title="Only rows where", description="an SQL predicate; empty = all"),
    "concurrency": Param(None, type=["null", "integer"], minimum=1, maximum=10_000, title="Spark tasks at once"),
    "num_frags": Param(None, type=["null", "integer"], minimum=1, title="At most this many fragments"),
    "cluster": Param("local", type="string", title="Cluster", description="a name from the server's configuration"),
    "plan_only": Param(False, type="boolean", title="Plan only", description="say what would be done, change nothing"),
}

with DAG(
    "lance_backfill",
    description="Give a computed or virtual column its values",
    doc_md=__doc__,
    schedule=None,
    catchup=False,
    tags=["lance", "example"],
    params=PARAMS,
) as dag:

    @task.lance
    def check(*, namespace: Any, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """Check that the table and the column exist. The error of a wrong name suggests similar names."""
        import difflib

        from airflow.sdk.exceptions import AirflowFailException
        from lance_namespace.errors import TableNotFoundError

        def near(name: str, names: list[str], kind: str) -> AirflowFailException:
            found = difflib.get_close_matches(name, names, n=3, cutoff=0.5) or sorted(names)[:5]
            hint = f" Near names: {', '.join(found)}." if found else ""
            return AirflowFailException(f"There is no {kind} {name!r}.{hint}")

        chosen = dict(params or {})
        table_id = chosen["table"].split("$")
        try:
            table = namespace.describe_table({"id": table_id, "load_detailed_metadata": True})
        except TableNotFoundError:
            beside = namespace.list_tables({"id": table_id[:-1]}).tables
            raise near(table_id[-1], list(beside), "table") from None
        columns = {field.name: field.metadata or {} for field in table.var_schema.fields}
        if chosen["column"] not in columns:
            raise near(chosen["column"], list(columns), "column")
        rule = columns[chosen["column"]]
        if not any(key.startswith(("computed_column", "virtual_column")) for key in rule):
            ruled = [name for name, each in columns.items() if any("_column" in key for key in each)]
            raise AirflowFailException(
                f"The column {chosen['column']!r} has no rule to compute it by. Columns with one: {ruled or 'none'}."
            )
        return {**chosen, "table_id": table_id, "where": chosen.get("where") or None}

    checked = check()
    backfill = LanceBackfillColumnOperator(
        task_id="backfill",
        table_id=checked["table_id"],
        column=checked["column"],
        where=checked["where"],
        concurrency=checked["concurrency"],
        num_frags=checked["num_frags"],
        cluster=checked["cluster"],
        plan_only=checked["plan_only"],
        on_conflict="wait",
        deferrable=True,
        retries=1,
    )

    @task
    def report(done: dict[str, Any]) -> str:
        """Write one sentence about the run into the task's log."""
        figures = ", ".join(f"{name} {value:,}" for name, value in (done["result"] or {}).items() if type(value) is int)
        sentence = f"{'$'.join(done['table_id'])} is at version {done['version']}: {figures}"
        print(sentence)  # noqa: T201 - the task's log
        return sentence

    report(backfill.output)
