"""The ways out: each takes one message and says what became of it."""
