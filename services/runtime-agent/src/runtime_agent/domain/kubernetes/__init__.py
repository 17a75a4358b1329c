"""Decisions about pods that Kubernetes runs."""
