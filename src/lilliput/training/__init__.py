"""A model that learns: the loop, optimizers, schedules, state, and those who watch."""
