"""All SQL of Alerting; rows in, domain values out. Each function runs in its caller's
transaction.
"""
