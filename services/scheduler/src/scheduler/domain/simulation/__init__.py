"""The core in virtual time: a cluster's decisions, and their sums."""
