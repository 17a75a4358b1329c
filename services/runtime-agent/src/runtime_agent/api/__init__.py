"""The agent's HTTP API, for REST alone: the logs of its pods."""
