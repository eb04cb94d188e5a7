"""Parameter groups, optimizers and schedules."""
