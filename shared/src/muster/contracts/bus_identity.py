"""The topic with the embedded broker's identity.

The process that starts the broker writes a random id as the first record of its one partition,
before any service reaches the broker. A real Kafka has a cluster id instead.
"""

IDENTITY_TOPIC = "bus-identity"
