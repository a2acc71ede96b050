"""The tables of the outbox."""

from django.db import migrations, models


class Migration(migrations.Migration):  # type: ignore[misc]  # Django has no types
    """Create them."""

    initial = True
    dependencies = ()
    operations = (
        migrations.CreateModel(
            name="OutboxLease",
            fields=[
                ("id", models.IntegerField(primary_key=True, serialize=False)),
                ("holder", models.CharField(max_length=32)),
                ("held_until", models.BigIntegerField()),
            ],
            options={"db_table": "saturnmq_outbox_lease"},
        ),
        migrations.CreateModel(
            name="OutboxMessage",
            fields=[
                ("id", models.CharField(max_length=36, primary_key=True, serialize=False)),
                ("topic", models.CharField(max_length=255)),
                ("body", models.BinaryField()),
                ("tag", models.TextField(null=True)),
                ("message_keys", models.TextField()),
                ("properties", models.TextField()),
                ("shard_by", models.TextField(null=True)),
                ("error", models.TextField(null=True)),
            ],
            options={"db_table": "saturnmq_outbox"},
        ),
    )
