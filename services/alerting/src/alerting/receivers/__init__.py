"""The receivers: each sends one message and returns its outcome."""
