"""pytest plugins of the gate: reruns of realtime tests, and peers that are missing on this machine."""
