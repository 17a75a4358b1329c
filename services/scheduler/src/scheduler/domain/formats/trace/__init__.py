"""CSV job lists of public traces as EVENTS, by a MAPPING: docs/traces.md has what it may say."""
