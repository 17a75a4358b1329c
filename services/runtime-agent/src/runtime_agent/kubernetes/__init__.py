"""Pods of a Kubernetes cluster: its API server, their logs, their start."""
