"""CSV job lists of public traces as EVENTS, by a MAPPING, whose manual is docs/traces.md."""
