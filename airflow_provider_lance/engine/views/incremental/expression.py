"""An expression of a query, evaluated by Spark itself over the distinct values of its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_lance.engine.spark.arrow_frames import arrow_frame

if TYPE_CHECKING:
    import pyarrow as pa
    from py4j.java_gateway import JavaObject  # type: ignore[import-untyped]
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class Expression:
    """A deterministic expression of Spark's plan over some columns.

    ``inputs`` has the ids of the attributes that it reads; values are given in that order. Two expressions are the same
    only if they are the same object of one plan.
    """

    number: int
    text: str = field(compare=False)
    inputs: tuple[int, ...] = field(compare=False)
    types: StructType = field(compare=False)
    plan: JavaObject = field(compare=False, repr=False)

    def evaluate(self, session: SparkSession, values: pa.Table) -> pa.ChunkedArray[pa.Scalar[pa.DataType]]:
        """The value for every row of ``values``, whose columns are those of :attr:`inputs`.

        Spark evaluates the node of its own plan, so no text is read a second time.
        """
        from pyspark.sql import DataFrame

        frame = arrow_frame(session, values, self.types)
        output = frame._jdf.queryExecution().analyzed().output()
        attributes = {number: output.apply(at) for at, number in enumerate(self.inputs)}
        jvm = session.sparkContext._jvm
        assert jvm is not None
        bound = _replaced(self.plan, attributes, jvm)
        column = jvm.org.apache.spark.sql.classic.ExpressionUtils.column(bound).alias("value")
        java_frame = frame._jdf.select(jvm.PythonUtils.toSeq([column]))
        return DataFrame(java_frame, session).toArrow().column(0)


def _replaced(node: JavaObject, attributes: dict[int, JavaObject], jvm: JavaObject) -> JavaObject:
    """The expression over other attributes: Spark's trees are immutable."""
    if node.getClass().getSimpleName() == "AttributeReference":
        return attributes[int(node.exprId().id())]
    children: Sequence[JavaObject] = [node.children().apply(at) for at in range(node.children().size())]
    if not children:
        return node
    return node.withNewChildren(jvm.PythonUtils.toSeq([_replaced(child, attributes, jvm) for child in children]))
