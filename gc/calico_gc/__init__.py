"""The collector that finds and returns leaked addresses (not built yet: it comes with its own issue)."""
