"""What was recorded of a model's attention, as NumPy arrays: layers, records, tiles, tokens, and the atlas file.

Nothing here imports torch: a record and an atlas are read, asked and shown without it.
"""
