"""Attention for PyTorch that people can build with, trust and see."""
