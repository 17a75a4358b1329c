"""The agent's decisions: plain functions over values, without clock, files or environment."""
