"""The Scheduler's read-only HTTP: the queue, why something waits, and the nodes."""
