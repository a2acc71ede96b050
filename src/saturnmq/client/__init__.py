"""Clients of a broker: producer, consumer, puller. asyncio first; `saturnmq.sync` is the same without await.

Import names from `saturnmq` itself; the modules of this room are its own business.
"""
