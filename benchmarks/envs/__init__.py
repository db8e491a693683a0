"""Simulators that benchmarks train on."""
