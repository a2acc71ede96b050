"""Headers of requests and responses, by request code."""
