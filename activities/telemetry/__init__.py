"""Monitoring of a worker: traces by OpenTelemetry, metrics for Prometheus."""
