"""What REST asks of Alerting over HTTP; nothing is changed by it."""
