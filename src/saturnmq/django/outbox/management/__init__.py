"""Commands of the outbox."""
