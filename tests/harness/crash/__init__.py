"""Crash-consistency tests of the store: records disk operations and checks every state that a crash may leave."""
