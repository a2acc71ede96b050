"""Recovery: the checkpoint, the plan and its execution at start."""
