"""Codecs with schemas in a schema registry: Avro, JSON Schema and Protobuf. Needs the extra `registry`.

from saturnmq.registry import SchemaRegistry, avro_codec

registry = SchemaRegistry("https://registry.example.com", token=os.environ["REGISTRY_TOKEN"])
async with client.producer("orders-p", codec=avro_codec(registry, "orders-value", schema=ORDER)) as out:
    await out.send("orders", {"id": 1, "total": 9.5})
"""

from saturnmq.registry.client import SchemaRegistry
from saturnmq.registry.codecs import avro_codec, json_schema_codec, protobuf_codec

__all__ = ["SchemaRegistry", "avro_codec", "json_schema_codec", "protobuf_codec"]
