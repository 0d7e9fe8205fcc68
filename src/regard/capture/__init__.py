"""The machinery behind watch(): interception of calls, weights from q and k, statistics, records and atlases."""
