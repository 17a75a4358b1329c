"""The scheduling core: cells, virtual clusters, gangs, preemption. Values in, decisions out."""
