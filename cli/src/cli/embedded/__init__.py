"""The servers that standalone mode brings along: each is a process of its own on 127.0.0.1."""
