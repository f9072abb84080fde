"""Training: the loop, optimizers, schedules, several processes, warnings, logs and trackers."""
