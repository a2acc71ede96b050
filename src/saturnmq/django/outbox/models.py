"""The tables of the outbox, which `saturnmq.client.outbox` describes."""

from django.db import models


class OutboxMessage(models.Model):  # type: ignore[misc]  # Django has no types
    """A message to send. error: empty, or why it cannot be sent."""

    id = models.CharField(max_length=36, primary_key=True)
    topic = models.CharField(max_length=255)
    body = models.BinaryField()
    tag = models.TextField(null=True)
    message_keys = models.TextField()
    properties = models.TextField()
    shard_by = models.TextField(null=True)
    error = models.TextField(null=True)

    class Meta:
        """Its table."""

        db_table = "saturnmq_outbox"


class OutboxLease(models.Model):  # type: ignore[misc]  # Django has no types
    """The relay that sends."""

    id = models.IntegerField(primary_key=True)
    holder = models.CharField(max_length=32)
    held_until = models.BigIntegerField()

    class Meta:
        """Its table."""

        db_table = "saturnmq_outbox_lease"
