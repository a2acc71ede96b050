#!/bin/sh
# confluent-kafka: a message with a frame and a header that name different schemas is decoded by the header, frame included.
#
# Version      confluent-kafka 2.16.1
# Expectation  An error that names both, or the value of one of the schemas.
# Behaviour    The deserializer takes the header's schema and decodes the whole body, so the five bytes of the frame become data; a datum that ends
#              before the body is no error.
# Output seen  written: {'text': 'hello'}, read: {'number': 0}
# Exit         0 while it is so, 1 when it has changed
set -eu
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'exit 1' INT TERM
"${PYTHON:-python3}" -m venv "$WORK/venv"
"$WORK/venv/bin/pip" install --quiet --disable-pip-version-check "confluent-kafka[schemaregistry,avro]==2.16.1"
cat > "$WORK/run.py" <<'RUN'
import json

from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer, topic_subject_name_strategy
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext


def schema(name, kind):
    return json.dumps({"type": "record", "name": "R", "fields": [{"name": name, "type": kind}]})


client = SchemaRegistryClient.new_client({"url": "mock://"})
strategy = {"subject.name.strategy": topic_subject_name_strategy}
framed = AvroSerializer(client, schema("text", "string"), conf=strategy)
headed = AvroSerializer(client, schema("number", "long"), conf={**strategy, "schema.id.serializer": header_schema_id_serializer})
value = {"text": "hello"}
body = framed(value, SerializationContext("a", MessageField.VALUE, []))
context = SerializationContext("b", MessageField.VALUE, [])
headed({"number": 1}, context)
read = AvroDeserializer(client, conf=strategy)(body, SerializationContext("a", MessageField.VALUE, context.headers))
print(f"written: {value}, read: {read}")
raise SystemExit(read != {"number": 0})
RUN
"$WORK/venv/bin/python" "$WORK/run.py"
