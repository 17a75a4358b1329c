"""What becomes an alert or a notification, who is told, and when it is tried again: pure."""
