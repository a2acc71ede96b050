"""Message trace: records of sends and deliveries, published to a trace topic."""
