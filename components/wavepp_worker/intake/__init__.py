"""Prefill jobs that come over a durable queue, NATS JetStream: workers that take them, and clients that send them."""
