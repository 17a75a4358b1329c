"""The Launcher's decisions: plain functions over values, without clock, database or environment."""
