"""Latency, throughput and acceptance of a deployment under load, held against the plain target and a baseline."""
