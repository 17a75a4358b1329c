"""The small process that stands between the agent and one pod, and outlives the agent.

It needs nothing but the standard library, so that thousands of them stay cheap. Agent and
supervisor meet only in the pod's directory: files written by rename, one lock, and two pipes as
doorbells.
"""
