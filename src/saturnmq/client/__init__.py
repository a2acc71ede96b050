"""Clients of a broker: producer, consumer and puller for asyncio; `saturnmq.sync` wraps them for use without await.

Public names are imported from `saturnmq`; the modules of this package are private.
"""
