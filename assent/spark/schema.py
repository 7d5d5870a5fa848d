"""From Spark's schema to Arrow's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assent.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


def arrow_schema(schema: StructType, sink: str) -> pa.Schema:
    """The schema of the batches that tasks will see; refuses types that Arrow does not know."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_type

    fields = []
    for field in schema.fields:
        try:
            kind = to_arrow_type(field.dataType, timezone="UTC")
        except Exception as error:
            raise ConfigurationError(
                f"{sink}: column {field.name} has the type {field.dataType.simpleString()}, which "
                "cannot be handed to a Python sink; cast it or leave it out"
            ) from error
        fields.append(pa.field(field.name, kind, field.nullable))
    return pa.schema(fields)
