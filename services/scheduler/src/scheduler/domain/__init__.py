"""The Scheduler's decisions: plain functions over one cluster state, without I/O or clocks."""
