"""Figures of a record: in the terminal, as matplotlib figures, and as an HTML page. They need records only, not
torch.
"""
