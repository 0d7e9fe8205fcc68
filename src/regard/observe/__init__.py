"""Calls of attention seen while a model runs: how they are intercepted, and how rows of weights become a record, or are
delivered to a tap.
"""
