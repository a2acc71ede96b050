"""Recovery at start: the checkpoint, the recovery plan and its execution."""
