"""What the agent answers over HTTP, to the front door alone: the logs of its pods."""
