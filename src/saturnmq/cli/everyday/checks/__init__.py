"""The checks of `saturnmq doctor`. They change nothing."""
