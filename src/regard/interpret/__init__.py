"""What users hold to see attention: watch(), look(), load(), heads and what they do, the adapter for transformers."""
