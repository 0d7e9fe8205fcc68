"""Lessons: attention step by step, each number computed from those before it, as a page that readers take apart."""
