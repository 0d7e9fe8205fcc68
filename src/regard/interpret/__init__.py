"""The user's tools to inspect a model: watch(), look(), load_model(), scores and ablation of heads, the adapter for
transformers.
"""
