"""Pure decisions: events and alerts, their receivers, and the retries of deliveries."""
