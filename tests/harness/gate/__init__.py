"""pytest plugins of the gate: reruns of realtime tests, missing peers, how files are shared out, and where folders are."""
