"""The core in virtual time: what a cluster would decide, and how that sums up."""
