"""Building blocks of the synchronous API, `saturnmq.sync`."""
