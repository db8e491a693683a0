"""Generations: their schedule, their manifests, and the term that fences an earlier manager."""
