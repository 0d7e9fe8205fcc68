"""What was recorded of a model's attention, as NumPy arrays: layers, records, tiles, tokens, the atlas file.

Also what is asked of them, from the weights on some keys to the word and the heads that a figure shows.

Nothing here imports torch: a record and an atlas are read, asked and shown without it.
"""
